"""Conformal intervals of start times: simulated intervals, adjusted by the errors of recent ones.

Simulated futures are too similar: they do not contain future load peaks. Therefore each start yields a conformity score
per end of its interval: the logarithm of the actual over the simulated wait. An end is adjusted by a quantile of the
latest scores (split conformal prediction on quantiles: Romano et al. 2019), taken from those with the most similar
simulated wait. The level of the quantile is learned from the published intervals: a start beyond an end moves that
level outwards, any other start moves it slightly inwards, so that one in ten starts comes after its interval and one in
twenty before it (adaptive conformal inference: Gibbs and Candès 2021, equation 2). Only the last KEPT starts count.

Long waits are observed last; without correction, completed waits alone would suggest that every job starts soon.
Therefore a job that still waits counts as a censored observation: its score is at least that of its wait so far. The
quantile is that of Kaplan and Meier (1958). If too many jobs still wait beyond their interval, the quantile does not
exist and there is no upper end.

The simulation knows the jobs that are present, not those to come, so starts are later than simulated and seldom
earlier. At first, the lower end is the simulated one and there is no upper end: with fewer than nine starts, the chance
that the next is later than all of them exceeds one in ten.

An interval without an upper end cannot miss there. Counting it as a success would make other intervals too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from slurm_asrpt.core.conformal import PSEUDO_OUTCOMES, STEP, TAIL, next_level
from slurm_asrpt.forecast.survival import kaplan_meier_quantile

EARLY, LATE = 0.05, TAIL
"""Target shares of starts before and after their intervals. Who waits for a start wants its latest time to be close;
a lower end that is seldom wrong costs little. So 85% of the intervals should hold."""
KEPT = 100
"""Number of starts that are remembered."""
NEIGHBORS = 40
"""Number of scores, of starts and of waiting jobs, that determine an adjustment."""
MIN_STARTS = math.ceil(1 / LATE) - 1
"""Number of starts required before an upper end is given."""
SHORTEST_S = 1.0
"""Shortest wait that is distinguished: Slurm's starts are whole seconds."""


class OpenEnd(StrEnum):
    """Why an interval has no upper end."""

    HORIZON = "horizon"  # in more than a tenth of the simulated futures the job does not start
    FEW_STARTS = "few-starts"
    LATE_STARTS = "late-starts"  # too many jobs still wait beyond their intervals


@dataclass(frozen=True, slots=True)
class StartInterval:
    """Start time of a job, seconds: quantiles at 5, 50 and 90%; inf beyond the horizon.

    open_end: why ``latest`` is inf, an ``OpenEnd``; empty if it is not, or for an interval that is not adjusted.
    """

    earliest: float
    median: float
    latest: float
    open_end: str = ""


@dataclass(frozen=True, slots=True)
class ConformityScore:
    """Logarithms of the actual over the simulated wait, for the 5, 50 and 90% quantiles; None if that quantile was
    infinite. The field names are keys in saved files.

    simulated: logarithm of the simulated wait in seconds, at 5%. waits: whether the job still waits (a censored
    score).
    """

    earliest: float
    median: float | None
    latest: float | None
    simulated: float = 0.0
    waits: bool = False


@dataclass(frozen=True, slots=True)
class StartConformal:
    """The adjustment of simulated start times. The field names are keys in saved files.

    misses: the latest conformity scores, in the order of the starts.
    low, high: level of the quantile that adjusts either end.
    waiting: the scores so far of the jobs that still wait.
    """

    misses: tuple[ConformityScore, ...] = ()
    low: float = EARLY
    high: float = 1 - LATE
    waiting: tuple[ConformityScore, ...] = ()

    def with_waiting(self, now: float, intervals: Iterable[tuple[StartInterval, float]]) -> StartConformal:
        """Add the jobs that still wait. intervals: for each, the simulated interval and when it was simulated."""
        return replace(self, waiting=tuple(_score(simulated, made, now, waits=True) for simulated, made in intervals))

    def adjusted(self, start: StartInterval, made: float) -> StartInterval:
        """An interval simulated at ``made`` (seconds) with all three quantiles adjusted, in order.

        The earliest start is finite if the simulated one is: where too many jobs still wait to know the quantile, it is
        adjusted by the largest score so far.
        """
        size = _log(start.earliest - made)
        nearest = sorted((*self.misses, *self.waiting), key=lambda score: abs(score.simulated - size))[:NEIGHBORS]
        earliest = _adjusted(start.earliest, made, [(score.earliest, score.waits) for score in nearest], self.low)
        if earliest == math.inf:
            earliest = _scaled(start.earliest, made, max([0.0, *(score.earliest for score in nearest)]))
        median = _adjusted(start.median, made, ((score.median, score.waits) for score in nearest), 0.5)
        latest = math.inf
        if len(self.misses) >= MIN_STARTS:
            latest = _adjusted(start.latest, made, ((score.latest, score.waits) for score in nearest), self.high)
        earliest, median, latest = sorted((earliest, median, latest))
        return StartInterval(earliest, median, latest, self._open_end(start) if latest == math.inf else "")

    def _open_end(self, simulated: StartInterval) -> OpenEnd:
        if simulated.latest == math.inf:
            return OpenEnd.HORIZON  # more starts would not help
        return OpenEnd.FEW_STARTS if len(self.misses) < MIN_STARTS else OpenEnd.LATE_STARTS

    def updated(self, simulated: StartInterval, shown: StartInterval, made: float, began: float) -> StartConformal:
        """Learn from a start at ``began``. simulated: the interval simulated at ``made``; shown: the interval
        that was published."""
        bounded = shown.latest < math.inf
        return StartConformal(
            (*self.misses, _score(simulated, made, began))[-KEPT:],
            next_level(self.low, -STEP * ((began < shown.earliest) - EARLY)),
            next_level(self.high, STEP * ((began > shown.latest) - LATE) if bounded else 0.0),
        )


def _adjusted(time: float, made: float, scores: Iterable[tuple[float | None, bool]], level: float) -> float:
    known = [(score, waits) for score, waits in scores if score is not None]
    by = kaplan_meier_quantile(sorted([*known, *PSEUDO_OUTCOMES * [(0.0, False)]]), level)
    return _scaled(time, made, by) if by < math.inf else math.inf


def _scaled(time: float, made: float, by: float) -> float:
    return made + (time - made) * math.exp(by)


def _score(simulated: StartInterval, made: float, began: float, waits: bool = False) -> ConformityScore:
    wait = _log(began - made)
    earliest, median, latest = (
        wait - _log(time - made) if time < math.inf else None
        for time in (simulated.earliest, simulated.median, simulated.latest)
    )
    size = _log(simulated.earliest - made)
    return ConformityScore(earliest or 0.0, median, latest, size, waits)  # every estimate has a finite earliest start


def _log(wait_s: float) -> float:
    return math.log(max(wait_s, SHORTEST_S))
