"""Random arrivals at a rate that varies: with the hour, or in bursts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PARTS = 10_000
"""Steps of the whole time, in each of which the rate is constant."""
BURST_S = 600.0
"""Length of a burst."""
SPREAD = 0.3
"""A burst has up to this share of its mean size more, or fewer, jobs."""


def swinging(jobs: int, span_s: float, day_s: float, depth: float, seed: int) -> Floats:
    """Sorted random arrival times in ``span_s`` seconds, at a rate of 1 + ``depth`` sin(2 pi t / ``day_s``).

    The first half of each day is the rush. depth: from 0, a constant rate, to 1, no arrivals at the lowest point.
    """
    time = np.linspace(0.0, span_s, PARTS + 1)
    turn = 2 * np.pi / day_s
    come = time + depth / turn * (1 - np.cos(turn * time))
    drawn = np.sort(np.random.default_rng(seed).random(jobs))
    return np.asarray(np.interp(drawn * come[-1], come, time))


def bursting(jobs: int, span_s: float, size: int, seed: int) -> Floats:
    """Sorted random arrival times in ``span_s`` seconds, in bursts of ``size`` jobs on average, the first at 0."""
    rng = np.random.default_rng(seed)
    sizes = np.rint(size * rng.uniform(1 - SPREAD, 1 + SPREAD, 2 + 2 * jobs // size)).astype(int)
    burst = np.repeat(np.arange(len(sizes)), np.maximum(sizes, 1))[:jobs]
    gaps = rng.exponential(size=burst[-1] + 1)
    begins = (np.cumsum(gaps) - gaps) * span_s / gaps.sum()
    return np.asarray(np.sort(begins[burst] + BURST_S * rng.random(jobs)))
