"""The interface to Slurm: reads jobs and nodes, writes decisions back."""
