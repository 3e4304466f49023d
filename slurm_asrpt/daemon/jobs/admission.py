"""Admission: turns Slurm's record of a job into the policy's job, or into the reason why the policy does not get it.

A job may have to wait for Slurm (a hold, a dependency), its owner (a begin time) or asrptd (a pause after a failed
start) first. A lease looks like a begin time, so they are distinguished here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache

from slurm_asrpt.config.settings import Mode, Settings
from slurm_asrpt.core.capacity import too_large
from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.cpu_jobs import CpuJob
from slurm_asrpt.core.job import NOTHING, Job, JobId, JobProfile, Request, unprofiled
from slurm_asrpt.core.limits import together
from slurm_asrpt.core.placement.selection import fits, has_room
from slurm_asrpt.core.policies.base import Phase, Reason, reason
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.communication import LearnedCommunication, with_communication
from slurm_asrpt.daemon.jobs.consent import Consent
from slurm_asrpt.daemon.jobs.limits import LimitsWatch
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob, predicted, request_values, unpinned
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.site_rules import SiteRules
from slurm_asrpt.daemon.profiles import MAX_PROFILES, Profiles
from slurm_asrpt.hook.tag import LEASED, Tag
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.slurm.records import JobRecord, NodeRecord
from slurm_asrpt.slurm.request import (
    JobRequest,
    LeftToSlurm,
    asks_for_no_gpus,
    read_any_request,
    read_cpu_request,
    read_het_request,
    read_request,
)
from slurm_asrpt.switch import OperatingMode

LEASE_SLACK_S = 1.5  # Slurm counts whole seconds

FIRST = (-math.inf, 0)
"""Before all places in Slurm's own order."""
QUEUED_MARKS = ("interactive", "het", *LEASED)
"""Marks of the hook with which a job is in the queue."""


def queued_marks(settings: Settings) -> tuple[str, ...]:
    """These, and that of opting out unless owners may."""
    return QUEUED_MARKS if settings.slurm.allow_opt_out else (*QUEUED_MARKS, "off")


class Admission:
    """Determines what each pending job requests, and what it waits for before the policy gets it."""

    def __init__(
        self,
        settings: Settings,
        cluster: ClusterState,
        rules: SiteRules,
        profiles: Profiles,
        communication: LearnedCommunication,
        mode: OperatingMode,
    ) -> None:
        self._cluster, self._rules, self._profiles, self._mode = cluster, rules, profiles, mode
        self._partitions, self._lease_s = settings.slurm.partitions, settings.daemon.lease_s
        self._consent, self._communication = Consent(settings.interrupt), communication
        self._queued_marks = queued_marks(settings)

    def admit(self, job: ManagedJob, now: float) -> bool:
        """Set the job's request. Returns whether it has changed. Raises LeftToSlurm.

        Omits nodes of reservations that do not admit the job, or that it would reach into, and nodes where it has just
        failed to start unless it needs them.
        """
        record = self._rules.counted(unpinned(job.record, job.original))
        if deadline_is_missed(record, now):
            raise LeftToSlurm("too-late")
        if record.array_tasks and not (self._mode.current is not Mode.SHADOW and record.can_be_parted):
            raise LeftToSlurm("array")
        if job.cpu_job is not None and not self._mode.enforcing:
            raise LeftToSlurm("nogpu")
        preemption = self._rules.preemption_class(record)
        if record.reservation and not self._mode.enforcing:
            raise LeftToSlurm("reservation")
        job.near(self._rules.barring(record, now), self._rules.admitting(record, now))
        (band, weight), components = self._rules.band(job), self._rules.components(record)
        charges_of = self._rules.limits.charges
        charges = together(map(charges_of, components)) if components else charges_of(record)
        # most jobs have none of these, and this runs for all of them in each cycle
        with_parts = self._cluster.with_parts
        reserved = frozenset().union(*(with_parts(r.nodes) for r in job.reservations)) if job.reservations else NOTHING
        late = job.avoided_nodes.items()
        avoided = frozenset(name for name, until in late if until > now) if late else NOTHING
        within = tuple(with_parts(r.nodes) for r in job.admitted_by) if job.admitted_by else ()
        if self._mode.enforcing and record.het and not components:
            raise LeftToSlurm("component")
        parts = tuple(map(request_values, components)) if components else ()
        signal = "" if job.tag is None or job.tag.left else self._consent.signal(record, job.tag)
        interruptible = record.requeue and bool(signal)
        known = self._communication.of(job.tag, record.uid)
        made_from = (
            request_values(record),
            job.tag,
            avoided,
            reserved,
            within,
            preemption,
            parts,
            interruptible,
            known,
        )
        if made_from == job.admitted and (job.job is not None or job.cpu_job is not None):
            return job.ranked(band, weight, charges)
        nodes: Sequence[NodeRecord] = self._cluster.nodes
        if record.reservation:
            nodes, within = _only(nodes, *within), ()
            record, components = _anywhere(record), [_anywhere(each, record.reservation) for each in components]
        if self._mode.enforcing and is_without_gpus(record, job.tag, components):
            cpu_job = self._without_gpus(components or [record], nodes, reserved, avoided, within)
            cpu_job = dataclasses.replace(cpu_job, band=band, charges=charges)
            job.admit_without_gpus(cpu_job, made_from, "het" if components else "")
            return True
        marked = self._queued_marks if self._mode.enforcing else None
        requested, unrestricted = request_of(
            record, job.tag, nodes, self._partitions, self._profiles, marked, components
        )
        unrestricted = dataclasses.replace(
            unrestricted,
            band=band,
            weight=weight,
            charges=charges,
            preemption=preemption,
            interruptible=interruptible,
        )
        requested, unrestricted = self._within_islands(record, requested, unrestricted)
        unrestricted = within_reservations(unrestricted, within)
        if requested.by_slurm and not fits(unrestricted, self._cluster.view.nodes):
            raise LeftToSlurm(requested.by_slurm)
        allowed = without_nodes(unrestricted, reserved)
        spared = without_nodes(allowed, avoided)
        chosen = spared if not avoided or fits(spared, self._cluster.view.nodes) else allowed
        chosen = dataclasses.replace(chosen, request=self._cluster.share(chosen.request))
        chosen = with_communication(chosen, known, self._cluster)
        again = job.admitted is not None
        in_slurms_order = marked is not None and self._is_large(requested)
        alpha = self._cluster.reference_alpha(chosen) or job.reference_alpha
        chosen = with_prediction(chosen, job.tag, alpha)
        job.admit(chosen, unrestricted if reserved else None, requested, made_from, in_slurms_order, alpha, known)
        return again

    def _within_islands(self, record: JobRecord, requested: JobRequest, job: Job) -> tuple[JobRequest, Job]:
        """The job as one within a block or tree if one can hold it, else as one whose nodes Slurm chooses.

        Slurm refuses node lists across these, and node lists of jobs with segments (docs/slurm-notes.md).
        """
        islands = self._cluster.islands if self._mode.enforcing and not requested.by_slurm else ()
        if not islands or job.gpus == 1 or record.max_nodes == 1 or record.required_nodes:
            return requested, job
        sets = job.request.within or (job.request.candidates or frozenset(),)
        within = tuple(both for island in islands for names in sets if (both := names & island))
        bound = dataclasses.replace(job, request=dataclasses.replace(job.request, within=within))
        nodes = self._cluster.view.nodes
        may_have_segments = self._cluster.topology.blocks and record.min_nodes > 1 and record.segment is None
        if not may_have_segments and (fits(bound, nodes) or not fits(job, nodes)):
            return requested, bound
        why = "segment" if may_have_segments else "block"
        return dataclasses.replace(requested, by_slurm=why, one_task_per_gpu=False), job

    def rank(self, jobs: Sequence[ManagedJob], now: float) -> None:
        """Rank the pending jobs by the site's priorities, and read what has been learned, before they are admitted."""
        self._communication.follow()
        self._rules.rank(jobs, now)

    def give_turns(
        self, eligible: Sequence[ManagedJob], starting: Sequence[ManagedJob], now: float
    ) -> list[ManagedJob]:
        """Give turns to the jobs that go by Slurm's own order, and to those of their bands that it puts before them.

        The first are large jobs whose nodes Slurm chooses, and jobs whose deadlines are near. A job that a limit or a
        lack of nodes keeps out delays nobody. Returns the jobs whose turns have changed.
        """
        last: dict[int, tuple[float, int]] = {}
        by_deadline = self._mode.enforcing
        going = [job for job in eligible if job.in_slurms_order or (by_deadline and deadline_is_near(job.record, now))]
        for job in self._may_start(going, starting):
            last[_band(job)] = max(self._place(job, now), last.get(_band(job), FIRST))
        changed = []
        for job in eligible:
            turn: float | None = None
            if _band(job) in last:
                place = self._place(job, now)
                turn = place[0] if place <= last[_band(job)] else None
            if job.has_turn(turn):
                changed.append(job)
        return changed

    def _place(self, job: ManagedJob, now: float) -> tuple[float, int]:
        """The place of a job in Slurm's own order."""
        return self._rules.priorities.turn(job, now), job.record.number

    def _may_start(self, jobs: Sequence[ManagedJob], starting: Sequence[ManagedJob]) -> list[ManagedJob]:
        """Those of these jobs that no limit and no lack of nodes keeps out."""
        if not jobs:
            return []
        left = self._rules.limits.headroom(starting)
        able = [job for job in jobs if self._cluster.best_alpha(job.job) is not None]
        return [job for job in able if job.job is not None and left.exceeded(job.job.charges) is None]

    def _without_gpus(
        self,
        components: Sequence[JobRecord],
        nodes: Sequence[NodeRecord],
        reserved: frozenset[str],
        avoided: frozenset[str],
        drawn: Sequence[frozenset[str]],
    ) -> CpuJob:
        """A job without GPUs, from the record of each component; most jobs have one. Raises LeftToSlurm.

        drawn: the nodes of magnetic reservations in which it may run.

        If it may get several nodes, they are all in none of these reservations, or all in one if it fits only there.
        """
        job = read_cpu_request(components, nodes, self._partitions)
        if not self._cluster.could_hold(job):
            raise LeftToSlurm("nogpu")
        able = job.candidates - reserved - avoided or job.candidates - reserved
        if drawn and job.max_nodes != 1:
            sets = [able.difference(*drawn), *(able & each for each in drawn)]
            tried = (dataclasses.replace(job, candidates=names) for names in sets)
            return next(filter(self._cluster.could_hold, tried), dataclasses.replace(job, candidates=able))
        return dataclasses.replace(job, candidates=able)

    def _is_large(self, requested: JobRequest) -> bool:
        """Whether Slurm must choose the nodes of a job that a stream of small jobs would starve."""
        largest = max((n.gpus for n in self._cluster.view.nodes), default=1)
        return bool(requested.by_slurm) and (requested.request.min_nodes > 1 or requested.gpus >= largest)

    def why_not_yet(self, job: ManagedJob, now: float) -> Reason | None:
        """Why a managed job is not eligible yet, or None if it is."""
        # of a held job, too: Slurm's delay continues when it is released
        follow_begin_time(job, now, self._lease_s, self._mode.enforcing)
        waits = waits_for_slurm(job.record)
        if waits is not None:
            return waits
        if max(job.not_before, job.restarts_at) > now:
            head = job.service.head
            return reason(Phase.WAITING, "interrupted", head=head) if head else reason(Phase.WAITING, "begin")
        if job.retry_at > now:
            return job.reason  # set when the start was withdrawn
        ahead = next((each for each in job.admitted_by if each.start > now), None)
        if ahead is not None:
            return reason(Phase.WAITING, "reservation-begins", reservation=ahead.name, in_s=ahead.start - now)
        if job.record.array_tasks and self._mode.enforcing:
            tasks = job.record.array_tasks
            return reason(Phase.WAITING, "array", more=sum(map(len, read_tasks(tasks))), tasks=tasks)
        return None


def _band(job: ManagedJob) -> int:
    assert job.job is not None  # noqa: S101  (it has been admitted)
    return job.job.band


def is_without_gpus(record: JobRecord, tag: Tag | None, components: Sequence[JobRecord]) -> bool:
    """Whether a job is in the queue of those without GPUs, given all components of a heterogeneous one."""
    in_queue = tag is not None and (not tag.left or (tag.left == "het" and bool(components)))
    return in_queue and all(map(asks_for_no_gpus, components or [record]))


def request_of(
    record: JobRecord,
    tag: Tag | None,
    nodes: Sequence[NodeRecord],
    partitions: Sequence[str],
    profiles: Profiles,
    marked: Sequence[str] | None = None,
    components: Sequence[JobRecord] = (),
) -> tuple[JobRequest, Job]:
    """A job's request, and the job as the policy gets it, without its prediction. record: without any pin. nodes: all
    nodes of Slurm.

    marked: marks of the hook with which a job is in the queue all the same; None to leave jobs whose nodes Slurm must
    choose to Slurm. components: of a heterogeneous job. Raises LeftToSlurm.
    """
    if tag is None:
        raise LeftToSlurm("untagged")
    if tag.left and tag.left not in (marked or ()):
        raise LeftToSlurm(tag.left)
    if marked is None:
        requested = read_request(record, nodes, partitions)
    elif components:
        requested = read_het_request(components, nodes, partitions)
    else:
        requested = read_any_request(record, nodes, partitions, "" if tag.left == "off" else tag.left)
    return requested, _make_job(record, tag, requested, _profile(tag, requested, nodes, profiles))


def _only(nodes: Sequence[NodeRecord], names: frozenset[str]) -> list[NodeRecord]:
    """The nodes, as if all others were in no partition."""
    return [node if node.name in names else dataclasses.replace(node, partitions=frozenset()) for node in nodes]


def _anywhere(record: JobRecord, reservation: str = "") -> JobRecord:
    """The record as if it named no reservation. Raises LeftToSlurm if it names another one than this."""
    if reservation and record.reservation != reservation:
        raise LeftToSlurm("reservation")
    return dataclasses.replace(record, reservation="")


def with_prediction(job: Job, tag: Tag | None, alpha: float) -> Job:
    """The job with the prediction in its tag. alpha: seconds per iteration in its best placement on reference GPUs."""
    return dataclasses.replace(job, predicted_iterations=float(predicted(tag, job, alpha).order)) if tag else job


def without_nodes(job: Job, names: frozenset[str]) -> Job:
    """The job with these nodes excluded."""
    if not names:
        return job
    candidates = (job.request.candidates or frozenset()) - names
    return dataclasses.replace(job, request=dataclasses.replace(job.request, candidates=candidates))


def within_reservations(job: Job, reserved: Sequence[frozenset[str]]) -> Job:
    """The job as one that runs either within one of these sets of nodes, rather there, or on none of them."""
    if not reserved:
        return job
    request = job.request
    sets = request.within or (request.candidates or frozenset(),)
    inside = [names & each for each in reserved for names in sets]
    outside = [names.difference(*reserved) for names in sets]
    within = tuple(names for names in [*inside, *outside] if names)
    bound = bool(request.within) or len(within) > 1
    return dataclasses.replace(job, request=dataclasses.replace(request, within=within if bound else ()))


def _profile(tag: Tag, requested: JobRequest, nodes: Sequence[NodeRecord], profiles: Profiles) -> JobProfile:
    """The named profile, if the request and the nodes keep its tensor slices together."""
    profile = profiles.of(tag, requested.gpus)
    if profile.tensor == 1 or _keeps_slices(profile, requested, nodes):
        return profile
    profiles.problems[tag.profile] = [
        f"profile {tag.profile} has {profile.tensor} GPUs a replica on one server, which a job's request or nodes part"
    ]
    return unprofiled(requested.gpus)


def _keeps_slices(profile: JobProfile, requested: JobRequest, nodes: Sequence[NodeRecord]) -> bool:
    """Whether Slurm would keep slices together if all nodes were free; else the job would wait forever."""
    allowed = requested.request.candidates or frozenset()
    parts = (part for n in nodes for part in n.parts)
    servers = [Node(n.name, n.gpus, n.index, n.gpu_type) for n in parts if n.name in allowed]
    try:
        job = Job(JobId(""), "", requested.gpus, profile, request=requested.request)
    except ValueError:  # this number of GPUs per node splits slices
        return False
    return fits(job, servers)


def _make_job(record: JobRecord, tag: Tag, requested: JobRequest, profile: JobProfile) -> Job:
    return Job(
        id=JobId(record.job_id),
        user=record.user,
        gpus=requested.gpus,
        profile=profile,
        submit_time=max(record.submit_time, float(tag.begin)),
        group=tag.group,
        request=_the_same(requested.request),
        time_limit=record.time_limit or math.inf,
    )


@lru_cache(MAX_PROFILES)
def _the_same(request: Request) -> Request:
    """One object for equal requests: hashing and comparing them is slow, and most jobs share a few requests."""
    return request


def waits_for_slurm(record: JobRecord) -> Reason | None:
    """The hold or dependency that the job waits for, if any. Slurm's reason is "None" after each lease."""
    if record.reason.startswith("JobHeld") or record.priority == 0:
        return reason(Phase.WAITING, "held", slurm_reason=record.reason)
    if record.reason.startswith("Dependency") or record.dependency:
        kind = "dependency-never" if record.reason == "DependencyNeverSatisfied" else "dependency"
        return reason(Phase.WAITING, kind, **({"dependency": record.dependency} if record.dependency else {}))
    return None


def follow_begin_time(job: ManagedJob, now: float, lease_s: float, enforcing: bool) -> None:
    """Adopt a begin time that is not a lease: the owner has set it, or Slurm at a requeue."""
    shown = job.record.eligible_time
    if shown <= now:
        if max(job.lease_until, job.not_before) > now + LEASE_SLACK_S:  # StartTime=now
            job.begin_time_set(0.0)
    elif is_lease(job, shown, now, lease_s, enforcing):
        job.lease_seen(shown)
    else:
        job.begin_time_set(shown)


def is_lease(job: ManagedJob, shown: float, now: float, lease_s: float, enforcing: bool) -> bool:
    """Whether a begin time in the future is a lease, written by asrptd or the hook.

    Slurm's pause after a preemption by asrptd (two minutes, decision 18) counts as one.
    """
    if job.lease_until:
        late = job.lease_spread + LEASE_SLACK_S
        # without an answer, Slurm may have read the last one at any time until now
        latest = max(job.lease_until, now + lease_s) if job.lease_before else job.lease_until
        ours = ((job.lease_before, job.lease_before), (job.lease_until, latest))
        return any(first - LEASE_SLACK_S <= shown <= last + late for first, last in ours)
    if job.record.restarts:  # Slurm itself delays a requeued job, and the hook does not lease it
        return enforcing and bool(job.service.head) and job.begin_time is None
    record = job.record
    if not enforcing:  # no daemon renews leases then, so it equals the hook's lease or is not a lease
        tagged = job.tag is not None and not job.tag.unleased
        hooked = abs(shown - record.submit_time - lease_s) <= LEASE_SLACK_S
        return tagged and hooked and shown > job.not_before + LEASE_SLACK_S
    since = max(now, job.not_before, record.submit_time)  # Slurm may be read after now
    return shown <= since + lease_s + LEASE_SLACK_S


def deadline_is_near(record: JobRecord, now: float) -> bool:
    """Whether half of the time is over in which a job with a deadline can start."""
    return bool(record.deadline) and now >= (record.submit_time + record.deadline - record.time_limit) / 2


def deadline_is_missed(record: JobRecord, now: float) -> bool:
    """Whether a run of the whole time limit cannot end before the job's deadline.

    Slurm cancels such a job, but not while it has a lease.
    """
    return bool(record.deadline) and now + record.time_limit > record.deadline


def lost_its_tag(job: ManagedJob, lease_s: float) -> bool:
    """Whether the begin time of a job without a tag is a lease: something else has overwritten its AdminComment."""
    record = job.record
    hooked = abs(record.eligible_time - record.submit_time - lease_s) <= LEASE_SLACK_S
    ours = abs(record.eligible_time - job.lease_until) <= job.lease_spread + LEASE_SLACK_S
    return bool(record.admin_comment) and (hooked or ours)


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
