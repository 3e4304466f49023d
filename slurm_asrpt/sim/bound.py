"""Lower bounds on the sum of completion times that any schedule can reach, and a policy's promise to each job.

Both lower bounds relax the cluster to one machine of speed 1 on which job i has length l_i = (g_i/G) n_i α̃_i^min; in
truth it takes p_i = n_i α̃_i^min seconds once started. Completion times are instants, seconds on the table's clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from slurm_asrpt.core.cluster import Fabric, Node, capacity
from slurm_asrpt.sim.engine import Result
from slurm_asrpt.sim.job_table import Floats, JobTable


def design_bound(table: JobTable, nodes: Sequence[Node], fabric: Fabric) -> float:
    """DESIGN.md section 3: the sum over jobs of max(completion of preemptive SRPT, r_i + p_i), seconds.

    Not a bound in the strict sense: SRPT may finish the narrow job first, of which the sum then counts p_i, and let
    all others wait for it, while a real cluster runs it beside them (tests/unit/sim/test_bound.py has an instance).
    Close to ``sound_bound`` and mostly above it; a schedule below it is no error. Jobs that can never run are left out.
    """
    release, length, alone = _columns(table, nodes, fabric)
    return float(np.maximum(srpt(release, length), release + alone).sum())


def sound_bound(table: JobTable, nodes: Sequence[Node], fabric: Fabric) -> float:
    """A sum of completion times that no schedule of these jobs goes below, seconds: the largest of three.

    - preemptive SRPT, the optimum on one machine;
    - every job alone in the cluster, r_i + p_i;
    - mean busy times: a job that runs without a break at g_i/G of the machine has its mean busy time p_i/2 before its
      end, and preemptive shortest-length-first minimises their sum (Goemans 1997; Goemans et al., SIAM J. Discrete
      Math. 15(2), 2002). A job that runs longer than p_i, for want of a good placement, is cut to its last p_i seconds.
    """
    release, length, alone = _columns(table, nodes, fabric)
    busy = _mean_busy_times(release, length)
    return float(max(srpt(release, length).sum(), (release + alone).sum(), (busy + alone / 2).sum()))


def latest_starts(result: Result, patience_s: float) -> Floats:
    """What asrpt-gated promises on equal servers: when each job starts at the latest, shape (n,), seconds.

    Job i starts by d_i + (k_i + 1) L. d_i = submission + patience_s; k_i: the jobs submitted before it (of several at
    once those in earlier rows) that had not started by d_i; L: the longest run of any job in this result. What never
    started counts as waiting if the run was interrupted, else not: no cluster could hold it. Its own row is nan.
    """
    submit, start = result.table.submit.tolist(), result.start.tolist()
    longest = float(np.nanmax(result.end - result.start, initial=0.0))
    waiting: list[
        float
    ] = []  # heap of the starts of those submitted before; what had started by d_i never counts again
    latest = np.full(len(submit), np.nan)
    for row in np.argsort(result.table.submit, kind="stable").tolist():
        due = submit[row] + patience_s
        while waiting and waiting[0] <= due:
            heapq.heappop(waiting)
        if start[row] == start[row]:  # not nan
            latest[row] = due + (len(waiting) + 1) * longest
            heapq.heappush(waiting, start[row])
        elif result.interrupted:
            heapq.heappush(waiting, float("inf"))
    return latest


def _columns(table: JobTable, nodes: Sequence[Node], fabric: Fabric) -> tuple[Floats, Floats, Floats]:
    """r_i, l_i and p_i of the jobs that these nodes can run.

    Where GPUs differ, p_i is that on the best kind, as if all servers had it; G is the sum of the speeds, and a GPU of
    speed v that a job holds for a second takes v of it: l_i is the least of v g_i n_i α̃_i^min / G over the kinds.
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
    """The mean instant at which each job is served by preemptive shortest-length-first; its release if length 0."""
    return _preemptive(release, length, by_remaining=False)[1]


def _preemptive(release: Floats, length: Floats, by_remaining: bool) -> tuple[Floats, Floats]:
    """Completion and mean busy time of each job under preemptive priorities: work left, or whole length."""
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
