"""What Hare schedules: jobs made of rounds, rounds made of tasks, and GPUs of several types.

A round is |D_r| tasks; each trains one batch. Under relaxed scale-fixed synchronization (section II-B.3) the tasks of a
round may run one after another on fewer GPUs: their number, and with it what is learned, stays the same. The round ends
when its last task has computed and sent its gradients. A task is never preempted; between rounds a job may be.

A GPU is held for T^c, the computation. Gradients travel for T^s while it is free for the next task.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from slurm_asrpt.core.cluster import spread
from slurm_asrpt.core.job import JobId
from slurm_asrpt.predict.loss_curve import Curve

Rates = tuple[float, ...]
"""Tasks per second by GPU type, in the order of ``Fleet.types``."""


@dataclass(frozen=True)
class Fleet:
    """The GPUs, numbered from 0. kind: for each of them the index of its type in ``types``."""

    types: tuple[str, ...]
    kind: tuple[int, ...]

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> Fleet:
        """So many of each type, numbered so that the types alternate: who is blind to types must not gain by numbers.

        Raises ValueError for a negative number or no GPU at all.
        """
        if min(counts.values(), default=0) < 0 or not sum(counts.values()):
            raise ValueError(f"a fleet needs GPUs, not {dict(counts)}")
        return cls(tuple(counts), tuple(spread(list(counts.values()))))

    @property
    def counts(self) -> tuple[int, ...]:
        """How many there are of each type."""
        return tuple(self.kind.count(index) for index in range(len(self.types)))


@dataclass(frozen=True)
class RoundJob:
    """A job as it is submitted.

    arrival_s: a_n, seconds. tasks: |D_r|, of each round. rounds: |R_n|; None where the policy must not know it.
    compute_s, sync_s: T^c, T^s, seconds per batch and GPU type, in the order of ``Fleet.types``. weight: w_n.
    model: jobs of a model have the same times. history: what runs of the past are found by (name or user).
    search: the hyper-parameter search that it belongs to, empty for none. curve: its training loss, None if not known.

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
        """The same job as a non-clairvoyant policy may see it."""
        return replace(self, rounds=None)


@dataclass(slots=True, eq=False)
class Progress:
    """A job on its way. Policies read it and ``take`` tasks of it; all else the engine writes.

    done: R^r, rounds that have ended. left: tasks of the present round that run nowhere yet.
    synced_s: when the last task scheduled so far will have sent its gradients.
    """

    job: RoundJob
    done: int = 0
    left: int = 0
    synced_s: float = 0.0

    def take(self, gpus: Sequence[int], tasks: Sequence[int]) -> Part:
        """Put tasks of the present round on idle GPUs. Raises ValueError for more than are left."""
        self.left -= sum(tasks)
        if self.left < 0:
            raise ValueError(f"job {self.job.id} has {-self.left} tasks fewer than that left in its round")
        return Part(self, gpus, tasks, not self.left)

    def loss(self, done: int) -> float | None:
        """The loss reported after so many rounds; None if there is none yet, or the job reports none."""
        return self.job.curve.loss(done) if self.job.curve and done <= self.done else None


@dataclass(slots=True)
class Part:
    """Tasks of a job's present round, put on idle GPUs.

    tasks: how many each of the GPUs does, one after another. The GPUs come free together, when the last has computed.
    last: with it all tasks of the round are scheduled.
    """

    progress: Progress
    gpus: Sequence[int]
    tasks: Sequence[int]
    last: bool


def share_out(tasks: int, seconds: Sequence[float]) -> list[int]:
    """How many tasks each GPU does if each goes where it ends first. seconds: of one task, by GPU.

    Of two that end at the same time the first gets it (Fig. 10: six tasks on GPUs of 1 and 2 s are four and two).
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
    """Tasks per second of a mean GPU among ``counts`` per type: what a type-blind scheduler reckons with."""
    numbers = list(counts)
    return sum(rate * number for rate, number in zip(rates, numbers, strict=True)) / sum(numbers)
