"""Where a job goes: job graph, Heavy-Edge, server selection, and the model of Slurm's own GPU splitter."""
