"""Adaptive conformal intervals, shared by the intervals of predicted runs and of start times.

Each end of an interval is adjusted by a quantile of the most recent conformity scores. The level of that quantile is
learned from how often the interval covered the outcome (Gibbs and Candès 2021, equation 2). predict/conformal.py does
this for runs, forecast/conformal.py for start times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TAIL = 0.1
"""Target share of outcomes beyond each end."""
STEP = 0.02
"""Learning rate: a level changes by STEP times the distance of an outcome from TAIL. Half or twice this rate works
equally well."""
PSEUDO_OUTCOMES = 2
"""Outcomes with a score of zero that are added to the observed ones: a single outcome says little."""

Offsets = tuple[float, float]
"""Added to the logarithms of the lower and of the upper end."""


@dataclass(frozen=True)
class IntervalOffsets:
    """Current offsets of all users. users: by user ID; a new user gets everybody's offsets."""

    everybody: Offsets = (0.0, 0.0)
    users: Mapping[int, Offsets] = field(default_factory=dict)

    def adjusted(self, uid: int, low: float, middle: float, high: float) -> tuple[float, float]:
        """The interval that asrptd shows for a job of this user, given the interval of a table entry."""
        return with_offsets(self.users.get(uid, self.everybody), low, middle, high)


def with_offsets(offsets: Offsets, low: float, middle: float, high: float) -> tuple[float, float]:
    """Apply the offsets to an interval. The result always contains the middle."""
    below, above = offsets
    return min(low * math.exp(below), middle), max(high * math.exp(above), middle)


def next_level(level: float, by: float) -> float:
    """The quantile level after an outcome, clipped to [0, 1]."""
    return min(max(level + by, 0.0), 1.0)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the two order statistics nearest to ``share``. ordered: sorted, at least one
    value.

    For a few values this is many times faster than numpy.
    """
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
