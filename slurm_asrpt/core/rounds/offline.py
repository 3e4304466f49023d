"""Hare's offline heuristic for known sizes and weights (section III; its details are in the predecessor [8]).

Reconstructed from the description: a relaxation orders the rounds; then tasks are placed in this order where they end
first. The relaxation here is one machine with the speed of the whole cluster, which serves jobs preemptively by least
remaining work over weight (optimal there for equal weights); its order of rounds is followed over time. A task waits
for a faster busy GPU if it would end earlier there.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from operator import add

from slurm_asrpt.core.rounds.jobs import Fleet, Part, Progress, RoundJob
from slurm_asrpt.core.rounds.policy import register

Heap = list[tuple[float, int]]
"""GPUs by the time at which they become free."""


@register("hare-offline", clairvoyant=True)
class HareOffline:
    """Orders jobs by remaining work over weight, and runs each task where it ends first."""

    def __init__(self, fleet: Fleet, jobs: Sequence[RoundJob]) -> None:
        self._fleet = fleet
        self._idle: set[int] = set()
        self._free_s = [0.0] * len(fleet.kind)
        self._free: list[Heap] = [[] for _ in fleet.types]
        self._waiting: list[tuple[float, str, Progress]] = []

    def _work_s(self, job: RoundJob) -> float:
        """Seconds of a round on the whole cluster."""
        return job.tasks / sum(rate * n for rate, n in zip(job.rates, self._fleet.counts, strict=True))

    def arrived(self, job: Progress, now: float) -> None:
        self._enter(job)

    def round_ended(self, job: Progress, now: float) -> None:
        self._enter(job)

    def finished(self, job: Progress, now: float) -> None:
        return None

    def _enter(self, job: Progress) -> None:
        left = ((job.job.rounds or 1) - job.done) * self._work_s(job.job)
        insort(self._waiting, (left / job.job.weight, job.job.id, job))

    def freed(self, gpus: Sequence[int], now: float) -> None:
        self._idle.update(gpus)
        for gpu in gpus:
            self._until(gpu, now)

    def _until(self, gpu: int, when: float) -> None:
        """Note when the GPU becomes free."""
        free = self._free[self._fleet.kind[gpu]]
        at = bisect_left(free, before := (self._free_s[gpu], gpu))
        if at < len(free) and free[at] == before:
            del free[at]
        self._free_s[gpu] = when
        insort(free, (when, gpu))

    def assign(self, now: float) -> list[Part]:
        """Assign tasks of jobs in order; a task that waits for a busy GPU reserves it against later jobs."""
        if not self._idle or not self._waiting:
            return []
        free = [list(gpus) for gpus in self._free]  # in order, so each is a heap
        begins = [max(gpus[0][0], now) if gpus else math.inf for gpus in free]
        parts: list[Part] = []
        scheduled = []
        for at, (_, _, job) in enumerate(self._waiting):
            self._place(job, free, begins, now, parts)
            if not job.left:
                scheduled.append(at)
            if not self._idle:
                break
        for at in reversed(scheduled):
            del self._waiting[at]
        return parts

    def _place(self, job: Progress, free: list[Heap], begins: list[float], now: float, parts: list[Part]) -> None:
        """Place each remaining task where it ends first; it starts if that GPU is idle.

        free: when each GPU of a type becomes free. begins: when the first of them does, by type. A simulation spends
        nearly all its time in this loop.
        """
        times = job.job.compute_s
        ends = list(map(add, begins, times))
        for _ in range(job.left):
            kind = ends.index(end := min(ends))
            heap = free[kind]
            gpu = heap[0][1]
            heapq.heapreplace(heap, (end, gpu))
            begins[kind] = first if (first := heap[0][0]) > now else now  # faster than max()
            ends[kind] = begins[kind] + times[kind]
            if gpu in self._idle:
                self._idle.remove(gpu)
                self._until(gpu, end)
                parts.append(job.take((gpu,), (1,)))
