"""Which pending jobs the policy holds, and why the others are not in its queue."""

from __future__ import annotations

from collections.abc import Container

from slurm_asrpt.core.policies.base import Phase, reason
from slurm_asrpt.daemon.jobs.admission import Admission
from slurm_asrpt.daemon.jobs.arrays import beyond_limits
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.jobs.turns import Turns
from slurm_asrpt.daemon.late_predictions import LatePredictions
from slurm_asrpt.daemon.loss_sizes import LossSizes
from slurm_asrpt.daemon.policy_feed import PolicyFeed
from slurm_asrpt.daemon.preemption import Preemption
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.slurm.request import LeftToSlurm
from slurm_asrpt.status.reason_texts import LEFT_WORDS
from slurm_asrpt.switch import OperatingMode


class Eligibility:
    """Submits eligible jobs to the policy and withdraws the others, with the reason why."""

    def __init__(
        self,
        jobs: JobTable,
        admission: Admission,
        turns: Turns,
        feed: PolicyFeed,
        loss_sizes: LossSizes,
        preemption: Preemption,
        predictions: LatePredictions,
        audit: AuditWriter,
        mode: OperatingMode,
    ) -> None:
        self.feed = feed
        self._jobs, self._admission, self._turns = jobs, admission, turns
        self._loss_sizes, self._preemption = loss_sizes, preemption
        self._predictions, self._audit, self._mode = predictions, audit, mode

    def update(self, now: float) -> None:
        """Submit newly eligible jobs; after a restart, restore the policy's saved state first."""
        pending = self._jobs.pending()
        self._predictions.follow(pending, now)
        self._admission.rank(pending, now)
        eligible = [job for job in pending if self._is_eligible(job, now)]
        beyond = self._beyond_array_limits([*eligible, *(job for job in pending if job.waits_for_cpus)], now)
        eligible = [job for job in eligible if job.record.job_id not in beyond]
        turns = self._turns.give(eligible, self._jobs.in_state(JobState.PINNED), now)
        if not self.feed.resumed:
            self.feed.resume(eligible, now)
        for job in turns:
            if job.state is JobState.QUEUED and job.job is not None:
                self.feed.changed(job.job, now)
        self._loss_sizes.tell(now)
        self._preemption.tell(now)
        self.feed.submit(eligible, now)

    def _is_eligible(self, job: ManagedJob, now: float) -> bool:
        """Whether the policy should have this pending job in its queue; if not, ``reason`` says why."""
        if job.state is JobState.RUNNING:
            job.waits_again()
        if job.state is JobState.PINNED and self._mode.enforcing and (job.original is None or job.confined):
            self.feed.withdraw(job, JobState.INELIGIBLE, None, now)  # decided, but not written
            job.pin_dropped()
        if job.state is JobState.PINNED:
            return False
        try:
            changed = self._admission.admit(job, now)
        except LeftToSlurm as verdict:
            self._leave(job, verdict.why, now)
            return False
        if changed and job.state is JobState.QUEUED and job.job is not None:
            self.feed.changed(job.job, now)
        why = self._admission.why_not_yet(job, now)
        if why is None and job.cpu_job is not None:
            why = job.cpu_job.why_waiting
        if why is None:
            return True
        self.feed.withdraw(job, JobState.INELIGIBLE, why, now)
        return False

    def _beyond_array_limits(self, jobs: list[ManagedJob], now: float) -> Container[str]:
        """Withdraw those of the jobs that the limits of their arrays do not let start: Slurm would refuse them."""
        beyond = beyond_limits(jobs, self._jobs.values()) if self._mode.enforcing else {}
        for job in jobs:
            if job.record.job_id in beyond:
                why = reason(Phase.WAITING, "array-limit", tasks=beyond[job.record.job_id])
                self.feed.withdraw(job, JobState.INELIGIBLE, why, now)
        return beyond

    def _leave(self, job: ManagedJob, word: str, now: float) -> None:
        if job.state is not JobState.LEFT_TO_SLURM:
            self._audit.record(now, "left", job.record.job_id, why=word, user=job.record.user)
        part = word == "component"  # it waits as the first one does
        first = {"first": job.record.het_id} if part else {}
        phase = Phase.WAITING if part else Phase.LEFT
        why = reason(phase, "left", why=LEFT_WORDS.get(word, word), word=word, **first)
        self.feed.withdraw(job, JobState.LEFT_TO_SLURM, why, now)
