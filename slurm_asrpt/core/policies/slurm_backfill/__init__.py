"""slurm-backfill: Slurm's own scheduling (docs/decisions/0035)."""
