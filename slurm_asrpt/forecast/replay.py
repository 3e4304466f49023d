"""One simulated future: the policy decides, jobs end and arrive, until all requested jobs have started."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Iterator

from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.forecast.arrays import TaskFeed
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

    def until(self, horizon: float, keep_going: Callable[[], bool] = lambda: True) -> dict[JobId, float]:
        """Start times (seconds) of the requested jobs that start before ``horizon``. Stops early when
        ``keep_going`` is false."""
        while len(self.started) < len(self.asked) and (now := self._next_event()) <= horizon and keep_going():
            self.now = now
            self._ends(now)
            self._arrive(now)
            if self._following.over:
                break
            for decision in self.policy.decide(self.view, now):
                if isinstance(decision, Start):
                    self._begin(decision, now)
        return self.started

    def _next_event(self) -> float:
        if self._following.ready():
            return self.now
        soonest = min(
            self._running[0][0] if self._running else math.inf,
            self._next[0].submit_time if self._next else math.inf,
        )
        wake = self.policy.next_wakeup(self.now)
        return wake if wake is not None and self.now < wake < soonest else soonest

    def _ends(self, now: float) -> None:
        while self._running and self._running[0][0] <= now:
            _, _, job_id, gpus, request, charges, indexes = heapq.heappop(self._running)
            self.view.give(gpus, request, indexes)
            self.view.headroom.give(charges)
            self.policy.finished(job_id, now)
            self._following.ended(job_id)

    def _arrive(self, now: float) -> None:
        while self._next is not None and self._next[0].submit_time <= now:
            self._submit(*self._next, now)
            self._next = next(self._arrivals, None)
        for job, iterations in self._following.release():
            self._submit(job, iterations, now)

    def _submit(self, job: Job, iterations: float, now: float) -> None:
        self._iterations[job.id] = iterations
        self.policy.submitted(job, now)

    def _begin(self, start: Start, now: float) -> None:
        job, placement = start.job, start.placement
        indexes = self.view.next_indexes(placement.gpus)
        self.view.take(placement.gpus, job.request)
        self.view.headroom.take(job.charges)
        self._number += 1
        end = now + min(self._iterations.pop(job.id) * placement.alpha, job.time_limit) + self._rest
        entry = (end, self._number, job.id, placement.gpus, job.request, job.charges, indexes)
        heapq.heappush(self._running, entry)
        self._following.started(job.id)
        if job.id in self.asked:
            self.started[job.id] = now
