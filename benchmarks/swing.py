"""Arrivals that vary with the hour: a rush by day, few by night."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PARTS = 10_000
"""Steps of the whole time, in each of which the rate is constant."""


def swinging(jobs: int, span_s: float, day_s: float, depth: float, seed: int) -> Floats:
    """Sorted random arrival times in ``span_s`` seconds, at a rate of 1 + ``depth`` sin(2 pi t / ``day_s``).

    The first half of each day is the rush. depth: from 0, a constant rate, to 1, no arrivals at the lowest point.
    """
    time = np.linspace(0.0, span_s, PARTS + 1)
    turn = 2 * np.pi / day_s
    come = time + depth / turn * (1 - np.cos(turn * time))
    drawn = np.sort(np.random.default_rng(seed).random(jobs))
    return np.asarray(np.interp(drawn * come[-1], come, time))
