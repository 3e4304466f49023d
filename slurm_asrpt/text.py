"""Numbers and durations in Slurm's notation, and what an output can show."""

from __future__ import annotations

from functools import lru_cache


def counted(number: int, noun: str, form: str = "") -> str:
    """``1 job``, ``2 jobs``. form: format of the number, such as ``","`` for 2,000."""
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"


def can_show(text: str, encoding: str | None) -> bool:
    """Whether an output of this encoding has all characters of the text. None: unknown, only ASCII is certain."""
    try:
        text.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def span(seconds: float) -> str:
    """``2.5 days``, ``1 day``, down to seconds."""
    for size, unit in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            found = f"{seconds / size:.1f}".removesuffix(".0")
            return f"{found} {unit.removesuffix('s') if found == '1' else unit}"
    return f"{seconds:.0f} s"


UNKNOWN = "-"
"""Shown for an unknown duration or figure."""


@lru_cache(4096)  # asrpt-status calls it four times for each of 10,000 jobs, often with equal values
def slurm_time(seconds: float | None) -> str:
    """A duration in Slurm's notation, [D-]HH:MM:SS; ``-`` if unknown."""
    if seconds is None or not 0 <= seconds < 1e12:
        return UNKNOWN
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    return f"{days}-" * bool(days) + f"{hour:02d}:{minute:02d}:{second:02d}"
