"""Decisions on a cluster with nodes that are powered down: those that are up go first.

A job is started on nodes that are powered down if it cannot start on nodes that are up, neither now nor before the
others would be up. The policies themselves know nothing of power: to them, nodes that they may not use yet have no free
GPUs, and for ``SeesRunning`` a job that ends when they will be up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from slurm_asrpt.core.cluster import ClusterView, Fabric, Placement, Startup
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.policies.base import Decision, Policy, SeesRunning, Start, may_interrupt
from slurm_asrpt.core.slurm_preemption import take_what_is_free

LOOKED_AT = 200
"""Waiting jobs, the first in the queue, for which nodes may be powered up in one decision."""


def decide(policy: Policy, view: ClusterView, waiting: Iterable[Job], now: float) -> Sequence[Decision]:
    """What the policy decides. waiting: the jobs in its queue. ``view`` stays as it is.

    A policy that preempts sees all nodes at once: to preempt a job costs more than to power up a node.
    """
    startup = view.startup
    if startup is None or may_interrupt(policy):
        return policy.decide(view, now)
    up = view.copy()
    up.take(_free(view, startup.nodes))
    ready = now + startup.seconds
    with _occupied(policy, view, startup.nodes, ready, now):
        first = policy.decide(up, now)
    starts = [decision for decision in first if isinstance(decision, Start)]
    left = up.copy()
    for start in starts:
        take_what_is_free(left, start.placement.gpus, start.job.request)
        left.headroom.take(start.job.charges)
    needed = _to_power_up(policy, view, left, {job.id: job for job in waiting}, now)
    if not needed:
        return first
    left.give(needed)
    with _occupied(policy, view, startup.nodes - needed.keys(), ready, now):
        return [*starts, *policy.decide(left, now)]


def _free(view: ClusterView, nodes: Iterable[str]) -> dict[str, int]:
    """The GPUs that are free on these nodes."""
    return {name: view.free[name] for name in nodes if view.free[name]}


@contextmanager
def _occupied(policy: Policy, view: ClusterView, nodes: Iterable[str], until: float, now: float) -> Iterator[None]:
    """Nodes that are not up yet look to a policy as if a job ran there until they are."""
    if not isinstance(policy, SeesRunning):
        yield
        return
    jobs = {JobId(f"power:{name}"): {name: view.by_name[name].gpus} for name in nodes}
    for job_id, gpus in jobs.items():
        policy.running(job_id, gpus, until, now)
    yield
    for job_id in jobs:
        policy.finished(job_id, now)


def _to_power_up(
    policy: Policy, view: ClusterView, left: ClusterView, waiting: Mapping[JobId, Job], now: float
) -> Counter[str]:
    """The GPUs that waiting jobs need of nodes that are not up. left: what is free on those that are."""
    startup = view.startup or Startup(frozenset(), 0.0)
    soon, later, needed = left.copy(), left.copy(), Counter[str]()
    later.give(_free(view, startup.nodes))
    for gpus, request in startup.freed:
        soon.give(gpus, request)
    for job_id, _ in islice(policy.queue(now), LOOKED_AT):
        job = waiting[job_id]
        if later.headroom.exceeded(job.charges):
            continue
        later.headroom.take(job.charges)
        here, there = _room(soon, job, policy.fabric), _room(later, job, policy.fabric)
        if here is not None and (there is None or here.alpha <= there.alpha):
            soon.take(here.gpus, job.request)
        elif there is not None:
            later.take(there.gpus, job.request)
            needed.update({name: count for name, count in there.gpus.items() if name in startup.nodes})
    return needed


def _room(view: ClusterView, job: Job, fabric: Fabric) -> Placement | None:
    """Where the job would find room, on as few nodes as possible."""
    return place(view, job, Strategy.TIGHTEST, fabric) if job.gpus <= view.total_free else None
