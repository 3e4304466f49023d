"""The planner of SJF-BCO: Algorithms 1-3 of the paper for a batch, and the batch of a queue at one time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.policies.sjf_bco.evaluation import BatchJob, Plan, Schedule, Servers, evaluate_below
from slurm_asrpt.core.policies.sjf_bco.gpu_loads import GpuLoads

UNKNOWN_RUNTIME_S = 3600.0
"""Expected seconds for which GPUs stay in use if their job is unknown."""
STEPS = 63
"""Number of values of theta; the bisection tries about the logarithm of this number."""


@dataclass(frozen=True, slots=True)
class FixedJobs:
    """Jobs whose GPUs are fixed for all theta. gpus: by job number. loads: the loads including these jobs."""

    gpus: Mapping[int, Sequence[int]]
    loads: GpuLoads


@dataclass(frozen=True, slots=True)
class BestPlan:
    """The best plan of a search. theta: its theta_u. kappa: None for planners without kappa. tries: plans evaluated."""

    plan: Plan
    schedule: Schedule
    theta: float
    kappa: int | None
    tries: int


# plans for one theta

Rule = Callable[[GpuLoads, BatchJob], Sequence[int] | None]
"""The GPUs that a planner's rule assigns to a job at one theta; None if it gets none."""


def assign_in_order(
    loads: GpuLoads, jobs: Sequence[BatchJob], order: Sequence[int], pick: Rule
) -> dict[int, Sequence[int]] | None:
    """Assign GPUs to the jobs in this order and add them to the loads; None if a job gets none."""
    found: dict[int, Sequence[int]] = {}
    for number in order:
        gpus = pick(loads, jobs[number])
        if gpus is None:
            return None
        loads.take(gpus, jobs[number].estimate)
        found[number] = gpus
    return found


def smallest_first(jobs: Sequence[BatchJob]) -> list[int]:
    """Algorithm 1, line 3: by G_j, ties by arrival."""
    return sorted(range(len(jobs)), key=lambda number: jobs[number].gpus)


def thresholds(jobs: Sequence[BatchJob]) -> list[int]:
    """The kappa that differ in effect: of 1, 2, ... up to the largest job, only 1 and the sizes of jobs."""
    return sorted({1, *(job.gpus for job in jobs)})


def sjf_bco_plans(
    jobs: Sequence[BatchJob],
    servers: Servers,
    theta: float,
    factor: float,
    kappas: Sequence[int],
    fixed: FixedJobs | None = None,
) -> Iterator[tuple[int, Plan]]:
    """Lines 7-16: for each kappa, ascending, small jobs by Algorithm 2 and then large jobs by Algorithm 3.

    Jobs that are small for one kappa are small for the next and get the same GPUs, so they are placed only once.
    fixed: its jobs come first in the order.
    """
    placed, loads = (dict(fixed.gpus), fixed.loads.copy()) if fixed else ({}, GpuLoads(servers))
    order = [*placed, *(number for number in smallest_first(jobs) if number not in placed)]
    small: Rule = lambda loads, job: loads.fa_ffp(job, theta)  # noqa: E731
    large: Rule = lambda loads, job: loads.lbsgf(job, theta, factor)  # noqa: E731
    for kappa in kappas:
        more = assign_in_order(loads, jobs, [n for n in order[len(placed) :] if jobs[n].gpus <= kappa], small)
        if more is None:
            return  # larger kappa would fail, too
        placed |= more
        rest = assign_in_order(loads.copy(), jobs, order[len(placed) :], large)
        if rest is not None:
            yield kappa, Plan(order, [(placed.get(n) or rest[n]) for n in range(len(jobs))])


# searches for theta

Plans = Callable[[float], Iterable[tuple[int | None, Plan]]]
"""The plans of one theta, each with its kappa."""


def search(
    plans: Plans,
    jobs: Sequence[BatchJob],
    servers: Servers,
    horizon: float,
    slot: float = 0.0,
    step: float = 1.0,
    deadline: float | None = None,
    floor: float = 0.0,
) -> BestPlan | None:
    """Algorithm 1, lines 4-23: bisection on theta in 1..T for the least makespan; None if no plan ends before T.

    step: the unit of theta. deadline: limit of the makespan, in place of T. floor: a lower bound of the makespan; the
    search ends when a plan reaches it. Plans that occur again for another theta are not evaluated again.
    As printed, lines 17-18 also accept the makespan of an incomplete plan (line 14); here, plans must be complete.
    """
    left, right = 1, int(horizon / step)
    least = horizon if deadline is None else deadline
    best: BestPlan | None = None
    evaluated: set[tuple[tuple[int, ...], ...]] = set()
    while left <= right and least > floor:
        theta = (left + right) // 2
        better = False
        for kappa, plan in plans(theta * step):
            gpus = tuple(map(tuple, plan.gpus))
            if gpus in evaluated:
                continue
            evaluated.add(gpus)
            schedule = evaluate_below(least, plan, jobs, servers, slot)
            if schedule is not None:
                least, better = schedule.makespan, True
                best = BestPlan(plan, schedule, theta * step, kappa, len(evaluated))
            if least <= floor:
                break
        left, right = (left, theta - 1) if better else (theta + 1, right)
    return best and replace(best, tries=len(evaluated))


def sjf_bco(
    jobs: Sequence[BatchJob],
    servers: Servers,
    horizon: float,
    factor: float = 1.0,
    kappas: Sequence[int] | None = None,
    slot: float = 0.0,
    fixed: FixedJobs | None = None,
    step: float = 1.0,
    deadline: float | None = None,
    floor: float = 0.0,
) -> BestPlan | None:
    """Algorithm 1. factor: lambda_j of all jobs. kappas: the values to try; None for ``thresholds``.

    fixed: as in ``sjf_bco_plans``. step, deadline, floor: as in ``search``.
    """
    tried = thresholds(jobs) if kappas is None else kappas
    plans = partial(sjf_bco_plans, jobs, servers, factor=factor, kappas=tried, fixed=fixed)
    return search(lambda theta: plans(theta=theta), jobs, servers, horizon, slot, step, deadline, floor)


class QueueBatch:
    """A batch of running and waiting jobs. Running jobs keep their GPUs until their expected ends.

    jobs: running jobs, and from number ``first`` on waiting jobs. kept: the GPUs of late jobs, which choose before the
    others.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        free: Mapping[str, int],
        running: Iterable[tuple[Mapping[str, int], float]],
        waiting: Sequence[BatchJob],
        late: Sequence[int],
    ) -> None:
        """free: GPUs by node. running: GPUs by node, and remaining seconds. late: numbers of waiting jobs, from 0."""
        self.servers = Servers.of_sizes([node.gpus for node in nodes])
        self.jobs: list[BatchJob] = []
        self._gpus: dict[int, Sequence[int]] = {}  # of jobs with fixed GPUs
        self._loads = GpuLoads(self.servers)
        self._add_running(nodes, free, running)
        self.first = len(self.jobs)
        self.jobs += waiting
        self.kept: set[int] = set()
        for number in late:
            self._assign_late(self.first + number)

    def _add_running(
        self, nodes: Sequence[Node], free: Mapping[str, int], running: Iterable[tuple[Mapping[str, int], float]]
    ) -> None:
        """Assign running jobs to the first unused GPUs of their servers; the choice within a server does not matter."""
        at = {node.name: number for number, node in enumerate(nodes)}
        left = [range(self._loads.first[s], self._loads.first[s + 1]) for s in range(len(nodes))]

        def take(server: int, count: int) -> range:
            taken, left[server] = left[server][:count], left[server][count:]
            return taken

        for counts, seconds in running:
            self._fix([gpu for name, n in counts.items() if name in at for gpu in take(at[name], n)], seconds)
        for server, node in enumerate(nodes):
            self._fix(take(server, max(0, len(left[server]) - free[node.name])), UNKNOWN_RUNTIME_S)

    def _fix(self, gpus: Sequence[int], seconds: float) -> None:
        if gpus:
            self._gpus[len(self.jobs)] = gpus
            self.jobs.append(BatchJob(len(gpus), seconds, seconds, lambda counts, rings: 1.0))
            self._loads.take(gpus, seconds)

    def _assign_late(self, number: int) -> None:
        gpus = self._loads.fa_ffp(self.jobs[number], math.inf)
        if gpus is not None:
            self._gpus[number] = gpus
            self._loads.take(gpus, self.jobs[number].estimate)
            self.kept.update(gpus)

    def best(self) -> BestPlan:
        """The plan with the least makespan of those tried. Raises ValueError if a job fits on no servers."""
        longest = max((job.estimate for job in self.jobs[: self.first]), default=0.0)  # of the running jobs
        most = longest + sum(job.estimate for job in self.jobs[self.first :])
        horizon = 2.2 * most + 1  # the first theta, about half of it, allows all GPUs for every job
        kappas = sorted({1, *(job.gpus for job in self.jobs[self.first :])})
        step = horizon / STEPS
        found = sjf_bco(
            self.jobs,
            self.servers,
            horizon,
            kappas=kappas,
            fixed=FixedJobs(self._gpus, self._loads),
            step=step,
            deadline=math.inf,
            floor=longest,
        )
        if found is None:
            raise ValueError("a job of the batch fits on no servers")
        return found
