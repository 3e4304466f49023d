"""Prediction-assisted, placement-aware scheduling of deep-learning jobs on Slurm."""

__version__ = "0.1.0"
