"""Intervals of starts, moved by how often they have held.

Futures by lot are too much alike: they know nothing of the rush that comes tomorrow. So both ends of each interval are
moved, in logarithms of the wait, by margins that every start beyond them widens and every other one narrows a little,
until one in ten lies beyond either (adaptive conformal inference: Gibbs and Candès 2021). An interval without an upper
end cannot be wrong there: to count it as one that held would make those with one too narrow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

STEP = 0.1
TAIL = 0.1
LEAST, MOST = -1.0, 4.0
"""Of a margin: from about a third of the wait to fifty times as long."""


@dataclass(frozen=True, slots=True)
class Start:
    """When a job starts, seconds; inf beyond the horizon. With 10, 50 and 90% by then."""

    earliest: float
    median: float
    latest: float


@dataclass(frozen=True, slots=True)
class Margins:
    before: float = 0.0
    after: float = 0.0

    def around(self, start: Start, made: float) -> Start:
        """The estimate, made at ``made`` seconds, with both ends moved, but never beyond its median."""
        earliest = made + (start.earliest - made) * math.exp(-self.before)
        latest = made + (start.latest - made) * math.exp(self.after)
        return Start(min(earliest, start.median), start.median, max(latest, start.median))

    def judged(self, shown: Start, began: float) -> Margins:
        """After a start at ``began``, of which ``shown`` was said."""
        after = _moved(self.after, began > shown.latest) if shown.latest < math.inf else self.after
        return Margins(_moved(self.before, began < shown.earliest), after)


def _moved(margin: float, beyond: bool) -> float:
    return min(max(margin + STEP * (beyond - TAIL), LEAST), MOST)
