"""The optimal groups of GPUs, by HiGHS, for small clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import highspy
import numpy as np

from slurm_asrpt.core.rounds.grouping import Groups, Speeds, gap, group, relative


def group_exactly(counts: Sequence[int], speeds: Speeds, groups: int, time_limit_s: float = 60.0) -> Groups:
    """Optimal groups by HiGHS, for small clusters. Raises ValueError as ``group``, or at the time limit."""
    first = group(counts, speeds, groups)
    speeds = relative(speeds, counts)
    model: Any = highspy.Highs()  # type: ignore[no-untyped-call]
    model.silent()
    model.setOptionValue("time_limit", time_limit_s)
    number = [[model.addIntegral(0, count) for count in counts] for _ in range(groups)]
    worst = model.addVariable(0, gap(first, speeds))
    for kind, count in enumerate(counts):
        model.addConstr(sum(row[kind] for row in number) == count)
    for row in number:
        model.addConstr(sum(row) >= 1)
    for speed in speeds:
        high, low = model.addVariable(0, highspy.kHighsInf), model.addVariable(0, highspy.kHighsInf)
        model.addConstr(high - low <= worst)
        for row in number:
            power = sum(float(rate) * variable for rate, variable in zip(speed, row, strict=True))
            model.addConstr(power <= high)
            model.addConstr(power >= low)
    model.minimize(worst)
    if model.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise ValueError(f"no optimal division of {sum(counts)} GPUs into {groups} groups in {time_limit_s:.0f} s")
    return np.array([[round(model.val(variable)) for variable in row] for row in number])
