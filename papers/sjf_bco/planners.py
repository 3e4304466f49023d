"""What only the paper needs: the planners that SJF-BCO is compared with, and a plan evaluated to its end."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from slurm_asrpt.core.policies.sjf_bco.evaluation import BatchJob, Plan, Schedule, Servers, evaluate_below
from slurm_asrpt.core.policies.sjf_bco.gpu_loads import GpuLoads
from slurm_asrpt.core.policies.sjf_bco.planner import BestPlan, assign_in_order, search


def evaluate(plan: Plan, jobs: Sequence[BatchJob], servers: Servers, slot: float = 0.0) -> Schedule:
    """Simulates a plan to its end. slot: as in ``ContendingJobs``. Raises ValueError for a job that never ends."""
    schedule = evaluate_below(math.inf, plan, jobs, servers, slot)
    assert schedule is not None  # noqa: S101
    return schedule


def mean_completion(schedule: Schedule) -> float:
    """The mean end of the jobs, in the unit of the schedule."""
    return sum(schedule.end) / max(1, len(schedule.end))


def _simple(rule: Callable[[GpuLoads, BatchJob, float], Sequence[int] | None]) -> Callable[..., BestPlan | None]:
    """A planner that takes the jobs as they come and has one plan for each theta."""

    def planner(jobs: Sequence[BatchJob], servers: Servers, horizon: float, slot: float = 0.0) -> BestPlan | None:
        order = range(len(jobs))

        def plans(theta: float) -> Iterator[tuple[None, Plan]]:
            found = assign_in_order(GpuLoads(servers), jobs, order, lambda loads, job: rule(loads, job, theta))
            if found is not None:
                yield None, Plan(order, [found[number] for number in order])

        return search(plans, jobs, servers, horizon, slot)

    return planner


def _first_gpus(loads: GpuLoads, job: BatchJob, theta: float) -> list[int] | None:
    """The first GPUs that stay within theta, server by server."""
    found: list[int] = np.flatnonzero(loads.open_to(job, theta))[: job.gpus].tolist()
    return found if len(found) == job.gpus else None


def _random_gpus(loads: GpuLoads, job: BatchJob, theta: float, rng: random.Random) -> list[int] | None:
    """Random GPUs of random servers, of those that stay within theta."""
    within = loads.open_to(job, theta).tolist()
    found: list[int] = []
    for server in rng.sample(range(len(loads.sizes)), len(loads.sizes)):
        free = [gpu for gpu in range(loads.first[server], loads.first[server + 1]) if within[gpu]]
        found += rng.sample(free, min(len(free), job.gpus - len(found)))
        if len(found) == job.gpus:
            return sorted(found)
    return None


first_fit = _simple(_first_gpus)
"""FF: the first GPUs that stay within theta."""

list_scheduling = _simple(GpuLoads.fa_ffp)
"""LS: the least loaded GPUs. FA-FFP as printed does the same: they differ only in the order of the jobs."""


def at_random(jobs: Sequence[BatchJob], servers: Servers, horizon: float, seed: int = 0, slot: float = 0.0) -> BestPlan:
    """RAND: random servers and GPUs, theta = T. Raises ValueError for a job that does not fit into T."""
    rng = random.Random(seed)  # noqa: S311 (nothing secret)
    found = assign_in_order(
        GpuLoads(servers), jobs, range(len(jobs)), lambda loads, job: _random_gpus(loads, job, horizon, rng)
    )
    if found is None:
        raise ValueError(f"a job finds no GPUs within {horizon:g}")
    plan = Plan(range(len(jobs)), [found[number] for number in range(len(jobs))])
    return BestPlan(plan, evaluate(plan, jobs, servers, slot), horizon, None, 1)
