"""The random forest over (group, user), grown on cells, and the finite table that is its whole output.

Both features are categories, so all rows of one (group, user) cell are one point: no split can part them, and a
bootstrap of the rows is a bootstrap of cells with weights and means. A tree of weighted cells is the very tree of the
rows, and 150,000 rows of 30,000 groups become 30,000 points.

A category enters as its rank by mean target; with squared error the best split of a category is a cut in that order
(Breiman et al. 1984, section 4.2.2).

A tree whose bootstrap holds no row of a group says nothing about it: it would answer with some neighbour's figure.
A group's prediction is therefore the mean of those trees that have seen it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeRegressor

from slurm_asrpt.predict.history import Sample

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def fit_table(
    samples: Sequence[Sample], trees: int, seed: int, progress: Callable[[int], None] = lambda done: None
) -> dict[str, int]:
    """Predicted iterations (>= 1) of every group in ``samples``; same samples and seed, same table.

    progress: called after each tree with the number of trees grown.
    """
    if not samples:
        return {}
    target = np.array([s.iterations for s in samples], dtype=np.float64)
    names, group = np.unique([s.group for s in samples], return_inverse=True)
    _, user = np.unique([s.user for s in samples], return_inverse=True)
    cells, cell = np.unique(np.column_stack([group, user]), axis=0, return_inverse=True)
    features = np.column_stack([_ranks(group, target)[cells[:, 0]], _ranks(user, target)[cells[:, 1]]])
    forest = _Forest(features, cell.ravel(), target, cells[:, 0], len(names))
    random = np.random.default_rng(seed)
    for done in range(1, trees + 1):
        forest.grow(random)
        progress(done)
    return {str(name): max(1, round(float(value))) for name, value in zip(names, forest.predictions(), strict=True)}


def _ranks(category: Ints, target: Floats) -> Floats:
    """The rank of each category by its mean target."""
    means = np.bincount(category, weights=target) / np.bincount(category)
    ranks = np.empty(len(means))
    ranks[np.argsort(means, kind="stable")] = np.arange(len(means))
    return ranks


class _Forest:
    """Running sums over trees: what each group is predicted, and by how many trees that have seen it."""

    def __init__(self, features: Floats, cell: Ints, target: Floats, group_of_cell: Ints, groups: int) -> None:
        self._features, self._cell, self._target = features, cell, target
        self._group_of_cell, self._groups = group_of_cell, groups
        self._rows = np.bincount(cell, minlength=len(features))
        self._seen, self._sum = np.zeros(groups), np.zeros(groups)
        self._trees, self._fallback = 0, np.zeros(groups)

    def grow(self, random: np.random.Generator) -> None:
        """One tree on a bootstrap of the rows."""
        drawn = random.integers(0, len(self._target), len(self._target))
        weight = np.bincount(self._cell[drawn], minlength=len(self._features))
        total = np.bincount(self._cell[drawn], weights=self._target[drawn], minlength=len(self._features))
        bag = weight > 0
        tree = DecisionTreeRegressor(random_state=int(random.integers(2**31)))
        tree.fit(self._features[bag], total[bag] / weight[bag], sample_weight=weight[bag])
        answer = self._by_group(tree.predict(self._features))
        seen = np.bincount(self._group_of_cell, weights=weight, minlength=self._groups) > 0
        self._sum += np.where(seen, answer, 0.0)
        self._seen += seen
        self._trees += 1
        self._fallback += answer

    def _by_group(self, answer: Floats) -> Floats:
        """The answers for a group's cells, weighed by the runs of each."""
        total = np.bincount(self._group_of_cell, weights=answer * self._rows, minlength=self._groups)
        return total / np.bincount(self._group_of_cell, weights=self._rows, minlength=self._groups)

    def predictions(self) -> Floats:
        """One figure a group; a group in no bootstrap at all takes what the trees answer anyway."""
        return np.where(self._seen > 0, self._sum / np.maximum(self._seen, 1.0), self._fallback / self._trees)
