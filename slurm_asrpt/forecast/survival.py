"""How long jobs usually run, for those of which nothing is predicted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_asrpt.forecast.sampling import UNKNOWN_S, Quantiles

MIN_ENDED = 10
"""Of fewer jobs that have ended nothing is usual."""


def typical_run_time(ended_s: Sequence[float], going_s: Sequence[float]) -> Quantiles:
    """From jobs that have run so long, seconds, and others that go on: of a young cluster only the short have ended."""
    if len(ended_s) < MIN_ENDED:
        return UNKNOWN_S
    runs = sorted([(max(run, 1.0), False) for run in ended_s] + [(max(run, 1.0), True) for run in going_s])
    low, middle, high = (kaplan_meier_quantile(runs, share) for share in (0.1, 0.5, 0.9))
    if middle == math.inf:
        return UNKNOWN_S
    return Quantiles(low, middle, high if high < math.inf else middle * middle / low)


def kaplan_meier_quantile(runs: Sequence[tuple[float, bool]], share: float) -> float:
    """The least length by which that share has ended (Kaplan and Meier 1958), inf where nobody knows.

    runs: lengths in their order, and whether it goes on.
    """
    lasting = 1.0
    for left, (run, goes_on) in zip(range(len(runs), 0, -1), runs, strict=True):
        lasting *= 1.0 if goes_on else 1.0 - 1.0 / left
        if lasting <= 1.0 - share + 1e-9:
            return run
    return math.inf
