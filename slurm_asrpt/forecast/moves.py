"""By what intervals of predictions are moved, in logarithms: each user's by its own latest runs (predict.misses)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

Offsets = tuple[float, float]
"""What is added to the logarithms of the lower and of the upper end."""


@dataclass(frozen=True)
class Moves:
    """As they are now. users: by id; who is new gets what everybody's runs say."""

    everybody: Offsets = (0.0, 0.0)
    users: Mapping[int, Offsets] = field(default_factory=dict)

    def around(self, uid: int, low: float, middle: float, high: float) -> tuple[float, float]:
        """The interval that is told of a job of the user, of one that a table has."""
        return moved(self.users.get(uid, self.everybody), low, middle, high)


def moved(offsets: Offsets, low: float, middle: float, high: float) -> tuple[float, float]:
    """An interval, moved; it always holds the middle."""
    below, above = offsets
    return min(low * math.exp(below), middle), max(high * math.exp(above), middle)
