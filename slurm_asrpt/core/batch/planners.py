"""Planners of a batch: SJF-BCO (Algorithms 1-3 of the paper) and those that it is compared with.

Each fills a ledger (ledger.py), job by job.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from slurm_asrpt.core.batch.ledger import Ledger
from slurm_asrpt.core.batch.plan import BatchJob, Plan, Schedule, Servers, evaluate, evaluate_below


@dataclass(frozen=True, slots=True)
class Begun:
    """What a plan begins with. gpus: of the jobs that have theirs, whatever theta. ledger: with these jobs in it."""

    gpus: Mapping[int, Sequence[int]]
    ledger: Ledger


@dataclass(frozen=True, slots=True)
class Found:
    """The best plan of a search. theta: its theta_u. kappa: None for planners without. tries: plans evaluated."""

    plan: Plan
    schedule: Schedule
    theta: float
    kappa: int | None
    tries: int


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
    jobs: Sequence[BatchJob],
    servers: Servers,
    theta: float,
    factor: float,
    kappas: Sequence[int],
    begun: Begun | None = None,
) -> Iterator[tuple[int, Plan]]:
    """Lines 7-16: for each kappa, ascending, small jobs by Algorithm 2 and then large ones by Algorithm 3.

    The small jobs of one kappa are small for the next too, and get the same GPUs: they are placed once.
    begun: its jobs are first in the order.
    """
    placed, ledger = (dict(begun.gpus), begun.ledger.copy()) if begun else ({}, Ledger(servers))
    order = [*placed, *(number for number in smallest_first(jobs) if number not in placed)]
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


def search(
    plans: Plans,
    jobs: Sequence[BatchJob],
    servers: Servers,
    horizon: float,
    slot: float = 0.0,
    step: float = 1.0,
    deadline: float | None = None,
    floor: float = 0.0,
) -> Found | None:
    """Algorithm 1, lines 4-23: bisection on theta in 1..T, for the least makespan; None if no plan ends before T.

    step: the unit in which theta is searched for. deadline: for the makespan, in place of T. floor: no plan ends
    before, so that one that ends then ends the search. Plans that come again for another theta are not played again.
    As printed, lines 17-18 would also take the makespan of a plan that broke off (line 14): here it has to be whole.
    """
    left, right = 1, int(horizon / step)
    least = horizon if deadline is None else deadline
    best: Found | None = None
    played: set[tuple[tuple[int, ...], ...]] = set()
    while left <= right and least > floor:
        theta = (left + right) // 2
        better = False
        for kappa, plan in plans(theta * step):
            gpus = tuple(map(tuple, plan.gpus))
            if gpus in played:
                continue
            played.add(gpus)
            schedule = evaluate_below(least, plan, jobs, servers, slot)
            if schedule is not None:
                least, better = schedule.makespan, True
                best = Found(plan, schedule, theta * step, kappa, len(played))
            if least <= floor:
                break
        left, right = (left, theta - 1) if better else (theta + 1, right)
    return best and replace(best, tries=len(played))


def sjf_bco(
    jobs: Sequence[BatchJob],
    servers: Servers,
    horizon: float,
    factor: float = 1.0,
    kappas: Sequence[int] | None = None,
    slot: float = 0.0,
    begun: Begun | None = None,
    step: float = 1.0,
    deadline: float | None = None,
    floor: float = 0.0,
) -> Found | None:
    """Algorithm 1. factor: lambda_j of all jobs. kappas: those to try, all that make a difference if None.

    begun: as in ``sjf_bco_plans``. step, deadline, floor: as in ``search``.
    """
    tried = thresholds(jobs) if kappas is None else kappas
    plans = partial(sjf_bco_plans, jobs, servers, factor=factor, kappas=tried, begun=begun)
    return search(lambda theta: plans(theta=theta), jobs, servers, horizon, slot, step, deadline, floor)


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
