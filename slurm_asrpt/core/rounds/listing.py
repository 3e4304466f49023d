"""Hare's offline heuristic for known sizes and weights (section III; its details are in the predecessor [8]).

Reconstructed from the description: rounds are ordered by a relaxation, then tasks are put, in that order, where they
end first. The relaxation here is one machine of the cluster's whole speed that serves jobs preemptively, least
remaining work over weight first (the optimal order there for equal weights); its order of rounds is followed as time
goes on. A task waits for a quicker GPU that is busy if it would end earlier there.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Sequence

from slurm_asrpt.core.rounds.base import IdleGpus, register
from slurm_asrpt.core.rounds.job import Fleet, Part, Progress, RoundJob


@register("hare-offline", clairvoyant=True)
class HareOffline:
    """Tasks in the order of their jobs' remaining work over weight, each where it ends first."""

    def __init__(self, fleet: Fleet, jobs: Sequence[RoundJob]) -> None:
        self._fleet = fleet
        self._idle = IdleGpus(fleet)
        self._free_s = [0.0] * len(fleet.kind)
        self._free: list[list[tuple[float, int]]] = [[] for _ in fleet.types]
        self._waiting: list[tuple[float, str, Progress]] = []

    def _work_s(self, job: RoundJob) -> float:
        """Seconds that a round takes the whole cluster."""
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
        self._idle.add(gpus)
        for gpu in gpus:
            self._until(gpu, now)

    def _until(self, gpu: int, when: float) -> None:
        """It is free from then on."""
        free = self._free[self._fleet.kind[gpu]]
        if (before := (self._free_s[gpu], gpu)) in free:
            free.remove(before)
        self._free_s[gpu] = when
        insort(free, (when, gpu))

    def assign(self, now: float) -> list[Part]:
        """Jobs in order; what waits for a busy GPU keeps that GPU from the jobs behind it."""
        if not self._idle.number or not self._waiting:
            return []
        free = [list(gpus) for gpus in self._free]  # in order, so each is a heap
        parts: list[Part] = []
        scheduled = []
        for at, (_, _, job) in enumerate(self._waiting):
            self._place(job, free, now, parts)
            if not job.left:
                scheduled.append(at)
            if not self._idle.number:
                break
        for at in reversed(scheduled):
            del self._waiting[at]
        return parts

    def _place(self, job: Progress, free: list[list[tuple[float, int]]], now: float, parts: list[Part]) -> None:
        """Each task left where it ends first; it runs if that is an idle GPU."""
        times = job.job.compute_s
        for _ in range(job.left):
            end, kind = _soonest(free, times, now)
            _, gpu = heapq.heapreplace(free[kind], (end, free[kind][0][1]))
            if gpu in self._idle:
                self._idle.take(gpu)
                self._until(gpu, end)
                parts.append(job.take((gpu,), (1,)))


def _soonest(free: list[list[tuple[float, int]]], times: Sequence[float], now: float) -> tuple[float, int]:
    """When a task can end, and on which type of GPU. free: of each type when its GPUs are free, as a heap."""
    best, which = math.inf, 0
    for kind, heap in enumerate(free):
        if heap:
            begins = heap[0][0]
            end = (begins if begins > now else now) + times[kind]
            if end < best:
                best, which = end, kind
    return best, which
