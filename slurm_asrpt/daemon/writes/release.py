"""Releases pending jobs to Slurm: undoes what a daemon in mode enforce or order has written to them.

This is done in every cycle outside of mode enforce, so it covers a disabled asrptd, a changed mode, and a restart in
another mode after a crash. Running jobs are not touched.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.daemon.jobs.begin_times import LEASE_SLACK_S, is_lease
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.writes.starts import StartWithdrawal
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.records import Update
from slurm_asrpt.switch import OperatingMode

DONE, REFUSED = "handed-back", "hand-back-refused"
"""Events of the audit trail."""


class Release:
    """Removes node lists, priorities, leases and site factors from pending jobs."""

    def __init__(
        self,
        jobs: JobTable,
        withdrawal: StartWithdrawal,
        client: SlurmClient,
        audit: AuditWriter,
        mode: OperatingMode,
        lease_s: float,
        multifactor: bool,
    ) -> None:
        self._jobs, self._withdrawal, self._client, self._audit = jobs, withdrawal, client, audit
        self._mode, self._lease_s, self._multifactor = mode, lease_s, multifactor

    def release_all(self, now: float) -> None:
        """Release all pending jobs. Raises SlurmError.

        If Slurm refuses to remove a job's pin, the job keeps its lease, and the next cycle tries again.
        """
        pinned = self._withdrawal.unpin(self._withdrawal.still_pinned(now), now)
        for job in pinned:
            job.needs_map(False)
            if job.original is not None:
                self._audit.record(now, REFUSED, job.record.job_id, error="its node list could not be removed")
        wanted = [(job, self._undoing(job, now)) for job in self._jobs.pending() if job.original is None]
        if not self._multifactor:
            for job, _ in wanted:
                job.site_factor_is(None)  # there are none; it was released ahead
        ours = [(job, fields) for job, fields in wanted if fields]
        errors = self._client.update([Update(job.record.address, fields) for job, fields in ours])
        for (job, fields), error in zip(ours, errors, strict=True):
            if writeback.waits_no_more(error):
                continue  # it has started or was cancelled meanwhile
            if writeback.begin_refused(error) if fields.keys() == {"StartTime"} else error:
                self._audit.record(now, REFUSED, job.record.job_id, error=error)
            else:
                self._audit.record(now, DONE, job.record.job_id, pinned=job in pinned)
                job.released(now, fields)

    def _undoing(self, job: ManagedJob, now: float) -> Mapping[str, str]:
        """The fields that undo what asrptd has written to the job; empty if there is nothing to undo."""
        job_id, shown, fields = job.record.address, job.record.eligible_time, dict[str, str]()
        leased = shown > max(now, job.not_before + LEASE_SLACK_S)
        if leased and is_lease(job, shown, now, self._lease_s, self._mode.enforcing):
            fields |= writeback.hand_over(job_id, max(job.not_before, job.restarts_at) - now).fields
        if job.site_factor is not None and self._multifactor and self._mode.current is not Mode.ORDER:
            fields |= writeback.site_factor(job_id, 0).fields
        return fields
