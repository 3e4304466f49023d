"""Why a job waits: what Slurm holds it for, and the policy's reason with what the policy cannot know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType

from slurm_asrpt.core.capacity import too_large
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.selection import has_room
from slurm_asrpt.core.policies.base import Phase, Reason, reason
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.limits import LimitsWatch
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.slurm.records import JobRecord

MOST_NAMED = 5
"""So many of the jobs for which GPUs are kept are named."""
NO_GPUS: Mapping[str, int] = MappingProxyType({})


class KeptGpus:
    """The free GPUs that are kept for jobs that Slurm is about to start."""

    def __init__(self, starting: Iterable[ManagedJob] = (), free: Mapping[str, int] = NO_GPUS) -> None:
        """free: GPUs by server, before what these jobs take."""
        pinned = {job.record.job_id: job.pin.gpus for job in starting if job.pin is not None}
        self._by_job = {
            job_id: {name: min(count, free.get(name, 0)) for name, count in gpus.items()}
            for job_id, gpus in pinned.items()
        }
        self._found: dict[frozenset[str] | None, tuple[int, str]] = {}

    def among(self, names: frozenset[str] | None) -> tuple[int, str]:
        """How many on these servers (None: on all), and the jobs: the first ones by name, how many others.

        Found once for all jobs with the same servers: thousands may wait while thousands start.
        """
        if names not in self._found:
            self._found[names] = self._kept(names)
        return self._found[names]

    def _kept(self, names: frozenset[str] | None) -> tuple[int, str]:
        able = {
            job_id: sum([count for name, count in gpus.items() if names is None or name in names])
            for job_id, gpus in self._by_job.items()
        }
        kept = {job_id: gpus for job_id, gpus in able.items() if gpus}
        named, more = list(islice(kept, MOST_NAMED)), len(kept) - MOST_NAMED
        return sum(kept.values()), ", ".join(named) + (f" and {more} more" if more > 0 else "")


def waits_for_slurm(record: JobRecord) -> Reason | None:
    """The hold or dependency that the job waits for, if any. Slurm's reason is "None" after each lease."""
    if record.reason.startswith("JobHeld") or record.priority == 0:
        told = record.reason not in ("BeginTime", "None")  # which are those of its lease
        return reason(Phase.WAITING, "held", slurm_reason=record.reason if told else "priority 0")
    if record.reason.startswith("Dependency") or record.dependency:
        kind = "dependency-never" if record.reason == "DependencyNeverSatisfied" else "dependency"
        return reason(Phase.WAITING, kind, **({"dependency": record.dependency} if record.dependency else {}))
    return None


def explain_wait(
    job: ManagedJob, why: Reason, cluster: ClusterState, limits: LimitsWatch, kept: KeptGpus, now: float
) -> Reason:
    """The policy's reason, or the reservation that alone prevents the job's start, or what too large a job lacks.

    kept: named if the job lacks only these.
    """
    found = unless_reserved(job, why, cluster, now)
    if found.kind == "gpus" and job.job is not None:
        return _with_kept(job.job, found, kept)
    if found.kind == "over-limit" and (alone := limits.alone(job, found.facts["limit"])):
        return Reason(found.phase, found.kind, {**found.facts, "asks": alone[0], "most": alone[1]})
    if found.kind != "capacity" or job.job is None:
        return found
    return Reason(found.phase, found.kind, too_large(job.unrestricted or job.job, cluster.view.nodes, cluster.servers))


def _with_kept(job: Job, why: Reason, kept: KeptGpus) -> Reason:
    total, jobs = kept.among(job.request.candidates)
    if not total or why.facts["free"] + total < job.gpus:
        return why
    return Reason(why.phase, why.kind, {**why.facts, "kept": total, "kept_for": jobs})


def unless_reserved(job: ManagedJob, why: Reason, cluster: ClusterState, now: float) -> Reason:
    """The policy's reason, or the reservation that alone prevents the job's start."""
    admitted, unrestricted = job.job, job.unrestricted
    if job.state is not JobState.QUEUED or admitted is None or unrestricted is None:
        return why
    if cluster.best_alpha(admitted) is None:
        kept = cluster.best_alpha(unrestricted) is not None
    else:
        kept = why.kind in ("gpus", "shape", "resources", "gres") and has_room(cluster.view, unrestricted)
    names = unrestricted.request.candidates or frozenset[str]()
    ahead = next((each for each in job.reservations if not names.isdisjoint(each.nodes)), None)
    if not kept or ahead is None:
        return why
    if ahead.start <= now:
        return reason(Phase.WAITING, "reserved-nodes", reservation=ahead.name)
    return reason(Phase.WAITING, "ahead", reservation=ahead.name, in_s=ahead.start - now)
