"""Hare's baselines whose jobs hold one GPU per task (section VI-A; 2D-LAS: Tiresias [18]).

The paper describes each in a sentence or two; each class states its interpretation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Sequence

from slurm_asrpt.core.policies.hlas.policy import thresholds
from slurm_asrpt.core.rounds.jobs import Fleet, Part, Progress, RoundJob, mean_rate, share_out
from slurm_asrpt.core.rounds.policy import IdleGpus, register
from slurm_asrpt.core.rounds.queues import Queues


def _round(job: Progress, gpus: Sequence[int], kind: Sequence[int], gang: bool = True) -> Part:
    """A whole round; with fewer GPUs than tasks, each task runs where it ends first."""
    if len(gpus) == job.left:
        return job.take(gpus, [1] * len(gpus), gang)
    return job.take(gpus, share_out(job.left, [job.job.compute_s[kind[gpu]] for gpu in gpus]), gang)


class _Holding(ABC):
    """Jobs keep their GPUs from the first round to the last. They start in the order of ``key``; the first one blocks
    the others.

    Between two rounds, a job's GPUs are idle for the engine, but not for this policy.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.idle = IdleGpus(fleet)
        self.all = len(fleet.kind)
        self._kind = fleet.kind
        self._held: dict[str, list[int]] = {}
        self._owned: set[int] = set()
        self._waiting: list[tuple[float, int, Progress]] = []
        self._number = 0
        self._next: list[Progress] = []

    @abstractmethod
    def key(self, job: RoundJob) -> float:
        """The sort key; jobs with the smallest key run first."""

    @abstractmethod
    def gpus(self, job: RoundJob) -> list[int]:
        """Take idle GPUs for the job; empty if it must wait."""

    def arrived(self, job: Progress, now: float) -> None:
        self._number += 1
        insort(self._waiting, (self.key(job.job), self._number, job))

    def round_ended(self, job: Progress, now: float) -> None:
        self._next.append(job)

    def finished(self, job: Progress, now: float) -> None:
        gpus = self._held.pop(job.job.id)
        self._owned.difference_update(gpus)
        self.idle.add(gpus)

    def freed(self, gpus: Sequence[int], now: float) -> None:
        self.idle.add(gpu for gpu in gpus if gpu not in self._owned)

    def assign(self, now: float) -> list[Part]:
        parts = [self._round(job) for job in self._next]
        self._next.clear()
        while self._waiting:
            job = self._waiting[0][2]
            gpus = self.gpus(job.job)
            if not gpus:
                break
            del self._waiting[0]
            self._held[job.job.id] = gpus
            self._owned.update(gpus)
            parts.append(self._round(job))
        return parts

    def _round(self, job: Progress) -> Part:
        return _round(job, self._held[job.job.id], self._kind)


@register("gavel-fifo")
class GavelFifo(_Holding):
    """First in, first out, on the fastest idle GPUs; a job waits until there is one for each task."""

    def __init__(self, fleet: Fleet, jobs: Sequence[RoundJob]) -> None:
        super().__init__(fleet)

    def key(self, job: RoundJob) -> float:
        return job.arrival_s

    def gpus(self, job: RoundJob) -> list[int]:
        number = min(job.tasks, self.all)
        return self.idle.fastest(job, number) if self.idle.number >= number else []


@register("sched-homo", clairvoyant=True)
class SchedHomo(_Holding):
    """Jobs with the smallest predicted time over weight run first, on idle GPUs of any type, at most one per task.

    Our interpretation of Zhang et al. [4], who choose the resources of each job: at least half a GPU per task, held to
    the end, without preemption. If sizes are unknown, all jobs count as equally long.
    """

    def __init__(self, fleet: Fleet, jobs: Sequence[RoundJob]) -> None:
        super().__init__(fleet)
        self._counts = fleet.counts

    def key(self, job: RoundJob) -> float:
        return (job.rounds or 1) * job.tasks / mean_rate(job.rates, self._counts) / job.weight

    def gpus(self, job: RoundJob) -> list[int]:
        least = min((job.tasks + 1) // 2, self.all)
        return self.idle.lowest(min(job.tasks, self.idle.number)) if self.idle.number >= least else []


@register("sched-homo-unit")
class SchedHomoUnit(SchedHomo):
    """The online variant (section VI-D): unit size for all jobs."""

    def key(self, job: RoundJob) -> float:
        return job.arrival_s


class _ByRounds:
    """Jobs may be preempted between rounds. The first job gets one GPU per task, or all jobs wait.

    gang: a job's GPUs become free together, as in the paper's Fig. 5(a).
    """

    gang = True

    def __init__(self, fleet: Fleet) -> None:
        self.idle = IdleGpus(fleet)
        self.all = len(fleet.kind)
        self._kind = fleet.kind

    def freed(self, gpus: Sequence[int], now: float) -> None:
        self.idle.add(gpus)

    def enough(self, job: RoundJob) -> int:
        """GPUs that the job needs; if the cluster has fewer GPUs than tasks, all of them."""
        return min(job.tasks, self.all)


@register("srtf", clairvoyant=True)
class Srtf(_ByRounds):
    """Shortest remaining time first: remaining rounds times their seconds on a mean GPU; on the fastest idle GPUs."""

    def __init__(self, fleet: Fleet, jobs: Sequence[RoundJob]) -> None:
        super().__init__(fleet)
        self._counts = fleet.counts
        self._waiting: list[tuple[float, str, Progress]] = []

    def arrived(self, job: Progress, now: float) -> None:
        self.round_ended(job, now)

    def round_ended(self, job: Progress, now: float) -> None:
        left = (job.job.rounds or 1) - job.done
        insort(self._waiting, (left / mean_rate(job.job.rates, self._counts), job.job.id, job))

    def finished(self, job: Progress, now: float) -> None:
        return None

    def assign(self, now: float) -> list[Part]:
        parts = []
        while self._waiting and self.idle.number >= self.enough(self._waiting[0][2].job):
            job = self._waiting.pop(0)[2]
            gpus = self.idle.fastest(job.job, self.enough(job.job))
            parts.append(_round(job, gpus, self._kind, self.gang))
        return parts


@register("2d-las")
class TwoDimensionalLas(_ByRounds):
    """Tiresias: attained service is the number of GPUs times seconds; GPU types are ignored.

    Discretized into the same K queues as HLAS. As in Hare, demoted jobs are preempted only between rounds.
    """

    def __init__(
        self, fleet: Fleet, jobs: Sequence[RoundJob], queues: int = 8, first_s: float = 8.0, factor: float = 4.0
    ) -> None:
        super().__init__(fleet)
        self._queues = Queues(thresholds(first_s, factor, queues))
        self._service: dict[str, float] = {}
        self._began: dict[str, float] = {}

    def arrived(self, job: Progress, now: float) -> None:
        self._service[job.job.id] = 0.0
        self._queues.add(job, 0.0)

    def round_ended(self, job: Progress, now: float) -> None:
        self._service[job.job.id] += (now - self._began[job.job.id]) * self.enough(job.job)
        self._queues.add(job, self._service[job.job.id])

    def finished(self, job: Progress, now: float) -> None:
        del self._service[job.job.id]

    def assign(self, now: float) -> list[Part]:
        parts = []
        while (job := self._queues.pop()) is not None:
            number = self.enough(job.job)
            if self.idle.number < number:
                self._queues.keep(job, self._service[job.job.id])  # first in its queue
                break
            self._began[job.job.id] = now
            parts.append(_round(job, self.idle.lowest(number), self._kind, self.gang))
        return parts


@register("2d-las-released")
class TwoDimensionalLasReleased(TwoDimensionalLas):
    """Not in the paper: 2D-LAS whose GPUs become free one by one, to see how much of HLAS's gain is that."""

    gang = False
