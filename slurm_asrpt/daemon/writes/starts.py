"""Starts: the nodes that are pinned to a job so that Slurm starts it there, and their undoing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.policies.base import Phase, reason
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.admission import follow_begin_time, lost_its_tag
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.policy_feed import JobListener
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.writes.leases import Leases
from slurm_asrpt.daemon.writes.rank_maps import RankMaps
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.slurm.records import Update
from slurm_asrpt.switch import OperatingMode

NODE_LOST = "NodeDown"
"""As Slurm says it of a node that is down, drained or gone."""


class Starts:
    """Writes starts and takes them back. Every method may raise SlurmError."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobTable,
        cluster: ClusterState,
        listener: JobListener,
        client: SlurmClient,
        slurm: SlurmConfig,
        leases: Leases,
        rank_maps: RankMaps,
        audit: AuditWriter,
        mode: OperatingMode,
        save: Callable[[float], None],
    ) -> None:
        """save: what a restart must know; asked for before Slurm is touched."""
        self._daemon, self._jobs, self._cluster, self._listener = settings.daemon, jobs, cluster, listener
        self._client, self._slurm, self._leases, self._rank_maps = client, slurm, leases, rank_maps
        self._audit, self._mode, self._save = audit, mode, save

    def write(self, starts: list[ManagedJob], waiting: list[ManagedJob], tasks: list[Update], now: float) -> None:
        """Start some jobs and renew the leases of others as was intended; hand over leased jobs that are Slurm's.

        In two calls, as each starts a program: the fences of the starts first, then their pins, then all else.
        tasks: of arrays, to be split from the rest by leases of their own.
        """
        fenced = self._fenced(starts, self._leases.write(starts, now), now)
        left = [job for job in self._jobs.pending(JobState.LEFT_TO_SLURM) if self._is_to_hand_over(job, now)]
        updates = [*self._pins(fenced), *self._leases.updates(waiting, now)]
        handed = [writeback.hand_over(job.record.address) for job in left]
        errors = self._client.update([*updates, *handed, *tasks])
        self._note_pins(fenced, errors[: len(fenced)], now)
        self._leases.note(waiting, errors[len(fenced) : len(updates)])
        for job, error in zip(waiting + left, errors[len(fenced) :], strict=False):
            job.was_handed_over(job.state is JobState.LEFT_TO_SLURM and not error)
        others = [*(job.record.job_id for job in waiting + left), *(task.job_id for task in tasks)]
        for job_id, error in zip(others, errors[len(fenced) :], strict=True):
            if error:
                self._audit.record(now, "lease-refused", job_id, error=error)

    def _is_to_hand_over(self, job: ManagedJob, now: float) -> bool:
        """A job with a lease of the hook's (not left by the hook) that the daemon leaves to Slurm."""
        tag = job.tag
        if job.handed_over or job.record.reason != "BeginTime" or job.record.eligible_time <= now:
            return False
        if tag is None:
            return lost_its_tag(job, self._daemon.lease_s)
        return not tag.left and tag.begin <= now

    def _pins(self, fenced: Sequence[ManagedJob]) -> list[Update]:
        self._rank_maps.prepare(fenced)
        multifactor = self._slurm.multifactor
        return [writeback.pin(job.record.job_id, job.pin.gpus, multifactor) for job in fenced if job.pin]

    def _note_pins(self, fenced: Sequence[ManagedJob], errors: Sequence[str], now: float) -> None:
        for job, error in zip(fenced, errors, strict=True):
            if error:
                self._did_not_start(job, error, now)
            job.pin_written(now + self._leases.late_s)
        self._rank_maps.started(fenced)

    def _fenced(self, jobs: list[ManagedJob], errors: list[str], now: float) -> list[ManagedJob]:
        """Those of these jobs that took a fresh lease: they are pending and stay so while we touch their nodes."""
        fenced = []
        for job, error in zip(jobs, errors, strict=True):
            if error:
                self._audit.record(now, "fence-refused", job.record.job_id, error=error)
                self._listener.withdraw(job, JobState.INELIGIBLE, job.reason, now)
                job.pin_dropped()
            else:
                fenced.append(job)
        return fenced

    # their undoing

    def take_back_what_did_not_start(self, now: float) -> None:
        """Unpin what Slurm has not started in time, and what a requeue left pinned."""
        pinned = [job for job in self._jobs.pending(JobState.PINNED) if job.pin is not None]
        reasons = {job.record.job_id: why for job in pinned if (why := self._in_vain(job, now))}
        late = [job for job in pinned if job.record.job_id in reasons]
        requeued = self.carrying_pins(now, JobState.INELIGIBLE, JobState.LEFT_TO_SLURM, JobState.QUEUED)
        for job in self.take_pins_off(late + requeued, now):
            if job.record.job_id in reasons:
                self._did_not_start(job, reasons[job.record.job_id], now)

    def carrying_pins(self, now: float, *states: JobState) -> list[ManagedJob]:
        """Waiting jobs in these states, without any in all, on which Slurm still holds a pin of ours."""
        stale = [job for job in self._jobs.pending(*states) if job.original is not None]
        for job in stale:  # before a new lease covers what Slurm or the owner has set
            follow_begin_time(job, now, self._daemon.lease_s, self._mode.enforcing)
        return stale

    def _in_vain(self, job: ManagedJob, now: float) -> str:
        """Why the pin of a waiting job is to be taken back, in Slurm's words; "" while it may still lead to a start.

        At once where a node of it cannot be used any more: a slurmctld that comes back without that node would end
        the job.
        """
        assert job.pin is not None  # noqa: S101  (the caller has seen to it)
        if not job.pin.gpus.keys() <= self._cluster.view.free.keys():
            return NODE_LOST
        late = now - max(job.pin.at, job.pin_written_at) > self._daemon.unpin_after_s
        return (job.record.reason or "None") if late or is_limit(job.record.reason) else ""

    def take_pins_off(self, jobs: list[ManagedJob], now: float) -> list[ManagedJob]:
        """Those of these jobs that still wait: each has a fresh lease and, unless Slurm refused, its pin no more."""
        if jobs:
            self._leases.intend(jobs, now)
            self._save(now)
        fenced = [job for job in self._fenced(jobs, self._leases.write(jobs, now), now) if job.original is not None]
        self._rank_maps.remove(fenced)
        for job, error in zip(fenced, self._client.update([self._unpin(job) for job in fenced]), strict=True):
            if not error:
                job.pin_cleared()
        return fenced

    def reconsider_what_slurm_has_not_started(self, now: float) -> None:
        """Modes shadow and order: Slurm goes its own way, and GPUs must not stay reserved for a job for ever."""
        patience = self._daemon.unpin_after_s
        for job in self._jobs.pending(JobState.PINNED):
            if job.pin is not None and now - job.pin.at > patience:
                self._did_not_start(job, job.record.reason, now)

    def _unpin(self, job: ManagedJob) -> Update:
        assert job.original is not None  # noqa: S101  (the caller has seen to it)
        held = job.record.priority == 0  # Slurm refuses a priority then, and all else with it
        before = replace(job.original, priority=0) if held else job.original
        return writeback.unpin(job.record.job_id, before, len(self._cluster.nodes), self._slurm)

    def _did_not_start(self, job: ManagedJob, why: str, now: float) -> None:
        """Back to waiting: at once the first time (unless a limit holds it), then after growing pauses."""
        self._listener.gone(job.record.job_id, now)  # it holds no GPUs; it returns when it may
        waits = reason(Phase.WAITING, self._kind(why), slurm_reason=why)
        avoid = why not in ("Resources", "Priority", "None")
        job.not_started(now, waits, at_once=not is_limit(why), avoid=avoid)
        self._rank_maps.remove([job])
        self._audit.record(now, "not-started", job.record.job_id, why=why, retry_at=job.retry_at)

    def _kind(self, slurm_reason: str) -> str:
        if is_limit(slurm_reason):
            return "limit"
        return "not-started" if self._mode.enforcing else "not-followed"


def is_limit(slurm_reason: str) -> bool:
    """A reason of Slurm that only time or an admin removes: no use in keeping GPUs for the job meanwhile."""
    return any(word in slurm_reason for word in ("Limit", "Assoc", "QOS", "Licenses", "MaxJobs", "MaxGRES"))
