"""How many tasks of a job array are in the order at a time."""

from __future__ import annotations

AHEAD = 100
"""So many tasks of an array may wait as jobs of their own."""


def room(waiting: int, known: int, most: int) -> int:
    """How many tasks of an array may become jobs now.

    waiting: those of its tasks that are jobs and wait; known: all that are, those that run as well. most: so many may
    run at once, 0 without a bound.
    """
    return max(0, min(most - known if most else AHEAD, AHEAD - waiting))
