"""The facts of a job's events in the audit trail. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_asrpt.core.cluster import host_of
from slurm_asrpt.core.job import Job
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.history.store import Run


def queued_facts(job: ManagedJob, admitted: Job) -> dict[str, Any]:
    record = job.record
    return {
        "user": record.user,
        "name": record.name,
        "submitted": record.submit_time,
        "gpus": admitted.gpus,
        "iterations": admitted.predicted_iterations,
        "profiled": admitted.profiled,
    }


def running_facts(job: ManagedJob, best: float | None, shadow: bool) -> dict[str, Any]:
    """The real allocation, and the planned one. shadow: Slurm has started a job that asrptd only planned."""
    record, pin, got = job.record, job.pin, dict(job.record.gpus_by_node)
    facts: dict[str, Any] = {"gpus": got, "alpha": job.placement.alpha if job.placement else None, "alpha_min": best}
    facts |= {"user": record.user, "submitted": record.submit_time, "began": record.start_time}
    if pin is not None:
        facts |= {"planned": pin.gpus, "as_planned": _as_planned(pin.gpus, got), "planned_alpha": pin.alpha}
    if shadow:
        facts |= {"shadow": True, "decided": job.decided_at or None}
    return facts


def _as_planned(planned: Mapping[str, int], got: Mapping[str, int]) -> bool:
    """A job without GPUs gets those of its nodes with ``--exclusive``."""
    return planned == got if any(planned.values()) else set(map(host_of, got)) <= set(map(host_of, planned))


def ended_facts(run: Run, best: float | None, block: float | None) -> dict[str, Any]:
    """An ended run, as in the history; predicted: iterations, 0 for an unseen group.

    block: alpha with the ranks in Slurm's order, for a job with a rank map.
    """
    return {
        "state": run.state,
        "user": run.user,
        "gpus": run.nodes,
        "submitted": run.submit_time,
        "began": run.start_time,
        "ended": run.end_time,
        "predicted": run.predicted_iterations,
        "iterations": run.iterations,
        "alpha": run.alpha or None,
        "alpha_min": best,
        **({"alpha_block": block} if block else {}),
    }


def pin_failed_facts(job: ManagedJob) -> dict[str, Any]:
    """A job that Slurm ended because of its pin. Not even root can requeue it."""
    record = job.record
    remedy = "its owner must submit it again; drain a node before it is taken out of slurm.conf"
    return {"user": record.user, "nodes": record.required_nodes, "remedy": remedy}


def gone_facts(job: ManagedJob) -> dict[str, Any]:
    """An ended job that is not in the history: it never started (nodes: ""), or has no tag or no GPUs."""
    record = job.record
    facts = {"state": record.state, "user": record.user, "gpus": dict(job.allocation or {}), "nodes": record.nodes}
    return {**facts, "submitted": record.submit_time, "began": record.start_time, "ended": record.end_time}
