"""Durations as Slurm writes them, which is how people who use it read them."""

from __future__ import annotations

from functools import lru_cache

UNKNOWN = "-"


@lru_cache(4096)  # asrpt-status asks four times for each of 10,000 jobs, and jobs that recur are predicted alike
def slurm_time(seconds: float | None) -> str:
    """A duration as Slurm writes it: [D-]HH:MM:SS; ``-`` where not known."""
    if seconds is None or not 0 <= seconds < 1e12:
        return UNKNOWN
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-" * bool(days) + f"{hour:02d}:{minute:02d}:{second:02d}"
