"""By how much lengths miss what was predicted, by lot: the tasks of an array miss it together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from slurm_asrpt.core.job import JobId
from slurm_asrpt.forecast.span import Floats

ALIKE = 0.7
"""Correlation of the misses of an array's tasks: that of jobs that one user submits at once (benchmarks.alike)."""
_COMMON, _OWN = math.sqrt(ALIKE), math.sqrt(1.0 - ALIKE)
_NORMAL = NormalDist()
Tasks = tuple[tuple[int, str], ...]
"""Which of some jobs are tasks of an array, and of which array."""


def tasks_in(ids: Sequence[JobId]) -> Tasks:
    split = (job_id.partition("_") for job_id in ids)
    return tuple((at, array) for at, (array, mark, _) in enumerate(split) if mark)


class Luck:
    """Of one future."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._common = rng, defaultdict[str, float](rng.standard_normal)

    def normals(self, count: int, tasks: Tasks) -> Floats:
        """So many standard normal numbers; ``tasks`` of them with what their arrays have in common."""
        drawn = self._rng.standard_normal(count)
        for at, array in tasks:
            drawn[at] = self._with_common(drawn[at], array)
        return drawn

    def chances(self, count: int, tasks: Tasks) -> list[float]:
        """So many numbers in (0, 1], the least for the longest jobs."""
        drawn: list[float] = (1.0 - self._rng.random(count)).tolist()  # never 0
        for at, array in tasks:
            drawn[at] = _NORMAL.cdf(-self._with_common(-_NORMAL.inv_cdf(min(drawn[at], 1.0 - 1e-16)), array))
        return drawn

    def of_tasks(self, array: str, count: int) -> Floats:
        """As ``normals``, all of one array."""
        return _COMMON * self._common[array] + _OWN * self._rng.standard_normal(count)

    def _with_common(self, own: float, array: str) -> float:
        return _COMMON * self._common[array] + _OWN * own
