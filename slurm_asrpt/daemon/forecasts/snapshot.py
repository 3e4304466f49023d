"""From what the daemon holds to the snapshot that a forecast is made from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies import policy_settings
from slurm_asrpt.daemon.cycle import Scheduler
from slurm_asrpt.daemon.forecasts.run_lengths import iterations_of, run_of
from slurm_asrpt.daemon.jobs.arrays import Parted, is_rest
from slurm_asrpt.daemon.jobs.managed_job import Place, Tracked
from slurm_asrpt.daemon.placements import held
from slurm_asrpt.daemon.record.progress import Observed
from slurm_asrpt.forecast.arrays import Rest
from slurm_asrpt.forecast.sampling import Span
from slurm_asrpt.forecast.snapshot import MOST_JOBS, Running, Snapshot, Waiting
from slurm_asrpt.slurm.array_tasks import read_tasks

LEAST_PERIODS = 10
"""Times ``forecast_s``: who came in less says nothing of a rate."""


def make_snapshot(scheduler: Scheduler, now: float) -> Snapshot:
    """The state just after a cycle."""
    world, settings = scheduler.world, scheduler.settings
    holding = [t for place in (Place.RUNNING, Place.PINNED) for t in world.tracked.values() if t.place is place]
    seen = scheduler.parts.watch.look(world.begun())
    unknown = scheduler.parts.arrivals.usual([now - t.record.start_time for t in holding if t.place is Place.RUNNING])
    running = with_room(
        [_running(t, scheduler, seen.get(str(t.record.number)), unknown, now) for t in holding], world.view.nodes
    )
    first = [world.tracked[job_id] for job_id, _ in scheduler.policy.queue(now)[:MOST_JOBS]]
    lengths = [(t.job, _iterations(t, t.job, scheduler, unknown)) for t in first if t.job]
    recent, window_s = scheduler.parts.arrivals.recent(now, unknown, LEAST_PERIODS * settings.daemon.forecast_s)
    view = world.view
    return Snapshot(
        now=now,
        policy=settings.policy.name,
        settings=settings.policy.chosen(policy_settings(settings.policy.name)),
        state=scheduler.policy.dump(),
        fabric=Fabric(settings.fabric.inter_bytes_per_s, settings.fabric.intra_bytes_per_s),
        nodes=view.nodes,
        free=_free(scheduler, running),
        free_cpus=view.free_cpus,
        free_memory=view.free_memory,
        running=tuple(running),
        waiting=tuple(Waiting(*each) for each in lengths),
        recent=tuple(recent),
        window_s=window_s,
        margins=scheduler.parts.margins,
        unknown=unknown,
        rest_s=scheduler.parts.arrivals.rests.usual(),
        arrays=tuple(_rests(scheduler, first, unknown)),
    )


def _iterations(tracked: Tracked, job: Job, scheduler: Scheduler, unknown: Span) -> Span:
    return iterations_of(tracked, scheduler.parts.misses, scheduler.world.best_alpha(job) or 1.0, unknown)


def _rests(scheduler: Scheduler, first: Sequence[Tracked], unknown: Span) -> Iterator[Rest]:
    """Of the arrays whose tasks wait among the ``first`` in line, or of which none waits."""
    everybody = scheduler.world.tracked.values()
    rests = [t for t in everybody if is_rest(t)]
    if not rests:
        return
    parted, in_line = Parted(everybody), {t.record.array_id for t in first}
    behind = {t.record.array_id for t in everybody if t.place is Place.QUEUED} - in_line
    for rest in rests:
        record, array = rest.record, rest.record.job_id
        if rest.job is None or array in behind:
            continue
        yield Rest(
            rest.job,
            _iterations(rest, rest.job, scheduler, unknown),
            tuple((tasks.start, tasks.stop, tasks.step) for tasks in read_tasks(record.array_tasks)),
            parted.waiting[array],
            parted.known[array] - parted.waiting[array],
            record.array_most,
        )


def _free(scheduler: Scheduler, running: list[Running]) -> dict[str, int]:
    """GPUs that are free beside those of ``running``. A node that cleans up after a job will be there in a moment."""
    view: ClusterView = scheduler.world.view
    cleaning = {n.name: n.gpus - n.gpus_used for n in scheduler.world.nodes if n.completing}
    held = Counter[str]()
    for run in running:
        held.update(run.gpus)
    return {n.name: max(0, min(cleaning.get(n.name, view.free[n.name]), n.gpus - held[n.name])) for n in view.nodes}


def with_room(running: Sequence[Running], nodes: Sequence[Node]) -> list[Running]:
    """Without those whose GPUs others still hold: Slurm may show a start before the end that has made room for it."""
    left = {node.name: node.gpus for node in nodes}
    kept = []
    for run in running:
        if all(gpus <= left[name] for name, gpus in run.gpus.items()):
            kept.append(run)
            for name, gpus in run.gpus.items():
                left[name] -= gpus
    return kept


def _running(tracked: Tracked, scheduler: Scheduler, observed: Observed | None, unknown: Span, now: float) -> Running:
    """A job that runs, or one that Slurm is about to start."""
    record, pin, world = tracked.record, tracked.pin, scheduler.world
    begun = tracked.place is Place.RUNNING
    gpus = record.gpus_by_node if begun else pin.gpus if pin else {}
    ran_s = max(0.0, now - record.start_time) if begun else 0.0
    best = world.best_alpha(tracked.job) if tracked.job else None
    span, over_s = run_of(tracked, scheduler.parts.misses, observed, best, ran_s, unknown)
    return Running(
        job_id=JobId(record.job_id),
        gpus={name: count for name, count in gpus.items() if name in world.view.by_name},
        request=held(record, sum(gpus.values())),
        ran_s=over_s,
        span=span,
        limit_s=max(0.0, record.time_limit - ran_s) if record.time_limit else math.inf,
    )
