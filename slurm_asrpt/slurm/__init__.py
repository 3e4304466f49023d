"""The interface to Slurm: reads jobs and nodes, writes decisions back.

- Clients: ``client`` (the protocol), ``cli`` (commands, run by ``commands``; ``incremental`` reads only what changes)
  and ``pyslurm``.
- What Slurm says, as values: ``records``, made by ``parse``; its notations: ``notation``, ``gres``, ``node_list``.
- What a job asks for: ``request``, ``chosen_by_slurm`` (jobs whose nodes Slurm must choose), ``features``,
  ``gpu_defaults``; of one that is to be submitted: ``sbatch``.
- The rules of a site: ``site``, with ``limits``, ``priorities``, ``partitions``, ``preemption``, ``scheduler``,
  ``pace`` and ``topology``.
- What asrptd writes: ``writeback``.
"""
