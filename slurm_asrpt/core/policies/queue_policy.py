"""The base class of simple policies that only define an order, in particular those of other packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.placement.best_alpha import fits
from slurm_asrpt.core.placement.selection import Strategy
from slurm_asrpt.core.policies.base import (
    Decision,
    Phase,
    Policy,
    Reason,
    Start,
    Wait,
    before_band,
    behind,
    no_room,
    over_limit,
    reason,
)
from slurm_asrpt.core.policies.options import PolicyOptions


class QueuePolicy(Policy):
    """Work-conserving: of the jobs that fit, the first by ``order`` starts, with Heavy-Edge on the most-free servers.

    waiting: the jobs, returned jobs first, the others by arrival. nodes: those that may run jobs.
    Each decision considers every waiting job once: fast for thousands of jobs, slow for a hundred thousand.
    """

    start_key = ("place_in_queue",)

    def __init__(self, fabric: Fabric, options: PolicyOptions) -> None:
        super().__init__(fabric, options)
        self.nodes: tuple[Node, ...] = ()
        self.waiting: dict[JobId, Job] = {}
        self._last: Wait | None = None  # the first job that did not fit in the last decision
        self._left: Plan | None = None  # the cluster after the last decision

    def order(self, now: float) -> Sequence[Job]:
        """The waiting jobs, the first to start first. Jobs of a higher priority (a lower band) go before all others."""
        return list(self.waiting.values())

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self.nodes = tuple(nodes)

    def submitted(self, job: Job, now: float) -> bool:
        self.waiting[job.id] = job
        return False

    def returned(self, job: Job, now: float) -> None:
        self.waiting = {job.id: job, **self.waiting}

    def changed(self, job: Job, now: float) -> None:
        if job.id in self.waiting:
            self.waiting[job.id] = job

    def finished(self, job_id: JobId, now: float) -> None:
        self.waiting.pop(job_id, None)

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        plan, starts = Plan(cluster), list[Start]()
        self._last = None
        for place, job in enumerate(self._ordered(now)):
            if plan.over_limit(job):
                continue
            placement = plan.place(job, Strategy.MOST_FREE, self.fabric) if job.gpus <= plan.free else None
            if placement is not None:
                plan.add(job, placement)
                del self.waiting[job.id]
                starts.append(Start(job, placement, (place,)))
            elif self._last is None and fits(job, self.nodes):
                self._last = Wait(job, no_room(job, plan))
        self._left = plan
        return [*starts, *([self._last] if self._last else [])]

    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        order = self._ordered(now)
        higher = before_band(order)
        head = next((job.id for job in order if fits(job, self.nodes) and not self._limited(job)), None)
        return [(job.id, self._why(job, ahead, head, higher[ahead])) for ahead, job in enumerate(order)]

    def _ordered(self, now: float) -> list[Job]:
        """The jobs by band (the site's priorities), within a band by ``order``."""
        return sorted(self.order(now), key=attrgetter("band"))

    def _why(self, job: Job, ahead: int, head: JobId | None, higher: int) -> Reason:
        if not fits(job, self.nodes):
            return reason(Phase.WAITING, "capacity", need=job.gpus)
        limited = self._limited(job)
        if limited is not None:
            return limited
        if self._last is not None and self._last.job.id == job.id:
            return self._last.reason
        return behind(job.id, ahead, head, higher)

    def _limited(self, job: Job) -> Reason | None:
        return over_limit(job, self._left) if job.charges and self._left is not None else None

    def dump(self) -> dict[str, Any]:
        return {"waiting": list(self.waiting)}

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        try:
            order = [JobId(job_id) for job_id in state["waiting"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a state of this policy: {error!r}") from error
        self.waiting = {job_id: jobs[job_id] for job_id in order if job_id in jobs}
        self._last = None
