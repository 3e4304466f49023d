"""Intervals of starts, moved by how those of the latest starts have missed.

Futures by lot are too much alike: they know nothing of the rush that comes tomorrow. So every start leaves behind by
what factor its wait missed each end of what the simulation had said, and an end is moved by a quantile of the latest
of these misses (split conformal prediction on quantiles: Romano et al. 2019), of those whose simulated wait was the
most like. Which quantile is itself learned from what was shown: a start beyond an end moves that end's level outwards,
the others move it a little inwards, so that one in ten lies beyond (adaptive conformal inference: Gibbs and Candès
2021, equation 2). After KEPT starts older predictions are forgotten.

Those who wait long are known last, and the others alone would teach that all start soon. So a job that still waits
counts, too: it misses by no less than by what it has waited. The quantile is that of Kaplan and Meier (1958); where
too many still wait beyond what was said of them there is none, and nobody knows an upper end.

The simulation knows who is there and not who comes: starts come later than it says, and seldom earlier. So at first its
lower end stands, and there is no upper one: of fewer than nine starts it is more than one in ten that the next comes
later than all of them.

An interval without an upper end cannot be wrong there: to count it as one that held would make others too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from slurm_asrpt.core.conformal import PSEUDO_OUTCOMES, STEP, TAIL, next_level
from slurm_asrpt.forecast.survival import kaplan_meier_quantile

KEPT = 100
"""So many starts are remembered."""
NEIGHBORS = 40
"""So many of them, and of those that wait, say by how much an end is moved."""
MIN_STARTS = math.ceil(1 / TAIL) - 1
"""So many starts must be known before an upper end is said."""
SHORTEST_S = 1.0
"""Of a wait: Slurm's starts are whole seconds."""


@dataclass(frozen=True, slots=True)
class StartInterval:
    """When a job starts, seconds; inf beyond the horizon. With 10, 50 and 90% by then."""

    earliest: float
    median: float
    latest: float


@dataclass(frozen=True, slots=True)
class ConformityScore:
    """Logarithms of a wait over what had been simulated, with 10, 50 and 90%; None where that was open.

    simulated: the logarithm of the simulated wait itself, in seconds, with 10%. waits: it goes on.
    """

    earliest: float
    median: float | None
    latest: float | None
    simulated: float = 0.0
    waits: bool = False


@dataclass(frozen=True, slots=True)
class StartConformal:
    """misses: the latest ones, in the order of the starts. low, high: which quantile of them moves either end.

    waiting: the misses so far of those that have not started.
    """

    misses: tuple[ConformityScore, ...] = ()
    low: float = TAIL
    high: float = 1 - TAIL
    waiting: tuple[ConformityScore, ...] = ()

    def with_waiting(self, now: float, told: Iterable[tuple[StartInterval, float]]) -> StartConformal:
        """With those that still wait: what was simulated of them, and when."""
        return replace(self, waiting=tuple(_score(simulated, made, now, waits=True) for simulated, made in told))

    def adjusted(self, start: StartInterval, made: float) -> StartInterval:
        """What the simulation says at ``made`` seconds, with all three moved, and in order."""
        size = _log(start.earliest - made)
        like = sorted((*self.misses, *self.waiting), key=lambda miss: abs(miss.simulated - size))[:NEIGHBORS]
        earliest = _adjusted(start.earliest, made, ((miss.earliest, miss.waits) for miss in like), self.low)
        median = _adjusted(start.median, made, ((miss.median, miss.waits) for miss in like), 0.5)
        latest = math.inf
        if len(self.misses) >= MIN_STARTS:
            latest = _adjusted(start.latest, made, ((miss.latest, miss.waits) for miss in like), self.high)
        return StartInterval(*sorted((earliest, median, latest)))

    def updated(self, simulated: StartInterval, shown: StartInterval, made: float, began: float) -> StartConformal:
        """After a start at ``began``, of which ``simulated`` was found at ``made`` and ``shown`` was said."""
        closed = shown.latest < math.inf
        return StartConformal(
            (*self.misses, _score(simulated, made, began))[-KEPT:],
            next_level(self.low, -STEP * ((began < shown.earliest) - TAIL)),
            next_level(self.high, STEP * ((began > shown.latest) - TAIL) if closed else 0.0),
        )


def _adjusted(time: float, made: float, misses: Iterable[tuple[float | None, bool]], level: float) -> float:
    known = [(miss, waits) for miss, waits in misses if miss is not None]
    by = kaplan_meier_quantile(sorted([*known, *PSEUDO_OUTCOMES * [(0.0, False)]]), level)
    return made + (time - made) * math.exp(by) if by < math.inf else math.inf


def _score(simulated: StartInterval, made: float, began: float, waits: bool = False) -> ConformityScore:
    wait = _log(began - made)
    earliest, median, latest = (
        wait - _log(time - made) if time < math.inf else None
        for time in (simulated.earliest, simulated.median, simulated.latest)
    )
    size = _log(simulated.earliest - made)
    return ConformityScore(earliest or 0.0, median, latest, size, waits)  # without an earliest there is no estimate


def _log(wait_s: float) -> float:
    return math.log(max(wait_s, SHORTEST_S))
