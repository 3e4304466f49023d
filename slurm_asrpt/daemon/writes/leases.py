"""Leases: begin times in the future that keep pending jobs from starting. asrptd renews them while it runs.

If asrptd dies, the leases expire and Slurm schedules the jobs itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.policies.base import Phase, reason
from slurm_asrpt.daemon.jobs.arrays import ArraySplit
from slurm_asrpt.daemon.jobs.begin_times import LEASE_SLACK_S
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.policy_feed import JobListener
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.records import Update
from slurm_asrpt.switch import OperatingMode

MIN_RENEWALS, MAX_RENEWALS = 100, 1000
"""Bounds on the renewals per cycle: fewer are no load, more keep slurmctld busy for over a second."""


class Leases:
    """The leases of the pending jobs."""

    def __init__(
        self, settings: Settings, jobs: JobTable, client: SlurmClient, mode: OperatingMode, clock: Any
    ) -> None:
        self._jobs, self._client, self._mode, self._clock = jobs, client, mode, clock
        self._daemon, self._timeout_s = settings.daemon, settings.slurm.timeout_s
        self.cycle_began()

    def cycle_began(self) -> None:
        """Note the time at which Slurm is read."""
        self._began = self._clock.monotonic()

    @property
    def late_s(self) -> float:
        """Seconds since the cycle began. In an update, "now" is the time at which Slurm reads it."""
        return float(self._clock.monotonic() - self._began)

    @property
    def lease_s(self) -> float:
        """Seconds for which a lease is written."""
        return self._daemon.lease_s

    # writing

    def intend(self, jobs: Sequence[ManagedJob], now: float) -> None:
        """Note the leases to be written. The state must be saved before they are written."""
        for job in jobs:
            until = max(now, job.not_before) + self._daemon.lease_s
            job.lease_intended(until, self.late_s + self._timeout_s)

    def updates(self, jobs: Sequence[ManagedJob], now: float) -> list[Update]:
        """The updates for the noted leases."""
        return [writeback.lease(job.record.address, job.lease_until - now) for job in jobs]

    def write(self, jobs: Sequence[ManagedJob], now: float) -> list[str]:
        """Write the noted leases. Returns one error text per job. Raises SlurmError."""
        errors = self._client.update(self.updates(jobs, now))
        self.note(jobs, errors)
        return errors

    def note(self, jobs: Sequence[ManagedJob], errors: Sequence[str]) -> None:
        """Note Slurm's answers."""
        for job, error in zip(jobs, errors, strict=True):
            if error and job.record.array_tasks:
                continue  # the error may concern one array task; the others have the new lease
            if writeback.waits_no_more(error):
                job.lease_refused(self.late_s)
            elif not writeback.begin_refused(error):
                job.lease_written(self.late_s)
            # else, as if the answer were lost: what Slurm shows next is the old lease or the new one

    # due renewals

    def due(self, now: float, splits: Sequence[ArraySplit]) -> tuple[list[ManagedJob], list[Update]]:
        """Jobs whose leases are due for renewal, and leases that split tasks from their arrays.

        The other tasks of these arrays are renewed too, so that all tasks of an array have the same lease.
        """
        leased = {job.record.job_id: job for job in [*self.to_renew(now), *(each.rest for each in splits)]}
        names = [f"{each.rest.record.job_id}_{task}" for each in splits for task in each.tasks]
        return list(leased.values()), [writeback.lease(name, self._daemon.lease_s) for name in names]

    def to_renew(self, now: float) -> list[ManagedJob]:
        """Jobs with at most ``renewal_s`` left on their lease, the shortest first; enough to renew all in time.

        Twice the number that is due on average, so that jobs leased at the same time spread out. If more have less than
        half of ``renewal_s`` left, as many of them as slurmctld can take beside its other work.
        """
        waiting, daemon = self._waiting(), self._daemon
        left = [(self._left(job, now), job) for job in waiting]
        due = sorted((pair for pair in left if pair[0] < daemon.renewal_s), key=lambda pair: pair[0])
        evenly = math.ceil(len(waiting) * 2 * daemon.interval_s / (daemon.lease_s - daemon.renewal_s))
        urgent = sum(seconds < daemon.renewal_s / 2 for seconds, _ in due)
        return [job for _, job in due[: max(MIN_RENEWALS, evenly, min(urgent, MAX_RENEWALS))]]

    def _left(self, job: ManagedJob, now: float) -> float:
        """Remaining seconds of a lease as Slurm shows it: an owner's StartTime=now ends a lease.

        0 for a lease that ends too late, because the clock has stepped back.
        """
        left = job.record.eligible_time - max(now, job.not_before)
        return 0.0 if left > self._daemon.lease_s + job.lease_spread + 2 * LEASE_SLACK_S else left

    def seconds_left(self, now: float) -> list[float]:
        """Remaining seconds of the leases of the pending jobs, as written."""
        if not self._mode.enforcing:
            return []
        return [job.lease_until - now for job in self._waiting() if job.lease_until > now]

    def _waiting(self) -> list[ManagedJob]:
        """The pending jobs with leases: not those that are released ahead."""
        pending = self._jobs.pending(JobState.INELIGIBLE, JobState.QUEUED)
        return [job for job in pending if job.site_factor is None]


class Fences:
    """Writes a fresh lease before a job's nodes are touched (decision 1). Both methods may raise SlurmError.

    Slurm refuses such a lease, without side effects, unless the job is pending. A pending job that is over a limit gets
    it, but can be given no nodes.
    """

    def __init__(
        self, leases: Leases, listener: JobListener, audit: AuditWriter, save: Callable[[float], None]
    ) -> None:
        """save: what a restart must know; called before Slurm is touched."""
        self._leases, self._listener, self._audit, self._save = leases, listener, audit, save

    def fence(self, jobs: Sequence[ManagedJob], now: float, starting: bool = True) -> list[ManagedJob]:
        """Write the leases that were intended. Returns the jobs that took theirs; the others are withdrawn.

        starting: before they are pinned; else before their pins are removed, which may be what puts them over a limit.
        """
        fenced = []
        for job, error in zip(jobs, self._leases.write(jobs, now), strict=True):
            refused = error if starting else writeback.begin_refused(error)
            if refused:
                self._audit.record(now, "fence-refused", job.record.job_id, error=error)
                self._listener.withdraw(job, JobState.INELIGIBLE, job.reason, now)
                job.pin_dropped()
                if writeback.is_over_limit(error):
                    waits = reason(Phase.WAITING, "over-limit", limit=_without_id(error))
                    job.start_refused(now, waits)
            else:
                fenced.append(job)
        return fenced

    def fence_unplanned(self, jobs: Sequence[ManagedJob], now: float) -> list[ManagedJob]:
        """The same for jobs whose leases are not intended and saved yet."""
        if jobs:
            self._leases.intend(jobs, now)
            self._save(now)
        return self.fence(jobs, now, starting=False)


def _without_id(error: str) -> str:
    """Slurm's answer without the job that it is about."""
    return re.sub(r"^\S+: | for job \S+$", "", error)
