"""Batches: all jobs are known at the start, and a plan says on which GPUs each of them runs (SJF-BCO paper)."""
