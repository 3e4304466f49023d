"""The least sum of completion times of a tiny instance, by exhaustive search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.sim.job_table import JobTable
from tests.reference.placements import least_alpha

Running = tuple[tuple[float, tuple[int, ...]], ...]
"""(end, GPUs per server) of the jobs started so far."""


def splits(gpus: int, servers: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Every way to take these GPUs from servers of these sizes."""
    return (counts for counts in product(*(range(size + 1) for size in servers)) if sum(counts) == gpus)


def true_best_alpha(profile: JobProfile, nodes: Sequence[Node], fabric: Fabric) -> float:
    """α_i^min of the paper, over all placements; Heavy-Edge's estimate α̃_i^min may be above it."""
    servers = [node.gpus for node in nodes]
    return min(least_alpha(profile, counts, servers, fabric) for counts in splits(profile.gpus, servers))


def optimum(table: JobTable, nodes: Sequence[Node], fabric: Fabric) -> float:
    """OPT_A: the least sum of completion times over all non-preemptive schedules and placements, seconds.

    Take an optimal schedule, keep its placements and its order of starts, and start each job as soon as its GPUs are
    free, but not before the previous one: by induction no job starts later. So all orders and placements suffice.
    """
    servers = [node.gpus for node in nodes]
    ways = [
        [(least_alpha(profile, counts, servers, fabric), counts) for counts in splits(profile.gpus, servers)]
        for profile in table.profiles
    ]
    jobs = {
        row: (float(table.submit[row]), [(alpha * float(table.iterations[row]), counts) for alpha, counts in ways[p]])
        for row, p in enumerate(table.profile)
    }
    least = float("inf")

    def extend(left: frozenset[int], floor: float, running: Running, total: float) -> None:
        nonlocal least
        soonest = sum(max(floor, jobs[row][0]) + min(jobs[row][1])[0] for row in left)
        if total + soonest >= least:
            return
        if not left:
            least = total
        for row in left:
            submit, choices = jobs[row]
            for seconds, counts in choices:
                start = _earliest(max(floor, submit), counts, running, servers)
                extend(left - {row}, start, (*running, (start + seconds, counts)), total + start + seconds)

    extend(frozenset(jobs), 0.0, (), 0.0)
    return least


def _earliest(floor: float, counts: tuple[int, ...], running: Running, servers: Sequence[int]) -> float:
    """The first time from ``floor`` on at which these GPUs are free; all running jobs have started by then."""
    for now in sorted({floor, *(end for end, _ in running if end > floor)}):
        held = [sum(each) for each in zip(*(taken for end, taken in running if end > now), strict=True)]
        free = [size - used for size, used in zip(servers, held or [0] * len(servers), strict=True)]
        if all(need <= have for need, have in zip(counts, free, strict=True)):
            return now
    raise AssertionError("a job larger than the cluster")
