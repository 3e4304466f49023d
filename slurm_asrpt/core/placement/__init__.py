"""Job placement: job graph, Heavy-Edge, server selection, and a model of how Slurm splits GPUs."""
