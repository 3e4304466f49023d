"""asrpt-pool: many trainings share the slots of one Slurm job, task by task (Hare, section II)."""
