"""Training loss over rounds or iterations: the curve that fits it, and where training stops (Hare, section V-A).

The form of the curve is that of Optimus (Peng et al., EuroSys 2018), Hare's reference [19].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

LEAST_POINTS = 4
"""Three coefficients fit any three points: a fit needs one more."""
SAMPLES = 24
"""Losses that a fit uses, spread evenly, so that a fit after ten rounds costs as much as one after ten thousand."""
FLOORS = 24
"""Candidates for the floor of the curve."""


class Curve(Protocol):
    """A job's training loss. Training stops once the loss is within ``stop`` of the floor of the curve."""

    @property
    def stop(self) -> float: ...

    def loss(self, done: int) -> float:
        """The loss after so many rounds."""


@dataclass(frozen=True)
class ReportedCurve:
    """What a job has reported so far, interpolated linearly. points: (round, loss), rounds ascending.

    share: training stops within this share of the fall so far; the whole fall is not known before the end.
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


@dataclass(eq=False)
class LossLog:
    """The loss of each round so far; it grows. share: as in ``ReportedCurve``."""

    losses: list[float]
    share: float

    @property
    def stop(self) -> float:
        """0 without a loss."""
        return self.share * (self.losses[0] - min(self.losses)) if self.losses else 0.0

    def loss(self, done: int) -> float:
        """The loss of the round that follows; after the last one, its own. Raises IndexError without a loss."""
        return self.losses[min(done, len(self.losses) - 1)]


@dataclass(frozen=True)
class LossCurve:
    """loss(k) = 1 / (slope k + offset) + floor. Training stops where the loss is within ``stop`` of the floor."""

    slope: float
    offset: float
    floor: float
    stop: float

    def loss(self, done: int) -> float:
        return 1 / (self.slope * done + self.offset) + self.floor

    @property
    def rounds(self) -> int:
        """The round at which training stops, at least 1."""
        return max(1, math.ceil((1 / self.stop - self.offset) / self.slope - 1e-9))


def observed(curve: Curve, done: int) -> tuple[list[int], list[float]]:
    """Rounds 0 .. done, or SAMPLES of them evenly spaced, and their losses."""
    rounds = sorted({round(done * n / (SAMPLES - 1)) for n in range(SAMPLES)})
    return rounds, [curve.loss(k) for k in rounds]


def fit(rounds: Sequence[int], losses: Sequence[float], stop: float) -> LossCurve | None:
    """The curve nearest to the losses; None if there are too few, or if they do not fall.

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
