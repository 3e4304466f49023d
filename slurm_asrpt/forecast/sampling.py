"""Drawing run times from their 10-90% intervals.

Between low, middle and high the logarithm is normal on either side of the middle, with a spread of its own (log-normal
in two pieces): all three are met exactly, and a prediction is wrong by a factor, not by a number.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.job import JobId

Floats = NDArray[np.float64]

_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf(0.9)
LEAST_SPREAD = 0.05
"""Of the logarithm: nothing runs exactly as long as predicted."""
OUTLIVED = 1e-3
"""With less than this chance to have lasted so long, the interval says nothing of a job any more."""
LINGER = 0.5
"""It is then taken to run for half as long again as it has, on average (as in core/policies/running_jobs)."""


@dataclass(frozen=True, slots=True)
class Span:
    """How long something lasts, in any unit: with 10, 50 and 90% it is at most so long."""

    low: float
    middle: float
    high: float

    @classmethod
    def around(cls, middle: float, low: float, high: float) -> Span:
        """In the right order, whatever stands in a tag."""
        return cls(min(low or middle, middle), middle, max(high, middle))

    def times(self, factor: float) -> Span:
        return Span(self.low * factor, self.middle * factor, self.high * factor)

    @property
    def spreads(self) -> tuple[float, float]:
        """Standard deviations of the logarithm below and above the middle."""
        below, above = math.log(self.middle / self.low) / _Z, math.log(self.high / self.middle) / _Z
        return max(below, LEAST_SPREAD), max(above, LEAST_SPREAD)


UNKNOWN_S = Span(60.0, 3600.0, 86400.0)
"""Seconds that a job lasts of which nothing is predicted."""


class Spans:
    """Many at once. Raises ValueError for one that is not above 0."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self.middle = np.array([span.middle for span in spans])
        self._below, self._above = np.array([span.spreads for span in spans]).reshape(-1, 2).T

    def draw(self, rng: np.random.Generator) -> Floats:
        """One length for each."""
        return self.at(rng.standard_normal(len(self.middle)))

    def at(self, z: Floats) -> Floats:
        """The lengths that lie so many standard deviations beside the middle."""
        return np.asarray(self.middle * np.exp(z * np.where(z < 0, self._below, self._above)))


def left(span: Span, ran: float, chance: float) -> float:
    """What is left of a span of which ``ran`` is over, with a ``chance`` in (0, 1) that it is at least so much."""
    below, above = span.spreads
    place = math.log(ran / span.middle) if ran > 0 else -math.inf
    z = place / (below if place < 0 else above)
    outlast = 1.0 - _NORMAL.cdf(z)
    if outlast < OUTLIVED:
        return -LINGER * ran * math.log(chance)
    z = -_NORMAL.inv_cdf(outlast * chance)
    return max(0.0, span.middle * math.exp(z * (below if z < 0 else above)) - ran)


ALIKE = 0.7
"""Correlation of the misses of an array's tasks: that of jobs that one user submits at once (benchmarks.alike)."""
_COMMON, _OWN = math.sqrt(ALIKE), math.sqrt(1.0 - ALIKE)
Tasks = tuple[tuple[int, str], ...]
"""Which of some jobs are tasks of an array, and of which array."""


def tasks_in(ids: Sequence[JobId]) -> Tasks:
    split = (job_id.partition("_") for job_id in ids)
    return tuple((at, array) for at, (array, mark, _) in enumerate(split) if mark)


class Luck:
    """Of one future."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._common = rng, defaultdict[str, float](rng.standard_normal)

    def normals(self, count: int, tasks: Tasks) -> Floats:
        """So many standard normal numbers; ``tasks`` of them with what their arrays have in common."""
        drawn = self._rng.standard_normal(count)
        for at, array in tasks:
            drawn[at] = self._with_common(drawn[at], array)
        return drawn

    def chances(self, count: int, tasks: Tasks) -> list[float]:
        """So many numbers in (0, 1], the least for the longest jobs."""
        drawn: list[float] = (1.0 - self._rng.random(count)).tolist()  # never 0
        for at, array in tasks:
            drawn[at] = _NORMAL.cdf(-self._with_common(-_NORMAL.inv_cdf(min(drawn[at], 1.0 - 1e-16)), array))
        return drawn

    def of_tasks(self, array: str, count: int) -> Floats:
        """As ``normals``, all of one array."""
        return _COMMON * self._common[array] + _OWN * self._rng.standard_normal(count)

    def _with_common(self, own: float, array: str) -> float:
        return _COMMON * self._common[array] + _OWN * own
