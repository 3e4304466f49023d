"""Units of work: training iterations count for one profile only, seconds are the same for all jobs.

Seconds are those that a job takes in its best placement on reference GPUs. A job without a profile has one iteration
per second, so for it both units are the same (docs/decisions/0002).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NewType

Iterations = NewType("Iterations", float)
Seconds = NewType("Seconds", float)

MAX_ITERATIONS = 10**12


class Unit(StrEnum):
    """The unit of a prediction. ITERATIONS: of the job's own profile."""

    ITERATIONS = "iterations"
    SECONDS = "seconds"


def whole_iterations(work: float, alpha: float) -> int:
    """The iterations that this work is. work: seconds. alpha: seconds per iteration; 0 if unknown, which gives 0."""
    return min(max(1, round(work / alpha)), MAX_ITERATIONS) if work > 0 and alpha > 0 else 0
