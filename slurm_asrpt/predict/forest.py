"""The paper's random forest over (group, user), computed without growing trees, and the finite table of its
predictions.

Both features are categories, so all rows of one (group, user) cell are one point: no split can separate them. A fully
grown tree separates any two cells whose means differ, in whatever order it splits. So a tree predicts, for a cell in
its bag, the mean of that cell's rows in the bag. Only the bootstrap samples must be drawn: 700,000 rows and 100 trees
take seconds. tests/unit/predict/test_forest.py compares with scikit-learn's forest, bootstrap by bootstrap.

A tree whose bag holds no row of a cell says nothing about it: it would answer with a neighbor's value. Therefore a
cell's prediction is the mean over the trees that have seen it (docs/decisions/0005).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Progress = Callable[[int], None]


def silent(done: int) -> None:
    pass


def fit_columns(
    groups: Sequence[str], users: Any, iterations: Any, trees: int, seed: int, progress: Progress = silent
) -> dict[str, int]:
    """Predicted iterations (>= 1) of every group; the same rows and seed give the same predictions.

    groups, users (any hashable values), iterations: of each row. progress: called after each tree with the number
    of trees.
    """
    import pandas as pd  # takes a third of asrptd's start-up; only needed to fit

    if not len(groups):
        return {}
    (code, names), (user, _) = (pd.factorize(np.asarray(column, dtype=object)) for column in (groups, users))
    cells = Cells(code, user, np.asarray(iterations, dtype=np.float64))
    answer = cells.forest(_counted(bootstraps(len(code), trees, seed), progress))
    total = np.bincount(cells.group, weights=answer * cells.rows, minlength=len(names))
    predicted = np.maximum(1, np.rint(total / np.bincount(code)).astype(np.int64))
    return dict(zip(names.tolist(), predicted.tolist(), strict=True))


def fit_rows(
    groups: Sequence[str], users: Any, iterations: Any, trees: int, seed: int, progress: Progress = silent
) -> dict[str, int]:
    """As ``fit_columns``, by scikit-learn's forest on the rows: exactly as in the paper, and many times slower.

    Its trees also answer for groups that they have not seen. For comparison; see docs/decisions/0005.
    """
    import pandas as pd
    from sklearn.ensemble import RandomForestRegressor  # takes over a second to import

    if not len(groups):
        return {}
    jobs = pd.DataFrame({"group": groups, "user": users, "iterations": np.asarray(iterations, dtype=np.float64)})
    features = ranks(jobs, jobs)
    forest = RandomForestRegressor(trees, random_state=seed, n_jobs=-1).fit(features, jobs["iterations"])
    means = jobs.assign(answer=forest.predict(features)).groupby("group")["answer"].mean()
    progress(trees)
    return {str(group): max(1, round(float(value))) for group, value in means.items()}


def ranks(past: pd.DataFrame, jobs: pd.DataFrame) -> Floats:
    """Group and user of ``jobs`` by the rank of their mean iterations in ``past``, shape (n, 2).

    With squared error, the best split of a category is a cut in that order (Breiman et al. 1984, section 4.2.2).
    """
    columns = (past.groupby(name)["iterations"].mean().rank(method="first") for name in ("group", "user"))
    return np.column_stack([jobs[str(rank.index.name)].map(rank).to_numpy(dtype=float) for rank in columns])


def bootstraps(rows: int, trees: int, seed: int) -> Iterator[Ints]:
    """The rows that each tree draws, with replacement."""
    random = np.random.default_rng(seed)
    return (random.integers(0, rows, rows) for _ in range(trees))


def _counted(bags: Iterable[Ints], progress: Progress) -> Iterator[Ints]:
    for done, bag in enumerate(bags, start=1):
        yield bag
        progress(done)


class Cells:
    """Rows grouped by (group, user). group: group of each cell. rows: number of rows of each cell."""

    def __init__(self, group: Ints, user: Ints, target: Floats) -> None:
        """group, user: codes from 0; target: one value per row."""
        cell = group.astype(np.int64) * (int(user.max()) + 1) + user
        order = np.argsort(cell, kind="stable")
        self._place = np.empty_like(order)  # position of each row in the order of cells
        self._place[order] = np.arange(len(order))
        self._target = target[order]
        self._first = np.flatnonzero(np.diff(cell[order], prepend=-1))
        self.group = group[order][self._first]
        self.rows = np.diff(self._first, append=len(order))
        self.means = np.add.reduceat(self._target, self._first) / self.rows

    def __len__(self) -> int:
        return len(self._first)

    def tree(self, bag: Ints) -> Floats:
        """Predictions of a fully grown tree on these rows, per cell; nan for a cell that is not in the bag."""
        drawn = np.bincount(self._place[bag], minlength=len(self._place))
        weight = np.add.reduceat(drawn, self._first)
        total = np.add.reduceat(drawn * self._target, self._first)
        return np.where(weight > 0, total / np.maximum(weight, 1), np.nan)

    def forest(self, bags: Iterable[Ints]) -> Floats:
        """Mean over the trees that have seen a cell; the mean of its rows if no tree has."""
        total, seen = np.zeros(len(self)), np.zeros(len(self))
        for bag in bags:
            answer = self.tree(bag)
            known = ~np.isnan(answer)
            total[known] += answer[known]
            seen += known
        return np.where(seen > 0, total / np.maximum(seen, 1), self.means)
