"""Conformal adjustment of the 10-90% intervals of predicted runs.

The intervals of a table hold for runs like those that it was trained on, but users work in campaigns. Therefore each
ended run yields two conformity scores: the logarithms of its length over either end of its predicted interval. A user's
intervals are adjusted by a quantile of the scores of the user's last runs, at a level that is itself learned, as for
start times (``forecast.conformal``, which gives the sources). A new user gets everybody's offsets; for other users
these count as PSEUDO_OUTCOMES additional runs.

The adjustment depends only on the sequence of runs in the order of their ends. A daemon that starts rebuilds it from
the history, so no state can be lost.
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
from slurm_asrpt.core.units import MAX_ITERATIONS
from slurm_asrpt.history.store import TRAINING_STATES, History, Origin, Run

KEPT = 50
"""Number of runs remembered per user."""
MAX_USERS = 1000
"""Beyond this number, the users whose last run is the oldest are forgotten."""
REMEMBERED, REMEMBERED_S = 5000, 30 * 86400
"""Number and age of the runs in the history that a starting daemon learns from."""


@dataclass
class _AdaptiveScores:
    """scores: conformity scores (lower, upper end) of the last runs. low, high: quantile level that adjusts each
    end."""

    scores: deque[Offsets] = field(default_factory=lambda: deque(maxlen=KEPT))
    low: float = TAIL
    high: float = 1 - TAIL

    def offsets(self, doubt: Offsets) -> Offsets:
        below, above = zip(*self.scores, *PSEUDO_OUTCOMES * [doubt], strict=True)
        return quantile(sorted(below), self.low), quantile(sorted(above), self.high)

    def learn(self, score: Offsets, beyond: tuple[bool, bool]) -> None:
        """beyond: whether the run was below, or above, the interval that would have been shown just before it ended."""
        self.scores.append(score)
        self.low = next_level(self.low, -STEP * (beyond[0] - TAIL))
        self.high = next_level(self.high, STEP * (beyond[1] - TAIL))


class RunConformal:
    """What the latest runs have taught. A user is any hashable value that tells users apart."""

    def __init__(self) -> None:
        self._everybody = _AdaptiveScores()
        self._users: dict[Hashable, _AdaptiveScores] = {}  # in the order of their last runs
        self._offsets: dict[Hashable, Offsets] = {}  # cache, cleared by each run

    @classmethod
    def of_history(cls, history: History, now: float) -> RunConformal:
        """Learn from the latest runs that asrptd recorded itself. Raises HistoryError."""
        known = "end_time >= ? AND origin = ? AND predicted_high > 0"
        learned = cls()
        for run in reversed(history.runs_where(known, (now - REMEMBERED_S, Origin.ASRPTD.value), REMEMBERED)):
            learned.learn_run(run)
        return learned

    def adjusted(self, user: Hashable, low: float, middle: float, high: float) -> tuple[float, float]:
        """The interval to show, given that of a table entry or tag. It always contains the middle."""
        return with_offsets(self._of(user), low, middle, high)

    def offsets(self) -> IntervalOffsets:
        """The current offsets of all users, for the published snapshot."""
        return IntervalOffsets(self._of(None), {user: self._of(user) for user in self._users if isinstance(user, int)})

    def learn_run(self, run: Run) -> None:
        """Learn from an ended run, if predictors would: it must have ended by itself."""
        if run.state in TRAINING_STATES and min(run.iterations, run.predicted_iterations, run.predicted_high) > 0:
            self.learn(run.uid, run.predicted_low, run.predicted_iterations, run.predicted_high, run.iterations)

    def learn(self, user: Hashable, low: float, middle: float, high: float, truth: float) -> None:
        """Learn from a run that ended after ``truth`` iterations; the other values are its prediction in a
        table or tag."""
        low = min(max(low, 1.0), middle)
        score = math.log(truth / low), math.log(truth / max(high, middle))
        told = (self._of(offsets_of) for offsets_of in (None, user))
        everybody, own = (_beyond(truth, *with_offsets(offsets, low, middle, high)) for offsets in told)
        self._everybody.learn(score, everybody)
        followed = self._users.pop(user, None) or _AdaptiveScores()
        followed.learn(score, own)
        self._users[user] = followed
        if len(self._users) > MAX_USERS:
            del self._users[next(iter(self._users))]
        self._offsets.clear()

    def _of(self, user: Hashable) -> Offsets:
        """Offsets of a user; None stands for everybody."""
        if user not in self._offsets:
            followed = self._users.get(user)
            if followed is not None:
                self._offsets[user] = followed.offsets(self._of(None))
            else:
                self._offsets[user] = self._everybody.offsets((0.0, 0.0)) if user is None else self._of(None)
        return self._offsets[user]


def rounded_interval(low: float, high: float) -> tuple[int, int]:
    """An interval as it is shown: in whole iterations that a table could hold."""
    return max(1, round(low)), round(min(high, MAX_ITERATIONS))


def including(value: float, low: float, high: float) -> tuple[float, float]:
    """An interval as it is shown beside a mean, which may lie outside of it; high is 0 without an interval."""
    return (min(low, value), max(high, value)) if high else (low, high)


def _beyond(truth: float, low: float, high: float) -> tuple[bool, bool]:
    return truth < low, truth > high
