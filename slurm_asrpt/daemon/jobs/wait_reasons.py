"""Why a job waits: what Slurm holds it for, and the policy's reason with what the policy cannot know."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_asrpt.core.capacity import too_large
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.selection import has_room
from slurm_asrpt.core.policies.base import Phase, Reason, reason
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.limits import LimitsWatch
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.slurm.records import JobRecord


def waits_for_slurm(record: JobRecord) -> Reason | None:
    """The hold or dependency that the job waits for, if any. Slurm's reason is "None" after each lease."""
    if record.reason.startswith("JobHeld") or record.priority == 0:
        return reason(Phase.WAITING, "held", slurm_reason=record.reason)
    if record.reason.startswith("Dependency") or record.dependency:
        kind = "dependency-never" if record.reason == "DependencyNeverSatisfied" else "dependency"
        return reason(Phase.WAITING, kind, **({"dependency": record.dependency} if record.dependency else {}))
    return None


def explain_wait(
    job: ManagedJob,
    why: Reason,
    cluster: ClusterState,
    limits: LimitsWatch,
    starting: Iterable[ManagedJob],
    now: float,
) -> Reason:
    """The policy's reason, or the reservation that alone prevents the job's start, or what too large a job lacks.

    starting: the jobs for which free GPUs are kept until Slurm has started them; named if the job lacks only these.
    """
    found = unless_reserved(job, why, cluster, now)
    if found.kind == "gpus" and job.job is not None:
        return _with_kept(job.job, found, cluster, starting)
    if found.kind == "over-limit" and (alone := limits.alone(job.charges, found.facts["limit"])):
        return Reason(found.phase, found.kind, {**found.facts, "asks": alone[0], "most": alone[1]})
    if found.kind != "capacity" or job.job is None:
        return found
    return Reason(found.phase, found.kind, too_large(job.unrestricted or job.job, cluster.view.nodes, cluster.servers))


def _with_kept(job: Job, why: Reason, cluster: ClusterState, starting: Iterable[ManagedJob]) -> Reason:
    free, names = cluster.view.free, job.request.candidates
    able = free.keys() if names is None else names
    kept = dict[str, int]()
    for other in starting:
        pinned = other.pin.gpus if other.pin is not None else {}
        gpus = sum(min(count, free.get(name, 0)) for name, count in pinned.items() if name in able)
        kept |= {other.record.job_id: gpus} if gpus else {}
    total = sum(kept.values())
    if not kept or why.facts["free"] + total < job.gpus:
        return why
    return Reason(why.phase, why.kind, {**why.facts, "kept": total, "kept_for": ", ".join(kept)})


def unless_reserved(job: ManagedJob, why: Reason, cluster: ClusterState, now: float) -> Reason:
    """The policy's reason, or the reservation that alone prevents the job's start."""
    admitted, unrestricted = job.job, job.unrestricted
    if job.state is not JobState.QUEUED or admitted is None or unrestricted is None:
        return why
    if cluster.best_alpha(admitted) is None:
        kept = cluster.best_alpha(unrestricted) is not None
    else:
        kept = why.kind in ("gpus", "shape", "resources") and has_room(cluster.view, unrestricted)
    names = unrestricted.request.candidates or frozenset[str]()
    ahead = next((each for each in job.reservations if not names.isdisjoint(each.nodes)), None)
    if not kept or ahead is None:
        return why
    if ahead.start <= now:
        return reason(Phase.WAITING, "reserved-nodes", reservation=ahead.name)
    return reason(Phase.WAITING, "ahead", reservation=ahead.name, in_s=ahead.start - now)
