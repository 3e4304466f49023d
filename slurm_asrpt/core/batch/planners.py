"""Planners of a batch: SJF-BCO (Algorithms 1-3 of the paper) and those that it is compared with.

Each fills a ledger: U_s^g, the estimated time for which a GPU is taken already. Ties go to the first GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.batch.plan import BatchJob, Plan, Schedule, Servers, evaluate

Floats = NDArray[np.float64]
_SLACK = 1 + 1e-9  # sums of the same estimates in another order


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan of a search. theta: its theta_u. kappa: None for planners without. tries: plans evaluated."""

    plan: Plan
    schedule: Schedule
    theta: float
    kappa: int | None
    tries: int


class Ledger:
    """U_s^g, shape (GPUs,), and how a job gets its GPUs under a limit theta; None where it cannot."""

    def __init__(self, servers: Servers, loads: Floats | None = None) -> None:
        self.servers = servers
        self.loads = np.zeros(servers.gpus) if loads is None else loads
        self.of = np.array(servers.of, dtype=np.int64)
        self.sizes = np.array(servers.sizes, dtype=np.int64)
        self.first = np.concatenate([[0], np.cumsum(self.sizes)])  # GPU of each server, and their number

    def copy(self) -> Ledger:
        clone = object.__new__(Ledger)
        clone.__dict__.update(self.__dict__)
        clone.loads = self.loads.copy()
        return clone

    def take(self, gpus: Sequence[int], seconds: float) -> None:
        self.loads[gpus] += seconds

    def fa_ffp(self, job: BatchJob, theta: float) -> list[int] | None:
        """Algorithm 2: the least taken GPUs, of those that stay within theta."""
        return _within(_least(self.loads, job.gpus), self.loads, job, theta)

    def lbsgf(self, job: BatchJob, theta: float, factor: float = 1.0) -> list[int] | None:
        """Algorithm 3: the least busy servers with factor x G_j GPUs (lambda_j), of those the least taken GPUs."""
        busy = np.add.reduceat(self.loads, self.first[:-1]) / self.sizes
        order = np.argsort(busy, kind="stable")
        held = np.cumsum(self.sizes[order])
        chosen = order[: int(np.searchsorted(held, min(factor * job.gpus, held[-1]))) + 1]
        among = np.concatenate([np.arange(self.first[s], self.first[s + 1]) for s in chosen.tolist()])
        if len(among) < job.gpus:
            return None
        return _within(among[_least(self.loads[among], job.gpus)], self.loads, job, theta)

    def first_fit(self, job: BatchJob, theta: float) -> list[int] | None:
        """The first GPUs that stay within theta, server by server."""
        found = np.flatnonzero(self.loads + job.estimate <= theta * _SLACK)[: job.gpus].tolist()
        return found if len(found) == job.gpus else None

    def at_random(self, job: BatchJob, theta: float, rng: random.Random) -> list[int] | None:
        """Random GPUs of random servers, of those that stay within theta."""
        within = (self.loads + job.estimate <= theta * _SLACK).tolist()
        found: list[int] = []
        for server in rng.sample(range(len(self.sizes)), len(self.sizes)):
            free = [gpu for gpu in range(self.first[server], self.first[server + 1]) if within[gpu]]
            found += rng.sample(free, min(len(free), job.gpus - len(found)))
            if len(found) == job.gpus:
                return sorted(found)
        return None


def _least(loads: Floats, number: int) -> NDArray[np.int64]:
    """Where the least of the loads are, the first of equals first; in a time that does not grow faster than they do."""
    if number == 1:
        return np.array([loads.argmin()])
    if number >= len(loads):
        return np.arange(len(loads))
    last = np.partition(loads, number - 1)[number - 1]
    below = np.flatnonzero(loads < last)
    equal = np.flatnonzero(loads == last)[: number - len(below)]
    return np.concatenate([below, equal])


def _within(gpus: NDArray[np.int64], loads: Floats, job: BatchJob, theta: float) -> list[int] | None:
    """These least taken GPUs if there are enough and all stay within theta: else no others would either."""
    if len(gpus) < job.gpus or float(loads[gpus].max()) + job.estimate > theta * _SLACK:
        return None
    return [int(gpu) for gpu in gpus]


# plans for one theta

Pick = Callable[[Ledger, BatchJob], Sequence[int] | None]
"""The GPUs of a job; a planner's rule at one theta."""


def fill(ledger: Ledger, jobs: Sequence[BatchJob], order: Sequence[int], pick: Pick) -> dict[int, Sequence[int]] | None:
    """The GPUs of the jobs in that order, which the ledger takes up; None if one finds none."""
    found: dict[int, Sequence[int]] = {}
    for number in order:
        gpus = pick(ledger, jobs[number])
        if gpus is None:
            return None
        ledger.take(gpus, jobs[number].estimate)
        found[number] = gpus
    return found


def smallest_first(jobs: Sequence[BatchJob]) -> list[int]:
    """Algorithm 1, line 3: by G_j, those of a size as they came."""
    return sorted(range(len(jobs)), key=lambda number: jobs[number].gpus)


def thresholds(jobs: Sequence[BatchJob]) -> list[int]:
    """The kappa that make a difference: kappa = 1, 2, ... to the largest job, of those between two sizes the lower."""
    return sorted({1, *(job.gpus for job in jobs)})


def sjf_bco_plans(
    jobs: Sequence[BatchJob], servers: Servers, theta: float, factor: float, kappas: Sequence[int]
) -> Iterator[tuple[int, Plan]]:
    """Lines 7-16: for each kappa, ascending, small jobs by Algorithm 2 and then large ones by Algorithm 3.

    The small jobs of one kappa are small for the next too, and get the same GPUs: they are placed once.
    """
    order = smallest_first(jobs)
    ledger, placed = Ledger(servers), dict[int, Sequence[int]]()
    small: Pick = lambda book, job: book.fa_ffp(job, theta)  # noqa: E731
    large: Pick = lambda book, job: book.lbsgf(job, theta, factor)  # noqa: E731
    for kappa in kappas:
        more = fill(ledger, jobs, [n for n in order[len(placed) :] if jobs[n].gpus <= kappa], small)
        if more is None:
            return  # nor would they be placed for a larger kappa
        placed |= more
        rest = fill(ledger.copy(), jobs, order[len(placed) :], large)
        if rest is not None:
            yield kappa, Plan(order, [(placed.get(n) or rest[n]) for n in range(len(jobs))])


# searches for theta

Plans = Callable[[float], Iterable[tuple[int | None, Plan]]]
"""The plans of one theta, each with its kappa."""


def search(plans: Plans, jobs: Sequence[BatchJob], servers: Servers, horizon: float, slot: float = 0.0) -> Found | None:
    """Algorithm 1, lines 4-23: bisection on theta in 1..T, for the least makespan; None if no plan ends before T.

    As printed, lines 17-18 would also take the makespan of a plan that broke off (line 14): here it has to be whole.
    """
    left, right = 1, int(horizon)
    best: Found | None = None
    tries = 0
    while left <= right:
        theta = (left + right) // 2
        better = False
        for kappa, plan in plans(float(theta)):
            tries += 1
            schedule = evaluate(plan, jobs, servers, slot)
            if schedule.makespan < (horizon if best is None else best.schedule.makespan):
                best, better = Found(plan, schedule, theta, kappa, tries), True
        left, right = (left, theta - 1) if better else (theta + 1, right)
    return best and Found(best.plan, best.schedule, best.theta, best.kappa, tries)


def sjf_bco(
    jobs: Sequence[BatchJob],
    servers: Servers,
    horizon: float,
    factor: float = 1.0,
    kappas: Sequence[int] | None = None,
    slot: float = 0.0,
) -> Found | None:
    """Algorithm 1. factor: lambda_j of all jobs. kappas: those to try, all that make a difference if None."""
    tried = thresholds(jobs) if kappas is None else kappas
    plans = partial(sjf_bco_plans, jobs, servers, factor=factor, kappas=tried)
    return search(lambda theta: plans(theta=theta), jobs, servers, horizon, slot)


def _simple(rule: Callable[[Ledger, BatchJob, float], Sequence[int] | None]) -> Callable[..., Found | None]:
    """A planner that takes the jobs as they come and has one plan for each theta."""

    def planner(jobs: Sequence[BatchJob], servers: Servers, horizon: float, slot: float = 0.0) -> Found | None:
        order = range(len(jobs))

        def plans(theta: float) -> Iterator[tuple[None, Plan]]:
            found = fill(Ledger(servers), jobs, order, lambda book, job: rule(book, job, theta))
            if found is not None:
                yield None, Plan(order, [found[number] for number in order])

        return search(plans, jobs, servers, horizon, slot)

    return planner


first_fit = _simple(Ledger.first_fit)
"""FF: the first GPUs that stay within theta."""

list_scheduling = _simple(Ledger.fa_ffp)
"""LS: the least taken GPUs. FA-FFP does the same as printed: they differ in the order of the jobs alone."""


def at_random(jobs: Sequence[BatchJob], servers: Servers, horizon: float, seed: int = 0, slot: float = 0.0) -> Found:
    """RAND: random servers and GPUs, theta = T. Raises ValueError for a job that does not fit into T."""
    rng = random.Random(seed)  # noqa: S311 (nothing secret)
    found = fill(Ledger(servers), jobs, range(len(jobs)), lambda book, job: book.at_random(job, horizon, rng))
    if found is None:
        raise ValueError(f"a job finds no GPUs within {horizon:g}")
    plan = Plan(range(len(jobs)), [found[number] for number in range(len(jobs))])
    return Found(plan, evaluate(plan, jobs, servers, slot), horizon, None, 1)
