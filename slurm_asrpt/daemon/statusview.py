"""status.json from what the scheduler holds."""

from __future__ import annotations

from dataclasses import replace

from slurm_asrpt.core.policies.base import Phase, Reason, reason
from slurm_asrpt.core.policies.virtual_machine import id_key
from slurm_asrpt.daemon.progresswatch import Observed, remaining, whole
from slurm_asrpt.daemon.scheduler import Scheduler
from slurm_asrpt.daemon.tracked import Place, Tracked
from slurm_asrpt.status import JobStatus, Status


def build_status(scheduler: Scheduler, now: float) -> Status:
    """Everything asrpt-status shows, jobs in the order in which they should start, running ones first."""
    queue = scheduler.policy.queue(now)
    ranks = {str(job_id): rank for rank, (job_id, _) in enumerate(queue, start=1)}
    reasons = {str(job_id): why for job_id, why in queue}
    observed = scheduler.parts.watch.look(_running(scheduler))
    rows = [
        _progress(_row(scheduler, tracked, ranks, reasons, now), tracked, observed.get(str(tracked.record.number)), now)
        for tracked in scheduler.world.tracked.values()
    ]
    rows.sort(key=lambda row: (_ORDER.index(_group(row)), row.rank or 0, row.submit_time, id_key(row.job_id)))
    settings = scheduler.settings
    return Status(
        written=now,
        mode=str(settings.daemon.mode),
        policy=settings.policy.name,
        interval_s=settings.daemon.interval_s,
        gpus_total=scheduler.world.view.total_gpus,
        gpus_free=scheduler.world.view.total_free,
        jobs=rows,
    )


_ORDER = (Phase.RUNNING, Phase.STARTING, Phase.DELAYED, Phase.WAITING, Phase.LEFT)


def _group(row: JobStatus) -> Phase:
    """Jobs with a rank stand by rank, then those that are not in the queue yet, then those left to Slurm."""
    phase = Phase(row.state)
    if row.rank is not None:
        return Phase.DELAYED
    return Phase.WAITING if phase in (Phase.VIRTUAL, Phase.DELAYED) else phase


def _row(
    scheduler: Scheduler, tracked: Tracked, ranks: dict[str, int], reasons: dict[str, Reason], now: float
) -> JobStatus:
    record, tag, job = tracked.record, tracked.tag, tracked.job
    why = scheduler.world.explained(tracked, _why(tracked, reasons), now)
    best = scheduler.world.best_alpha(job) if job is not None else None
    alpha = tracked.real.alpha if tracked.real else tracked.pin.alpha if tracked.pin else None
    iterations = tag.iterations if tag else 0
    pace = alpha or best
    return JobStatus(
        job_id=record.job_id,
        name=record.name,
        user=record.user,
        partition=record.partition,
        gpus=job.gpus if job else sum(record.gpus_by_node.values()),
        group=tag.group if tag else "",
        profile=tag.profile if tag else "",
        predicted_iterations=iterations,
        predicted_run_s=iterations * pace if pace and iterations else None,
        submit_time=record.submit_time,
        start_time=record.start_time if tracked.place is Place.RUNNING else None,
        state=str(why.phase),
        reason=why.kind,
        text=why.text if tracked.place is not Place.RUNNING else "",
        facts=dict(why.facts),
        rank=ranks.get(record.job_id),
        nodes=_nodes(tracked, why),
        alpha=alpha,
        alpha_min=best,
        band=job.band + 1 if job and scheduler.settings.policy.fairshare_bands > 1 else None,
    )


def _why(tracked: Tracked, reasons: dict[str, Reason]) -> Reason:
    if tracked.place is Place.RUNNING:
        return Reason(Phase.RUNNING, "running", {})
    if tracked.place is Place.QUEUED and tracked.record.job_id in reasons:
        return reasons[tracked.record.job_id]
    return tracked.why or reason(Phase.WAITING, "held", slurm_reason=tracked.record.reason)


def _nodes(tracked: Tracked, why: Reason) -> dict[str, int]:
    if tracked.place is Place.RUNNING:
        return dict(tracked.record.gpus_by_node)
    return dict(tracked.pin.gpus) if tracked.pin else dict(why.facts.get("nodes", {}))


def _running(scheduler: Scheduler) -> dict[str, float]:
    """Number and start time of each running job."""
    jobs = scheduler.world.tracked.values()
    return {str(t.record.number): t.record.start_time for t in jobs if t.place is Place.RUNNING}


def _progress(row: JobStatus, tracked: Tracked, observed: Observed | None, now: float) -> JobStatus:
    """The row of a running job with how far it is."""
    if tracked.place is not Place.RUNNING:
        return row
    profiled = tracked.job is not None and tracked.job.profiled  # others' predictions are seconds, not iterations
    total = whole(observed, row.predicted_iterations if profiled else 0)
    alpha = row.alpha if profiled else None
    ran = now - tracked.record.start_time
    return replace(
        row,
        iterations_done=observed.progress.done if observed else None,
        iterations_total=total if observed else None,
        alpha_observed=observed.alpha if observed else None,
        remaining_s=remaining(observed, total, alpha, row.predicted_run_s, ran),
    )
