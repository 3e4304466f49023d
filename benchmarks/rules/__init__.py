"""A site's rules on a real Slurm, plain and under asrptd; see ``__main__``."""
