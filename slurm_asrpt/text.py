"""Numbers and durations as people who use Slurm read them."""

from __future__ import annotations

from functools import lru_cache


def counted(number: int, noun: str, form: str = "") -> str:
    """``1 job``, ``2 jobs``. form: how the number is written, as ``","`` for 2,000."""
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"


UNKNOWN = "-"
"""What stands where a duration or a figure is not known."""


@lru_cache(4096)  # asrpt-status asks four times for each of 10,000 jobs, and jobs that recur are predicted alike
def slurm_time(seconds: float | None) -> str:
    """A duration as Slurm writes it: [D-]HH:MM:SS; ``-`` where not known."""
    if seconds is None or not 0 <= seconds < 1e12:
        return UNKNOWN
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-" * bool(days) + f"{hour:02d}:{minute:02d}:{second:02d}"
