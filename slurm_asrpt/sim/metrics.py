"""Figures of one simulation: what reports, benchmarks and tests compare."""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_asrpt.sim.bound import design_bound, sound_bound
from slurm_asrpt.sim.engine import Result
from slurm_asrpt.sim.job_table import Floats, JobTable
from slurm_asrpt.sim.workload import Cluster


def bounds(table: JobTable, cluster: Cluster) -> dict[str, float]:
    """Lower bounds on the mean job completion time (from submission to end), seconds; docs/decisions/0006.

    Over the jobs that this cluster can hold: of the others there is no completion time.
    """
    can_run = ~np.isnan(table.best_alphas(cluster.nodes, cluster.fabric))
    submitted, jobs = float(table.submit[can_run].sum()), max(1, int(can_run.sum()))
    return {
        "design": (design_bound(table, cluster.nodes, cluster.fabric) - submitted) / jobs,
        "sound": (sound_bound(table, cluster.nodes, cluster.fabric) - submitted) / jobs,
    }


def over_bounds(result: Result, lower: dict[str, float], cluster: Cluster) -> dict[str, float | None]:
    """Mean completion time over each bound; None unless every job that the cluster can hold has ended.

    The jobs of a run that was cut short are not those of the bound, so their ratio would say nothing.
    """
    can_run = int((~np.isnan(result.table.best_alphas(cluster.nodes, cluster.fabric))).sum())
    mean = mean_of(result.completion_times) if len(result.ended) == can_run else None
    return {f"over_{name}": mean / bound if mean and bound > 0 else None for name, bound in lower.items()}


def slowdowns(result: Result, cluster: Cluster) -> Floats:
    """Completion time over the time in the best placement with no wait, of each job that has ended, shape (ended,)."""
    alone = result.table.iterations * result.table.best_alphas(cluster.nodes, cluster.fabric)
    return np.asarray(result.completion_times / alone[result.ended])


def summary(result: Result, cluster: Cluster) -> dict[str, Any]:
    """Mean and percentiles of completion time, wait and slowdown; makespan; GPU-seconds used and lost to placement."""
    jct, wait, slow = result.completion_times, result.waits[result.ended], slowdowns(result, cluster)
    alphas = result.table.best_alphas(cluster.nodes, cluster.fabric)[result.ended]
    gpus, iterations = result.table.gpus[result.ended], result.table.iterations[result.ended]
    used = float((gpus * iterations * result.alpha[result.ended]).sum())
    best = float((gpus * iterations * alphas).sum())
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
        "placement_loss": used / best - 1 if best else 0.0,
    }


def mean_of(values: Floats) -> float | None:
    """None without values."""
    return float(values.mean()) if len(values) else None


def percentile(values: Floats, share: float) -> float | None:
    """None without values."""
    return float(np.percentile(values, share)) if len(values) else None
