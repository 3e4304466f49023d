"""Adaptive conformal intervals: what those of predicted runs and those of start times share.

An interval is moved by quantiles of what the latest ones missed; which quantile is learned from how often they held
(Gibbs and Candès 2021, equation 2). predict/conformal.py does so for runs, forecast/conformal.py for starts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

TAIL = 0.1
"""The share of what happens that should lie beyond each end."""
STEP = 0.02
"""Of a level after an outcome, times how far the outcome is from TAIL. Half or twice as much does as well."""
PSEUDO_OUTCOMES = 2
"""So many outcomes are added that missed nothing: one alone says little."""

Offsets = tuple[float, float]
"""What is added to the logarithms of the lower and of the upper end."""


@dataclass(frozen=True)
class IntervalOffsets:
    """As they are now. users: by id; who is new gets what everybody's runs say."""

    everybody: Offsets = (0.0, 0.0)
    users: Mapping[int, Offsets] = field(default_factory=dict)

    def adjusted(self, uid: int, low: float, middle: float, high: float) -> tuple[float, float]:
        """The interval that is told of a job of the user, of one that a table has."""
        return with_offsets(self.users.get(uid, self.everybody), low, middle, high)


def with_offsets(offsets: Offsets, low: float, middle: float, high: float) -> tuple[float, float]:
    """An interval, moved; it always holds the middle."""
    below, above = offsets
    return min(low * math.exp(below), middle), max(high * math.exp(above), middle)


def next_level(level: float, by: float) -> float:
    """A level after what was seen, within [0, 1]."""
    return min(max(level + by, 0.0), 1.0)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two values nearest to ``share`` of the way, in proportion. ordered: at least one."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
