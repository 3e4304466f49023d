"""Traces of jobs: what ran where, as clean columns, whatever file it came from."""

from slurm_asrpt.sim.traces.base import COLUMNS, Trace, clean

__all__ = ["COLUMNS", "Trace", "clean"]
