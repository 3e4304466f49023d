"""Arrivals that swing with the hour: a rush by day, hardly anybody by night."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PARTS = 10_000
"""Of all the time, in which the rate is taken as even."""


def swinging(jobs: int, span_s: float, day_s: float, depth: float, seed: int) -> Floats:
    """When they come in ``span_s`` seconds, in order: by lot, at a rate of 1 + ``depth`` sin(2 pi t / ``day_s``).

    The first half of each day is the rush. depth: from 0, where all hours are alike, to 1, where at the worst hour
    nobody comes.
    """
    time = np.linspace(0.0, span_s, PARTS + 1)
    turn = 2 * np.pi / day_s
    come = time + depth / turn * (1 - np.cos(turn * time))
    drawn = np.sort(np.random.default_rng(seed).random(jobs))
    return np.asarray(np.interp(drawn * come[-1], come, time))
