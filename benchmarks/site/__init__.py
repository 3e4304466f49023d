"""Weeks of real clusters on a real Slurm in accelerated time; see ``__main__``."""
