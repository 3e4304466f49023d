"""Starts: what a decision changes in Slurm, and its withdrawal where Slurm does not start the job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_asrpt.config.settings import DaemonSettings
from slurm_asrpt.core.policies.base import Phase, reason
from slurm_asrpt.daemon.cluster import CLEANING_S
from slurm_asrpt.daemon.jobs.arrays import next_splits
from slurm_asrpt.daemon.jobs.begin_times import follow_begin_time, lost_its_tag
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.site_rules import SiteRules
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.policy_feed import JobListener
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.writes.leases import Fences, Leases
from slurm_asrpt.daemon.writes.pins import Pins
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.records import JobRecord, Update
from slurm_asrpt.switch import OperatingMode

SLURM_CHOOSES = 3
"""So many times ``unpin_after_s`` the room of a job is kept whose nodes Slurm chooses: some start in backfill only."""
LOOKS = 2
"""For so many delays of Slurm's scheduler a start is awaited: in the first, it may not have seen the job."""
NODE_LOST = "NodeDown"
"""Slurm's reason for a node that is down, drained or gone."""
FIXED_NODES = "Requested operation not supported on this system"
"""Slurm's answer, from 23.11 on, to a node list for a job with an arbitrary distribution of its tasks."""
MOST_LISTS = 4
"""After so many lists of nodes with which Slurm did not start a job, it chooses the nodes. With --prefer, its reason is
Resources or ReqNodeNotAvail where it would be BadConstraints."""
NEVER = "BadConstraints"
"""Slurm's reason for a job that it will never start as it is."""
CLOSED = ("PartitionDown", "PartitionInactive")
"""Slurm's reasons for a partition that starts no jobs now."""
_NOT_ADMITTED = ("NotAllowed", "not permitted")
"""In Slurm's reasons, of accounts and QOS that a partition refuses: AccountNotAllowed, or "Job's account not permitted
to use this partition (gpu denies lab)"."""
_LIMITS = ("Limit", "Assoc", "QOS", "Licenses", "MaxJobs", "MaxGRES", "InvalidAccount", *_NOT_ADMITTED)
"""In Slurm's reasons."""


@dataclass(frozen=True)
class IntendedStarts:
    """What a cycle in mode enforce is about to write."""

    starts: Sequence[ManagedJob]
    renewals: Sequence[ManagedJob]
    """Waiting jobs whose leases are renewed."""
    tasks: Sequence[Update]
    """Leases that split tasks from their arrays."""
    again: bool
    """Whether the next cycle is due at once: tasks are split from an array of which none waits, or starts are left to
    Slurm for now."""


class StartWithdrawal:
    """Withdraws the starts that Slurm does not make. Every method but ``did_not_start`` may raise SlurmError."""

    def __init__(
        self,
        settings: DaemonSettings,
        jobs: JobTable,
        listener: JobListener,
        fences: Fences,
        pins: Pins,
        rules: SiteRules,
        audit: AuditWriter,
        mode: OperatingMode,
    ) -> None:
        self._settings, self._jobs, self._listener = settings, jobs, listener
        self._fences, self._pins, self._rules, self._audit, self._mode = fences, pins, rules, audit, mode

    def withdraw_late_starts(self, now: float) -> None:
        """Unpin jobs that Slurm has not started in time, and jobs that are still pinned after a requeue."""
        pinned = [job for job in self._jobs.pending(JobState.PINNED) if job.pin is not None]
        reasons = {job.record.job_id: why for job in pinned if (why := self._in_vain(job, now))}
        late = [job for job in pinned if job.record.job_id in reasons]
        carrying = self.still_pinned(now, JobState.INELIGIBLE, JobState.LEFT_TO_SLURM, JobState.QUEUED)
        requeued = [job for job in carrying if not job.confined]
        for job in self.unpin(late + requeued, now):
            if job.record.job_id in reasons:
                self.did_not_start(job, reasons[job.record.job_id], now)

    def withdraw_starts_not_followed(self, now: float) -> None:
        """Modes shadow and order: withdraw starts that Slurm does not follow, so that no GPUs stay reserved forever."""
        for job in self._jobs.pending(JobState.PINNED):
            if job.record.array_tasks != job.decided_tasks:
                job.next_task()
            elif job.pin is not None and now - job.pin.at > self._settings.unpin_after_s + job.pin.grace_s:
                self.did_not_start(job, job.record.reason, now)

    def still_pinned(self, now: float, *states: JobState) -> list[ManagedJob]:
        """Pending jobs in these states (default: all) that still have a pin in Slurm."""
        stale = [job for job in self._jobs.pending(*states) if job.original is not None]
        for job in stale:  # before a new lease covers what Slurm or the owner has set
            follow_begin_time(job, now, self._settings.lease_s, self._mode.enforcing)
        return stale

    def unpin(self, jobs: list[ManagedJob], now: float) -> list[ManagedJob]:
        """Remove pins. Returns the jobs that are still pending, with a new lease; Slurm may have kept some pins."""
        fenced = [job for job in self._fences.fence_unplanned(jobs, now) if job.original is not None]
        self._pins.unpin(fenced)
        return fenced

    def did_not_start(self, job: ManagedJob, why: str, now: float) -> None:
        """Return the job to the queue: at once the first time unless a limit holds it, then after growing pauses."""
        self._listener.gone(job.record.job_id, now)  # it holds no GPUs; it returns when it may
        unlisted = _starts_unlisted(job.record.partition, why)
        if unlisted:
            job.refuses_nodes("partitions")
        elif _may_be_any_list(why, job.failures):
            job.refuses_nodes("constraints")
        waits = reason(Phase.WAITING, self._kind(why), slurm_reason=why)
        several = "," in job.record.partition  # of these, Slurm tells no reason: the nodes may be of the wrong one
        avoid = several or why not in ("Resources", "Priority", "None")
        if why in CLOSED:
            self._rules.limits.partition_refused()
            job.not_started(now, waits, at_once=True, avoid=False)
        elif unlisted:
            job.not_started(now, waits, at_once=True, avoid=False)
        elif is_limit(why) and self._rules.limits.refused(self._refused_part(job), why, now):
            job.over_limit(now, waits)
        else:
            job.not_started(now, waits, at_once=not is_limit(why), avoid=avoid)
        self._pins.remove_rank_maps([job])
        self._audit.record(now, self._not_started, job.record.job_id, why=why, retry_at=job.retry_at)

    def _in_vain(self, job: ManagedJob, now: float) -> str:
        """Slurm's reason if the pin of a pending job must be removed; "" while the job may still start.

        A pin is removed at once if one of its nodes is no longer usable: a slurmctld that restarts without that node
        would end the job.
        """
        assert job.pin is not None  # noqa: S101  (the caller has seen to it)
        if self._pins.has_lost_nodes(job):
            return NODE_LOST
        patience_s = self._settings.unpin_after_s * (SLURM_CHOOSES if job.by_slurm else 1) + job.pin.grace_s
        if job.pin.grace_s and self._pins.is_cleaning(job):
            patience_s += CLEANING_S  # else others would be preempted for it, too
        late = now - max(job.pin.at, job.pin_written_at) > patience_s
        refused = self._refused_part(job)
        if job.by_slurm and _starts_unlisted(refused.partition, refused.reason):
            return "Resources" if late else ""
        return (refused.reason or "None") if late or _is_final(refused) else ""

    def _refused_part(self, job: ManagedJob) -> JobRecord:
        """The component of a heterogeneous job that a limit holds, else its first one; other jobs as a whole."""
        parts = [job.record, *self._rules.components(job.record)]
        return next((each for each in parts if is_limit(each.reason)), job.record)

    def _kind(self, slurm_reason: str) -> str:
        if is_limit(slurm_reason):
            return "limit"
        return self._not_started

    @property
    def _not_started(self) -> str:
        """In other modes than enforce, Slurm was not asked to start the job."""
        return "not-started" if self._mode.enforcing else "not-followed"


class Starts:
    """Mode enforce: starts jobs, renews the leases of the waiting ones, and splits tasks from arrays."""

    def __init__(
        self,
        jobs: JobTable,
        client: SlurmClient,
        leases: Leases,
        fences: Fences,
        pins: Pins,
        withdrawal: StartWithdrawal,
        audit: AuditWriter,
    ) -> None:
        self._jobs, self._client, self._leases, self._fences = jobs, client, leases, fences
        self._pins, self._withdrawal, self._audit = pins, withdrawal, audit

    def intend(self, starts: list[ManagedJob], now: float) -> IntendedStarts:
        """Note what is about to be written; to be saved before it is.

        A job that is released ahead gets no pin in this cycle: Slurm is about to start it, on nodes of its own choice.
        So the other starts wait for one cycle, too. Whatever has not started by then is planned again.
        """
        splits = next_splits(self._jobs.values())
        renewals, tasks = self._leases.due(now, splits)
        able = [job for job in starts if not job.postponed and not job.pinned_before]
        left = any(job.site_factor is not None for job in able)
        postponed = frozenset(able if left else ())
        written = [job for job in starts if job not in postponed]
        for job in postponed:
            job.start_postponed()
        for job in written:
            job.confined_no_longer()
        self._leases.intend([*written, *renewals], now)
        return IntendedStarts(written, renewals, tasks, left or any(split.first for split in splits))

    def write(self, intended: IntendedStarts, now: float) -> None:
        """Write what was intended; hand over leased jobs that are Slurm's. Raises SlurmError.

        In two calls, as each starts a program: the fences of the starts first, then their pins, then all else.
        """
        fenced, waiting = self._fences.fence(intended.starts, now), intended.renewals
        left = [
            job
            for job in self._jobs.pending(JobState.LEFT_TO_SLURM)
            if _is_to_hand_over(job, self._leases.lease_s, now)
        ]
        starts = frozenset(intended.starts)
        pinned = [job for job in self._jobs.pending(JobState.PINNED) if job not in starts]
        updates = [*self._pins.updates(fenced, pinned), *self._leases.updates(waiting, now)]
        handed = [writeback.hand_over(job.record.address) for job in left]
        errors = self._client.update([*updates, *handed, *intended.tasks])
        self._note_pins(fenced, errors[: len(fenced)], now)
        self._leases.note(waiting, errors[len(fenced) : len(updates)])
        others, refused = [*waiting, *left], [writeback.begin_refused(error) for error in errors[len(fenced) :]]
        for job, error in zip(others, refused, strict=False):
            job.handed_over_is(job.state is JobState.LEFT_TO_SLURM and not error)
        names = [*(job.record.job_id for job in others), *(task.job_id for task in intended.tasks)]
        for job_id, error in zip(names, refused, strict=True):
            if error:
                self._audit.record(now, "lease-refused", job_id, error=error)

    def _note_pins(self, fenced: Sequence[ManagedJob], errors: Sequence[str], now: float) -> None:
        for job, error in zip(fenced, errors, strict=True):
            if error:
                self._withdrawal.did_not_start(job, error, now)
            if FIXED_NODES in error:
                job.refuses_nodes("arbitrary")
            if writeback.is_over_limit(error):  # with these nodes: without them, it has just taken its lease
                job.refuses_nodes("constraints")
            job.pin_written(now + self._leases.late_s)
        self._pins.written(fenced)


def _may_be_any_list(why: str, failures: int) -> bool:
    """Whether a job that did not start probably starts with no list of nodes. failures: those before this one."""
    others = is_limit(why) or why in CLOSED or why == NODE_LOST
    return failures + 1 >= (2 if why == NEVER else MOST_LISTS) and not others


def _starts_unlisted(partitions: str, why: str) -> bool:
    """Whether one of several partitions does not admit the job, which then starts in another, but with no node list.

    Slurm withdraws the nodes of such a list from its cycle when the job's first partition fails it.
    """
    return "," in partitions and any(word in why for word in _NOT_ADMITTED)


def with_patience(settings: DaemonSettings, start_delay_s: float) -> DaemonSettings:
    """The settings, with time for Slurm to start a job. start_delay_s: of its scheduler, by SchedulerParameters."""
    return settings.model_copy(update={"unpin_after_s": max(settings.unpin_after_s, LOOKS * start_delay_s)})


def _is_to_hand_over(job: ManagedJob, lease_s: float, now: float) -> bool:
    """A job with a lease of the hook's or the daemon's that the daemon leaves to Slurm."""
    tag = job.tag
    if job.handed_over or job.record.reason != "BeginTime" or job.record.eligible_time <= now:
        return False
    if tag is None:
        return lost_its_tag(job, lease_s)
    ours = not tag.unleased or job.lease_until > now
    return ours and job.not_before <= now


def _is_final(record: JobRecord) -> bool:
    """Whether Slurm will not start the job with its pin, by its reason. One of several partitions may refuse it."""
    why = record.reason
    return is_limit(why) or why in CLOSED or (why == NEVER and "," not in record.partition)


def is_limit(slurm_reason: str) -> bool:
    """Whether only time or an admin removes Slurm's reason, so that GPUs should not be kept for the job."""
    return any(word in slurm_reason for word in _LIMITS)
