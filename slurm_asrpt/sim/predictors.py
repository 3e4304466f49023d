"""Predicted iterations in a simulation, learned from what has ended before and never from the future."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from slurm_asrpt.predict.forest import fit_columns

Floats = NDArray[np.float64]

PREDICTORS = ("perfect", "forest", "mean", "median")
TREES = 100
RETRAIN_S = 3600.0
"""How often a simulated cluster retrains, seconds; the paper retrains hourly or daily (section IV-C.3)."""


@dataclass(frozen=True)
class Learning:
    """What a simulated cluster goes on learning from: the runs of each group that ended before it began.

    groups: the group of each job, shape (n,). past: iterations of a group's ended runs. by_median: else by their mean.
    retrain_s: seconds between two retrainings; what ends in between is not known before the next one.
    """

    groups: Sequence[str]
    past: Mapping[str, Sequence[float]]
    by_median: bool = False
    retrain_s: float = RETRAIN_S


class Learner:
    """Predictions of one simulation under way.

    The forest is not grown anew at each retraining: its trees part every (group, user) cell from all others, so a
    group's prediction depends on its own runs alone, and with ever more trees it is their mean (a bootstrap's mean is
    the sample's on average). That limit is what a retraining gives a group here; test_predictors.py compares the two.
    """

    def __init__(self, learning: Learning, predicted: Sequence[float], begin: float) -> None:
        self._groups, self._past, self._by_median = learning.groups, learning.past, learning.by_median
        self._period, self._next = learning.retrain_s, begin + learning.retrain_s
        self._first = predicted
        self._runs: dict[str, list[float]] = {}  # ascending, of the groups that have changed
        self._changed: set[str] = set()
        self._known: dict[str, float] = {}

    def ended(self, row: int, iterations: float, now: float) -> None:
        """The job in this row has run to its end."""
        if now >= self._next:
            self._retrain(now)
        group = self._groups[row]
        runs = self._runs.get(group)
        if runs is None:
            runs = self._runs[group] = sorted(self._past.get(group, ()))
        insort(runs, iterations)
        self._changed.add(group)

    def predict(self, row: int, now: float) -> float:
        """ñ of the job in this row, as the last retraining knows it."""
        if now >= self._next:
            self._retrain(now)
        known = self._known.get(self._groups[row])
        return self._first[row] if known is None else known

    def _retrain(self, now: float) -> None:
        self._next += self._period * (1 + (now - self._next) // self._period)
        average = median if self._by_median else fmean
        for group in self._changed:
            self._known[group] = average(self._runs[group])
        self._changed.clear()


def predict(name: str, past: pd.DataFrame, groups: Sequence[str], truth: Floats, seed: int = 0) -> Floats:
    """ñ for each job of ``groups``; 0 for a group that the past does not hold.

    past: columns group, user, iterations. truth: n_i, which only "perfect" looks at.
    Raises ValueError for an unknown predictor.
    """
    if name == "perfect":
        return truth
    if name not in _LEARNED:
        raise ValueError(f"no predictor is called {name!r}; known: {', '.join(PREDICTORS)}")
    table = _LEARNED[name](past[past["group"] != ""], seed)
    return np.array([table.get(group, 0.0) for group in groups], dtype=np.float64)


def learning(name: str, past: pd.DataFrame, groups: Sequence[str], retrain_s: float) -> Learning | None:
    """What the predictor ``name`` goes on learning from; None for one that knows all."""
    if name == "perfect":
        return None
    wanted = set(groups)
    mine = past[past["group"].isin(wanted)]
    runs = {str(group): rows.tolist() for group, rows in mine.groupby("group")["iterations"]}
    return Learning(groups, runs, name == "median", retrain_s)


def _forest(past: pd.DataFrame, seed: int) -> Mapping[str, float]:
    return fit_columns(past["group"].tolist(), past["user"].tolist(), past["iterations"], TREES, seed)


def _mean(past: pd.DataFrame, seed: int) -> Mapping[str, float]:
    return dict(past.groupby("group")["iterations"].mean())


def _median(past: pd.DataFrame, seed: int) -> Mapping[str, float]:
    return dict(past.groupby("group")["iterations"].median())


_LEARNED: Mapping[str, Callable[[pd.DataFrame, int], Mapping[str, float]]] = {
    "forest": _forest,
    "mean": _mean,
    "median": _median,
}
