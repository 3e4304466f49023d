"""The rows of status.json: what asrpt-status shows of one job."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import lru_cache

from slurm_asrpt.core.cluster import Placement
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.policies.base import (
    HasQueues,
    Phase,
    Policy,
    Reason,
    predicts_by_loss,
    reason,
)
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.cpu_jobs import CpuJobs
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.forecasts.run_lengths import predicted_interval, run_of
from slurm_asrpt.daemon.jobs.limits import LimitsWatch
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.turns import deadline_is_near
from slurm_asrpt.daemon.jobs.wait_reasons import KeptGpus, explain_wait
from slurm_asrpt.daemon.preemption import Preemption
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.daemon.record.progress import Observed, remaining_s, total_iterations
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.forecast.sampling import remaining_length
from slurm_asrpt.predict.conformal import including, rounded_interval
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.request import asked_gpus, gpus_of
from slurm_asrpt.status.document import (
    COMMUNICATION,
    DRAWN_BY,
    OWN_ORDER,
    PREEMPTED_BY_NONE,
    RESERVED_IN,
    UNUSED_PROFILE,
    JobStatus,
)
from slurm_asrpt.status.learned_texts import communication_text
from slurm_asrpt.status.reason_texts import by_slurm_text, text_of


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
        kept: KeptGpus,
        now: float,
    ) -> JobStatus:
        """The job, without its service and progress. ranks, reasons: of the jobs in the policy's queue.

        kept: for the jobs that Slurm has not started yet.
        """
        record, tag, admitted, cluster = job.record, job.prediction, job.job, self._cluster
        explained = explain_wait(job, _why(job, reasons), cluster, self._limits, kept, now)
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
            gpus=admitted.gpus if admitted and not record.gpus_by_node else gpus_of(record),
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
        return f"{OWN_ORDER}, as a large job whose nodes Slurm chooses"
    if deadline_is_near(job.record, now):
        return f"{OWN_ORDER}, as half of the time is over in which it can start before its deadline"
    return f"{OWN_ORDER}, in which it precedes a large job whose nodes Slurm chooses, or one with a near deadline"


def _layout(job: ManagedJob) -> str:
    """In words of the owner's request; "" if any layout on any nodes will do."""
    if job.job is None:
        return ""
    asked, shape = asked_gpus(job.record), job.job.request.shape(job.job.gpus) if job.job.gpus > 1 else ""
    if job.record.exclusive == "node" and asked:
        whole = f"--exclusive: all GPUs of its nodes, where it asked for {asked}" if asked < job.job.gpus else ""
        shape = whole or "--exclusive"
    return ", ".join(filter(None, (shape, *_which_nodes(job.unpinned))))


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
