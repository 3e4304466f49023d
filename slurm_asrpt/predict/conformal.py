"""10-90% intervals of predictions, moved by how those of the latest runs have missed.

A table's intervals hold for runs like those that it was made from, and users work in campaigns. So every run that ends
leaves behind by what factor it missed each end of its prediction's interval, and a user's intervals are moved by a
quantile of what the user's last runs missed, at a level that is itself learned, as start times are moved
(``forecast.margins``, which has the sources). Everybody's offsets are what a user who is new gets, and for the others
they count as DOUBTS runs more.

What is learned is a sequence of runs in the order of their ends and nothing else: a daemon that starts makes it anew
from the history, and there is no state to lose.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from slurm_asrpt.core.conformal import (
    PSEUDO_OUTCOMES,
    STEP,
    TAIL,
    IntervalOffsets,
    Offsets,
    next_level,
    quantile,
    with_offsets,
)
from slurm_asrpt.history.store import TRAINING_STATES, History, Origin, Run
from slurm_asrpt.hook.table import MAX_ITERATIONS

KEPT = 50
"""So many of a user's runs are remembered."""
MAX_USERS = 1000
"""Of more those are forgotten whose last run is the longest ago."""
REMEMBERED, REMEMBERED_S = 5000, 30 * 86400
"""So many runs of the history a new daemon learns from, and of so long ago."""


@dataclass
class _AdaptiveScores:
    """misses: logarithms of the last runs over either end. low, high: which quantile of them moves that end."""

    misses: deque[Offsets] = field(default_factory=lambda: deque(maxlen=KEPT))
    low: float = TAIL
    high: float = 1 - TAIL

    def offsets(self, doubt: Offsets) -> Offsets:
        below, above = zip(*self.misses, *PSEUDO_OUTCOMES * [doubt], strict=True)
        return quantile(sorted(below), self.low), quantile(sorted(above), self.high)

    def learn(self, miss: Offsets, beyond: tuple[bool, bool]) -> None:
        """beyond: whether the run lay below, and above, what would have been told of it just before it ended."""
        self.misses.append(miss)
        self.low = next_level(self.low, -STEP * (beyond[0] - TAIL))
        self.high = next_level(self.high, STEP * (beyond[1] - TAIL))


class RunConformal:
    """What the latest runs have taught. A user is whatever tells users apart."""

    def __init__(self) -> None:
        self._everybody = _AdaptiveScores()
        self._users: dict[Hashable, _AdaptiveScores] = {}  # the one whose last run is the longest ago comes first
        self._offsets: dict[Hashable, Offsets] = {}  # as far as asked for since the last run

    @classmethod
    def of_history(cls, history: History, now: float) -> RunConformal:
        """From the latest runs that asrptd has seen itself. Raises HistoryError."""
        known = "end_time >= ? AND origin = ? AND predicted_high > 0"
        misses = cls()
        for run in reversed(history.runs_where(known, (now - REMEMBERED_S, Origin.ASRPTD.value), REMEMBERED)):
            misses.learn_run(run)
        return misses

    def adjusted(self, user: Hashable, low: float, middle: float, high: float) -> tuple[float, float]:
        """The interval that is told now, of one that a table or a tag has. It always holds the middle."""
        return with_offsets(self._of(user), low, middle, high)

    def offsets(self) -> IntervalOffsets:
        """For who has but the numbers."""
        return IntervalOffsets(self._of(None), {user: self._of(user) for user in self._users if isinstance(user, int)})

    def learn_run(self, run: Run) -> None:
        """A run of its own end teaches, as it does the predictors."""
        if run.state in TRAINING_STATES and min(run.iterations, run.predicted_iterations, run.predicted_high) > 0:
            self.learn(run.uid, run.predicted_low, run.predicted_iterations, run.predicted_high, run.iterations)

    def learn(self, user: Hashable, low: float, middle: float, high: float, truth: float) -> None:
        """A run has ended after ``truth`` iterations; of it a table or a tag had said the others."""
        low = min(max(low, 1.0), middle)
        miss = math.log(truth / low), math.log(truth / max(high, middle))
        told = (self._of(offsets_of) for offsets_of in (None, user))
        everybody, own = (_beyond(truth, *with_offsets(offsets, low, middle, high)) for offsets in told)
        self._everybody.learn(miss, everybody)
        followed = self._users.pop(user, None) or _AdaptiveScores()
        followed.learn(miss, own)
        self._users[user] = followed
        if len(self._users) > MAX_USERS:
            del self._users[next(iter(self._users))]
        self._offsets.clear()

    def _of(self, user: Hashable) -> Offsets:
        """None is everybody."""
        if user not in self._offsets:
            followed = self._users.get(user)
            if followed is not None:
                self._offsets[user] = followed.offsets(self._of(None))
            else:
                self._offsets[user] = self._everybody.offsets((0.0, 0.0)) if user is None else self._of(None)
        return self._offsets[user]


def rounded_interval(low: float, high: float) -> tuple[int, int]:
    """As an interval is shown: in iterations that a table could hold."""
    return max(1, round(low)), round(min(high, MAX_ITERATIONS))


def _beyond(truth: float, low: float, high: float) -> tuple[bool, bool]:
    return truth < low, truth > high
