"""Sampling of runtimes from their 10-90% intervals.

The logarithm of a runtime is normally distributed, with different spreads below and above the median (two-piece
log-normal). The distribution has exactly these quantiles, and prediction errors are factors, not differences.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.job import JobId

Floats = NDArray[np.float64]

_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf(0.9)
MIN_SPREAD = 0.05
"""Standard deviation of the logarithm: no prediction is exact."""
MIN_SURVIVAL = 1e-3
"""If the probability of the runtime so far is below this, the interval has no information about the job."""
OVERDUE_SHARE = 0.5
"""Expected remaining runtime of such a job, as a share of its runtime so far (as in core/policies/running_jobs)."""


@dataclass(frozen=True, slots=True)
class Quantiles:
    """The 10, 50 and 90% quantiles of a length, in any unit. The field names are keys in forecast.json."""

    low: float
    middle: float
    high: float

    @classmethod
    def ordered(cls, middle: float, low: float, high: float) -> Quantiles:
        """The quantiles in increasing order, even if those of a tag are not."""
        return cls(min(low or middle, middle), middle, max(high, middle))

    def scaled(self, factor: float) -> Quantiles:
        return Quantiles(self.low * factor, self.middle * factor, self.high * factor)

    @property
    def spreads(self) -> tuple[float, float]:
        """Standard deviations of the logarithm below and above the median."""
        below, above = math.log(self.middle / self.low) / _Z, math.log(self.high / self.middle) / _Z
        return max(below, MIN_SPREAD), max(above, MIN_SPREAD)


UNKNOWN_S = Quantiles(60.0, 3600.0, 86400.0)
"""Runtime, in seconds, of a job without a prediction."""


class LogNormals:
    """Two-piece log-normal distributions, one for each entry of ``spans``. Raises ValueError if a quantile is not
    above 0."""

    def __init__(self, spans: Sequence[Quantiles]) -> None:
        self.middle = np.array([span.middle for span in spans])
        self._below, self._above = np.array([span.spreads for span in spans]).reshape(-1, 2).T

    def draw(self, rng: np.random.Generator) -> Floats:
        """One sample of each distribution."""
        return self.at(rng.standard_normal(len(self.middle)))

    def at(self, z: Floats) -> Floats:
        """The values at ``z`` standard deviations from the medians."""
        return np.asarray(self.middle * np.exp(z * np.where(z < 0, self._below, self._above)))


def remaining_length(span: Quantiles, ran: float, chance: float) -> float:
    """The remaining length of a span after ``ran``, which is exceeded with probability ``chance`` in (0, 1)."""
    below, above = span.spreads
    share = ran / span.middle
    place = math.log(share) if share > 0 else -math.inf
    z = place / (below if place < 0 else above)
    outlast = 1.0 - _NORMAL.cdf(z)
    if outlast < MIN_SURVIVAL:
        return -OVERDUE_SHARE * ran * math.log(chance)
    z = -_NORMAL.inv_cdf(outlast * chance)
    return max(0.0, span.middle * math.exp(z * (below if z < 0 else above)) - ran)


def survival(z: float) -> float:
    """The probability in (0, 1) that a standard normal number is larger."""
    return _NORMAL.cdf(-max(-8.0, min(8.0, z)))


TASK_CORRELATION = 0.7
"""Correlation of prediction errors within an array: that of jobs that a user submits together (benchmarks.alike)."""
_COMMON, _OWN = math.sqrt(TASK_CORRELATION), math.sqrt(1.0 - TASK_CORRELATION)
ArrayTasks = tuple[tuple[int, str], ...]
"""The positions of array tasks in a list of jobs, and the array of each."""


def array_tasks(ids: Sequence[JobId]) -> ArrayTasks:
    split = (job_id.partition("_") for job_id in ids)
    return tuple((at, array) for at, (array, mark, _) in enumerate(split) if mark)


class Sampler:
    """Random numbers of one future. Tasks of an array are correlated."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng, self._common = rng, defaultdict[str, float](rng.standard_normal)

    def normals(self, count: int, tasks: ArrayTasks) -> Floats:
        """Standard normal numbers. tasks: the positions that share the common part of their array."""
        drawn = self._rng.standard_normal(count)
        for at, array in tasks:
            drawn[at] = self._with_common(drawn[at], array)
        return drawn

    def survival_probabilities(self, count: int, tasks: ArrayTasks) -> list[float]:
        """Numbers in (0, 1]; small numbers mean long runtimes."""
        drawn: list[float] = (1.0 - self._rng.random(count)).tolist()  # never 0
        for at, array in tasks:
            drawn[at] = _NORMAL.cdf(-self._with_common(-_NORMAL.inv_cdf(min(drawn[at], 1.0 - 1e-16)), array))
        return drawn

    def array_normals(self, array: str, count: int) -> Floats:
        """Same as ``normals``, for the tasks of one array."""
        return _COMMON * self._common[array] + _OWN * self._rng.standard_normal(count)

    def _with_common(self, own: float, array: str) -> float:
        return _COMMON * self._common[array] + _OWN * own
