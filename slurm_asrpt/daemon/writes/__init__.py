"""What asrptd writes to Slurm: leases, starts, rank maps, the order, and the release of all that."""
