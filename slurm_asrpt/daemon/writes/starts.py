"""Starts jobs by pinning nodes to them, and removes pins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.policies.base import Phase, reason
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.admission import follow_begin_time
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
"""Slurm's reason for a node that is down, drained or gone."""


class Starts:
    """Writes starts and withdraws them. Every method may raise SlurmError."""

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
        """save: saves the state for a restart; called before updates are sent to Slurm."""
        self._daemon, self._jobs, self._cluster, self._listener = settings.daemon, jobs, cluster, listener
        self._client, self._slurm, self._leases, self._rank_maps = client, slurm, leases, rank_maps
        self._audit, self._mode, self._save = audit, mode, save

    def write(self, starts: list[ManagedJob], waiting: list[ManagedJob], tasks: list[Update], now: float) -> None:
        """Start jobs, renew the leases of others, and hand over leased jobs that are left to Slurm.

        Only two calls, because each starts a program: first the fences of the starts, then their pins and the rest.
        tasks: leases that split array tasks from their arrays.
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
        """Whether the job has a lease of the hook although asrptd leaves it to Slurm."""
        tag = job.tag
        leased = job.record.reason == "BeginTime" and job.record.eligible_time > now
        return bool(leased and tag and not tag.left and tag.begin <= now and not job.handed_over)

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
        """The jobs that accepted a new lease: they are pending, and stay so while their nodes are changed."""
        fenced = []
        for job, error in zip(jobs, errors, strict=True):
            if error:
                self._audit.record(now, "fence-refused", job.record.job_id, error=error)
                self._listener.withdraw(job, JobState.INELIGIBLE, job.reason, now)
                job.pin_dropped()
            else:
                fenced.append(job)
        return fenced

    # withdrawal

    def take_back_what_did_not_start(self, now: float) -> None:
        """Unpin jobs that Slurm has not started in time, and jobs that are still pinned after a requeue."""
        pinned = [job for job in self._jobs.pending(JobState.PINNED) if job.pin is not None]
        reasons = {job.record.job_id: why for job in pinned if (why := self._in_vain(job, now))}
        late = [job for job in pinned if job.record.job_id in reasons]
        requeued = self.carrying_pins(now, JobState.INELIGIBLE, JobState.LEFT_TO_SLURM, JobState.QUEUED)
        for job in self.take_pins_off(late + requeued, now):
            if job.record.job_id in reasons:
                self._did_not_start(job, reasons[job.record.job_id], now)

    def carrying_pins(self, now: float, *states: JobState) -> list[ManagedJob]:
        """Pending jobs in these states (default: all) that still have a pin in Slurm."""
        stale = [job for job in self._jobs.pending(*states) if job.original is not None]
        for job in stale:  # before a new lease overwrites what Slurm or the owner has set
            follow_begin_time(job, now, self._daemon.lease_s, self._mode.enforcing)
        return stale

    def _in_vain(self, job: ManagedJob, now: float) -> str:
        """Slurm's reason if the pin of a pending job must be removed; "" while the job may still start.

        A pin is removed at once if one of its nodes is no longer usable: a slurmctld that restarts without that node
        would end the job.
        """
        assert job.pin is not None  # noqa: S101  (the caller has seen to it)
        if not job.pin.gpus.keys() <= self._cluster.view.free.keys():
            return NODE_LOST
        late = now - max(job.pin.at, job.pin_written_at) > self._daemon.unpin_after_s
        return (job.record.reason or "None") if late or is_limit(job.record.reason) else ""

    def take_pins_off(self, jobs: list[ManagedJob], now: float) -> list[ManagedJob]:
        """Remove pins. Returns the jobs that are still pending, with a new lease; Slurm may have kept some pins."""
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
        """Modes shadow and order: withdraw starts that Slurm does not follow, so that no GPUs stay reserved forever."""
        patience = self._daemon.unpin_after_s
        for job in self._jobs.pending(JobState.PINNED):
            if job.pin is not None and now - job.pin.at > patience:
                self._did_not_start(job, job.record.reason, now)

    def _unpin(self, job: ManagedJob) -> Update:
        assert job.original is not None  # noqa: S101  (the caller has seen to it)
        held = job.record.priority == 0  # Slurm would reject a priority, and with it the whole update
        before = replace(job.original, priority=0) if held else job.original
        return writeback.unpin(job.record.job_id, before, len(self._cluster.nodes), self._slurm)

    def _did_not_start(self, job: ManagedJob, why: str, now: float) -> None:
        """Return the job to the queue: at once the first time unless a limit holds it, then after growing pauses."""
        self._listener.gone(job.record.job_id, now)  # it holds no GPUs, and is queued again when it is eligible
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
    """Whether only time or an admin removes Slurm's reason, so that GPUs should not be kept for the job."""
    return any(word in slurm_reason for word in ("Limit", "Assoc", "QOS", "Licenses", "MaxJobs", "MaxGRES"))
