"""Looks back on an ended job: its waits, its prediction, its placement, and what would have helped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_asrpt.status.document import JobStatus

WAITED_FOR = {
    "virtual": "its turn on the virtual machine (A-SRPT)",
    "gpus": "its turn for free GPUs",
    "shape": "free GPUs in the requested shape",
    "resources": "free CPUs or memory beside free GPUs",
    "gres": "other generic resources beside free GPUs",
    "cpus": "free CPUs",
    "whole-nodes": "idle nodes",
    "kept-room": "a job without GPUs for which CPUs were kept",
    "capacity": "nodes that can hold it",
    "next": "the next cycle",
    "behind": "jobs with less predicted work",
    "priority": "jobs of a higher priority",
    "service": "jobs with less attained service",
    "room": "the jobs preempted for it",
    "interrupting": "its checkpoint",
    "yielding": "its checkpoint",
    "interrupted": "its requeue after a preemption",
    "reserved": "the GPUs that were reserved for it",
    "reservation": "the first job in the queue, which it would have delayed",
    "ahead": "a reservation of Slurm that its time limit reached into",
    "reserved-nodes": "nodes outside of a reservation",
    "reservation-begins": "its reservation to begin",
    "placement": "GPUs closer together",
    "array": "earlier tasks of its array",
    "array-limit": "the end of another task of its array",
    "dependency": "a dependency",
    "dependency-never": "a dependency that could not be satisfied",
    "begin": "its begin time",
    "held": "its release (held)",
    "partition-closed": "its partition to start jobs again",
    "limit": "a limit of Slurm",
    "over-limit": "a limit of the site",
    "left": "Slurm, to which it was left",
    "starting": "Slurm to start it",
    "would-start": "Slurm to start it",
    "preempting": "the jobs preempted for it",
    "filling": "Slurm to start it",
    "slurm-starts": "nodes of Slurm's choice",
    "not-started": "another attempt, because Slurm had not started it",
    "not-followed": "Slurm (asrptd only observed)",
    "configuring": "its nodes to be prepared",
    "running": "its start to be seen",
}
"""What a job waited for, by kind of reason."""
HELPS_A_WAIT = {
    "gpus": "a request for fewer GPUs, which finds room sooner",
    "behind": "a shorter run or fewer GPUs: less predicted work goes first",
    "shape": "a request without a shape (--gpus or --gpus-per-task, no -N), which fits more often",
    "resources": "a request for fewer CPUs or less memory",
    "gres": "a request for less of its other generic resources (--gres)",
    "cpus": "a request for fewer CPUs",
    "whole-nodes": "a request without --exclusive",
    "kept-room": "a shorter time limit (--time): a job that ends before the other can start may start earlier",
    "capacity": "a request that the nodes in service can hold",
    "ahead": "a shorter time limit (--time), which ends before the reservation begins",
    "reservation": "a shorter run: one that ends before the first job's start may start earlier",
    "over-limit": "fewer jobs at the same time under that limit",
    "limit": "fewer jobs at the same time under that limit",
}
"""What its owner could have done about the longest wait, by kind of reason."""
HELPS_ONE_GPU = HELPS_A_WAIT | {"gpus": "", "behind": "a shorter run: less predicted work goes first"}
"""The same for a job of one GPU, or without any: it cannot ask for fewer."""
HELPS_AN_END = {
    "timeout": "a longer time limit (--time)",
    "deadline": "a later deadline (--deadline), or a shorter time limit (--time), with which it can start later",
    "out_of_memory": "more memory (--mem, --mem-per-gpu)",
    "node_fail": "checkpoints: it lost its work when a node failed",
    "preempted": "checkpoints: it lost its work when it was preempted",
}
LONG_WAIT_S, LONG_SHARE = 60.0, 0.25
"""A wait for one thing is worth advice if it took so long, and this share of all waiting."""


@dataclass(frozen=True)
class Review:
    """signal: the one that ended it, 0 if none did. waits: what it waited for, and for how many seconds, the longest
    first. not_recorded_s: waiting before this asrptd had been started. runtime_ratio: its runtime over the predicted
    one; alpha_ratio: seconds per iteration over those in the best placement; limit_share: its runtime over its time
    limit; None where unknown. gpu_s: GPU-seconds that it occupied. iterations_per_s: as it reported. helps: what its
    owner could have done.
    """

    job_id: str
    state: str
    exit_code: int
    signal: int
    waited_s: float
    ran_s: float
    waits: list[tuple[str, float]]
    not_recorded_s: float
    gpu_s: float
    runtime_ratio: float | None
    alpha_ratio: float | None
    limit_share: float | None
    iterations_per_s: float | None
    helps: list[str] = field(default_factory=list)


def review(job: JobStatus) -> Review:
    """Look back on an ended job. Facts that another release left out count as unknown."""
    facts = job.facts
    waited, ran, limit = (_number(facts, name) for name in ("waited_s", "ran_s", "time_limit_s"))
    kinds = dict(sorted(_waits(facts).items(), key=lambda item: -item[1]))
    return Review(
        job_id=job.job_id,
        state=job.reason.upper(),
        exit_code=int(_number(facts, "exit_code")),
        signal=int(_number(facts, "signal")),
        waited_s=waited,
        ran_s=ran,
        waits=[(WAITED_FOR.get(kind, kind), seconds) for kind, seconds in kinds.items()],
        not_recorded_s=_unexplained(waited, sum(kinds.values())),
        gpu_s=job.gpus * ran,
        runtime_ratio=ran / job.predicted_run_s if ran and job.predicted_run_s else None,
        alpha_ratio=job.alpha / job.alpha_min if job.alpha and job.alpha_min else None,
        limit_share=ran / limit if limit else None,
        iterations_per_s=job.iterations_done / ran if job.iterations_done and ran else None,
        helps=_helps(job, kinds, waited),
    )


def _number(facts: Mapping[str, Any], name: str) -> float:
    found = facts.get(name)
    return float(found) if isinstance(found, int | float) else 0.0


def _waits(facts: Mapping[str, Any]) -> dict[str, float]:
    found = facts.get("waits")
    return {str(kind): float(seconds) for kind, seconds in found.items()} if isinstance(found, dict) else {}


def _unexplained(waited: float, known: float) -> float:
    """Cycles are some seconds apart, so only a longer wait was not seen by this asrptd."""
    left = waited - known
    return left if left >= max(LONG_WAIT_S, 0.1 * waited) else 0.0


def _helps(job: JobStatus, waits: Mapping[str, float], waited: float) -> list[str]:
    found = [HELPS_AN_END.get(job.reason, "")]
    kind, longest = next(iter(waits.items()), ("", 0.0))
    if longest >= max(LONG_WAIT_S, LONG_SHARE * waited):
        found.append((HELPS_A_WAIT if job.gpus > 1 else HELPS_ONE_GPU).get(kind, ""))
    if waited >= LONG_WAIT_S and job.group and job.gpus and not job.predicted_iterations:
        found.append(
            "a prediction: it had none when it was submitted; asrpt learns from ended runs, usually every hour"
        )
    if len(job.nodes) > 1 and job.gpus and not job.profile:
        found.append(
            "a profile of its model (asrpt-profile list), by which asrptd knows what fewer nodes would gain it"
        )
    return [text for text in found if text]
