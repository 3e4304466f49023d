"""Small batches: SJF-BCO literally as printed in the paper, and the optimal makespan by exhaustive search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product

from papers.sjf_bco.planners import evaluate
from slurm_asrpt.core.policies.sjf_bco.evaluation import BatchJob, Plan, Servers
from slurm_asrpt.core.policies.sjf_bco.planner import BestPlan, Plans
from slurm_asrpt.core.timing.contention import ContendingJobs
from tests.reference.exact import splits


def toy(gpus: int, iterations: int, alone: float, neighbor: float = 0.0, server: float = 0.0) -> BatchJob:
    """A job with iteration time ``alone``, plus ``neighbor`` per competing ring and ``server`` per further server."""

    def time(counts: tuple[int, ...], rings: tuple[int, ...]) -> float:
        return alone + neighbor * (max(rings, default=1) - 1) + server * (len(counts) - 1)

    return BatchJob(gpus, iterations, iterations * alone, time)


def as_printed(
    jobs: Sequence[BatchJob], servers: Servers, horizon: int, factor: float = 1.0, slot: float = 0.0
) -> tuple[float, int, int, Plan] | None:
    """Algorithm 1 of SJF-BCO line by line. Returns makespan, theta, kappa and plan, or None."""
    order = sorted(range(len(jobs)), key=lambda j: jobs[j].gpus)
    best, left, right = None, 1, horizon
    m = float(horizon)
    while left <= right:
        theta = (left + right) // 2
        m_theta, y_theta = float(horizon), None
        for kappa in range(1, max(job.gpus for job in jobs) + 1):
            plan = _one_plan(jobs, servers, order, theta, kappa, factor)
            if plan is None:
                continue
            makespan = evaluate(plan, jobs, servers, slot).makespan
            if makespan < m_theta:
                m_theta, y_theta = makespan, (theta, kappa, plan)
        if m_theta < m and y_theta is not None:
            m, best = m_theta, y_theta
            right = theta - 1
        else:
            left = theta + 1
    return best and (m, *best)


def _one_plan(
    jobs: Sequence[BatchJob], servers: Servers, order: Sequence[int], theta: float, kappa: int, factor: float
) -> Plan | None:
    loads = [0.0] * servers.gpus
    chosen: dict[int, list[int]] = {}
    for j in order:
        job = jobs[j]
        among = range(servers.gpus) if job.gpus <= kappa else _least_busy(job, servers, loads, factor)
        idle = [g for g in among if loads[g] + job.estimate <= theta * (1 + 1e-9)]
        if len(idle) < job.gpus:
            return None
        chosen[j] = sorted(idle, key=lambda g: loads[g])[: job.gpus]
        for g in chosen[j]:
            loads[g] += job.estimate
    return Plan(order, [chosen[j] for j in range(len(jobs))])


def idle_as_printed(
    jobs: Sequence[BatchJob],
    servers: Servers,
    order: Sequence[int],
    theta: float,
    kappa: int,
    factor: float,
    slot: float,
) -> tuple[dict[int, list[int]], dict[int, float], dict[int, float]] | None:
    """Lines 9-16 with Algorithms 2 and 3 among idle GPUs: GPUs, starts and ends of the jobs, or None."""
    loads, running = [0.0] * servers.gpus, ContendingJobs[int](slot)
    gpus: dict[int, list[int]] = {}
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    now = 0.0

    def exit_one() -> float:
        end, job = running.pop()
        ends[job] = end
        return end

    for j in order:
        job = jobs[j]
        while True:
            while len(running) and running.next_end() <= now:
                exit_one()
            among = range(servers.gpus) if job.gpus <= kappa else _least_busy(job, servers, loads, factor)
            taken = {g for other, held in gpus.items() if other not in ends for g in held}
            idle = [g for g in among if g not in taken and loads[g] + job.estimate <= theta * (1 + 1e-9)]
            if len(idle) >= job.gpus:
                break
            if not len(running):
                return None
            now = exit_one()
        gpus[j] = sorted(sorted(idle), key=lambda g: loads[g])[: job.gpus]
        starts[j] = now
        for g in gpus[j]:
            loads[g] += job.estimate
        used = Counter(servers.of[g] for g in sorted(gpus[j]))
        counts = tuple(used.values())
        running.start(j, used, job.iterations, lambda rings, t=job.time, c=counts: t(c, rings), now)
    while len(running):
        exit_one()
    return gpus, starts, ends


def _least_busy(job: BatchJob, servers: Servers, loads: Sequence[float], factor: float) -> list[int]:
    def busy(s: int) -> float:
        return sum(load for load, of in zip(loads, servers.of, strict=True) if of == s) / servers.sizes[s]

    selected: list[int] = []
    for s in sorted(range(len(servers.sizes)), key=busy):
        if sum(servers.sizes[s] for s in selected) >= factor * job.gpus:
            break
        selected.append(s)
    return [g for s in selected for g in range(servers.gpus) if servers.of[g] == s]


def exhaustive_search(
    plans: Plans,
    jobs: Sequence[BatchJob],
    servers: Servers,
    horizon: float,
    slot: float,
    step: float,
    deadline: float,
    floor: float,
) -> BestPlan | None:
    """The bisection of ``planner.search`` with every plan of each theta simulated to its end."""
    best, left, right = None, 1, int(horizon / step)
    while left <= right:
        theta = (left + right) // 2
        tried = [
            BestPlan(plan, evaluate(plan, jobs, servers, slot), theta * step, k, 0) for k, plan in plans(theta * step)
        ]
        least = min(tried, key=lambda found: found.schedule.makespan, default=None)
        if least and least.schedule.makespan < (best.schedule.makespan if best else deadline):
            best, right = least, theta - 1
        else:
            left = theta + 1
    return best


Move = tuple[int, tuple[int, ...]]
"""A start slot and the GPUs on each server."""


def least_makespan(jobs: Sequence[BatchJob], sizes: Sequence[int]) -> float:
    """T*: the least makespan over all start slots and placements, in slots of 1. Some job starts at 0.

    With contention, waiting can pay off, so it is not enough to start each job as soon as possible.
    """
    best = _one_after_the_other(jobs, sizes)
    ways = [list(splits(job.gpus, sizes)) for job in jobs]

    def extend(moves: list[Move]) -> None:
        nonlocal best
        job = len(moves)
        if job == len(jobs):
            if min(start for start, _ in moves) == 0:
                best = min(best, _makespan(jobs, moves, sizes, best))
            return
        start = 0
        while start + jobs[job].estimate < best - 1e-9:
            for counts in ways[job]:
                extend([*moves, (start, counts)])
            start += 1

    extend([])
    return best


def _one_after_the_other(jobs: Sequence[BatchJob], sizes: Sequence[int]) -> float:
    plan = Plan(range(len(jobs)), [list(range(job.gpus)) for job in jobs])
    return evaluate(plan, jobs, Servers.of_sizes(sizes), slot=1.0).makespan


def _makespan(jobs: Sequence[BatchJob], moves: Sequence[Move], sizes: Sequence[int], bound: float) -> float:
    """The makespan of fixed starts; infinity where GPUs are not free, or once it cannot be below the bound."""
    crossing, held = ContendingJobs[int](slot=1.0), Counter[int]()
    end = 0.0

    def until(now: float) -> float:
        last = 0.0
        while len(crossing) and crossing.next_end() <= now:
            last, gone = crossing.pop()
            held.subtract(_taken(moves[gone]))
        return last

    for job in sorted(range(len(jobs)), key=lambda job: moves[job][0]):
        start, counts = moves[job]
        end = max(end, until(start))
        held.update(_taken(moves[job]))
        if any(held[s] > size for s, size in enumerate(sizes)):
            return float("inf")
        on = [s for s, count in enumerate(counts) if count]
        time, used = jobs[job].time, tuple(count for count in counts if count)
        crossing.start(job, on, jobs[job].iterations, lambda rings, t=time, u=used: t(u, rings), start)
        if crossing.next_end() == float("inf"):
            return float("inf")
    return max(end, until(float(bound) * 4))


def _taken(move: Move) -> dict[int, int]:
    return {s: count for s, count in enumerate(move[1]) if count}


def busy_times(plan: Plan, jobs: Sequence[BatchJob], seconds: Sequence[float], servers: Servers) -> list[float]:
    """W_g: the sum of ``seconds`` over the jobs of each GPU."""
    found = [0.0] * servers.gpus
    for number in range(len(jobs)):
        for gpu in plan.gpus[number]:
            found[gpu] += seconds[number]
    return found


def overlaps(plan: Plan, start: Sequence[float], end: Sequence[float]) -> Iterator[tuple[int, int, int]]:
    """(GPU, job, other job) for each GPU that has two jobs at once."""
    for a, b in product(range(len(start)), repeat=2):
        if a < b and start[a] < end[b] and start[b] < end[a]:
            yield from ((gpu, a, b) for gpu in set(plan.gpus[a]) & set(plan.gpus[b]))
