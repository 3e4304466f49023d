"""What decides: jobs, clusters, iteration times, placement, policies. Values in, values out.

- ``job`` and ``cluster``: what a policy sees. ``reasons``: what it says of jobs that wait.
- ``policies``: the policies, each in a module or package of its own, and the base class that they share.
- ``placement``: which servers a job gets, and which rank goes where; ``free_index`` does the same without a scan of all
  servers. ``timing``: how long an iteration takes there.
- The site's rules: ``limits``, ``priorities``, ``multifactor`` (Slurm's own priorities), ``slurm_preemption``.
- The hardware: ``topology`` (switches), ``domains`` (NVLink), ``capacity`` (why a job can never fit).
- ``cpu_jobs``: jobs without GPUs, which no policy sees.
- ``rounds``: trainings of rounds, for pools and their simulation.
- What is learned: ``units`` of work, ``conformal`` intervals, ``sensitivity`` to the placement, ``loss_curve`` and
  ``convergence``, ``preemption_costs``.
"""
