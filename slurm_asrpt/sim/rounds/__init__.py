"""Simulation of jobs that train in rounds on mixed GPUs (Hare)."""
