"""HLAS and HLAS-P (Algorithms 1-3, section V-B): least attained service first, on groups of similar GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from papers.hare.grouping import group, members
from papers.hare.jobs import Fleet, Part, Progress, RoundJob
from papers.hare.predictors import Conservative, Known, LossFit, NoPredictor, RoundPredictor
from papers.hare.queues import Queues
from papers.hare.round_policy import IdleGpus, register
from slurm_asrpt.core.policies.hlas.policy import thresholds
from slurm_asrpt.predict.convergence import ALPHA

GROUP_GPUS = 4
QUEUES = 8
FIRST_S = 2.0
FACTOR = 4.0
AGAIN = 1.2
"""If there is no prediction for a job, the next attempt follows after this multiple of its rounds."""


@dataclass(slots=True)
class _Standing:
    """The prediction for a job. ends: minimum number of its rounds. look: rounds after which to predict again."""

    ends: float = 0.0
    look: float = 0.0


class Hlas:
    """Queues of jobs by their size (R^r + R^p) T; each group of GPUs takes the next job when it is idle.

    groups: number of groups, 0 for one per GROUP_GPUS GPUs. queues, first_s, factor: K, E_1^H in seconds, and the ratio
    of successive ends; the paper does not specify them.
    whole: a group takes jobs when all its GPUs are idle, as in the text; else when one of them is, which is another
    reading of Algorithm 1, and much better.
    """

    def __init__(
        self,
        fleet: Fleet,
        jobs: Sequence[RoundJob],
        predictor: RoundPredictor,
        groups: int = 0,
        queues: int = QUEUES,
        first_s: float = FIRST_S,
        factor: float = FACTOR,
        whole: bool = False,
    ) -> None:
        self._predictor = predictor
        self._groups = groups or max(1, len(fleet.kind) // GROUP_GPUS)
        speeds = np.array([job.rates for job in jobs])
        teams = members(group(fleet.counts, speeds, self._groups), fleet.kind)
        self._team = {gpu: number for number, team in enumerate(teams) for gpu in team}
        self._gpus = [len(team) for team in teams]
        self._idle = [IdleGpus(fleet) for _ in teams]
        self._ready: set[int] = set()
        self._whole = whole
        self._counts = fleet.counts
        self._queues = Queues(thresholds(first_s, factor, queues))
        self._standing: dict[str, _Standing] = {}

    def round_s(self, job: RoundJob) -> float:
        """T_n, seconds per round on a mean group: |D_r| over s_n, the groups' mean tasks per second."""
        power = sum(rate * count for rate, count in zip(job.rates, self._counts, strict=True))
        return job.tasks * self._groups / power

    def arrived(self, job: Progress, now: float) -> None:
        self._standing[job.job.id] = _Standing()
        self._enter(job)

    def round_ended(self, job: Progress, now: float) -> None:
        self._enter(job)

    def finished(self, job: Progress, now: float) -> None:
        del self._standing[job.job.id]
        self._predictor.learn(job)

    def _enter(self, job: Progress) -> None:
        """Add the job to its queue. A prediction is kept until it is used up, so that the virtual size is constant."""
        standing = self._standing[job.job.id]
        if job.done >= max(standing.ends, standing.look):
            standing.ends = job.done + self._predictor.predict(job)
            standing.look = job.done * AGAIN
        self._queues.add(job, self._size(job), max(0.0, standing.ends - job.done))

    def _size(self, job: Progress) -> float:
        """H_n, seconds: (R^r + R^p) T."""
        return max(job.done, self._standing[job.job.id].ends) * self.round_s(job.job)

    def freed(self, gpus: Sequence[int], now: float) -> None:
        for gpu in gpus:
            team = self._team[gpu]
            self._idle[team].add((gpu,))
            if not self._whole or self._idle[team].number == self._gpus[team]:
                self._ready.add(team)

    def assign(self, now: float) -> list[Part]:
        parts: list[Part] = []
        for team in sorted(self._ready):
            if not self._fill(team, parts):
                break
        return parts

    def _fill(self, team: int, parts: list[Part]) -> bool:
        """Give the group's idle GPUs to the next jobs; False if no jobs are waiting."""
        idle = self._idle[team]
        while idle.number:
            job = self._queues.pop()
            if job is None:
                return False
            gpus = idle.fastest(job.job, job.left)
            parts.append(job.take(gpus, [1] * len(gpus)))
            if job.left:
                self._queues.keep(job, self._size(job))
        self._ready.discard(team)
        return True


@register("hlas")
def hlas(fleet: Fleet, jobs: Sequence[RoundJob], **settings: float) -> Hlas:
    """HLAS: attained service only."""
    return Hlas(fleet, jobs, NoPredictor(), **settings)  # type: ignore[arg-type]


@register("hlas-p")
def hlas_p(fleet: Fleet, jobs: Sequence[RoundJob], alpha: int = ALPHA, **settings: float) -> Hlas:
    """HLAS-P: virtual sizes with the conservative predictor."""
    return Hlas(fleet, jobs, Conservative(alpha), **settings)  # type: ignore[arg-type]


@register("hlas-l")
def hlas_l(fleet: Fleet, jobs: Sequence[RoundJob], **settings: float) -> Hlas:
    """HLAS-L, for comparison: virtual sizes from the fitted loss curve alone."""
    return Hlas(fleet, jobs, LossFit(), **settings)  # type: ignore[arg-type]


@register("hlas-known", clairvoyant=True)
def hlas_known(fleet: Fleet, jobs: Sequence[RoundJob], **settings: float) -> Hlas:
    """True sizes as virtual sizes: an upper bound on what predictions can gain with these queues."""
    return Hlas(fleet, jobs, Known(), **settings)  # type: ignore[arg-type]
