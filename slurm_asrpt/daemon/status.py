"""status.json from what the scheduler holds."""

from __future__ import annotations

import math

from slurm_asrpt import __version__
from slurm_asrpt.core.cluster import Placement
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.policies.base import Interrupts, Phase, Reason, reason
from slurm_asrpt.core.policies.virtual_machine import id_key
from slurm_asrpt.daemon.cycle import Scheduler
from slurm_asrpt.daemon.forecasts.forecaster import Forecaster
from slurm_asrpt.daemon.forecasts.run_lengths import run_of, told
from slurm_asrpt.daemon.jobs.admission import explained
from slurm_asrpt.daemon.jobs.managed_job import Place, Tracked
from slurm_asrpt.daemon.lifecycle import World
from slurm_asrpt.daemon.record.progress import Observed, remaining, whole
from slurm_asrpt.forecast.sampling import left
from slurm_asrpt.predict.conformal import Misses, whole_ends
from slurm_asrpt.slurm.request import gpus_of
from slurm_asrpt.status.document import UNUSED_PROFILE, JobStatus, NodeStatus, Status, count_jobs
from slurm_asrpt.status.explain import add_ahead


def build_status(scheduler: Scheduler, now: float, forecaster: Forecaster | None = None) -> Status:
    """Everything asrpt-status shows, jobs in the order in which they should start, running ones first."""
    forecaster = forecaster or Forecaster(scheduler.settings.daemon)
    queue = scheduler.policy.queue(now)
    ranks = {str(job_id): rank for rank, (job_id, _) in enumerate(queue, start=1)}
    reasons = {str(job_id): why for job_id, why in queue}
    observed = scheduler.parts.watch.look(scheduler.world.begun())
    interrupts = scheduler.policy if isinstance(scheduler.policy, Interrupts) else None  # to ask takes 50 us
    rows = list[JobStatus]()
    for tracked in scheduler.world.tracked.values():
        rows.append(row := _row(scheduler, tracked, ranks, reasons, now))
        if interrupts is not None:
            _add_service(row, tracked, interrupts, now)
            if tracked.place is Place.RUNNING:
                row.never_interrupted = scheduler.interrupter.why_never(tracked)
        if tracked.place is Place.RUNNING:
            _add_progress(row, tracked, scheduler.parts.misses, observed.get(str(tracked.record.number)), now)
        else:
            _add_start(row, tracked, forecaster, now)
    rows.sort(key=lambda row: (_group(row), row.rank or 0, row.submit_time, id_key(row.job_id)))
    add_ahead(rows)
    settings = scheduler.settings
    return Status(
        written=now,
        mode="disabled" if scheduler.parts.disabled else str(settings.daemon.mode),
        policy=settings.policy.name,
        interval_s=settings.daemon.interval_s,
        gpus_total=scheduler.world.view.total_gpus,
        gpus_free=scheduler.world.view.total_free,
        jobs=rows,
        leader=scheduler.parts.store.lead.name,
        forecast_s=forecaster.every_s,
        nodes=_node_rows(scheduler.world),
        counts=count_jobs(rows),
        release=__version__,
    )


def _node_rows(world: World) -> list[NodeStatus]:
    managed, free = set(world.settings.slurm.partitions), world.view.free
    return [
        NodeStatus(n.name, n.gpus, free.get(n.name, 0), n.gpu_type, sorted(n.partitions), n.state, n.other_gres)
        for n in world.nodes
        if n.gpus and n.partitions & managed
    ]


_RANKED = 2
_ORDER: dict[str, int] = {
    Phase.RUNNING: 0,
    Phase.STARTING: 1,
    Phase.LEFT: 4,
    **dict.fromkeys((Phase.WAITING, Phase.VIRTUAL, Phase.DELAYED), 3),
}


def _group(row: JobStatus) -> int:
    """Jobs with a rank stand by rank, then those that are not in the queue yet, then those left to Slurm."""
    return _RANKED if row.rank is not None else _ORDER[row.state]


def _row(
    scheduler: Scheduler, tracked: Tracked, ranks: dict[str, int], reasons: dict[str, Reason], now: float
) -> JobStatus:
    record, tag, job = tracked.record, tracked.tag, tracked.job
    why = explained(scheduler.world, tracked, _why(tracked, reasons), now)
    best = scheduler.world.best_alpha(job) if job is not None else None
    here = _on_offer(scheduler.world, tracked, why)
    alpha = tracked.real.alpha if tracked.real else tracked.pin.alpha if tracked.pin else here.alpha if here else None
    iterations = tag.iterations if tag else 0
    low, high = _interval(tracked, scheduler.parts.misses)
    pace = alpha or best
    return JobStatus(
        job_id=record.job_id,
        name=record.name,
        user=record.user,
        partition=record.partition,
        gpus=job.gpus if job else gpus_of(record),
        group=tag.group if tag else "",
        profile=tag.profile if tag else "",
        predicted_iterations=iterations,
        predicted_run_s=iterations * pace if pace and iterations else None,
        predicted_low=low,
        predicted_high=high,
        predicted_mean=tag.mean or None if tag else None,
        predicted_by=tag.level if tag else "",
        predicted_run_low_s=low * pace if pace and low else None,
        predicted_run_high_s=high * pace if pace and high else None,
        submit_time=record.submit_time,
        start_time=record.start_time if tracked.place is Place.RUNNING else None,
        state=str(why.phase),
        reason=why.kind,
        text=why.text if why.kind != "running" else "",
        facts={**why.facts, **_unused_profile(scheduler, tracked)},
        rank=ranks.get(record.job_id),
        nodes=_nodes(tracked, why) or (dict(here.gpus) if here else {}),
        alpha=alpha,
        alpha_min=best,
        alpha_by_type=dict(scheduler.world.alpha_by_type(job)) if job and scheduler.world.view.kinds else None,
        band=job.band + 1 if job and scheduler.settings.policy.fairshare_bands > 1 else None,
    )


def _why(tracked: Tracked, reasons: dict[str, Reason]) -> Reason:
    if tracked.place is Place.RUNNING:
        if tracked.interruption is not None:
            return reason(Phase.RUNNING, "interrupting", head=tracked.interruption.head)
        return Reason(Phase.RUNNING, "running", {})
    if tracked.place is Place.QUEUED and tracked.record.job_id in reasons:
        return reasons[tracked.record.job_id]
    return tracked.why or reason(Phase.WAITING, "held", slurm_reason=tracked.record.reason)


def _nodes(tracked: Tracked, why: Reason) -> dict[str, int]:
    if tracked.place is Place.RUNNING:
        return dict(tracked.record.gpus_by_node)
    return dict(tracked.pin.gpus) if tracked.pin else dict(why.facts.get("nodes", {}))


def _on_offer(world: World, tracked: Tracked, why: Reason) -> Placement | None:
    """Where a job that has a reservation, or is delayed, could run at once: what waiting saves it from."""
    if tracked.place is not Place.QUEUED or tracked.job is None or why.kind not in ("reserved", "placement"):
        return None
    return place(world.view, tracked.job, Strategy.MOST_FREE, world.fabric)


def _interval(tracked: Tracked, misses: Misses) -> tuple[int | None, int | None]:
    low, high = told(tracked, misses)
    return whole_ends(low, high) if high else (None, None)


def _add_service(row: JobStatus, tracked: Tracked, policy: Interrupts, now: float) -> None:
    """What it has had, where the order goes by that."""
    row.attained_gpu_s = tracked.service.at(now)
    row.queue = policy.queue_of(row.attained_gpu_s) + 1
    row.interruptions = tracked.service.interruptions


def _add_progress(row: JobStatus, tracked: Tracked, misses: Misses, observed: Observed | None, now: float) -> None:
    """How far a running job is."""
    profiled = tracked.job is not None and tracked.job.profiled  # others' predictions are seconds, not iterations
    total = whole(observed, row.predicted_iterations if profiled else 0)
    alpha = row.alpha if profiled else None
    ran = now - tracked.record.start_time
    expected = remaining(observed, total, alpha, row.predicted_run_s, ran)
    low, high = _remaining_interval(row, tracked, misses, observed, ran)
    if observed is not None:
        row.iterations_done, row.iterations_total = observed.progress.done, total
        row.alpha_observed = observed.alpha
    row.remaining_s = expected
    row.remaining_low_s = low if low is None or expected is None else min(low, expected)
    row.remaining_high_s = high if high is None or expected is None else max(high, expected)


def _unused_profile(scheduler: Scheduler, tracked: Tracked) -> dict[str, str]:
    """Why the profile that a job names does not count, where it does not."""
    if tracked.tag is None or not tracked.tag.profile or tracked.job is None or tracked.job.profiled:
        return {}
    return {UNUSED_PROFILE: scheduler.parts.profiles.problem(tracked.tag, tracked.job.gpus)}


def _remaining_interval(
    row: JobStatus, tracked: Tracked, misses: Misses, observed: Observed | None, ran_s: float
) -> tuple[float | None, float | None]:
    """10% and 90% of what is left, seconds, given that it has run so long; the time limit ends it in any case.

    None where the job has said how much is left, or nothing is predicted.
    """
    if row.predicted_high is None or (observed is not None and observed.progress.total):
        return None, None
    span, over_s = run_of(tracked, misses, observed, row.alpha_min, ran_s)
    limit = max(0.0, tracked.record.time_limit - ran_s) if tracked.record.time_limit else math.inf
    return min(left(span, over_s, 0.9), limit), min(left(span, over_s, 0.1), limit)


def _add_start(row: JobStatus, tracked: Tracked, forecaster: Forecaster, now: float) -> None:
    """When a waiting job will start, or why nobody can say."""
    found = forecaster.current(tracked, now)
    if found is None:
        row.start_unknown = forecaster.why_not(tracked, row.text)
        return
    row.start_earliest, row.start_median, row.start_latest = found.earliest, found.median, found.latest
    row.start_made = found.made
    last = forecaster.last(tracked, now)
    if last is not None:
        row.last_start_earliest, row.last_start_latest = last.earliest, last.latest
