"""The one seam to Slurm: reading jobs and nodes, writing decisions back."""
