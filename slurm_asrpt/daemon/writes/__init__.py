"""What asrptd writes to Slurm: leases, starts, rank maps, the queue order, and the release of jobs."""
