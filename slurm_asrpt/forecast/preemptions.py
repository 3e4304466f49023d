"""Preemptions in a simulated future: a job writes its checkpoint, frees its GPUs and waits again."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.base import Policy, PreemptibleRun, Start, may_interrupt
from slurm_asrpt.core.preemption_costs import PreemptionCosts


@dataclass(frozen=True)
class Consenting:
    """A running job that the policy may preempt. job: as it would wait again. alpha: its seconds per iteration."""

    run: PreemptibleRun
    job: Job
    alpha: float


@dataclass(frozen=True)
class Interrupted:
    """A waiting job that has run before. service: GPU-seconds attained. interruptions: number of preemptions."""

    service: float
    interruptions: int


@dataclass(frozen=True)
class PreemptionState:
    """What a policy that preempts knows beside its own state. The field names are keys in forecast.json."""

    consenting: tuple[Consenting, ...] = ()
    interrupted: Mapping[JobId, Interrupted] = field(default_factory=dict)
    costs: PreemptionCosts = field(default_factory=PreemptionCosts)


class _Begun(NamedTuple):
    """How a running job could be preempted. pause_s: at the start of the run, without progress."""

    job: Job
    alpha: float
    pause_s: float = 0.0


class PreemptibleJobs:
    """The jobs of one future that the policy may preempt, and those that it has preempted.

    The policy is told of them before it decides, as by asrptd and the simulator.
    """

    def __init__(self, known: PreemptionState, policy: Policy, nodes: Iterable[Node]) -> None:
        self._costs, self._policy = known.costs, policy if may_interrupt(policy) else None
        self._speeds = {node.name: node.speed for node in nodes}
        self._runs = {each.run.job_id: each.run for each in known.consenting}
        self._begun = {each.run.job_id: _Begun(each.job, each.alpha) for each in known.consenting}
        self._interrupted = dict(known.interrupted)
        self._left = dict[JobId, float]()  # iterations of jobs that write their checkpoints
        self._returning = list[tuple[float, int, Job, float]]()
        self._preempted = set[JobId]()  # in this future
        self._number = 0  # keeps the heap from comparing jobs
        self._changed = True  # the policy's saved state may have other runs

    def starts_again(self, job_id: JobId) -> bool:
        """Whether a job has started in this future, or before it, and was preempted in it."""
        return job_id in self._preempted

    def tell(self, now: float) -> None:
        """Tell the policy, if anything has changed."""
        if self._changed and self._policy is not None:
            waiting = {job_id: each.service for job_id, each in self._interrupted.items()}
            self._policy.served(waiting, list(self._runs.values()), now)
        self._changed = False

    def started(self, start: Start, now: float) -> float:
        """A job starts. Returns how long it computes nothing, seconds."""
        job, placement = start.job, start.placement
        before = self._interrupted.pop(job.id, None)
        pause_s = self._costs.restart_s if before else 0.0
        if job.interruptible and self._policy is not None:
            service, times = (before.service, before.interruptions) if before else (0.0, 0)
            rate = job.gpus * min(self._speeds[name] for name in placement.gpus)
            self._runs[job.id] = PreemptibleRun(job.id, placement.gpus, service, rate, now, times, held=job.request)
            self._begun[job.id] = _Begun(job, placement.alpha, pause_s)
            self._changed = True
        return pause_s

    def preempted(self, job_id: JobId, left_s: float, now: float) -> float | None:
        """A job gets the signal ``left_s`` seconds before its end. Returns when its GPUs are free; None: at its end."""
        if left_s <= self._costs.checkpoint_s:
            return None
        run, (_, alpha, pause_s) = self._runs[job_id], self._begun[job_id]
        if not run.ending:
            run = replace(run, interruptions=run.interruptions + 1, ending=True)
        computes_s = left_s - max(0.0, run.since + pause_s - now)
        self._runs[job_id], self._left[job_id], self._changed = run, computes_s / alpha if alpha else 0.0, True
        return now + self._costs.checkpoint_s

    def ended(self, job_id: JobId, now: float) -> bool:
        """A job has ended. Returns whether it was preempted, and will wait again."""
        run, left = self._runs.pop(job_id, None), self._left.pop(job_id, None)
        if run is None:
            return False
        begun, self._changed = self._begun.pop(job_id), True
        if left is None:
            return False
        self._preempted.add(job_id)
        service = run.service_at(now - self._costs.checkpoint_s - begun.pause_s)
        self._interrupted[job_id] = Interrupted(service, run.interruptions)
        at, self._number = now + self._costs.requeue_s, self._number + 1
        heapq.heappush(self._returning, (at, self._number, replace(begun.job, submit_time=at), left))
        return True

    @property
    def next_return(self) -> float:
        """When a job waits again, seconds; inf for none."""
        return self._returning[0][0] if self._returning else math.inf

    def returned(self, now: float) -> Iterator[tuple[Job, float]]:
        """The jobs that wait again, with the iterations that are left."""
        while self.next_return <= now:
            _, _, job, left = heapq.heappop(self._returning)
            yield job, left
