"""The paper's random forest over (group, user): computed run by run without growing trees, and scikit-learn's.

Both features are categories, so all runs of one (group, user) cell are one point: no split can separate them. A fully
grown tree separates any two cells whose means differ, in whatever order it splits. So a tree predicts, for a cell in
its bag, the mean of that cell's runs in the bag: nothing but the bags must be drawn. How often a run is in a bag is a
binomial draw, in a long history a Poisson draw of mean 1 that does not depend on other runs (Oza and Russell, Online
Bagging and Boosting, 2001). So a forest learns run by run, and a prediction depends on the runs of its cell alone.

A tree whose bag holds no run of a cell says nothing about it: it would answer with a neighbor's value. Therefore a
cell's prediction is the mean over the trees that have seen it (docs/decisions/0005).

A group's key belongs to one user (``hook.group``, ``sim.predictors.chains_of``), so it is the key of a cell.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import fmean
from typing import Any, Self
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.hook.table import Entry
from slurm_asrpt.predict.predictors.base import Chain, Features, register
from slurm_asrpt.predict.predictors.by_group import ByGroup

Floats = NDArray[np.float64]
Counts = NDArray[np.uint8]

TREES = 100
DRAWN = 65_536
"""Runs for which it is drawn how often they are in each bag; a cell takes consecutive ones, from a place of its own."""


@register("forest")
class Forest(ByGroup):
    """The mean over the trees that have seen a cell of the mean of its runs in their bags."""

    def __init__(self, trees: int = TREES, seed: int = 0) -> None:
        """The same runs and seed give the same predictions."""
        super().__init__(fmean)
        self._trees, self._seed = trees, seed

    def _figure(self, key: str) -> float:
        runs = self._runs[key]
        return runs[0] if len(runs) == 1 else forest_mean(runs, bag_counts(key, len(runs), self._trees, self._seed))


def bag_counts(key: str, runs: int, trees: int, seed: int) -> Counts:
    """How often each run of a cell is in the bag of each tree, shape (runs, trees)."""
    return _drawn(trees, seed)[(crc32(key.encode()) + np.arange(runs)) % DRAWN]


@lru_cache(maxsize=4)
def _drawn(trees: int, seed: int) -> Counts:
    return np.random.default_rng(seed).poisson(1.0, (DRAWN, trees)).astype(np.uint8)


def forest_mean(runs: Sequence[float], counts: Counts) -> float:
    """The mean of the trees that have seen a cell; the mean of its runs if no tree has. counts: (runs, trees)."""
    weight = counts.sum(axis=0)
    seen = weight > 0
    if not seen.any():
        return fmean(runs)
    return float(np.mean((np.asarray(runs) @ counts)[seen] / weight[seen]))


@register("forest-sklearn")
class SklearnForest:
    """scikit-learn's RandomForestRegressor on the runs, grown anew when it is asked after a run: exact, and slow.

    Its trees also answer for cells that they have not seen. Keys without a user, those of a profile, have iterations
    where the others have seconds, so they have a forest of their own.
    """

    def __init__(self, trees: int = TREES, seed: int = 0) -> None:
        self._trees, self._seed = trees, seed
        self._rows: dict[bool, list[tuple[str, str, float]]] = {True: [], False: []}
        self._answers: dict[bool, dict[str, float]] = {}

    def learn(self, chain: Chain, figure: float, features: Features) -> None:
        keys = dict(chain)
        shared = "user" in keys
        self._rows[shared].append((keys["group"], keys.get("user", ""), figure))
        self._answers.pop(shared, None)

    def entry(self, key: str) -> Entry | None:
        return self.entries().get(key)

    def entries(self) -> dict[str, Entry]:
        for shared, rows in self._rows.items():
            if shared not in self._answers:
                self._answers[shared] = _grown(rows, self._trees, self._seed)
        return {key: Entry.plain(figure) for found in self._answers.values() for key, figure in found.items()}

    def copy(self) -> Self:
        twin = type(self)(self._trees, self._seed)
        twin._rows = {shared: rows.copy() for shared, rows in self._rows.items()}
        twin._answers = self._answers.copy()
        return twin


def _grown(rows: Sequence[tuple[str, str, float]], trees: int, seed: int) -> dict[str, float]:
    """The predictions for all groups in these rows of group, user and figure."""
    import pandas as pd  # takes a third of asrptd's start-up
    from sklearn.ensemble import RandomForestRegressor  # takes over a second to import

    if not rows:
        return {}
    runs = pd.DataFrame(rows, columns=["group", "user", "iterations"])
    features = ranks(runs, runs)
    forest = RandomForestRegressor(trees, random_state=seed, n_jobs=-1).fit(features, runs["iterations"])
    cells = ~runs.duplicated(["group", "user"])
    means = runs[cells].assign(answer=forest.predict(features[cells])).groupby("group")["answer"].mean()
    return {str(group): float(figure) for group, figure in means.items()}


def ranks(past: Any, jobs: Any) -> Floats:
    """Group and user of ``jobs`` by the rank of their mean iterations in ``past``, shape (n, 2); both are data frames.

    With squared error, the best split of a category is a cut in that order (Breiman et al. 1984, section 4.2.2).
    """
    columns = (past.groupby(name)["iterations"].mean().rank(method="first") for name in ("group", "user"))
    return np.column_stack([jobs[str(rank.index.name)].map(rank).to_numpy(dtype=float) for rank in columns])
