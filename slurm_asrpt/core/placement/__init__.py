"""Job placement: job graph, Heavy-Edge, server selection, and how GPUs are split over servers.

``selection`` chooses servers among those with free GPUs, ``splitter`` splits the GPUs over them, and ``mapping`` gives
ranks to GPUs by ``heavy_edge``. ``best_alpha`` does all that on idle nodes. ``nic_sharing``: several jobs on one NIC.
``refine`` and ``oracle`` are better and slower; only benchmarks use them.
"""
