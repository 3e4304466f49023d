"""Job placement: job graph, Heavy-Edge, server selection, and how GPUs are split over servers."""
