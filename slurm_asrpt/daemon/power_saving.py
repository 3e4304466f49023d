"""Nodes that are powered down: what a decision must know of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from slurm_asrpt.core.cluster import ClusterView, Startup
from slurm_asrpt.core.job import Request
from slurm_asrpt.core.policies.running_jobs import RunningJob, expected_end
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.slurm.request import resources_of


def startup_of(
    nodes: frozenset[str], seconds: float, view: ClusterView, running: Iterable[ManagedJob], now: float
) -> Startup | None:
    """What a decision must know of these nodes, which are not up; None if there are none."""
    if not nodes:
        return None
    held = {node.name: node.gpus - view.free[node.name] for node in view.nodes if node.name not in nodes}
    return Startup(nodes, seconds, tuple(_freed(held, running, now, now + seconds)))


def _freed(
    held: Mapping[str, int], running: Iterable[ManagedJob], now: float, until: float
) -> Iterator[tuple[Mapping[str, int], Request]]:
    """GPUs by node, CPUs and memory of the jobs that are predicted to end until then. held: GPUs in use by node."""
    left = dict(held)
    for job in running:
        gpus = job.record.gpus_by_node
        if not gpus:  # a job without GPUs
            continue
        if _end(job, now) <= until and all(0 < count <= left.get(name, 0) for name, count in gpus.items()):
            left |= {name: left[name] - count for name, count in gpus.items()}
            yield dict(gpus), resources_of(job.record, sum(gpus.values()))


def _end(job: ManagedJob, now: float) -> float:
    """When it is expected to end: by its prediction, or without one by its time limit; inf without both."""
    record = job.record
    tag = job.prediction
    predicted = float(tag.order) if tag is not None and job.placement is not None else 0.0
    seconds = predicted * job.placement.alpha if job.placement is not None and predicted else record.time_limit
    if not seconds:
        return math.inf
    return expected_end(RunningJob(record.start_time, record.start_time + seconds, record.gpus_by_node), now)
