"""HLAS and HLAS-P (Algorithms 1-3, section V-B): least attained service first, on groups of similar GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from slurm_asrpt.core.convergence import ALPHA
from slurm_asrpt.core.policies.hlas.policy import thresholds
from slurm_asrpt.core.rounds.grouping import group, members
from slurm_asrpt.core.rounds.jobs import Fleet, Part, Progress, RoundJob, share_out
from slurm_asrpt.core.rounds.policy import IdleGpus, register
from slurm_asrpt.core.rounds.predictors import Conservative, Known, LossFit, NoPredictor, RoundPredictor
from slurm_asrpt.core.rounds.queues import Queues

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


class _Idle(Protocol):
    """What is idle, and what of it a job gets."""

    def add(self, gpus: Iterable[int]) -> None:
        """These GPUs have become free."""

    def __bool__(self) -> bool:
        """Whether something is idle."""

    def serve(self, job: Progress) -> Part:
        """Give a job the fastest that is idle."""


class _SingleGpus:
    """Algorithm 1 by GPU: each idle GPU takes a task, the fastest for the job first."""

    def __init__(self, fleet: Fleet) -> None:
        self._idle = IdleGpus(fleet)
        self.add = self._idle.add

    def __bool__(self) -> bool:
        return self._idle.number > 0

    def serve(self, job: Progress) -> Part:
        gpus = self._idle.fastest(job.job, job.left)
        return job.take(gpus, [1] * len(gpus))


class _WholeGroups:
    """Algorithm 1 by group: a group whose GPUs are all idle takes a round, the fastest for the job first.

    Each task runs on the group's GPU where it ends first. A GPU that gets none is idle until the group is.
    """

    def __init__(self, fleet: Fleet, jobs: Sequence[RoundJob], groups: int) -> None:
        self._kind = fleet.kind
        speeds = np.array([job.rates for job in jobs])
        self._teams = members(group(fleet.counts, speeds, groups), fleet.kind)
        self._team = {gpu: number for number, team in enumerate(self._teams) for gpu in team}
        self._busy = [len(team) for team in self._teams]
        self._ready: set[int] = set()

    def add(self, gpus: Iterable[int]) -> None:
        for gpu in gpus:
            team = self._team[gpu]
            self._busy[team] -= 1
            if not self._busy[team]:
                self._ready.add(team)

    def __bool__(self) -> bool:
        return bool(self._ready)

    def serve(self, job: Progress) -> Part:
        team = max(self._ready, key=lambda team: (self._speed(job.job, team), -team))
        self._ready.remove(team)
        counts = share_out(job.left, [job.job.compute_s[self._kind[gpu]] for gpu in self._teams[team]])
        used = {gpu: tasks for gpu, tasks in zip(self._teams[team], counts, strict=True) if tasks}
        self._busy[team] = len(used)
        return job.take(list(used), list(used.values()))

    def _speed(self, job: RoundJob, team: int) -> float:
        """The sum of s_{n,m} over the group, tasks per second."""
        return sum(job.rates[self._kind[gpu]] for gpu in self._teams[team])


class Hlas:
    """Queues of jobs by their size (R^r + R^p) T; what is idle takes the next job, the fastest first.

    Algorithm 1 goes through the idle GPUs or groups and leaves their order open. In the order of numbers, fast GPUs
    would stay idle while slow ones get the last tasks of a round, for which all others wait.

    groups: number of groups, 0 for one per GROUP_GPUS GPUs. queues, first_s, factor: K, E_1^H in seconds, and the ratio
    of successive ends; the paper does not specify them.
    whole: a group takes a round when all its GPUs are idle, as in the text; else each idle GPU takes a task, as in
    Algorithm 1, and the groups only determine the sizes of jobs.
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
        self._idle: _Idle = _WholeGroups(fleet, jobs, self._groups) if whole else _SingleGpus(fleet)
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
        self._idle.add(gpus)

    def assign(self, now: float) -> list[Part]:
        parts: list[Part] = []
        while self._idle and (job := self._queues.pop()) is not None:
            parts.append(self._idle.serve(job))
            if job.left:
                self._queues.keep(job, self._size(job))
        return parts


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
