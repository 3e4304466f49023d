"""Admission: turns Slurm's record of a job into the policy's job, or into the reason why the policy does not get it.

A job may have to wait for Slurm (a hold, a dependency), its owner (a begin time) or asrptd (a pause after a failed
start) first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from slurm_asrpt.config.settings import Mode, Settings
from slurm_asrpt.core.cluster import host_of
from slurm_asrpt.core.cpu_jobs import CpuJob
from slurm_asrpt.core.job import NOTHING, Job
from slurm_asrpt.core.limits import Charges
from slurm_asrpt.core.placement.best_alpha import fits
from slurm_asrpt.core.placement.selection import offers
from slurm_asrpt.core.policies.base import Phase, Reason, reason
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.communication import LearnedCommunication, with_communication
from slurm_asrpt.daemon.jobs.begin_times import follow_begin_time
from slurm_asrpt.daemon.jobs.consent import Consent
from slurm_asrpt.daemon.jobs.job_record import request_values
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob, Terms
from slurm_asrpt.daemon.jobs.node_owners import WITH_OWN
from slurm_asrpt.daemon.jobs.policy_job import (
    anywhere,
    check_mark,
    is_without_gpus,
    policy_job,
    queued_marks,
    with_prediction,
    within_reservations,
    without_nodes,
)
from slurm_asrpt.daemon.jobs.request_reader import RequestReader
from slurm_asrpt.daemon.jobs.site_rules import SiteRules
from slurm_asrpt.daemon.jobs.turns import deadline_is_missed
from slurm_asrpt.daemon.jobs.wait_reasons import waits_for_slurm
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.request import JobRequest, LeftToSlurm, asked_gpus, resources_of
from slurm_asrpt.switch import OperatingMode


class SitePriority(NamedTuple):
    """What the site's priorities and limits say of a job; the names are those of ``Job``."""

    band: int
    weight: float
    charges: Charges


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
        self._requests = RequestReader(cluster, settings.slurm.partitions, rules.estimated_bounds)
        self._lease_s = settings.daemon.lease_s
        self._consent, self._communication = Consent(settings.interrupt), communication
        self._queued_marks = queued_marks(settings)

    def admit(self, job: ManagedJob, now: float) -> bool:
        """Set the job's request, and its priority. Returns whether one has changed. Raises LeftToSlurm."""
        record = self._rules.counted(job.unpinned)
        terms, components = self._terms(job, record, now)
        priority = self._priority(job, record, components)
        if terms == job.made_from and (job.job is not None or job.cpu_job is not None):
            return job.priority_is(*priority)
        within, confined = terms.within, None
        if record.reservation:
            (confined,), within = within, ()
            record, components = anywhere(record), [anywhere(each, record.reservation) for each in components]
        enforcing, each = self._mode.enforcing, components or [record]
        fixed = job.nodes_refused or ("time-min" if terms.shortened else "")
        if enforcing and is_without_gpus(record, job.tag, components):
            cpu_job = self._allowed(self._requests.cpus(each, confined), terms, within)
            cpu_job = replace(cpu_job, band=priority.band, charges=priority.charges)
            job.admitted_without_gpus(cpu_job, terms, "het" if components else fixed)
            return True
        tag = check_mark(job.tag, self._queued_marks if enforcing else ())
        requested = self._beside_own(record, tag, confined, terms)
        requested = requested or self._requests.gpus(each, tag.left or fixed, enforcing, confined)
        made = policy_job(record, tag, requested, self._cluster.nodes, self._profiles)
        return self._admit_with_gpus(job, record, (requested, made), terms, within, priority)

    def _beside_own(
        self, record: JobRecord, tag: Tag, confined: frozenset[str] | None, terms: Terms
    ) -> JobRequest | None:
        """The request of a job as one without --exclusive=user, on nodes of its user; None if there is no such request.

        Where it has to begin a node, it is planned with all of it: no other user's job can start there.
        """
        if not terms.own:
            return None
        own = frozenset(map(host_of, terms.own))
        alone, names = replace(record, exclusive="", max_nodes=1), own if confined is None else own & confined
        try:
            found = self._requests.gpus([alone], tag.left, True, names)
        except LeftToSlurm:
            return None
        return replace(found, by_slurm="") if found.by_slurm in ("", "exclusive") else None

    def _terms(self, job: ManagedJob, record: JobRecord, now: float) -> tuple[Terms, Sequence[JobRecord]]:
        """What the job's request follows from now, with the components of a heterogeneous job. Raises LeftToSlurm.

        Most jobs have next to nothing of it, and this runs for all of them in each cycle.
        """
        enforcing = self._mode.enforcing
        if deadline_is_missed(record, now):
            raise LeftToSlurm("too-late")
        if record.array_tasks and not (self._mode.current is not Mode.SHADOW and record.can_be_parted):
            raise LeftToSlurm("array")
        if job.cpu_job is not None and not enforcing:
            raise LeftToSlurm("nogpu")
        preemption = self._rules.preemption_class(record)
        if record.reservation and not enforcing:
            raise LeftToSlurm("reservation")
        job.reservations_are(self._rules.barring(record, now), self._rules.admitting(record, now))
        components = self._rules.components(record)
        if enforcing and record.het and not components:
            raise LeftToSlurm("component")
        with_parts, failed = self._cluster.with_parts, job.avoided_nodes.items()
        avoided = frozenset(name for name, until in failed if until > now) if failed else NOTHING
        avoided |= with_parts(self._rules.owners.kept_from(record.uid))
        reserved = frozenset().union(*(with_parts(r.nodes) for r in job.reservations)) if job.reservations else NOTHING
        signal = "" if job.tag is None or job.tag.left else self._consent.signal(record, job.tag)
        terms = Terms(
            request_values(record),
            job.tag,
            avoided,
            reserved,
            tuple(with_parts(r.nodes) for r in job.admitted_by) if job.admitted_by else (),
            preemption,
            tuple(map(request_values, components)) if components else (),
            record.requeue and bool(signal),
            self._communication.of(job.tag, record.uid),
            self._own_room(record) - avoided - reserved if enforcing and record.exclusive == WITH_OWN else NOTHING,
            self._rules.may_be_shortened(record, now),
        )
        return terms, components

    def _own_room(self, record: JobRecord) -> frozenset[str]:
        """The nodes where a job on one node could start now, beside jobs of the same user and of no other."""
        gpus, names = asked_gpus(record), self._cluster.with_parts(self._rules.owners.own(record.uid))
        if not (gpus and names) or record.min_nodes > 1 or record.required_nodes:
            return NOTHING
        needs = resources_of(replace(record, cpus=record.cpus_for(gpus)), gpus)
        found = offers(self._cluster.view, replace(needs, candidates=names))
        return frozenset([node.name for node, usable in found if usable >= gpus])

    def _priority(self, job: ManagedJob, record: JobRecord, components: Sequence[JobRecord]) -> SitePriority:
        """What the site's priorities and limits say of the job."""
        band, weight = self._rules.band(job)
        return SitePriority(band, weight, self._rules.limits.asked(components or [record]))

    def _admit_with_gpus(
        self,
        job: ManagedJob,
        record: JobRecord,
        asked: tuple[JobRequest, Job],
        terms: Terms,
        within: Sequence[frozenset[str]],
        priority: SitePriority,
    ) -> bool:
        """Set the policy's job. asked: as read, and ``policy_job``. Returns whether the job had a request before."""
        requested, unrestricted = asked
        unrestricted = replace(
            unrestricted, **priority._asdict(), preemption=terms.preemption, interruptible=terms.interruptible
        )
        requested, unrestricted = self._within_islands(record, requested, unrestricted)
        unrestricted = within_reservations(unrestricted, within)
        if requested.by_slurm and not fits(unrestricted, self._cluster.view.nodes):
            raise LeftToSlurm(requested.by_slurm)
        chosen = self._on_its_nodes(unrestricted, terms)
        chosen = with_communication(chosen, terms.communication, self._cluster)
        alpha = self._cluster.reference_alpha(chosen) or job.reference_alpha
        chosen = with_prediction(chosen, job.tag, alpha)
        again, in_slurms_order = job.made_from is not None, self._mode.enforcing and self._is_large(requested)
        job.admitted(chosen, unrestricted if terms.reserved else None, requested, terms, in_slurms_order, alpha)
        return again

    def _on_its_nodes(self, job: Job, terms: Terms) -> Job:
        """The job without nodes of reservations that do not admit it, or that it would reach into.

        And without those where it has just failed to start, unless it needs them.
        """
        allowed = without_nodes(job, terms.reserved)
        spared = without_nodes(allowed, terms.avoided)
        chosen = spared if not terms.avoided or fits(spared, self._cluster.view.nodes) else allowed
        return replace(chosen, request=self._cluster.share(chosen.request))

    def _within_islands(self, record: JobRecord, requested: JobRequest, job: Job) -> tuple[JobRequest, Job]:
        """The job as one within a block or tree if one can hold it, else as one whose nodes Slurm chooses.

        Slurm refuses node lists across these, and node lists of jobs with segments (docs/slurm-notes.md).
        """
        islands = self._cluster.islands if self._mode.enforcing and not requested.by_slurm else ()
        if not islands or job.gpus == 1 or record.max_nodes == 1 or record.required_nodes:
            return requested, job
        sets = job.request.within or (job.request.candidates or frozenset(),)
        within = tuple(both for island in islands for names in sets if (both := names & island))
        bound = replace(job, request=replace(job.request, within=within))
        nodes = self._cluster.view.nodes
        may_have_segments = self._cluster.topology.blocks and record.min_nodes > 1 and record.segment is None
        if not may_have_segments and (fits(bound, nodes) or not fits(job, nodes)):
            return requested, bound
        why = "segment" if may_have_segments else "block"
        return replace(requested, by_slurm=why, one_task_per_gpu=False), job

    def rank(self, jobs: Sequence[ManagedJob], now: float) -> None:
        """Rank the pending jobs by the site's priorities, and read what has been learned, before they are admitted."""
        self._communication.follow()
        self._rules.rank(jobs, now)

    def _allowed(self, job: CpuJob, terms: Terms, drawn: Sequence[frozenset[str]]) -> CpuJob:
        """A job without GPUs on the nodes that it may have. Raises LeftToSlurm.

        drawn: the nodes of magnetic reservations in which it may run. If it may get several nodes, they are all in none
        of these reservations, or all in one if it fits only there.
        """
        if not self._cluster.could_hold(job):
            raise LeftToSlurm("nogpu")
        allowed = job.candidates - terms.reserved
        able = allowed - terms.avoided or allowed
        if drawn and job.max_nodes != 1:
            sets = [able.difference(*drawn), *(able & each for each in drawn)]
            tried = (replace(job, candidates=names) for names in sets)
            return next(filter(self._cluster.could_hold, tried), replace(job, candidates=able))
        return replace(job, candidates=able)

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
        until = max(job.not_before, job.restarts_at)
        if until > now:
            head = job.service.head
            if head:
                return reason(Phase.WAITING, "interrupted", head=head)
            return reason(Phase.WAITING, "begin", until=until)
        if self._rules.limits.is_closed(job.record):
            return reason(Phase.WAITING, "partition-closed", partition=job.record.partition)
        if job.retry_at > now:
            return job.reason  # set when the start was withdrawn
        ahead = next((each for each in job.admitted_by if each.start > now), None)
        if ahead is not None:
            return reason(Phase.WAITING, "reservation-begins", reservation=ahead.name, in_s=ahead.start - now)
        if job.record.array_tasks and self._mode.enforcing:
            tasks = job.record.array_tasks
            return reason(Phase.WAITING, "array", more=sum(map(len, read_tasks(tasks))), tasks=tasks)
        return None
