"""Hare's model: jobs consist of rounds, rounds of tasks, and GPUs have several types.

A round has |D_r| tasks; each trains one batch. Under relaxed scale-fixed synchronization (section II-B.3), the tasks of
a round may run one after another on fewer GPUs. Their number, and thus the training result, stays the same. A round
ends when its last task has computed and sent its gradients. Tasks are not preempted; jobs may be, between rounds.

A task occupies its GPU for T^c, the computation. Its gradients are sent for T^s, while the GPU is free for other tasks.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from slurm_asrpt.core.cluster import spread
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.loss_curve import Curve

Rates = tuple[float, ...]
"""Tasks per second by GPU type, in the order of ``Fleet.types``."""


@dataclass(frozen=True)
class Fleet:
    """The GPUs, numbered from 0. kind: for each GPU, the index of its type in ``types``."""

    types: tuple[str, ...]
    kind: tuple[int, ...]

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Fleet:
        """This number of GPUs per type, numbered alternately, so that type-blind policies do not profit from the order.

        Raises ValueError for a negative number, or without GPUs.
        """
        if min(counts.values(), default=0) < 0 or not sum(counts.values()):
            raise ValueError(f"a fleet needs GPUs, not {dict(counts)}")
        return cls(tuple(counts), tuple(spread(list(counts.values()))))

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of GPUs of each type."""
        return tuple(self.kind.count(index) for index in range(len(self.types)))


@dataclass(frozen=True)
class RoundJob:
    """A submitted job.

    arrival_s: a_n, seconds. tasks: |D_r|, per round. rounds: |R_n|; None if hidden from the policy.
    compute_s, sync_s: T^c, T^s, seconds per batch and GPU type, in the order of ``Fleet.types``. weight: w_n.
    model: jobs of a model have the same times. history: key of past runs (name or user).
    search: the hyper-parameter search of the job, or empty. curve: its training loss, None if unknown.

    Raises ValueError for sizes below one and times that are not positive.
    """

    id: JobId
    arrival_s: float
    tasks: int
    compute_s: tuple[float, ...]
    sync_s: tuple[float, ...]
    rounds: int | None = None
    weight: float = 1.0
    model: str = ""
    history: str = ""
    search: str = ""
    curve: Curve | None = None

    def __post_init__(self) -> None:
        if self.tasks < 1 or (self.rounds is not None and self.rounds < 1):
            raise ValueError(f"job {self.id} needs at least one task and one round")
        if len(self.compute_s) != len(self.sync_s):
            raise ValueError(
                f"job {self.id} has compute times for {len(self.compute_s)} types of GPU "
                f"and synchronization times for {len(self.sync_s)}"
            )
        if not all(0 < t < math.inf for t in self.compute_s) or not all(0 <= t < math.inf for t in self.sync_s):
            raise ValueError(f"job {self.id} needs finite times above 0")

    @cached_property
    def rates(self) -> Rates:
        """s_{n,m}, tasks per second on a GPU of each type (section IV-C, "training speed")."""
        return tuple(1 / (compute + sync) for compute, sync in zip(self.compute_s, self.sync_s, strict=True))

    def sizeless(self) -> RoundJob:
        """The job as non-clairvoyant policies see it."""
        return replace(self, rounds=None)


@dataclass(slots=True, eq=False)
class Progress:
    """An active job. Policies read it and ``take`` its tasks; the engine updates everything else.

    done: R^r, ended rounds. left: unscheduled tasks of the current round.
    synced_s: when the last of the scheduled tasks will have sent its gradients.
    """

    job: RoundJob
    done: int = 0
    left: int = 0
    synced_s: float = 0.0

    def take(self, gpus: Sequence[int], tasks: Sequence[int], gang: bool = False) -> Part:
        """Schedule tasks of the current round on idle GPUs. Raises ValueError for more tasks than are left."""
        self.left -= sum(tasks)
        if self.left < 0:
            raise ValueError(f"job {self.job.id} has {-self.left} tasks fewer than that left in its round")
        return Part(self, gpus, tasks, not self.left, gang)

    def loss(self, done: int) -> float | None:
        """The loss after ``done`` rounds; None if there is none yet, or the job does not report it."""
        return self.job.curve.loss(done) if self.job.curve and done <= self.done else None


@dataclass(slots=True)
class Part:
    """Tasks of a job's current round on idle GPUs.

    tasks: number of tasks per GPU, which run one after another. last: whether all tasks of the round are now scheduled.
    gang: the GPUs become free together, after the last task; else each after its own last task.
    """

    progress: Progress
    gpus: Sequence[int]
    tasks: Sequence[int]
    last: bool
    gang: bool = False


def share_out(tasks: int, seconds: Sequence[float]) -> list[int]:
    """Tasks per GPU if each task runs where it ends first. seconds: of one task, by GPU.

    Ties go to the first GPU (Fig. 10: six tasks on GPUs with 1 and 2 s are divided into four and two).
    """
    ends = [(each, at) for at, each in enumerate(seconds)]
    heapq.heapify(ends)
    counts = [0] * len(ends)
    for _ in range(tasks):
        end, at = ends[0]
        counts[at] += 1
        heapq.heapreplace(ends, (end + seconds[at], at))
    return counts


def mean_rate(rates: Rates, counts: Iterable[int]) -> float:
    """Tasks per second of a mean GPU, with ``counts`` GPUs per type, as a type-blind scheduler assumes."""
    numbers = list(counts)
    return sum(rate * number for rate, number in zip(rates, numbers, strict=True)) / sum(numbers)
