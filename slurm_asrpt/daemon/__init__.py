"""asrptd: the control loop, its state, and what it records.

``main`` is the process, ``scheduling`` creates its parts, and ``cycle`` runs one cycle:

1. Read. ``lifecycle``: jobs appear, start, end, are requeued. ``cluster``: nodes and what is free. ``topology``, and
   ``jobs.site_rules``: reservations, limits, priorities, preemption.
2. Admit. ``eligibility`` asks ``jobs.admission`` about each pending job. What has been learned since its submission:
   ``late_predictions``, ``communication``, ``loss_sizes``. ``policy_feed`` tells the policy.
3. Decide. ``decider`` asks the policy, and ``cpu_jobs`` starts jobs without GPUs beside it (by ``expected_ends``).
   ``preemption`` signals and requeues, ``checkpoint_times`` says how long it waits. ``power_saving``, ``placements``.
4. Write. ``slurm_writer`` saves the ``state`` (in ``spare_file`` if the disk is full), then lets ``writes`` do it.

After the cycle: ``published`` writes what ``status``, ``forecasts`` and ``dashboard`` make. ``record`` (audit trail,
history), ``metrics``, ``maintenance``. ``what_if`` admits and simulates a job that is not submitted, for asrpt-status.
Around the loop: ``setup``, ``leader`` and ``guard``, ``clock`` and ``wakeup``, ``disable``, ``profiles`` and
``profile_names``, ``log_once``.
"""
