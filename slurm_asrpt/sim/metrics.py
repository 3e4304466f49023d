"""Metrics of a simulation, and lower bounds on them, for reports, benchmarks and tests.

Both lower bounds relax the cluster to one machine of speed 1 on which job i has length l_i = (g_i/G) n_i α̃_i^min; on
the cluster it runs for p_i = n_i α̃_i^min seconds. Completion times are points in time, seconds on the table's clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from slurm_asrpt.core.cluster import Fabric, Node, capacity
from slurm_asrpt.sim.description import Cluster
from slurm_asrpt.sim.engine import Preemptions, Result
from slurm_asrpt.sim.job_table import Floats, JobTable


def bounds(table: JobTable, cluster: Cluster) -> dict[str, float]:
    """Lower bounds on the mean job completion time (from submission to end), seconds; docs/decisions/0006.

    The mean is over the jobs that fit the cluster.
    """
    can_run = ~np.isnan(table.best_alphas(cluster.nodes, cluster.fabric))
    submitted, jobs = float(table.submit[can_run].sum()), max(1, int(can_run.sum()))
    return {
        "design": (design_bound(table, cluster.nodes, cluster.fabric) - submitted) / jobs,
        "sound": (sound_bound(table, cluster.nodes, cluster.fabric) - submitted) / jobs,
    }


def over_bounds(result: Result, lower: dict[str, float], cluster: Cluster) -> dict[str, float | None]:
    """Mean completion time over each bound; None unless every job that fits the cluster has ended.

    An interrupted run has fewer jobs than the bound covers, so the ratio would be meaningless.
    """
    can_run = int((~np.isnan(result.table.best_alphas(cluster.nodes, cluster.fabric))).sum())
    mean = mean_of(result.completion_times) if len(result.ended) == can_run else None
    return {f"over_{name}": mean / bound if mean and bound > 0 else None for name, bound in lower.items()}


def slowdowns(result: Result, cluster: Cluster) -> Floats:
    """Completion time over the runtime in the best placement, of each job that has ended, shape (ended,)."""
    alone = result.table.iterations * result.table.best_alphas(cluster.nodes, cluster.fabric)
    return np.asarray(result.completion_times / alone[result.ended])


def summary(result: Result, cluster: Cluster) -> dict[str, Any]:
    """Mean and percentiles of completion time, wait and slowdown; makespan; GPU-seconds used and lost to placement.

    utilisation: share of the GPUs in use up to the last end; utilisation_arriving: up to the last submission.
    """
    jct, wait, slow = result.completion_times, result.waits[result.ended], slowdowns(result, cluster)
    alphas = result.table.best_alphas(cluster.nodes, cluster.fabric)[result.ended]
    gpus, iterations = result.table.gpus[result.ended], result.table.iterations[result.ended]
    used = float((gpus * iterations * result.alpha[result.ended]).sum())
    best = float((gpus * iterations * alphas).sum())
    gone = result.preemptions
    used -= gone.between_gpu_s() if gone else 0.0
    first = float(result.table.submit[0]) if len(result.table) else 0.0
    makespan = float(result.end[result.ended].max() - first) if len(jct) else 0.0
    capacity = cluster.total_gpus * makespan
    return {
        "jobs": len(result.table),
        "ended": len(result.ended),
        "never_started": len(result.never_started),
        "mean_jct_s": mean_of(jct),
        "median_jct_s": percentile(jct, 50),
        "p99_jct_s": percentile(jct, 99),
        "mean_wait_s": mean_of(wait),
        "median_wait_s": percentile(wait, 50),
        "p90_wait_s": percentile(wait, 90),
        "p99_wait_s": percentile(wait, 99),
        "max_wait_s": percentile(wait, 100),
        "mean_slowdown": mean_of(slow),
        "median_slowdown": percentile(slow, 50),
        "p90_slowdown": percentile(slow, 90),
        "p99_slowdown": percentile(slow, 99),
        "p999_slowdown": percentile(slow, 99.9),
        "makespan_s": makespan,
        "utilisation": used / capacity if capacity else 0.0,
        "utilisation_arriving": _used_while_arriving(result, cluster.total_gpus),
        "placement_loss": used / best - 1 if best else 0.0,
        **(_preempted(result, gone, used) if gone else {}),
    }


def _preempted(result: Result, gone: Preemptions, used: float) -> dict[str, Any]:
    """preempted: preemptions per job. lost_to_preemption: share of the GPU-seconds in use, without progress."""
    consents = np.isin(result.ended, gone.consenting)
    jct = result.completion_times
    return {
        "preempted": gone.count / max(1, len(result.table)),
        "lost_to_preemption": gone.lost_gpu_s / used if used else 0.0,
        "consenting_mean_jct_s": mean_of(jct[consents]),
        "others_mean_jct_s": mean_of(jct[~consents]),
    }


def _used_while_arriving(result: Result, gpus: int) -> float | None:
    """The share of the GPUs in use between the first and the last submission; None if all jobs come at once."""
    submit = result.table.submit
    span = float(submit[-1] - submit[0]) if len(submit) else 0.0
    busy = np.nan_to_num(np.minimum(result.end, submit[-1]) - result.start).clip(min=0.0) if span else 0.0
    gone = result.preemptions.between_gpu_s(float(submit[-1])) if result.preemptions and span else 0.0
    return (float((result.table.gpus * busy).sum()) - gone) / (gpus * span) if span else None


def mean_of(values: Floats) -> float | None:
    """None if there are no values."""
    return float(values.mean()) if len(values) else None


def percentile(values: Floats, share: float) -> float | None:
    """None if there are no values."""
    return float(np.percentile(values, share)) if len(values) else None


def design_bound(table: JobTable, nodes: Sequence[Node], fabric: Fabric) -> float:
    """DESIGN.md section 3: the sum over jobs of max(completion of preemptive SRPT, r_i + p_i), seconds.

    Not a strict bound: SRPT may finish a job with few GPUs first while all others wait, but a real cluster runs them in
    parallel (tests/unit/sim/test_lower_bounds.py has an example). It is close to ``sound_bound`` and usually above it.
    Jobs that can never run are left out.
    """
    release, length, alone = _columns(table, nodes, fabric)
    return float(np.maximum(srpt(release, length), release + alone).sum())


def sound_bound(table: JobTable, nodes: Sequence[Node], fabric: Fabric) -> float:
    """No schedule of these jobs has a smaller sum of completion times, seconds. The largest of three bounds:

    - preemptive SRPT, the optimum on one machine;
    - every job alone in the cluster, r_i + p_i;
    - mean busy times: a job that runs without interruption at g_i/G of the machine has its mean busy time p_i/2 before
      its end, and preemptive shortest-length-first minimizes their sum (Goemans 1997; Goemans et al., SIAM J. Discrete
      Math. 15(2), 2002). A job that runs longer than p_i in a worse placement is cut to its last p_i seconds.
    """
    release, length, alone = _columns(table, nodes, fabric)
    busy = _mean_busy_times(release, length)
    return float(max(srpt(release, length).sum(), (release + alone).sum(), (busy + alone / 2).sum()))


def preemptive_bound(table: JobTable, nodes: Sequence[Node], fabric: Fabric) -> float:
    """No schedule of these jobs, with or without preemption, has a smaller sum of completion times, seconds.

    The larger of two bounds: preemptive SRPT on one machine, and every job alone in the cluster.
    """
    release, length, alone = _columns(table, nodes, fabric)
    return float(max(srpt(release, length).sum(), (release + alone).sum()))


def latest_starts(result: Result, patience_s: float, late_share: float, servers: int, gpus: int) -> Floats:
    """The latest start of each job that asrpt-gated guarantees on ``servers`` servers of ``gpus`` GPUs, shape (n,), s.

    Job i starts by d_i + 2 (k_i + 1) L (1 + M / (late_share G)), with d_i = submission + 2 patience_s; k_i: the jobs
    submitted before it (ties by row) that had not started by d_i; L: the longest runtime in this result; M: GPUs of the
    servers that the largest job needs; G: all GPUs. A job that never started counts as pending if the simulation was
    interrupted; otherwise it fits no cluster and does not count. Its own row is nan.
    """
    submit, start = result.table.submit.tolist(), result.start.tolist()
    longest = float(np.nanmax(result.end - result.start, initial=0.0))
    largest = int(np.ceil(result.table.gpus[~np.isnan(result.start)] / gpus).max(initial=0)) * gpus
    step = 2 * longest * (1 + largest / (late_share * servers * gpus))
    waiting: list[float] = []  # a heap: starts of the jobs submitted before that had not started by the last d_i
    latest = np.full(len(submit), np.nan)
    for row in np.argsort(result.table.submit, kind="stable").tolist():
        due = submit[row] + 2 * patience_s
        while waiting and waiting[0] <= due:
            heapq.heappop(waiting)
        if start[row] == start[row]:  # not nan
            latest[row] = due + (len(waiting) + 1) * step
            heapq.heappush(waiting, start[row])
        elif result.interrupted:
            heapq.heappush(waiting, float("inf"))
    return latest


def _columns(table: JobTable, nodes: Sequence[Node], fabric: Fabric) -> tuple[Floats, Floats, Floats]:
    """r_i, l_i and p_i of the jobs that these nodes can run.

    If GPU types differ, p_i assumes the best type on all servers, G is the sum of the GPUs' speeds, and l_i is the
    minimum of v g_i n_i α̃_i^min / G over the types, where v is the speed of the type.
    """
    kinds = {(node.gpu_type, node.speed) for node in nodes} or {("", 1.0)}
    alphas = {
        kind: table.best_alphas([replace(node, gpu_type=kind[0], speed=kind[1]) for node in nodes], fabric)
        for kind in kinds
    }
    alone = table.iterations * np.min(list(alphas.values()), axis=0)
    taken = table.iterations * np.min([speed * found for (_, speed), found in alphas.items()], axis=0)
    can_run = ~np.isnan(alone)
    share = table.gpus / (capacity(nodes) or 1.0)
    return table.submit[can_run], (share * taken)[can_run], alone[can_run]


def srpt(release: Floats, length: Floats) -> Floats:
    """Completion times of preemptive shortest-remaining-first on one machine of speed 1; jobs sorted by release."""
    return _preemptive(release, length, by_remaining=True)[0]


def _mean_busy_times(release: Floats, length: Floats) -> Floats:
    """Mean busy time of each job under preemptive shortest-length-first; its release if it has length 0."""
    return _preemptive(release, length, by_remaining=False)[1]


def _preemptive(release: Floats, length: Floats, by_remaining: bool) -> tuple[Floats, Floats]:
    """Completion and mean busy time of each job under preemptive priorities: remaining or whole length."""
    releases, lengths = release.tolist(), length.tolist()
    left, busy = list(lengths), [0.0] * len(lengths)
    ends = list(releases)
    heap: list[tuple[float, int]] = []
    clock, arrived = 0.0, 0
    while heap or arrived < len(releases):
        if not heap:
            clock = releases[arrived]
        while arrived < len(releases) and releases[arrived] <= clock:
            heapq.heappush(heap, (lengths[arrived], arrived))
            arrived += 1
        job = heap[0][1]
        until = releases[arrived] if arrived < len(releases) else float("inf")
        done = clock + left[job] <= until
        served = left[job] if done else until - clock
        busy[job] += served * (clock + served / 2)
        left[job] -= served
        clock = clock + served if done else until
        if done:
            heapq.heappop(heap)
            ends[job] = clock
        elif by_remaining:
            heapq.heapreplace(heap, (left[job], job))
    whole = np.asarray(length)
    means = np.divide(np.array(busy), whole, out=np.array(ends), where=whole > 0)
    return np.array(ends), means
