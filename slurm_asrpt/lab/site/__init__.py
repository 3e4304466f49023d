"""A site on labs: the jobs that its users submit, the ways to schedule them, and the figures to compare these by."""
