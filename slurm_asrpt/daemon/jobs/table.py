"""The managed jobs by job id: pending and running ones, and ended ones."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.slurm.records import PENDING, JobRecord


class JobTable(dict[str, ManagedJob]):
    """Pending and running jobs by job id. saved: ``jobs`` in state.json, for jobs that are new to this daemon."""

    def __init__(self, saved: Any = None) -> None:
        super().__init__()
        self._saved: Mapping[str, Any] = saved if isinstance(saved, dict) else {}

    def pending(self, *states: JobState) -> list[ManagedJob]:
        """Pending jobs in these states (default: all)."""
        return [j for j in self.values() if j.record.state == PENDING and (not states or j.state in states)]

    def in_state(self, *states: JobState) -> list[ManagedJob]:
        return [job for job in self.values() if job.state in states]

    def running_since(self) -> dict[str, float]:
        """Number and start time of each running job."""
        return {str(j.record.number): j.record.start_time for j in self.values() if j.state is JobState.RUNNING}

    def restore(self, job: ManagedJob, now: float) -> None:
        """Restore the saved state of a job that is new to this daemon. Raises ValueError if it is not valid."""
        job_id, array_id = job.record.job_id, job.record.array_id
        if job_id in self._saved:
            job.restore(self._saved[job_id], now)
        elif job_id != array_id:
            self._restore_task(job, array_id, now)

    def _restore_task(self, job: ManagedJob, array_id: str, now: float) -> None:
        """Restore an array task that was split from its array while no daemon ran, or just now."""
        rest = self.get(array_id) or ManagedJob(record=job.record)
        try:
            if array_id in self._saved:
                rest.restore(self._saved[array_id], now)
        finally:
            job.inherit_lease(rest)

    def knew(self, record: JobRecord) -> bool:
        """Whether the daemon before this one managed the job: in a partition that is managed no longer, it may have
        a lease, or be pinned.
        """
        return record.job_id in self._saved or record.array_id in self._saved

    def forget_saved(self) -> None:
        """Drop the saved states, which apply only once."""
        self._saved = {}


class EndedJobs:
    """Ended jobs that Slurm still shows: they may be requeued."""

    def __init__(self) -> None:
        self._known: dict[str, ManagedJob] = {}

    def has(self, record: JobRecord) -> bool:
        """Whether this job's end is known."""
        known = self._known.get(record.job_id)
        return known is not None and known.record.submit_time == record.submit_time

    def add(self, job: ManagedJob) -> None:
        """Add a job that has ended."""
        job.ended()
        self._known[job.record.job_id] = job

    def before(self, record: JobRecord) -> ManagedJob | None:
        """The previous run of a job that was requeued after its end; Slurm keeps its pin."""
        return self._known.get(record.job_id) if record.restarts else None

    def pinned(self) -> list[ManagedJob]:
        """Jobs whose pins a restart must still be able to undo. Jobs that were ended by a pin stay ended."""
        return [job for job in self._known.values() if job.original is not None and not job.failed_by_pin]

    def keep_only(self, shown: Container[str]) -> None:
        """Forget the jobs that Slurm has forgotten."""
        self._known = {job_id: job for job_id, job in self._known.items() if job_id in shown}
