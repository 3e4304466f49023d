"""Leases: begin times in the future that keep waiting jobs from starting, renewed while asrptd lives.

If asrptd dies, the leases run out and Slurm schedules the jobs by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.daemon.jobs.admission import LEASE_SLACK_S
from slurm_asrpt.daemon.jobs.arrays import ArraySplit
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.records import Update
from slurm_asrpt.switch import OperatingMode

MIN_RENEWALS, MAX_RENEWALS = 100, 1000
"""Leases that are renewed in one cycle: fewer are no burden, more keep slurmctld busy for over a second."""


class Leases:
    """The leases of the waiting jobs, and what is known of them."""

    def __init__(
        self, settings: Settings, jobs: JobTable, client: SlurmClient, mode: OperatingMode, clock: Any
    ) -> None:
        self._jobs, self._client, self._mode, self._clock = jobs, client, mode, clock
        self._daemon, self._timeout_s = settings.daemon, settings.slurm.timeout_s
        self.cycle_began()

    def cycle_began(self) -> None:
        """Slurm is read now: what is written later takes effect later."""
        self._began = self._clock.monotonic()

    @property
    def late_s(self) -> float:
        """Seconds since the cycle began: "now" in an update is when Slurm reads it."""
        return float(self._clock.monotonic() - self._began)

    # writing

    def intend(self, jobs: Sequence[ManagedJob], now: float) -> None:
        """Note the leases that are about to be written; to be saved before they are."""
        for job in jobs:
            until = max(now, job.not_before) + self._daemon.lease_s
            job.lease_intended(until, self.late_s + self._timeout_s)

    def updates(self, jobs: Sequence[ManagedJob], now: float) -> list[Update]:
        """The leases that were intended."""
        return [writeback.lease(job.record.address, job.lease_until - now) for job in jobs]

    def write(self, jobs: Sequence[ManagedJob], now: float) -> list[str]:
        """Write the leases that were intended; one error text per job. Raises SlurmError."""
        errors = self._client.update(self.updates(jobs, now))
        self.note(jobs, errors)
        return errors

    def note(self, jobs: Sequence[ManagedJob], errors: Sequence[str]) -> None:
        """What Slurm has answered."""
        for job, error in zip(jobs, errors, strict=True):
            if error and job.record.array_tasks:
                continue  # of one task, it may be: the others have taken it
            if error:
                job.lease_refused(self.late_s)
            else:
                job.lease_written(self.late_s)

    # which are due

    def due(self, now: float, splits: Sequence[ArraySplit]) -> tuple[list[ManagedJob], list[Update]]:
        """Jobs whose lease is to be renewed, and leases that split tasks from their arrays.

        The other tasks of those arrays are renewed with them, so that all of an array have the same lease.
        """
        leased = {job.record.job_id: job for job in [*self.to_renew(now), *(each.rest for each in splits)]}
        names = [f"{each.rest.record.job_id}_{task}" for each in splits for task in each.tasks]
        return list(leased.values()), [writeback.lease(name, self._daemon.lease_s) for name in names]

    def to_renew(self, now: float) -> list[ManagedJob]:
        """Jobs whose lease has come down to ``renewal_s``, the shortest first, so many that all are renewed in time.

        Twice as many as are due if they come evenly, so that jobs which were leased together do not stay together. Of
        those with half of ``renewal_s`` left many more, and the rest in the next cycles: slurmctld serves others, too.
        """
        waiting, daemon = self._waiting(), self._daemon
        left = [(self._left(job, now), job) for job in waiting]
        due = sorted((pair for pair in left if pair[0] < daemon.renewal_s), key=lambda pair: pair[0])
        evenly = math.ceil(len(waiting) * 2 * daemon.interval_s / (daemon.lease_s - daemon.renewal_s))
        urgent = sum(seconds < daemon.renewal_s / 2 for seconds, _ in due)
        return [job for _, job in due[: max(MIN_RENEWALS, evenly, min(urgent, MAX_RENEWALS))]]

    def _left(self, job: ManagedJob, now: float) -> float:
        """Seconds that a lease runs, by what Slurm shows: an owner's StartTime=now ends a lease.

        0 for one that reaches too far: the clock has stepped back.
        """
        left = job.record.eligible_time - max(now, job.not_before)
        return 0.0 if left > self._daemon.lease_s + job.lease_spread + 2 * LEASE_SLACK_S else left

    def seconds_left(self, now: float) -> list[float]:
        """Seconds that the leases of the waiting jobs still run, by what was written."""
        if not self._mode.enforcing:
            return []
        return [job.lease_until - now for job in self._waiting() if job.lease_until > now]

    def _waiting(self) -> list[ManagedJob]:
        return self._jobs.pending(JobState.INELIGIBLE, JobState.QUEUED)
