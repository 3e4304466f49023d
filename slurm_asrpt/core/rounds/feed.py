"""What a round policy is told at one instant, and what it answers: a value that can be kept, and replayed.

A pool feeds its policy by the wall clock. Whatever else happens in it, the policy sees what it sees in the simulator:
GPUs become free, then rounds end, then jobs arrive; then it assigns tasks. Without news it is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.rounds.jobs import Part, Progress, RoundJob
from slurm_asrpt.core.rounds.policy import RoundPolicy


@dataclass(frozen=True)
class Arrived:
    """A job has arrived. job: as its policy sees it. done: rounds that it had done before."""

    job: RoundJob
    done: int = 0


@dataclass(frozen=True)
class RoundEnd:
    """A round has ended. done: ended rounds. last: the job has finished, or failed. loss: of the round.

    compute_s: the job's times from now on, as in ``RoundJob``.
    """

    job: JobId
    done: int
    last: bool
    loss: float | None
    compute_s: tuple[float, ...]


@dataclass(frozen=True)
class Assigned:
    """A part of a round, as a value: tasks of job's round (from 0) by GPU."""

    job: JobId
    round: int
    gpus: tuple[int, ...]
    tasks: tuple[int, ...]


@dataclass(frozen=True)
class Decision:
    """An instant. time: seconds, later than that of the decision before."""

    time: float
    freed: tuple[int, ...] = ()
    ended: tuple[RoundEnd, ...] = ()
    arrived: tuple[Arrived, ...] = ()
    assigned: tuple[Assigned, ...] = ()


def assigned(parts: Iterable[Part]) -> tuple[Assigned, ...]:
    """Parts as values. They must be new: a round that has ended since would count."""
    return tuple(
        Assigned(part.progress.job.id, part.progress.done, tuple(part.gpus), tuple(part.tasks)) for part in parts
    )


Record = Callable[[Decision], None]


class Feed:
    """Collects the news for a policy, tells them in the simulator's order, and records each decision."""

    def __init__(self, policy: RoundPolicy, record: Record = lambda decision: None) -> None:
        self._policy, self._record = policy, record
        self._freed: list[int] = []
        self._ended: list[tuple[Progress, RoundEnd]] = []
        self._arrived: list[Progress] = []
        self._last = -math.inf

    def freed(self, gpu: int) -> None:
        """A GPU has become free."""
        self._freed.append(gpu)

    def ended(self, job: Progress, last: bool, loss: float | None) -> None:
        """A round has ended: the job's last, or one that another follows."""
        self._ended.append((job, RoundEnd(job.job.id, job.done, last, loss, job.job.compute_s)))

    def arrived(self, job: Progress) -> None:
        """A job has arrived."""
        self._arrived.append(job)

    def decide(self, now: float) -> list[Part]:
        """Tell the news and let the policy assign tasks. Clocks that stand still or go back are put right."""
        if not (self._freed or self._ended or self._arrived):
            return []
        self._last = now = max(now, math.nextafter(self._last, math.inf))
        freed, ended, arrived = tuple(sorted(self._freed)), tuple(self._ended), tuple(self._arrived)
        for news in (self._freed, self._ended, self._arrived):
            news.clear()
        came = tuple(_came(job, now) for job in arrived)
        self._tell(freed, ended, arrived, now)
        parts = list(self._policy.assign(now))
        self._record(Decision(now, freed, tuple(end for _, end in ended), came, assigned(parts)))
        return parts

    def _tell(
        self,
        freed: tuple[int, ...],
        ended: Iterable[tuple[Progress, RoundEnd]],
        arrived: Iterable[Progress],
        now: float,
    ) -> None:
        if freed:
            self._policy.freed(freed, now)
        for job, end in ended:
            (self._policy.finished if end.last else self._policy.round_ended)(job, now)
        for job in arrived:
            self._policy.arrived(job, now)


def _came(job: Progress, now: float) -> Arrived:
    """The job arrives now, whenever it was submitted."""
    job.job = replace(job.job, arrival_s=now)
    return Arrived(job.job, job.done)
