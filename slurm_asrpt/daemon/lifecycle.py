"""The lifecycle of jobs in Slurm's answers: they appear, start, end, are requeued, or disappear."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.policies.hlas.policy import service_rate
from slurm_asrpt.daemon import placements
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.jobs.job_record import is_another, still_its_run
from slurm_asrpt.daemon.jobs.managed_job import KILLED, ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import EndedJobs, JobTable
from slurm_asrpt.daemon.policy_feed import JobListener
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.daemon.record import facts
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.record.ended import EndedReports
from slurm_asrpt.daemon.record.history import HistoryWriter
from slurm_asrpt.daemon.record.progress import ProgressWatch
from slurm_asrpt.daemon.writes import rank_maps
from slurm_asrpt.errors import printable
from slurm_asrpt.history.store import Run
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.slurm.records import PENDING, JobRecord, NodeRecord
from slurm_asrpt.switch import OperatingMode

LOG = logging.getLogger("asrptd")


class RunSink:
    """Receives ended runs. This class keeps and deletes nothing, so that the next asrptd can record them."""

    def ended(self, job: ManagedJob, now: float) -> Run | None:
        """A job has ended. Returns its run; None if there is nothing to keep."""
        return None

    def cut(self, job: ManagedJob, until: float) -> Run | None:
        """A requeue has ended a run. Returns the run; None if there is nothing to keep."""
        return None

    def report(self, job: ManagedJob, run: Run | None) -> None:
        """Tell its owner about a job that has ended. run: None if it did not run, or nothing can be learned."""

    def flush(self) -> None:
        """Write the kept runs."""

    def remove_progress(self, record: JobRecord) -> None:
        """Remove the job's progress directory."""


class RunRecorder(RunSink):
    """Writes ended runs into the history, lets forecasts learn from them, and reports them to their owners."""

    def __init__(
        self,
        history: HistoryWriter,
        recent: RecentJobs,
        progress: ProgressWatch,
        reports: EndedReports,
        cluster: ClusterState,
    ) -> None:
        self._history, self._recent, self._progress = history, recent, progress
        self._reports, self._cluster = reports, cluster

    def ended(self, job: ManagedJob, now: float) -> Run | None:
        run = self._history.record(job, placements.spread(job, self._cluster))
        if run is not None:
            self._recent.ended(run, now)
        return run

    def cut(self, job: ManagedJob, until: float) -> Run | None:
        return self._history.record_cut(job, until, placements.spread(job, self._cluster))

    def report(self, job: ManagedJob, run: Run | None) -> None:
        self._reports.add(job, run)

    def flush(self) -> None:
        self._history.flush()

    def remove_progress(self, record: JobRecord) -> None:
        self._progress.remove(str(record.number))


class JobLifecycle:
    """Updates jobs and nodes from Slurm's answers, and informs policy, history and audit trail."""

    def __init__(
        self,
        settings: Settings,
        jobs: JobTable,
        cluster: ClusterState,
        listener: JobListener,
        profiles: Profiles,
        audit: AuditWriter,
        mode: OperatingMode,
        runs: RunSink,
    ) -> None:
        self.jobs, self.cluster, self.ended = jobs, cluster, EndedJobs()
        self._listener, self._profiles, self._audit, self._mode, self._runs = listener, profiles, audit, mode, runs
        self._managed, self._spool = set(settings.slurm.partitions), settings.paths.spool
        self._without_nodes: set[str] = set()  # managed partitions
        self._to_clear: list[JobRecord] = []

    def follow_nodes(self, records: list[NodeRecord], now: float, reserved: frozenset[str] = frozenset()) -> None:
        """Set the current nodes. reserved: as for ``ClusterState.update``."""
        self._note_partitions(records)
        change = self.cluster.update(records, reserved)
        if change.usable:
            nodes = self.cluster.view.nodes
            self._listener.cluster_changed(list(nodes), now)
            self._audit.record(now, "cluster", nodes=len(nodes), gpus=sum(n.gpus for n in nodes))
        if change.table:
            for job in self.jobs.values():
                job.nodes_changed()

    def _note_partitions(self, records: Iterable[NodeRecord]) -> None:
        """Log managed partitions that have no node: a misspelled one is never scheduled, and nothing else says so."""
        known = frozenset[str]().union(*(record.partitions for record in records))
        missing = self._managed - known
        if missing - self._without_nodes:
            names, others = (printable(", ".join(sorted(some))) for some in (missing, known))
            LOG.warning("slurm.partitions: no node is in %s; partitions with nodes: %s", names, others or "none")
        self._without_nodes = missing

    def follow_jobs(self, records: Iterable[JobRecord], now: float) -> None:
        """Set the current jobs. Ended runs are on disk on return."""
        seen, ended = set[str](), set[str]()
        for record in records:
            if record.has_ended:
                ended.add(record.job_id)
                if not self._ended(record, now):
                    seen.add(record.job_id)
            elif self._is_managed(record):
                seen.add(record.job_id)
                job = self._track(record, now)
                if record.state != PENDING:
                    self._running(job, now)
        for job_id in self.jobs.keys() - seen:
            self._to_clear.append(self.jobs[job_id].record)
            self._vanished(self.jobs[job_id], now)
        self.ended.keep_only(ended)
        self.jobs.forget_saved()
        self._settle()

    def _is_managed(self, record: JobRecord) -> bool:
        """Jobs of managed partitions, and those that were managed before: what was written to them is undone."""
        in_partition = not self._managed.isdisjoint(record.partition.split(","))
        return in_partition or record.job_id in self.jobs or self.jobs.knew(record)

    def _settle(self) -> None:
        """Write runs to the audit trail and the history, then remove their files. After a crash, steps are repeated.

        What the audit trail keeps in memory only, waits: a run in the history is not recorded a second time.
        """
        if not self._audit.flush():
            return
        self._runs.flush()
        for record in self._to_clear:  # the prolog creates a progress directory for every job, managed or not
            rank_maps.remove(self._spool, [record.number])
            self._runs.remove_progress(record)
        self._to_clear.clear()

    # jobs that appear, are requeued, end or disappear

    def _known(self, record: JobRecord, now: float) -> ManagedJob | None:
        """The managed job for the record, if it is known."""
        job = self.jobs.get(record.job_id)
        if job is not None and is_another(record, job.record):
            self._vanished(job, now)
            rank_maps.remove(self._spool, [record.number])
            return None
        return job

    def _track(self, record: JobRecord, now: float) -> ManagedJob:
        job = self._known(record, now)
        if job is not None:
            record = still_its_run(record, job.record)
        requeued_at = record.submit_time if job and job.record.submit_time != record.submit_time else 0.0
        if job is not None and (requeued_at or record.state == PENDING):
            self._cut(job, requeued_at or now, now)
        if job is None or requeued_at:
            before = job or self.ended.before(record)
            job = self.jobs[record.job_id] = ManagedJob(record=record, first_seen=max(now, record.submit_time))
            if before is not None:
                job.continue_from(before)
                self._listener.gone(record.job_id, record.submit_time)
            else:
                self._restore(job, now)
        job.read_tag(record)
        job.follow(record)
        return job

    def _cut(self, job: ManagedJob, until: float, now: float) -> None:
        """Record the run that a requeue has ended. Its progress file is kept, because the next run may resume there."""
        if job.state is not JobState.RUNNING:
            return
        job.cut(until)
        run = self._runs.cut(job, until)
        if run is not None:
            self._audit.record(now, "cut", job.record.job_id, until=until, **self._facts_of(job, run))

    def _restore(self, job: ManagedJob, now: float) -> None:
        try:
            self.jobs.restore(job, now)
        except ValueError as error:
            self._audit.record(now, "job-state-lost", job.record.job_id, error=str(error))

    def _ended(self, record: JobRecord, now: float) -> bool:
        """Whether a job has ended and will not run again; this is recorded once."""
        if self.ended.has(record):
            return True
        known = self._known(record, now)
        job = known or ManagedJob(record=record, tag=parse_tag(record.admin_comment))
        if known is None:
            self._restore(job, now)
        if self._mode.enforcing and record.state == KILLED and job.was_requeued(record):
            self._only_killed(job, record, now)
            return False
        self.jobs.pop(record.job_id, None)
        self._listener.gone(record.job_id, now)
        job.follow(record)
        if job.failed_by_pin:
            self._audit.record(now, "pin-failed", record.job_id, **facts.pin_failed_facts(job))
        run = self._runs.ended(job, now)
        if run is not None:
            self._audit.record(now, "ended", record.job_id, **self._facts_of(job, run))
        elif known is not None:  # nothing to learn from
            self._audit.record(now, "gone", record.job_id, **facts.gone_facts(job))
        if run is not None or known is not None:
            self._runs.report(job, run)
        self.ended.add(job)
        self._to_clear.append(record)
        return True

    def _facts_of(self, job: ManagedJob, run: Run) -> dict[str, Any]:
        block = placements.block_alpha(job, self.cluster, self._profiles)
        return facts.ended_facts(run, self.cluster.best_alpha(job.job), block)

    def _only_killed(self, job: ManagedJob, record: JobRecord, now: float) -> None:
        """Keep a job that asrptd requeued, although slurmctld was killed and shows its script as failed."""
        self._cut(job, record.end_time, now)
        self._listener.withdraw(job, JobState.INELIGIBLE, None, now)
        job.follow(record)
        self.jobs[record.job_id] = job

    def _vanished(self, job: ManagedJob, now: float) -> None:
        """Record that Slurm no longer knows the job: slurmctld was killed, or asrptd was down beyond MinJobAge."""
        if not job.record.array_tasks:  # else all its tasks are separate jobs now
            self._audit.record(now, "vanished", job.record.job_id, place=str(job.state))
        self._listener.gone(job.record.job_id, now)
        del self.jobs[job.record.job_id]

    # running jobs

    def _running(self, job: ManagedJob, now: float) -> None:
        record = job.record
        if job.state is JobState.QUEUED:
            self._listener.started_by_slurm(record, now)
        new = job.state is not JobState.RUNNING or (job.placement is None and record.gpus_by_node != job.allocation)
        if new and not job.forgotten:
            self._read_back(job, now)
            self._listener.running(record, now)
        if job.state is JobState.RUNNING and 0 < job.service.began < record.start_time:
            self.cluster.startup_delay.observed(record.start_time - job.service.began)  # its nodes were powered down
        if job.service.began != record.start_time and record.gpus_by_node and not job.forgotten:
            job.run_began(service_rate(record.gpus_by_node, self.cluster.view.by_name))
        job.started()

    def _read_back(self, job: ManagedJob, now: float) -> None:
        """Note the real allocation, and compare it with the plan."""
        record = job.record
        if not record.gpus_by_node:
            return
        job.allocated(placements.real_placement(job, self.cluster, self._profiles))
        shadow = not self._mode.enforcing and job.state in (JobState.QUEUED, JobState.PINNED)
        recorded = facts.running_facts(job, self.cluster.best_alpha(job.job), shadow)
        self._audit.record(now, "running", record.job_id, **recorded)
        if job.mapped and job.placement is not None:
            rank_maps.write_hosts(self._spool, record.number, job.placement.ranks)
