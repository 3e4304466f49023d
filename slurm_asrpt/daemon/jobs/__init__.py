"""Managed jobs.

- ``managed_job``: all that asrptd knows of a job, and its state changes. ``saved_state``: what survives a restart.
  ``table``: the jobs by ID. ``job_record``: Slurm's record without what asrptd has written.
- ``admission``: from Slurm's record to the policy's job (``policy_job``), or why not. ``consent``: may it be preempted?
- ``begin_times``: leases and begin times of the owner. ``turns``: jobs that go by Slurm's own order. ``arrays``.
- ``wait_reasons``: why a job waits.
- ``site_rules``: what the site's rules say of a job, read by ``site_reader``; ``limits``, ``refusals``, ``priorities``.
"""
