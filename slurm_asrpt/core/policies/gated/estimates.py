"""Calibrated runtimes: what predictions, time limits and similar jobs have been worth (docs/decisions/0032, 0034).

A first guess (the prediction, else a share of the time limit, else an hour) is corrected by a factor. Its logarithm is
a linear function of those of the prediction, of the time limit, and of the runtime of a similar job over the guess. It
is learned by ridge regression from the jobs that have ended, the latest counting most. Where predictions turn out to be
worthless, all jobs get the same runtime; where users choose their limits well, the limits count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MEMORY = 2000
"""Number of jobs after which a job counts for 1/e in the regression."""
CENTER = 8.0
"""Subtracted from logarithms of seconds, so that slopes and intercept are nearly independent: e^8 s is 50 minutes."""
SLOPE_PRECISION, INTERCEPT_PRECISION = 10.0, 2.5
"""What is assumed before any job has ended counts as much as this number of jobs whose feature is 1."""
FIRST_GUESS_S = 3600.0
"""Assumed runtime of a job without prediction and time limit before any such job has ended."""
SHARE_OF_LIMIT = math.exp(-1.0)
"""Assumed runtime of a job without prediction, as a share of its time limit, before any such job has ended."""
MOST = 20.0
"""The logarithm of the largest correction."""
_INF = float("inf")


class Known(NamedTuple):
    """What is known about a job's runtime. predicted: seconds in its best placement, 0 if it has no prediction.

    limit: its time limit, seconds, infinity for none. similar: the runtime of a similar job in its best placement
    (module ``similar``), seconds, 0 for none.
    """

    predicted: float
    limit: float = _INF
    similar: float = 0.0

    @property
    def kind(self) -> str:
        """Which of them it has, a letter each: the key of its line."""
        has = {"p": self.predicted > 0, "l": self.limit < _INF, "s": self.similar > 0}
        return "".join([letter for letter, there in has.items() if there])

    @property
    def guess(self) -> float:
        """The runtime without calibration, seconds."""
        limited = self.limit < _INF
        return max(1.0, self.predicted or (SHARE_OF_LIMIT * self.limit if limited else FIRST_GUESS_S))

    @property
    def features(self) -> tuple[float, ...]:
        """1, and a logarithm of each that it has."""
        found = [1.0]
        if self.predicted > 0:
            found.append(math.log(max(1.0, self.predicted)) - CENTER)
        if self.limit < _INF:
            found.append(math.log(max(1.0, self.limit)) - CENTER)
        if self.similar > 0:
            found.append(math.log(max(1.0, self.similar) / self.guess))
        return tuple(found)


class LinearModel:
    """A linear function of ``size`` features, the first of which is 1; learned by ridge regression, at first 0."""

    def __init__(self, size: int) -> None:
        self._coefficients = [0.0] * size
        self._precision = (INTERCEPT_PRECISION, *[SLOPE_PRECISION] * (size - 1))
        self._products = [[0.0] * size for _ in range(size)]  # weighted sums of x_i x_j
        self._sums = [0.0] * size  # weighted sums of x_i y

    def value(self, features: Sequence[float]) -> float:
        return _dot(self._coefficients, features)

    def learn(self, features: Sequence[float], value: float) -> None:
        fade, size = 1.0 - 1.0 / MEMORY, range(len(features))
        self._products = [[fade * self._products[i][j] + features[i] * features[j] for j in size] for i in size]
        self._sums = [fade * total + feature * value for total, feature in zip(self._sums, features, strict=True)]
        self._fit()

    def _fit(self) -> None:
        matrix = [list(row) for row in self._products]
        for i, precision in enumerate(self._precision):
            matrix[i][i] += precision
        self._coefficients = _solve(matrix, self._sums)

    def dump(self) -> list[list[float]]:
        return [*self._products, self._sums]

    def load(self, rows: Sequence[Sequence[float]]) -> None:
        """Raises ValueError for rows of another shape, or with figures that are not finite."""
        *products, sums = [[float(figure) for figure in row] for row in rows]
        size = len(self._coefficients)
        if len(products) != size or any(len(row) != size for row in (*products, sums)):
            raise ValueError(f"a regression of {size} features, not {len(products)}")
        if not all(math.isfinite(figure) for row in (*products, sums) for figure in row):
            raise ValueError("a regression with figures that are not finite")
        self._products, self._sums = products, sums
        self._fit()


class Estimates:
    """The runtimes by which asrpt-gated orders jobs and predicts their ends. Seconds in the best placement."""

    def __init__(self) -> None:
        self._models = {kind: LinearModel(1 + len(kind)) for kind in ("pls", "pl", "ps", "ls", "p", "l", "s", "")}

    def seconds(self, known: Known) -> float:
        """The expected runtime: above 0, at most the time limit."""
        correction = self._models[known.kind].value(known.features)
        return min(known.guess * math.exp(min(MOST, max(-MOST, correction))), known.limit)

    def ended(self, known: Known, seconds: float) -> None:
        """A job has ended after this time, converted to its best placement."""
        self._models[known.kind].learn(known.features, math.log(max(1.0, seconds) / known.guess))

    def dump(self) -> dict[str, Any]:
        return {kind: model.dump() for kind, model in self._models.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Raises ValueError, KeyError or TypeError for an invalid state."""
        for kind, rows in state.items():
            self._models[kind].load(rows)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return math.fsum(a * b for a, b in zip(left, right, strict=True))


def _solve(matrix: list[list[float]], right: Sequence[float]) -> list[float]:
    """The solution of a small system with a positive definite matrix, which is overwritten: Gaussian elimination."""
    size, found = len(matrix), list(right)
    for i in range(size):
        for below in range(i + 1, size):
            factor = matrix[below][i] / matrix[i][i]
            matrix[below] = [a - factor * b for a, b in zip(matrix[below], matrix[i], strict=True)]
            found[below] -= factor * found[i]
    for i in reversed(range(size)):
        found[i] = (found[i] - _dot(matrix[i][i + 1 :], found[i + 1 :])) / matrix[i][i]
    return found
