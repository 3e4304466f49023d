"""Release ahead: the next jobs have no lease, so that Slurm starts them in the moment in which a job ends.

A start behind an end otherwise takes about a second: asrptd sees the end, decides and writes, and Slurm starts a
released job with its next full second. Only jobs that Slurm would start as the policy does are released, in the
policy's order, by SiteFactors below those of pins (docs/decisions/0036). A job with a SiteFactor is released, or was;
0 with priority/basic, which has none: there, only jobs are released that were submitted in the policy's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.cpu_jobs import CpuJobs
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import UNKNOWN_FACTOR, JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.jobs.wait_reasons import waits_for_slurm
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.writes.leases import Leases
from slurm_asrpt.daemon.writes.order import factor_for, new_priorities
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.slurm.request import type_of

STEP = 10
"""Distance of new priorities where there is room."""
MOST = 1000
"""So many jobs are released at most."""


@dataclass(frozen=True)
class IntendedReleases:
    """What a cycle is about to write."""

    releases: Sequence[tuple[ManagedJob, int]]
    """Jobs, with their new SiteFactors."""
    confined: Sequence[ManagedJob]
    """Those of them that get the limit of one node."""
    leases: Sequence[ManagedJob]
    """Jobs that are no longer among the next ones, and get leases again."""


class ReleaseAhead:
    """Mode enforce: releases the next jobs, and leases them again if others become the next ones."""

    def __init__(
        self,
        most: int,
        policy: Policy,
        jobs: JobTable,
        cluster: ClusterState,
        cpu_jobs: CpuJobs,
        leases: Leases,
        client: SlurmClient,
        audit: AuditWriter,
        slurm: SlurmConfig,
    ) -> None:
        """most: so many jobs are released, unless more start between two cycles."""
        self._most, self._policy, self._jobs, self._cluster = most, policy, jobs, cluster
        self._cpu_jobs = cpu_jobs
        self._enough, self._released = most, frozenset[str]()  # in the last cycle
        self._leases, self._client, self._audit = leases, client, audit
        self._multifactor, self._may_give_fewer = slurm.multifactor, slurm.may_give_fewer_gpus

    def intend(self, now: float) -> IntendedReleases:
        """Note what is about to be written; to be saved before it is.

        The factors of these jobs are noted as unknown. If asrptd dies or the answer is lost, they are written again.
        """
        self._follow_starts()
        following = self._next() if self._multifactor else in_slurms_order(self._next())
        wanted = {job.record.job_id for job in following}
        pending = self._jobs.pending(JobState.INELIGIBLE, JobState.QUEUED, JobState.LEFT_TO_SLURM)
        leases = [job for job in pending if job.site_factor is not None and job.record.job_id not in wanted]
        factors = small_factors(following) if self._multifactor else [(job, 0) for job in following]
        releases = [(job, factor) for job, factor in factors if factor != job.site_factor]
        confined = [job for job, _ in releases if self._needs_one_node(job)]
        for job, _ in releases:
            job.site_factor_is(UNKNOWN_FACTOR)
        for job in confined:
            job.to_be_confined()
        for job in leases:
            job.confined_no_longer()
        self._leases.intend([*leases, *confined], now)
        self._released = frozenset(wanted)
        return IntendedReleases(releases, confined, leases)

    def _follow_starts(self) -> None:
        """Have enough jobs released until the next cycle: twice as many as have started since the last one.

        Jobs that started together may end together, and cycles are not equally long, so the number shrinks slowly.
        """
        waiting = {job.record.job_id for job in self._jobs.pending()}
        started = len(self._released - waiting)
        self._enough = min(MOST, max(self._most, 2 * started, self._enough * 9 // 10)) if self._most else 0

    def _next(self) -> list[ManagedJob]:
        """The jobs to release, in order."""
        found = list[ManagedJob]()
        if not self._enough or self._cluster.not_up or self._cluster.has_mixed or self._others_compete():
            return found
        nodes: dict[tuple[str, str], frozenset[str] | None] = {}
        for job_id in self._policy.next_starts(self._enough):
            job = self._jobs.get(job_id)
            if job is None or not _is_plain(job) or self._cpu_jobs.may_be_delayed_by(job):
                break
            if self._may_give_fewer and job.record.tres_per_job and not job.by_slurm and self._takes_one_node(job):
                break  # Slurm might start it on a node with fewer free GPUs
            if self._cluster.has_several_types and job.by_slurm != "mixed" and not type_of(job.record):
                break  # Slurm might start it on nodes with several types
            # in each partition and reservation Slurm's main scheduler stops at the first job that cannot start
            if nodes.setdefault((job.record.partition, job.record.reservation), _candidates(job)) != _candidates(job):
                break
            found.append(job)
        return found

    def _needs_one_node(self, job: ManagedJob) -> bool:
        """Whether Slurm could start the job on several nodes, and the policy would not."""
        may = not job.by_slurm and job.record.max_nodes != 1 and not (job.job is not None and job.job.confined)
        return may and self._takes_one_node(job)

    def _takes_one_node(self, job: ManagedJob) -> bool:
        """Whether only a limit on its nodes keeps all GPUs of the job on one, as the policy wants them."""
        planned = job.job
        return planned is not None and not planned.undivided and not self._policy.scatters(planned)

    def _others_compete(self) -> bool:
        """Whether Slurm has other jobs to start, which released ones would pass or delay.

        Jobs that are left to it: its main scheduler starts nothing behind a job that cannot start. And pinned jobs with
        a priority that an admin has set: Slurm adds no SiteFactor to it, so it may be below those of released ones.
        """
        left, pinned = (self._jobs.pending(state) for state in (JobState.LEFT_TO_SLURM, JobState.PINNED))
        idle = any(waits_for_slurm(job.record) is None and job.record.reason != "BeginTime" for job in left)
        return idle or any(job.standing.fixed for job in pinned)

    def write_leases(self, intended: IntendedReleases, now: float) -> None:
        """Lease jobs again, before the pins of others are written. Raises SlurmError."""
        jobs = intended.leases
        updates = [writeback.lease_again(job.record.address, job.lease_until - now, self._multifactor) for job in jobs]
        errors = self._client.update(updates)
        self._leases.note(jobs, errors)
        for job, error in zip(jobs, errors, strict=True):
            if writeback.waits_no_more(error):
                continue  # Slurm has started it
            if not writeback.begin_refused(error):
                job.site_factor_is(None)  # a job that is over a limit never got its SiteFactor
            self._audit.record(now, "leased-again", job.record.job_id, **({"error": error} if error else {}))

    def write_releases(self, intended: IntendedReleases, now: float) -> None:
        """Release jobs, after the pins are written. Raises SlurmError.

        Those that get a limit on their nodes are fenced first, as before a pin: it would resize a running job.
        """
        running = self._fence(intended.confined, now)
        releases = [(job, factor) for job, factor in intended.releases if job not in running]
        updates = [
            writeback.release_ahead(
                job.record.address,
                factor,
                self._multifactor,
                job in intended.confined,
                writeback.raised_cpus(job.record, job.record.cpus, 1),
            )
            for job, factor in releases
        ]
        for (job, factor), error in zip(releases, self._client.update(updates), strict=True):
            if writeback.waits_no_more(error):
                continue  # Slurm has started it
            new, refused = job.record.eligible_time > now, writeback.begin_refused(error)
            if not refused:
                job.released_ahead(now, factor)
            if new or refused:
                self._audit.record(now, "released-ahead", job.record.job_id, **({"error": error} if error else {}))

    def _fence(self, jobs: Sequence[ManagedJob], now: float) -> list[ManagedJob]:
        """Lease jobs once more. Returns those of which Slurm refuses that. Raises SlurmError."""
        refused = [job for job, error in zip(jobs, self._leases.write(jobs, now), strict=True) if error]
        for job in refused:
            job.not_confined()
            job.site_factor_is(None)
        return refused


def in_slurms_order(following: Sequence[ManagedJob]) -> list[ManagedJob]:
    """The first of these jobs that follow each other in Slurm's own order, too: by priority, then by job ID."""
    keys = [(-job.record.priority, job.record.number) for job in following]
    falls = [before > after for before, after in pairwise(keys)]
    return list(following[: falls.index(True) + 1 if True in falls else len(following)])


def small_factors(following: Sequence[ManagedJob]) -> list[tuple[ManagedJob, int]]:
    """The SiteFactors with which the priorities of these jobs descend, as close to 0 as their own priorities allow.

    With large ones, ``scontrol top`` would give other jobs nice values of the same size. Slurm adds nothing to a
    priority that an admin has set.
    """
    jobs = {job.record.job_id: job for job in following}
    unknown = {job_id for job_id, job in jobs.items() if job.site_factor == UNKNOWN_FACTOR}
    live = {
        job_id: round(job.standing.live) if job_id in unknown else job.record.priority for job_id, job in jobs.items()
    }
    fixed = {job_id: job.record.priority for job_id, job in jobs.items() if job.standing.fixed}
    changes = new_priorities(list(jobs), live, fixed, STEP, writeback.AHEAD_PRIORITY)
    kept = {job_id: 0 if job_id in unknown else job.site_factor or 0 for job_id, job in jobs.items()}
    return [
        (job, factor_for(job, changes[job_id]) if job_id in changes else kept[job_id]) for job_id, job in jobs.items()
    ]


def _candidates(job: ManagedJob) -> frozenset[str] | None:
    return job.job.request.candidates if job.job is not None else None


def _is_plain(job: ManagedJob) -> bool:
    """Whether Slurm would start the job as asrptd would: one job of the record, by its priority alone.

    Slurm would put a job that a magnetic reservation draws, or one with whole nodes, on other nodes than asrptd. To the
    nodes of -w it adds others if these have too few free GPUs. This does not matter if Slurm chooses the nodes anyway.
    """
    record = job.record
    if job.state is not JobState.QUEUED or "," in record.partition or record.array_tasks or job.failures:
        return False
    gres = job.job is not None and job.job.request.gres_per_node  # while these are in use, Slurm starts none behind it
    if gres or job.by_slurm:
        return not (gres or record.het)
    drawn = job.admitted_by and not record.reservation
    spread = record.required_nodes and job.job is not None and job.job.gpus > 1
    in_turn = job.job is not None and job.job.turn is not None  # Slurm might scatter it
    return not (record.exclusive or drawn or spread or in_turn)
