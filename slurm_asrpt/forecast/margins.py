"""Intervals of starts, moved by how those of the latest starts have missed.

Futures by lot are too much alike: they know nothing of the rush that comes tomorrow. So every start leaves behind by
what factor its wait missed each end of what the simulation had said, and an end is moved by a quantile of the latest
of these misses (split conformal prediction on quantiles: Romano et al. 2019). Which quantile is itself learned from
what was shown: a start beyond an end moves that end's level outwards, the others move it a little inwards, so that one
in ten lies beyond (adaptive conformal inference: Gibbs and Candès 2021, equation 2). However late starts become known,
no end is moved further than by one of those misses; and after KEPT starts older predictions are forgotten.

An interval without an upper end cannot be wrong there: to count it as one that held would make others too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

TAIL = 0.1
STEP = 0.02
"""Of a level after a start, times how far what happened is from TAIL. Half of it or the double does as well."""
KEPT = 50
"""So many starts are remembered."""
DOUBTS = 2
"""So many more are taken to have missed nothing: one start alone says little."""
SHORTEST_S = 1.0
"""Of a wait: Slurm's starts are whole seconds."""


@dataclass(frozen=True, slots=True)
class Start:
    """When a job starts, seconds; inf beyond the horizon. With 10, 50 and 90% by then."""

    earliest: float
    median: float
    latest: float


@dataclass(frozen=True, slots=True)
class Miss:
    """Logarithms of a wait over what had been simulated, with 10, 50 and 90%; None where that was open."""

    earliest: float
    median: float | None
    latest: float | None


@dataclass(frozen=True, slots=True)
class Margins:
    """misses: the latest ones, in the order of the starts. low, high: which quantile of them moves either end."""

    misses: tuple[Miss, ...] = ()
    low: float = TAIL
    high: float = 1 - TAIL

    def around(self, start: Start, made: float) -> Start:
        """What the simulation says at ``made`` seconds, with all three moved, and in order."""
        earliest = _moved(start.earliest, made, (miss.earliest for miss in self.misses), self.low)
        median = _moved(start.median, made, (miss.median for miss in self.misses), 0.5)
        latest = _moved(start.latest, made, (miss.latest for miss in self.misses), self.high)
        return Start(*sorted((earliest, median, latest)))

    def judged(self, simulated: Start, shown: Start, made: float, began: float) -> Margins:
        """After a start at ``began``, of which ``simulated`` was found at ``made`` and ``shown`` was said."""
        closed = shown.latest < math.inf
        return Margins(
            (*self.misses, _miss(simulated, made, began))[-KEPT:],
            stepped(self.low, -STEP * ((began < shown.earliest) - TAIL)),
            stepped(self.high, STEP * ((began > shown.latest) - TAIL) if closed else 0.0),
        )


def _moved(time: float, made: float, misses: Iterable[float | None], level: float) -> float:
    known = [miss for miss in misses if miss is not None]
    return made + (time - made) * math.exp(quantile([*known, *DOUBTS * [0.0]], level))


def _miss(simulated: Start, made: float, began: float) -> Miss:
    wait = max(began - made, SHORTEST_S)
    earliest, median, latest = (
        math.log(wait / max(time - made, SHORTEST_S)) if time < math.inf else None
        for time in (simulated.earliest, simulated.median, simulated.latest)
    )
    return Miss(earliest or 0.0, median, latest)  # the earliest is always known: without it there is no estimate


def quantile(values: Sequence[float], level: float) -> float:
    """Between the two nearest values, in proportion."""
    ordered = sorted(values)
    place = level * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def stepped(level: float, by: float) -> float:
    """A level after what was seen."""
    return min(max(level + by, 0.0), 1.0)
