"""Builds status.json, which asrpt-status shows: the rows of all jobs (``job_rows``) in order, and the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from slurm_asrpt import __version__
from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.job import JobId, id_key
from slurm_asrpt.core.policies.base import (
    Phase,
    Policy,
    Reason,
    before_band,
    may_interrupt,
)
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.forecasts.forecaster import Forecaster
from slurm_asrpt.daemon.job_rows import JobRows
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.priorities import with_cause
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.jobs.wait_reasons import KeptGpus, unless_reserved
from slurm_asrpt.daemon.record.ended import EndedReports, ended_row
from slurm_asrpt.daemon.record.progress import ProgressWatch
from slurm_asrpt.status.document import (
    JobStatus,
    NodeStatus,
    Status,
    count_jobs,
)
from slurm_asrpt.status.ended import add_ended
from slurm_asrpt.status.explain import add_ahead
from slurm_asrpt.status.reason_texts import is_refused
from slurm_asrpt.switch import OperatingMode

_RANKED = 2
_ORDER: dict[str, int] = {
    Phase.RUNNING: 0,
    Phase.STARTING: 1,
    Phase.LEFT: 4,
    **dict.fromkeys((Phase.WAITING, Phase.VIRTUAL, Phase.DELAYED), 3),
}


def _group(row: JobStatus) -> int:
    """The position of a job's group in the status: jobs with a rank, then those not in the queue yet, then others."""
    return _RANKED if row.rank is not None else _ORDER[row.state]


class StatusBuilder:
    """Builds the status after a cycle. leader: host, pid and start time."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        jobs: JobTable,
        cluster: ClusterState,
        rows: JobRows,
        progress: ProgressWatch,
        reports: EndedReports,
        mode: OperatingMode,
        leader: str,
    ) -> None:
        self._settings, self._policy, self._jobs, self._cluster = settings, policy, jobs, cluster
        self._rows, self._progress, self._reports, self._mode, self._leader = rows, progress, reports, mode, leader

    def build(self, now: float, forecaster: Forecaster) -> Status:
        """The status, with running jobs first, then the others in the order in which they should start."""
        queue = self._policy.queue(now)
        able = (str(job_id) for job_id, why in queue if not self._never_starts(str(job_id), why, now))
        ranks = {job_id: rank for rank, job_id in enumerate(able, start=1)}
        reasons = {str(job_id): with_cause(why, self._jobs) for job_id, why in queue}
        observed = self._progress.look(self._jobs.running_since())
        preempts = may_interrupt(self._policy)  # to ask takes 50 us
        rows, kept = list[JobStatus](), KeptGpus(self._jobs.in_state(JobState.PINNED), self._cluster.view.free)
        for job in self._jobs.values():
            rows.append(row := self._rows.row(job, ranks, reasons, kept, now))
            if preempts:
                self._rows.add_service(row, job, self._policy, now)
            elif job.state is JobState.RUNNING:
                self._rows.add_consent(row, job, self._settings.policy.name)
            if job.state is JobState.RUNNING:
                self._rows.add_progress(row, job, observed.get(str(job.record.number)), now)
            else:
                _add_start(row, job, forecaster, now)
                row.released_ahead = self._mode.enforcing and row.rank is not None and job.is_released_ahead
        self._reports.waits.note(rows, now)
        higher = self._higher([pair for pair in queue if str(pair[0]) in ranks])
        rows.sort(key=lambda row: (_group(row), row.rank or 0, row.submit_time, id_key(row.job_id)))
        add_ahead(rows, higher)
        return Status(
            written=now,
            mode=self._mode.label,
            policy=self._settings.policy.name,
            interval_s=self._settings.daemon.interval_s,
            gpus_total=self._cluster.view.total_gpus,
            gpus_free=self._cluster.view.total_free,
            jobs=rows,
            leader=self._leader,
            forecast_s=forecaster.every_s,
            nodes=self._node_rows(),
            counts=count_jobs(rows),
            release=__version__,
        )

    def _never_starts(self, job_id: str, why: Reason, now: float) -> bool:
        """Whether the job never has its turn as it is.

        It is too large, not for a reservation alone, or alone over a limit, or Slurm refuses it for what it asks for.
        """
        job = self._jobs.get(job_id)
        if job is None or job.exceeds_limit_alone:
            return job is not None
        if is_refused(why.kind, why.facts):
            return True
        return why.kind == "capacity" and unless_reserved(job, why, self._cluster, now).kind == "capacity"

    def report_ended(self, run_dir: Path, now: float) -> None:
        """Write the jobs that have ended since the last call for their owners. Raises OSError; then none is lost."""
        by_owner = dict[int, list[JobStatus]]()
        for ended in self._reports.unwritten:
            row = self._rows.row(ended.job, {}, {}, KeptGpus(), now)
            by_owner.setdefault(ended.job.record.uid, []).append(ended_row(row, ended))
        for uid, rows in by_owner.items():
            add_ended(run_dir, uid, rows)
            self._reports.written(uid)

    def _higher(self, queue: Sequence[tuple[JobId, Reason]]) -> dict[str, int]:
        """How many jobs of a higher class are ahead of each job in the queue, where there are any."""
        jobs = [job.job for job_id, _ in queue if (job := self._jobs.get(job_id)) is not None and job.job is not None]
        return {str(job.id): ahead for job, ahead in zip(jobs, before_band(jobs), strict=True) if ahead}

    def _node_rows(self) -> list[NodeStatus]:
        managed, free = set(self._settings.slurm.partitions), self._cluster.view.free
        return [
            NodeStatus(
                *(n.name, n.gpus, free.get(n.name, 0), n.gpu_type, sorted(n.partitions), n.state, n.other_gres),
                usable=n.usable,
            )
            for n in self._cluster.parts
            if n.gpus and n.partitions & managed
        ]


def _add_start(row: JobStatus, job: ManagedJob, forecaster: Forecaster, now: float) -> None:
    """Add the forecast of a pending job's start, or why there is none."""
    never = row.reason == "capacity" or job.exceeds_limit_alone or is_refused(row.reason, row.facts)
    found = None if never else forecaster.current(job, now)
    if found is None:
        row.start_unknown = row.text if never else forecaster.why_not(job, row.text, row.rank)
        return
    row.start_earliest, row.start_median, row.start_latest = found.earliest, found.median, found.latest
    if row.start_latest is None or row.start_latest >= now:
        row.start_earliest = max(row.start_earliest, now)  # a waiting job has not started before now
        row.start_median = row.start_median and max(row.start_median, now)
    row.start_made, row.start_open = found.made, found.open_end
    last = forecaster.last(job, now)
    if last is not None:
        row.last_start_earliest, row.last_start_latest = last.earliest, last.latest
        row.last_start_open = last.open_end
