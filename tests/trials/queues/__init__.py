"""Random queues on plain Slurm, and the same beside it under asrptd: python -m tests.trials.queues --seed 1 (root)."""
