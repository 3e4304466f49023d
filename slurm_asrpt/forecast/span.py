"""Drawing run times from their 10-90% intervals.

Between low, middle and high the logarithm is normal on either side of the middle, with a spread of its own (log-normal
in two pieces): all three are met exactly, and a prediction is wrong by a factor, not by a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf(0.9)
LEAST_SPREAD = 0.05
"""Of the logarithm: nothing runs exactly as long as predicted."""
OUTLIVED = 1e-3
"""With less than this chance to have lasted so long, the interval says nothing of a job any more."""
LINGER = 0.5
"""It is then taken to run for half as long again as it has, on average (as in core/policies/occupancy)."""


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
