"""Numbers of things in words."""

from __future__ import annotations


def counted(number: int, noun: str, form: str = "") -> str:
    """``1 job``, ``2 jobs``. form: how the number is written, as ``","`` for 2,000."""
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"
