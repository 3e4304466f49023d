"""The other reading of Algorithms 2 and 3: a job chooses among idle GPUs, and waits for jobs to exit.

``core/policies/sjf_bco/planner`` reads a plan as GPUs only: a job may choose GPUs in use, and queues for them. Here
jobs are scheduled in time, as "idle" and "wait for some job to exit and then go to Line 2" say. The next job in the
order chooses once enough idle GPUs stay within theta; until then it waits, and all later jobs with it. If no job runs,
the plan fails. docs/decisions/0011 compares the readings.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.policies.sjf_bco.evaluation import BatchJob, Plan, Schedule, Servers
from slurm_asrpt.core.policies.sjf_bco.gpu_loads import GpuLoads
from slurm_asrpt.core.policies.sjf_bco.planner import BestPlan, smallest_first, thresholds
from slurm_asrpt.core.timing.contention import ContendingJobs

Mask = NDArray[np.bool_]
Rule = Callable[[GpuLoads, Mask, BatchJob], Sequence[int] | None]
"""The GPUs of a job, among those in the mask: idle, and within theta with this job. None: it waits."""


@dataclass(frozen=True)
class Placed:
    """A plan, and the schedule in which it came about."""

    plan: Plan
    schedule: Schedule


# rules


def least_loaded(loads: GpuLoads, among: Mask, job: BatchJob) -> list[int] | None:
    """Algorithm 2, lines 3 and 4, and LS: the G_j GPUs with the least U."""
    gpus = np.flatnonzero(among)
    if len(gpus) < job.gpus:
        return None
    chosen: list[int] = np.sort(gpus[np.argsort(loads.loads[gpus], kind="stable")[: job.gpus]]).tolist()
    return chosen


def least_busy_servers(loads: GpuLoads, among: Mask, job: BatchJob, factor: float) -> list[int] | None:
    """Algorithm 3: the same on the least busy servers that have lambda_j G_j GPUs, idle or not."""
    busy = np.add.reduceat(loads.loads, loads.first[:-1]) / loads.sizes
    order = np.argsort(busy, kind="stable")
    held = np.cumsum(loads.sizes[order])
    selected = order[: int(np.searchsorted(held, min(factor * job.gpus, held[-1]))) + 1]
    return least_loaded(loads, among & np.isin(loads.of, selected), job)


def first(loads: GpuLoads, among: Mask, job: BatchJob) -> list[int] | None:
    """FF: the first G_j GPUs, server by server."""
    gpus: list[int] = np.flatnonzero(among)[: job.gpus].tolist()
    return gpus if len(gpus) == job.gpus else None


def random_servers(loads: GpuLoads, among: Mask, job: BatchJob, rng: random.Random) -> list[int] | None:
    """RAND: random GPUs of random servers."""
    if int(among.sum()) < job.gpus:
        return None
    found: list[int] = []
    for server in rng.sample(range(len(loads.sizes)), len(loads.sizes)):
        free = [gpu for gpu in range(loads.first[server], loads.first[server + 1]) if among[gpu]]
        found += rng.sample(free, min(len(free), job.gpus - len(found)))
    return sorted(found)


# one schedule


def schedule(
    jobs: Sequence[BatchJob],
    servers: Servers,
    order: Sequence[int],
    rule: Callable[[BatchJob], Rule],
    theta: float,
    slot: float = 0.0,
    limit: float = math.inf,
) -> Placed | None:
    """Schedule the jobs in this order; None if a job finds no GPUs within theta, or if the makespan reaches the limit.

    Raises ValueError for a job that never ends.
    """
    run = _Run(jobs, servers, slot)
    for number in order:
        job = jobs[number]
        while (gpus := rule(job)(run.loads, run.idle & run.loads.open_to(job, theta), job)) is None:
            if not run.contending or run.now >= limit:
                return None
            run.wait()
        run.start(number, gpus)
    while run.contending and run.now < limit:
        run.wait()
    if run.now >= limit:
        return None
    return Placed(Plan(order, [run.gpus[number] for number in range(len(jobs))]), Schedule(run.starts, run.ends))


class _Run:
    """A schedule in progress. now: the last instant at which jobs ended."""

    def __init__(self, jobs: Sequence[BatchJob], servers: Servers, slot: float) -> None:
        self.jobs, self.servers = jobs, servers
        self.loads, self.idle = GpuLoads(servers), np.ones(servers.gpus, dtype=bool)
        self.contending = ContendingJobs[int](slot)
        self.gpus: dict[int, Sequence[int]] = {}
        self.starts, self.ends = ([0.0] * len(jobs) for _ in range(2))
        self.now = 0.0

    def start(self, number: int, gpus: Sequence[int]) -> None:
        job, counts = self.jobs[number], Counter([self.servers.of[gpu] for gpu in gpus])
        self.gpus[number], self.starts[number] = gpus, self.now
        self.idle[gpus] = False
        self.loads.take(gpus, job.estimate)
        self.contending.start(number, counts, job.iterations, partial(job.time, tuple(counts.values())), self.now)

    def wait(self) -> None:
        """Until some job exits, and all that exit with it."""
        self.now, number = self.contending.pop()
        self._end(number)
        while self.contending.next_end() <= self.now:
            self._end(self.contending.pop()[1])

    def _end(self, number: int) -> None:
        self.ends[number] = self.now
        self.idle[self.gpus[number]] = True


# searches

Tries = Callable[[float, float], Iterator[tuple[int | None, Placed]]]
"""The schedules for a theta whose makespans are below a limit, each with its kappa."""


def search(tries: Tries, horizon: float) -> BestPlan | None:
    """Algorithm 1, lines 4 to 23: bisection on theta in 1..T; None if no schedule ends before T."""
    left, right = 1, int(horizon)
    best: BestPlan | None = None
    while left <= right:
        theta, better = (left + right) // 2, False
        for kappa, found in tries(theta, best.schedule.makespan if best else horizon):
            if best is None or found.schedule.makespan < best.schedule.makespan:
                best, better = BestPlan(found.plan, found.schedule, theta, kappa, 0), True
        left, right = (left, theta - 1) if better else (theta + 1, right)
    return best


def sjf_bco(
    jobs: Sequence[BatchJob],
    servers: Servers,
    horizon: float,
    factor: float = 1.0,
    kappas: Sequence[int] | None = None,
    slot: float = 0.0,
) -> BestPlan | None:
    """Algorithm 1 with this reading of Algorithms 2 and 3. factor: lambda_j. kappas: None for ``thresholds``."""
    order, large = smallest_first(jobs), partial(least_busy_servers, factor=factor)

    def tries(theta: float, limit: float) -> Iterator[tuple[int, Placed]]:
        for kappa in thresholds(jobs) if kappas is None else kappas:
            rule = partial(_by_size, kappa, least_loaded, large)
            found = schedule(jobs, servers, order, rule, theta, slot, limit)
            if found is not None:
                yield kappa, found
                limit = min(limit, found.schedule.makespan)

    return search(tries, horizon)


def _by_size(kappa: int, small: Rule, large: Rule, job: BatchJob) -> Rule:
    return small if job.gpus <= kappa else large


def in_order(
    rule: Rule, jobs: Sequence[BatchJob], servers: Servers, horizon: float, slot: float = 0.0
) -> BestPlan | None:
    """FF and LS: the jobs as they come, with the best theta."""

    def tries(theta: float, limit: float) -> Iterator[tuple[None, Placed]]:
        found = schedule(jobs, servers, range(len(jobs)), lambda job: rule, theta, slot, limit)
        if found is not None:
            yield None, found

    return search(tries, horizon)


first_fit = partial(in_order, first)
list_scheduling = partial(in_order, least_loaded)


def at_random(
    jobs: Sequence[BatchJob], servers: Servers, horizon: float, seed: int = 0, slot: float = 0.0
) -> BestPlan | None:
    """RAND: theta = T."""
    rule = partial(random_servers, rng=random.Random(seed))  # noqa: S311 (nothing secret)
    found = schedule(jobs, servers, range(len(jobs)), lambda job: rule, horizon, slot)
    return None if found is None else BestPlan(found.plan, found.schedule, horizon, None, 1)
