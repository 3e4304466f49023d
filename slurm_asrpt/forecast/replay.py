"""One simulated future: the policy decides, jobs end, arrive, or are preempted, until those requested have started."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator

from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.base import Preempt, Start
from slurm_asrpt.forecast.arrays import TaskFeed
from slurm_asrpt.forecast.preemptions import PreemptibleJobs
from slurm_asrpt.forecast.snapshot import Snapshot

Arrival = tuple[Job, float]
"""A job, due at its submit time, and its actual iterations."""


class Replay:
    """The simulation of one future.

    left_s: remaining runtime of each running job, seconds. iterations: actual iterations of each waiting job.
    arrivals: in the order of submit times; may be infinite. asked: jobs whose starts count; None for all waiting
    jobs.
    following: the feed of pending array tasks.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        left_s: list[float],
        iterations: dict[JobId, float],
        arrivals: Iterator[Arrival],
        asked: Collection[JobId] | None = None,
        following: TaskFeed | None = None,
    ) -> None:
        self.view, self.policy, self.now = snapshot.view(), snapshot.make_policy(), snapshot.now
        self.asked = set(iterations if asked is None else asked)
        self.started: dict[JobId, float] = {}
        self._iterations, self._rest = dict(iterations), snapshot.rest_s
        self._arrivals, self._following = arrivals, following or TaskFeed((), lambda pending: iter(()))
        self._next = next(arrivals, None)
        self._number = 0  # keeps the heap from comparing jobs
        self._running = [
            (snapshot.now + left + self._rest, number, run.job_id, run.gpus, run.request, run.charges, run.indexes)
            for number, (run, left) in enumerate(zip(snapshot.running, left_s, strict=True), start=-len(left_s))
        ]
        heapq.heapify(self._running)
        self._preemptible = PreemptibleJobs(snapshot.preemption, self.policy, snapshot.nodes)
        for consenting in snapshot.preemption.consenting:
            if consenting.run.ending:
                self._preempt(consenting.run.job_id, self.now)

    def until(self, horizon: float, keep_going: Callable[[], bool] = lambda: True) -> dict[JobId, float]:
        """Start times (seconds) of the requested jobs that start before ``horizon``. Stops early when
        ``keep_going`` is false."""
        while len(self.started) < len(self.asked) and (now := self._next_event()) <= horizon and keep_going():
            self.now = now
            self._split(now)
            if self._following.over:
                break
            self._ends(now)
            self._arrive(now)
            self._preemptible.tell(now)
            for decision in self.policy.decide(self.view, now):
                if isinstance(decision, Start):
                    self._begin(decision, now)
                elif isinstance(decision, Preempt):
                    self._preempt(decision.job_id, now)
            self._preemptible.tell(now)  # the policy's next wake-up depends on what runs
        return self.started

    def _next_event(self) -> float:
        if self._following.ready():
            return self.now
        soonest = min(
            self._running[0][0] if self._running else math.inf,
            self._next[0].submit_time if self._next else math.inf,
            self._preemptible.next_return,
        )
        wake = self.policy.next_wakeup(self.now)
        return wake if wake is not None and self.now < wake < soonest else soonest

    def _split(self, now: float) -> None:
        """Array tasks become jobs after the decision that follows a start or an end: asrptd splits them off in the
        cycle that sees it. A job that fits meanwhile goes first."""
        for job, iterations in self._following.release():
            self._submit(job, iterations, now)

    def _ends(self, now: float) -> None:
        while self._running and self._running[0][0] <= now:
            _, _, job_id, gpus, request, charges, indexes = heapq.heappop(self._running)
            self.view.give(gpus, request, indexes)
            self.view.headroom.give(charges)
            self.policy.finished(job_id, now)
            if not self._preemptible.ended(job_id, now):
                self._following.ended(job_id)

    def _arrive(self, now: float) -> None:
        for job, iterations in self._preemptible.returned(now):
            self._preemptible.tell(now)
            self._submit(job, iterations, now)
        while self._next is not None and self._next[0].submit_time <= now:
            self._submit(*self._next, now)
            self._next = next(self._arrivals, None)

    def _submit(self, job: Job, iterations: float, now: float) -> None:
        self._iterations[job.id] = iterations
        self.policy.submitted(job, now)

    def _begin(self, start: Start, now: float) -> None:
        job, placement = start.job, start.placement
        indexes = self.view.next_indexes(placement.gpus)
        self.view.take(placement.gpus, job.request)
        self.view.headroom.take(job.charges)
        self._number += 1
        lasts = self._iterations.pop(job.id) * placement.alpha + self._preemptible.started(start, now)
        end = now + min(lasts, job.time_limit) + self._rest
        entry = (end, self._number, job.id, placement.gpus, job.request, job.charges, indexes)
        heapq.heappush(self._running, entry)
        if not self._preemptible.starts_again(job.id):
            self._following.started(job.id)
        if job.id in self.asked:
            self.started.setdefault(job.id, now)

    def _preempt(self, job_id: JobId, now: float) -> None:
        """The job writes its checkpoint; its GPUs are in use until then."""
        at = next(at for at, entry in enumerate(self._running) if entry[2] == job_id)
        free = self._preemptible.preempted(job_id, self._running[at][0] - self._rest - now, now)
        if free is not None:
            self._running[at] = (free + self._rest, *self._running[at][1:])
            heapq.heapify(self._running)
