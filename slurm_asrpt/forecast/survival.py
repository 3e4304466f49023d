"""Survival analysis of runtimes: a default for jobs without a prediction."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_asrpt.forecast.sampling import UNKNOWN_S, Quantiles

MIN_ENDED = 10
"""Number of ended jobs required for an estimate."""


def typical_run_time(ended_s: Sequence[float], going_s: Sequence[float]) -> Quantiles:
    """Quantiles of runtimes, seconds. ended_s: runtimes of ended jobs. going_s: runtimes so far of running jobs
    (censored).

    Running jobs count because on a new cluster only short jobs have ended.
    """
    if len(ended_s) < MIN_ENDED:
        return UNKNOWN_S
    runs = sorted([(max(run, 1.0), False) for run in ended_s] + [(max(run, 1.0), True) for run in going_s])
    low, middle, high = (kaplan_meier_quantile(runs, share) for share in (0.1, 0.5, 0.9))
    if middle == math.inf:
        return UNKNOWN_S
    return Quantiles(low, middle, high if high < math.inf else middle * middle / low)


def kaplan_meier_quantile(runs: Sequence[tuple[float, bool]], share: float) -> float:
    """The ``share`` quantile of the Kaplan-Meier estimate (1958); inf if it does not exist.

    runs: in increasing order of length; the flag marks a run that has not ended (is censored).
    """
    lasting = 1.0
    for left, (run, goes_on) in zip(range(len(runs), 0, -1), runs, strict=True):
        lasting *= 1.0 if goes_on else 1.0 - 1.0 / left
        if lasting <= 1.0 - share + 1e-9:
            return run
    return math.inf
