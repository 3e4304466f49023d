"""Builds status.json, which asrpt-status shows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from slurm_asrpt import __version__
from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.cluster import Placement
from slurm_asrpt.core.job import Job, JobId, id_key
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.policies.base import (
    HasQueues,
    Phase,
    Policy,
    Reason,
    before_band,
    may_interrupt,
    predicts_by_loss,
    reason,
)
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.cpu_jobs import CpuJobs
from slurm_asrpt.daemon.forecasts.forecaster import Forecaster
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.forecasts.run_lengths import predicted_interval, run_of
from slurm_asrpt.daemon.jobs.limits import LimitsWatch
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob, unpinned
from slurm_asrpt.daemon.jobs.priorities import with_cause
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.jobs.turns import deadline_is_near
from slurm_asrpt.daemon.jobs.wait_reasons import explain_wait, unless_reserved
from slurm_asrpt.daemon.preemption import Preemption
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.daemon.record.ended import EndedReports, ended_row
from slurm_asrpt.daemon.record.progress import Observed, ProgressWatch, remaining_s, total_iterations
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.forecast.sampling import remaining_length
from slurm_asrpt.predict.conformal import including, rounded_interval
from slurm_asrpt.slurm.parse import expand
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.request import asked_gpus, gpus_of
from slurm_asrpt.status.document import (
    COMMUNICATION,
    DRAWN_BY,
    PREEMPTED_BY_NONE,
    RESERVED_IN,
    UNUSED_PROFILE,
    JobStatus,
    NodeStatus,
    Status,
    count_jobs,
)
from slurm_asrpt.status.ended import add_ended
from slurm_asrpt.status.explain import add_ahead
from slurm_asrpt.status.learned_texts import communication_text
from slurm_asrpt.status.reason_texts import by_slurm_text, text_of
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


class JobRows:
    """What asrpt-status shows of each job. fairshare_bands: 0 or 1 for none."""

    def __init__(
        self,
        cluster: ClusterState,
        profiles: Profiles,
        recent: RecentJobs,
        preemption: Preemption,
        cpu_jobs: CpuJobs,
        limits: LimitsWatch,
        fairshare_bands: int,
    ) -> None:
        self._cluster, self._profiles, self._recent, self._limits = cluster, profiles, recent, limits
        self._preemption, self._cpu_jobs, self._fairshare_bands = preemption, cpu_jobs, fairshare_bands

    def row(
        self,
        job: ManagedJob,
        ranks: Mapping[str, int],
        reasons: Mapping[str, Reason],
        starting: Sequence[ManagedJob],
        now: float,
    ) -> JobStatus:
        """The job, without its service and progress. ranks, reasons: of the jobs in the policy's queue.

        starting: the jobs that Slurm has not started yet.
        """
        record, tag, admitted, cluster = job.record, job.prediction, job.job, self._cluster
        explained = explain_wait(job, _why(job, reasons), cluster, self._limits, starting, now)
        why = self._cpu_jobs.why_waits(job, explained, now)
        best, here = cluster.best_alpha(admitted), self._place_on_offer(job, why)
        alpha = job.placement.alpha if job.placement else job.pin.alpha if job.pin else here.alpha if here else None
        iterations = tag.iterations if tag else 0
        ordered_by = (tag.mean or iterations) if tag else 0
        low, high = self._interval(job, ordered_by)
        pace = alpha or best
        return JobStatus(
            job_id=record.job_id,
            name=record.name,
            user=record.user,
            partition=record.partition,
            gpus=admitted.gpus if admitted else gpus_of(record),
            group=tag.group if tag else "",
            profile=tag.profile if tag else "",
            predicted_iterations=iterations,
            predicted_run_s=ordered_by * pace if pace and iterations else None,
            predicted_low=low,
            predicted_high=high,
            predicted_mean=tag.mean or None if tag else None,
            predicted_by=tag.level if tag else "",
            predicted_run_low_s=low * pace if pace and low else None,
            predicted_run_high_s=high * pace if pace and high else None,
            submit_time=record.submit_time,
            start_time=record.start_time if job.state is JobState.RUNNING else None,
            limit_end=_limit_end(job),
            state=str(why.phase),
            reason=why.kind,
            text=_text(job, why),
            facts={**why.facts, **self._unused_profile(job), **_communication(job), **_reservation(job)},
            rank=ranks.get(record.job_id),
            nodes=_nodes(job, why) or (dict(here.gpus) if here else {}),
            alpha=alpha,
            alpha_min=best,
            alpha_by_type=dict(cluster.alpha_by_type(admitted)) if admitted and cluster.view.kinds else None,
            priority="; ".join(filter(None, [job.standing.why, _turn(job, now)])),
            weight=admitted.weight if admitted else 1.0,
            band=self._band(admitted),
            domains=_domains(job),
            layout=_layout(job),
        )

    def _band(self, admitted: Job | None) -> int | None:
        bands = self._fairshare_bands
        return admitted.band % bands + 1 if admitted and bands > 1 else None

    def _place_on_offer(self, job: ManagedJob, why: Reason) -> Placement | None:
        """Where a job with a reservation or a delay could run now, to compare."""
        if job.state is not JobState.QUEUED or job.job is None or why.kind not in ("reserved", "placement"):
            return None
        return place(self._cluster.view, job.job, Strategy.MOST_FREE, self._cluster.fabric)

    def _interval(self, job: ManagedJob, ordered_by: int) -> tuple[int | None, int | None]:
        low, high = predicted_interval(job, self._recent.run_adjustment)
        return rounded_interval(*including(ordered_by, low, high)) if high else (None, None)

    def _unused_profile(self, job: ManagedJob) -> dict[str, str]:
        """Why the job's profile is not used, if so."""
        if job.tag is None or not job.tag.profile or job.job is None or job.job.profiled:
            return {}
        return {UNUSED_PROFILE: self._profiles.problem(job.tag, job.job.gpus)}

    def add_service(self, row: JobStatus, job: ManagedJob, policy: Policy, now: float) -> None:
        """Add the attained service, if the policy uses it."""
        attained = row.attained_gpu_s = job.service.at(now)
        expected = job.service.expected if predicts_by_loss(policy) else 0.0
        row.expected_gpu_s = expected if expected > attained else None
        if isinstance(policy, HasQueues):
            row.queue = policy.queue_of(max(attained, expected)) + 1
        row.interruptions = job.service.interruptions
        if job.state is JobState.RUNNING:
            row.never_interrupted = self._preemption.why_never(job)

    def add_consent(self, row: JobStatus, job: ManagedJob, policy: str) -> None:
        """For a policy that preempts no jobs: say so of a running job that may be preempted."""
        if self._preemption.consents(job):
            why = self._preemption.why_never(job)
            row.never_interrupted = why or None
            row.facts |= {} if why else {PREEMPTED_BY_NONE: policy}

    def add_progress(self, row: JobStatus, job: ManagedJob, observed: Observed | None, now: float) -> None:
        """Add the progress of a running job."""
        profiled = job.job is not None and job.job.profiled  # others' predictions are seconds, not iterations
        total = total_iterations(observed, row.predicted_iterations if profiled else 0)
        alpha = row.alpha if profiled else None
        ran = now - job.record.start_time
        expected = remaining_s(observed, total, alpha, row.predicted_run_s, ran)
        low, high = self._remaining_interval(row, job, observed, ran)
        if observed is not None:
            row.iterations_done, row.iterations_total = observed.progress.done, total
            row.alpha_observed = observed.alpha
        row.remaining_s = expected
        row.remaining_low_s = low if low is None or expected is None else min(low, expected)
        row.remaining_high_s = high if high is None or expected is None else max(high, expected)

    def _remaining_interval(
        self, row: JobStatus, job: ManagedJob, observed: Observed | None, ran_s: float
    ) -> tuple[float | None, float | None]:
        """The 10-90% interval of the remaining runtime, seconds, given the elapsed time; capped at the time limit.

        None if the job reports its total iterations, or there is no prediction.
        """
        if row.predicted_high is None or (observed is not None and observed.progress.total):
            return None, None
        span, over_s = run_of(job, self._recent.run_adjustment, observed, row.alpha_min, ran_s)
        limit = max(0.0, job.record.time_limit - ran_s) if job.record.time_limit else math.inf
        return min(remaining_length(span, over_s, 0.9), limit), min(remaining_length(span, over_s, 0.1), limit)


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
        able = (str(job_id) for job_id, why in queue if not self._is_too_large(str(job_id), why, now))
        ranks = {job_id: rank for rank, job_id in enumerate(able, start=1)}
        reasons = {str(job_id): with_cause(why, self._jobs) for job_id, why in queue}
        observed = self._progress.look(self._jobs.running_since())
        preempts = may_interrupt(self._policy)  # to ask takes 50 us
        rows, starting = list[JobStatus](), list(self._jobs.in_state(JobState.PINNED))
        for job in self._jobs.values():
            rows.append(row := self._rows.row(job, ranks, reasons, starting, now))
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

    def _is_too_large(self, job_id: str, why: Reason, now: float) -> bool:
        """Whether the job never has its turn; but it has if only a reservation keeps its nodes."""
        job = self._jobs.get(job_id) if why.kind == "capacity" else None
        return job is not None and unless_reserved(job, why, self._cluster, now).kind == "capacity"

    def report_ended(self, run_dir: Path, now: float) -> None:
        """Write the jobs that have ended since the last call for their owners. Raises OSError; then none is lost."""
        by_owner = dict[int, list[JobStatus]]()
        for ended in self._reports.unwritten:
            row = self._rows.row(ended.job, {}, {}, (), now)
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


def _domains(job: ManagedJob) -> dict[str, list[int]] | None:
    """The job's GPUs in each NVLink domain, on nodes where they lie in several."""
    placed = job.placement
    if placed is None or not placed.layouts:
        return None
    return {name: list(layout) for name, layout in zip(placed.gpus, placed.layouts, strict=True) if len(layout) > 1}


def _turn(job: ManagedJob, now: float) -> str:
    """Why a waiting job goes by Slurm's own order and not by its work; "" if it does not."""
    if job.state is not JobState.QUEUED or job.job is None or job.job.turn is None:
        return ""
    if job.in_slurms_order:
        return "Slurm's own order, as a large job whose nodes Slurm chooses"
    if deadline_is_near(job.record, now):
        return "Slurm's own order, as half of the time is over in which it can start before its deadline"
    return "Slurm's own order, in which it precedes a large job whose nodes Slurm chooses, or one with a near deadline"


def _layout(job: ManagedJob) -> str:
    """In words of the owner's request; "" if any layout on any nodes will do."""
    if job.job is None:
        return ""
    asked, shape = asked_gpus(job.record), job.job.request.shape(job.job.gpus) if job.job.gpus > 1 else ""
    if job.record.exclusive == "node" and asked:
        whole = f"--exclusive: all GPUs of its nodes, where it asked for {asked}" if asked < job.job.gpus else ""
        shape = whole or "--exclusive"
    return ", ".join(filter(None, (shape, *_which_nodes(unpinned(job.record, job.original)))))


def _which_nodes(record: JobRecord) -> Iterator[str]:
    """In words of the owner's request; no words if it may run on any node."""
    if record.required_nodes:
        yield f"-w {record.required_nodes}"
    if record.excluded_nodes:
        yield f"-x {record.excluded_nodes}"
    if record.features:
        yield f"-C {record.features}"


def _reservation(job: ManagedJob) -> dict[str, str]:
    """That which it names or runs in, or those that draw it."""
    if job.record.reservation:
        return {RESERVED_IN: job.record.reservation}
    return {DRAWN_BY: ",".join(r.name for r in job.admitted_by)} if job.admitted_by else {}


def _communication(job: ManagedJob) -> dict[str, str]:
    """What its runs have taught about it, if it is placed accordingly."""
    known = job.communication
    if known is None or job.job is None or job.job.profiled or not job.job.communication_known:
        return {}
    return {COMMUNICATION: communication_text(known.level, known.runs, known.apart, known.slower)}


def _add_start(row: JobStatus, job: ManagedJob, forecaster: Forecaster, now: float) -> None:
    """Add the forecast of a pending job's start, or why there is none."""
    found = forecaster.current(job, now)
    if found is None:
        never = row.reason == "capacity"
        row.start_unknown = row.text if never else forecaster.why_not(job, row.text, row.rank)
        return
    row.start_earliest, row.start_median, row.start_latest = found.earliest, found.median, found.latest
    if row.start_latest is None or row.start_latest >= now:
        row.start_earliest = max(row.start_earliest, now)  # a waiting job has not started before now
    row.start_made, row.start_open = found.made, found.open_end
    last = forecaster.last(job, now)
    if last is not None:
        row.last_start_earliest, row.last_start_latest = last.earliest, last.latest
        row.last_start_open = last.open_end


def _why(job: ManagedJob, reasons: Mapping[str, Reason]) -> Reason:
    if job.state is JobState.RUNNING:
        if job.interruption is not None:
            head = job.interruption.head
            return reason(Phase.RUNNING, "interrupting", head=head) if head else reason(Phase.RUNNING, "yielding")
        return Reason(Phase.RUNNING, "configuring" if job.record.state == "CONFIGURING" else "running", {})
    if job.state is JobState.QUEUED and job.record.job_id in reasons:
        return reasons[job.record.job_id]
    return job.reason or reason(Phase.WAITING, "held", slurm_reason=job.record.reason)


def _text(job: ManagedJob, why: Reason) -> str:
    if why.kind == "running":
        return ""
    waits = job.by_slurm and job.state in (JobState.QUEUED, JobState.INELIGIBLE)
    return text_of(why) + (by_slurm_text(job.by_slurm) if waits else "")


@lru_cache(maxsize=10_000)
def _named(nodes: str) -> tuple[str, ...]:
    """The names in a list of Slurm; cached, since jobs run for many cycles. None of them if it cannot be parsed."""
    try:
        return tuple(expand(nodes))
    except SlurmError:
        return ()


def _nodes(job: ManagedJob, why: Reason) -> dict[str, int]:
    if job.state is JobState.RUNNING:
        return dict(job.record.gpus_by_node) or dict.fromkeys(_named(job.record.nodes), 0)
    return dict(job.pin.gpus) if job.pin else dict(why.facts.get("nodes", {}))


def _limit_end(job: ManagedJob) -> float | None:
    """When the time limit ends a running job."""
    record = job.record
    return record.start_time + record.time_limit if job.state is JobState.RUNNING and record.time_limit else None
