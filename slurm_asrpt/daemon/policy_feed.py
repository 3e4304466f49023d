"""Informs the policy of jobs that are submitted, started, ended or changed; restores its state after a restart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.base import Policy, Reason, SeesRunning
from slurm_asrpt.daemon.clock import STEP_S
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.record import facts
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.slurm.records import JobRecord


class JobListener:
    """Listener for events of jobs and nodes. This class ignores them: ``asrpt-admin disable`` has no policy."""

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        """The nodes that may run managed jobs have changed."""

    def gone(self, job_id: str, at: float) -> None:
        """A job has ended, or has left the queue."""

    def started_by_slurm(self, record: JobRecord, now: float) -> None:
        """Slurm has started a queued job by itself."""

    def changed(self, job: Job, now: float) -> None:
        """The request of a queued job has changed."""

    def running(self, record: JobRecord, now: float) -> None:
        """Slurm has started a job."""

    def withdraw(self, job: ManagedJob, state: JobState, why: Reason | None, now: float) -> None:
        """Remove a job from the queue, or withdraw its start."""
        if job.state in (JobState.QUEUED, JobState.PINNED):  # for the policy, it is queued or running
            self.gone(job.record.job_id, now)
        job.withdrawn(state, why)


class PolicyFeed(JobListener):
    """Keeps a policy up to date. resumed: its saved state is restored, and it has all eligible jobs."""

    def __init__(
        self,
        policy: Policy,
        name: str,
        saved: Mapping[str, Any],
        jobs: JobTable,
        cluster: ClusterState,
        recent: RecentJobs,
        audit: AuditWriter,
    ) -> None:
        """saved: the state of the daemon before this one."""
        self._policy, self.name, self._saved = policy, name, saved
        self._jobs, self._cluster, self._recent, self._audit = jobs, cluster, recent, audit
        self.resumed = False
        self.cold = False
        """Whether the policy started without a saved state. Then jobs arrive at their submit times."""

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self._policy.cluster_changed(nodes, now)

    def gone(self, job_id: str, at: float) -> None:
        self._policy.finished(JobId(job_id), at)

    def started_by_slurm(self, record: JobRecord, now: float) -> None:
        self._policy.started_by_slurm(JobId(record.job_id), record.gpus_by_node, now)

    def changed(self, job: Job, now: float) -> None:
        self._policy.changed(job, now)

    def running(self, record: JobRecord, now: float) -> None:
        if isinstance(self._policy, SeesRunning) and record.gpus_by_node:
            until = record.start_time + (record.time_limit or math.inf)
            self._policy.running(JobId(record.job_id), record.gpus_by_node, until, now)

    def submit(self, eligible: list[ManagedJob], now: float) -> None:
        """Submit newly eligible jobs, in order of submission."""
        for job in sorted(eligible, key=lambda each: (each.record.submit_time, each.record.number)):
            assert job.job is not None  # noqa: S101  (eligible jobs have been admitted)
            if job.state is JobState.QUEUED:
                continue
            if job.failures or job.postponed:
                self._policy.returned(job.job, now)
            else:
                since = min(now, job.job.submit_time) if self.cold else now
                self._policy.submitted(job.job, since)
                self._arrived(job, job.job, since)
            job.queued()
            self._audit.record(now, "queued", job.record.job_id, **facts.queued_facts(job, job.job))
        self.resumed = True

    def _arrived(self, job: ManagedJob, admitted: Job, since: float) -> None:
        if job.record.job_id != job.record.array_id:  # it arrived with its array and was split from it now
            since = min(since, admitted.submit_time)
        self._recent.arrived(job, admitted, self._cluster.best_alpha(admitted) or 1.0, since)

    def resume(self, eligible: list[ManagedJob], now: float) -> None:
        """Let the policy take up its saved state."""
        saved = self._saved
        jobs = {job.job.id: job.job for job in eligible if job.job is not None}
        state = saved.get("policy") if saved.get("policy_name") == self.name else None
        if saved.get("time", 0.0) > now + STEP_S:  # the clock has stepped back: its times are still to come
            state = None
        self.cold = state is None  # no usable state: none, another policy's, or one with wrong times
        if state is not None:
            try:
                self._policy.load(state, jobs)
                self._catch_up(now)
            except ValueError as error:
                self.cold = True
                self._audit.record(now, "policy-state-lost", error=str(error))
        held = {job_id for job_id, _ in self._policy.queue(now)} if not self.cold else set()
        for job in eligible:
            job.resumed(in_queue=job.record.job_id in held)

    def dump(self) -> dict[str, Any]:
        """What ``resume`` takes up after a restart."""
        return {"policy_name": self.name, "policy": self._policy.dump()}

    def _catch_up(self, now: float) -> None:
        """Report jobs that ended or started while no daemon ran."""
        known = self._saved.get("jobs")
        for job_id in known if isinstance(known, dict) else ():
            if job_id not in self._jobs:
                self.gone(job_id, now)
        for job in self._jobs.in_state(JobState.RUNNING):
            self.running(job.record, now)
