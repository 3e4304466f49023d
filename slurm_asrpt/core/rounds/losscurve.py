"""Training loss over rounds, and how many more it takes (Hare, section V-A; the curve is Optimus's [19])."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

LEAST_POINTS = 4
"""A curve of three coefficients fits any three points."""
ASKED = 24
"""Losses that a fit looks at, spread over all there are: it costs the same after ten rounds and after ten thousand."""
FLOORS = 24
"""Values tried for the loss that is never gone below."""


class Curve(Protocol):
    """A job's training loss. Training stops once it has come within ``stop`` of the floor that it falls to."""

    @property
    def stop(self) -> float: ...

    def loss(self, done: int) -> float:
        """The loss after so many rounds, of those that have been done."""


@dataclass(frozen=True)
class ReportedCurve:
    """What a job has reported so far; between two reports a straight line. points: (round, loss), rounds ascending.

    share: training stops within this share of the fall so far. How far it will fall nobody knows before its end.
    Raises ValueError without a point.
    """

    points: tuple[tuple[int, float], ...]
    share: float

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("a curve needs a point")

    @property
    def stop(self) -> float:
        return self.share * (self.points[0][1] - min(loss for _, loss in self.points))

    def loss(self, done: int) -> float:
        rounds, losses = zip(*self.points, strict=True)
        return float(np.interp(done, rounds, losses))


@dataclass(frozen=True)
class LossCurve:
    """loss(k) = 1 / (slope k + offset) + floor, times (1 + noise e_k) with e_k of a standard normal, by seed.

    Training stops at the round where the noiseless loss has come within ``stop`` of the floor.
    """

    slope: float
    offset: float
    floor: float
    stop: float
    noise: float = 0.0
    seed: int = 0

    def loss(self, done: int) -> float:
        """The loss reported after so many rounds; the same each time it is asked."""
        exact = 1 / (self.slope * done + self.offset) + self.floor
        if not self.noise:
            return exact
        return exact * (1 + self.noise * random.Random(self.seed * 1_000_003 + done).gauss(0, 1))  # noqa: S311

    @property
    def rounds(self) -> int:
        """The round at which training stops, at least 1."""
        return max(1, math.ceil((1 / self.stop - self.offset) / self.slope - 1e-9))


def curve_for(rounds: int, stop: float, start: float, floor: float, noise: float, seed: int) -> LossCurve:
    """The curve that starts ``start`` above its floor and comes within ``stop`` of it after so many rounds.

    Raises ValueError unless 0 < stop < start.
    """
    if not 0 < stop < start:
        raise ValueError(f"a loss falls from {start} above its floor to within {stop}, which must be less and positive")
    return LossCurve((1 / stop - 1 / start) / rounds, 1 / start, floor, stop, noise, seed)


def observed(curve: Curve, done: int) -> tuple[list[int], list[float]]:
    """Rounds 0 .. done, or ASKED of them evenly, and their losses."""
    rounds = sorted({round(done * n / (ASKED - 1)) for n in range(ASKED)})
    return rounds, [curve.loss(k) for k in rounds]


def fit(rounds: Sequence[int], losses: Sequence[float], stop: float) -> LossCurve | None:
    """The curve nearest to the losses; None if they are too few, or do not fall.

    For each floor below the losses 1 / (loss - floor) is a straight line over the rounds: least squares (by the losses'
    own errors, so weighted by (loss - floor)^4) gives slope and offset, and the best of FLOORS floors is taken.
    """
    k, loss = np.asarray(rounds, float), np.asarray(losses, float)
    if len(k) < LEAST_POINTS or loss.max() <= loss.min():
        return None
    floors = loss.min() - (loss.max() - loss.min()) * 2.0 * (np.arange(1, FLOORS + 1) / FLOORS) ** 3
    above = loss - floors[:, None]
    slopes, offsets = _lines(k, 1 / above, above**4)
    falls = (slopes > 0) & (slopes * k[0] + offsets > 0)
    if not falls.any():
        return None
    with np.errstate(divide="ignore"):
        errors = ((1 / (slopes[:, None] * k + offsets[:, None]) - above) ** 2).sum(axis=1)
    best = int(np.where(falls, errors, np.inf).argmin())
    return LossCurve(float(slopes[best]), float(offsets[best]), float(floors[best]), stop)


def _lines(x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Slope and offset of the weighted least-squares line of each row of y."""
    total = weight.sum(axis=1)
    middle_x, middle_y = (weight * x).sum(axis=1) / total, (weight * y).sum(axis=1) / total
    apart = x - middle_x[:, None]
    slopes = (weight * apart * y).sum(axis=1) / (weight * apart**2).sum(axis=1)
    return slopes, middle_y - slopes * middle_x
