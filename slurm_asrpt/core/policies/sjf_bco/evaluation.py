"""A plan for a batch of ring jobs, and its exact evaluation: starts, ends and makespan under contention.

A plan fixes the GPUs of each job and an order. A job starts as soon as all its GPUs are idle; if several could start,
the first in the order does. With this interpretation the paper's Lemma 3 holds (docs/theory.md): a job never waits
while all its GPUs are idle.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from slurm_asrpt.core.timing.contention import ContendingJobs

IterationTime = Callable[[tuple[int, ...], tuple[int, ...]], float]
"""Time per iteration, given the GPUs on each server and how many jobs use each NIC; the latter () on one server."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job of a batch.

    iterations: F_j. estimate: rho_hat_j/u, a lower bound of its runtime on any GPUs. time: see IterationTime.
    servers: those that may run it, None for all. block: GPUs that must share a server. one_block: at most one block per
    server.
    """

    gpus: int
    iterations: float
    estimate: float
    time: IterationTime
    servers: frozenset[int] | None = None
    block: int = 1
    one_block: bool = False

    @property
    def plain(self) -> bool:
        """Whether the job can use any GPUs."""
        return self.servers is None and self.block == 1 and not self.one_block


@dataclass(frozen=True, slots=True)
class Servers:
    """The GPUs of a cluster, numbered server by server. sizes: GPUs of each server. of: the server of each GPU."""

    sizes: tuple[int, ...]
    of: tuple[int, ...]

    @classmethod
    def of_sizes(cls, sizes: Sequence[int]) -> Servers:
        return cls(tuple(sizes), tuple(server for server, size in enumerate(sizes) for _ in range(size)))

    @property
    def gpus(self) -> int:
        return len(self.of)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan. order: job numbers in the order of starts. gpus: GPUs of each job, by its number."""

    order: Sequence[int]
    gpus: Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a plan: start and end of each job, by its number."""

    start: Sequence[float]
    end: Sequence[float]

    @property
    def makespan(self) -> float:
        return max(self.end, default=0.0)


def evaluate_below(
    limit: float, plan: Plan, jobs: Sequence[BatchJob], servers: Servers, slot: float = 0.0
) -> Schedule | None:
    """Simulate a plan from time 0; None as soon as the makespan cannot be below the limit.

    slot: as in ``ContendingJobs``. Raises ValueError for a job that never ends.
    """
    evaluation = _Evaluation(plan, jobs, servers, slot)
    evaluation.begin(range(len(plan.order)), 0.0)
    while evaluation.contending:
        now = evaluation.contending.next_end()
        if limit <= now < math.inf:
            return None
        freed = [evaluation.end()]
        while evaluation.contending.next_end() <= now:  # ends come before starts
            freed.append(evaluation.end())
        places = {place for job in freed for gpu in plan.gpus[job] for place in evaluation.waiting[gpu]}
        evaluation.begin(sorted(places), now)
    return Schedule(evaluation.start, evaluation.ends)


class _Evaluation:
    """An evaluation in progress. Where the order matters, jobs are identified by their position in it."""

    def __init__(self, plan: Plan, jobs: Sequence[BatchJob], servers: Servers, slot: float) -> None:
        self.plan, self.jobs, self.servers = plan, jobs, servers
        self.contending = ContendingJobs[int](slot)
        self.start, self.ends = ([0.0] * len(jobs) for _ in range(2))
        self.busy = bytearray(servers.gpus)
        self.waiting: list[dict[int, None]] = [{} for _ in range(servers.gpus)]  # positions by the GPU they wait for
        for place, job in enumerate(plan.order):
            for gpu in plan.gpus[job]:
                self.waiting[gpu][place] = None

    def begin(self, places: Sequence[int], now: float) -> None:
        """Start the jobs at these positions, ascending, whose GPUs are idle."""
        busy = self.busy
        for place in places:
            job = self.plan.order[place]
            gpus = self.plan.gpus[job]
            if not any(busy[gpu] for gpu in gpus):
                for gpu in gpus:
                    busy[gpu] = 1
                    del self.waiting[gpu][place]
                self.start[job] = now
                self._run(job, gpus, now)

    def _run(self, job: int, gpus: Sequence[int], now: float) -> None:
        counts = Counter([self.servers.of[gpu] for gpu in gpus])
        pace = partial(self.jobs[job].time, tuple(counts.values()))
        self.contending.start(job, counts, self.jobs[job].iterations, pace, now)

    def end(self) -> int:
        end, job = self.contending.pop()
        self.ends[job] = end
        for gpu in self.plan.gpus[job]:
            self.busy[gpu] = 0
        return job
