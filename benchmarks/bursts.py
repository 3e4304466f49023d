"""Arrivals in bursts: many jobs within minutes, then none for hours."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

RUSH_S = 600.0
"""Length of a burst."""
SPREAD = 0.3
"""A burst has up to this share of its mean size more, or fewer, jobs."""


def bursting(jobs: int, span_s: float, size: int, seed: int) -> Floats:
    """Sorted random arrival times in ``span_s`` seconds, in bursts of ``size`` jobs on average, the first at 0."""
    rng = np.random.default_rng(seed)
    sizes = np.rint(size * rng.uniform(1 - SPREAD, 1 + SPREAD, 2 + 2 * jobs // size)).astype(int)
    burst = np.repeat(np.arange(len(sizes)), np.maximum(sizes, 1))[:jobs]
    gaps = rng.exponential(size=burst[-1] + 1)
    begins = (np.cumsum(gaps) - gaps) * span_s / gaps.sum()
    return np.asarray(np.sort(begins[burst] + RUSH_S * rng.random(jobs)))
