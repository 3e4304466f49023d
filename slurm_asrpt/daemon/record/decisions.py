"""Records the inputs and outcome of decisions, for the audit trail and for snapshots of asrpt-admin."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from slurm_asrpt.audit.inputs import Inputs, decisions_of, digest, to_document
from slurm_asrpt.audit.snapshot import FILE_NAME, WANTED, to_bytes
from slurm_asrpt.config.settings import PolicySettings
from slurm_asrpt.core.cluster import ClusterView, Fabric, Placement, copy_of
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.policies import key_names, policy_settings
from slurm_asrpt.core.policies.base import Decision, Policy, Start
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.errors import one_line
from slurm_asrpt.files import replace_file

MAX_COMPARED = 20
"""Number of starts per cycle with a runner-up, which takes longer to find than the decision."""


@dataclass(frozen=True)
class RecordedDecision:
    """One decision. The document and its digest are made on first use."""

    inputs: Inputs
    decisions: Sequence[Decision]

    @cached_property
    def document(self) -> dict[str, Any]:
        return to_document(self.inputs)

    @cached_property
    def digest(self) -> str:
        return digest(self.document)

    @property
    def answer(self) -> list[dict[str, Any]]:
        return decisions_of(self.decisions)


def inputs_of(
    policy: Policy, chosen: PolicySettings, jobs: JobTable, fabric: Fabric, view: ClusterView, now: float
) -> Inputs:
    """What a policy is about to decide from. view: the free resources."""
    return Inputs(
        now=now,
        policy=chosen.name,
        settings=chosen.chosen(policy_settings(chosen.name)),
        state=policy.dump(),
        fabric=fabric,
        nodes=view.nodes,
        free=view.free.copy(),
        free_cpus=view.free_cpus and view.free_cpus.copy(),
        free_memory=view.free_memory and view.free_memory.copy(),
        free_gres=copy_of(view.free_gres),
        headroom=view.headroom.room.copy(),
        indexes=view.indexes and view.indexes.copy(),
        kept=view.kept,
        preemptable=view.preemptable,
        jobs=tuple(j.job for j in jobs.values() if j.state is JobState.QUEUED and j.job is not None),
        startup=view.startup,
    )


# for the audit trail


def start_facts(
    start: Start, best: float | None, view: ClusterView, policy: str, fabric: Fabric, compared: bool
) -> dict[str, Any]:
    """Where a job starts, its key, and where else it could start. best: α̃_min. view: before the start."""
    facts: dict[str, Any] = {"gpus": dict(start.placement.gpus), "alpha": start.placement.alpha, "alpha_min": best}
    if start.victims:
        facts["preempts"] = [str(victim.id) for victim in start.victims]
    if start.filling is not None:
        facts["filling"] = str(start.filling.id)
    names = key_names(policy)
    facts["key"] = {name: part for name, part in zip(names, start.key, strict=False) if name}
    if start.job.weight != 1.0:
        facts["weight"] = start.job.weight
    if compared:
        other = runner_up(view, start.job, start.placement, fabric)
        facts["runner_up"] = None if other is None else {"gpus": dict(other.gpus), "alpha": other.alpha}
    return facts


def runner_up(view: ClusterView, job: Job, chosen: Placement, fabric: Fabric) -> Placement | None:
    """The fastest placement without the chosen servers; if there is none, without the last of them."""
    names = chosen.nodes
    for avoided in dict.fromkeys([frozenset(names), frozenset(names[-1:])]):
        allowed = job.request.candidates or frozenset(view.by_name)
        elsewhere = replace(job, request=replace(job.request, candidates=allowed - avoided))
        found = [place(view, elsewhere, way, fabric) for way in (Strategy.TIGHTEST, Strategy.MOST_FREE)]
        there = [each for each in found if each is not None]
        if there:
            return min(there, key=lambda each: each.alpha)
    return None


def cycle_facts(decided: RecordedDecision, jobs: JobTable, mode: str, phases: Mapping[str, float]) -> dict[str, Any]:
    """The facts of a cycle in which something was recorded. free: number of servers by their free GPUs."""
    inputs = decided.inputs
    free: dict[int, int] = {}
    for count in inputs.free.values():
        free[count] = free.get(count, 0) + 1
    states = [job.state for job in jobs.values()]
    return {
        "inputs": decided.digest,
        "mode": mode,
        "policy": inputs.policy,
        "queued": states.count(JobState.QUEUED),
        "apart": states.count(JobState.INELIGIBLE),
        "running": states.count(JobState.RUNNING),
        "gpus": sum(node.gpus for node in inputs.nodes),
        "free": dict(sorted(free.items())),
        "phases": {name: round(seconds, 4) for name, seconds in phases.items()},
    }


LOG = logging.getLogger("asrptd")


def serve_snapshot(state: Path, decided: RecordedDecision) -> None:
    """Write this decision to a file if asrpt-admin requested a snapshot. A failure is logged only."""
    if not (state / WANTED).exists():
        return
    try:
        (state / WANTED).unlink()
        replace_file(state / FILE_NAME, to_bytes(decided.document, decided.answer), 0o600)
    except OSError as error:
        LOG.warning("the snapshot is not written: %s", one_line(error))
