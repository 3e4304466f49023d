"""Ã1: the hypothetical single machine that serves all jobs by preemptive SRPT (paper, section IV-C.1)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_asrpt.core.job import JobId

Key = tuple[float, float, tuple[int, ...], JobId]
"""Remaining work, arrival, numeric id, id: least first, so ties go by arrival, then by id."""


class VirtualMachine:
    """Preemptive shortest-remaining-processing-time-first on one machine.

    Work is in GPU-seconds (g_i ñ_i α̃_i^min) and the machine works at a speed of G GPU-seconds a second: the same
    schedule as lengths (g_i/G) ñ_i α̃_i^min at speed 1, and it stays right when G changes under way.
    """

    def __init__(self, clock: float = 0.0) -> None:
        self.clock = clock
        self.speed = 1.0
        self._heap: list[Key] = []
        self._work: dict[JobId, float] = {}  # whole work of each job inside

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._work

    def __len__(self) -> int:
        return len(self._work)

    def add(self, job_id: JobId, work: float, arrival: float, now: float) -> None:
        """A job arrives now (call ``advance`` first). Raises ValueError if it is already here."""
        if job_id in self._work:
            raise ValueError(f"job {job_id} is already on the virtual machine")
        if not self._heap:  # an idle machine's clock may stand anywhere, also ahead: it has nothing to serve
            self.clock = now
        self._work[job_id] = work
        heapq.heappush(self._heap, (work, arrival, id_key(job_id), job_id))

    def remove(self, job_id: JobId) -> None:
        """A job leaves before it completes here; unknown ids are ignored."""
        if self._work.pop(job_id, None) is not None:
            self._heap = [key for key in self._heap if key[3] != job_id]
            heapq.heapify(self._heap)

    def advance(self, now: float) -> list[JobId]:
        """Serve until ``now`` and return the jobs that completed, in order. Time never runs backwards."""
        completed: list[JobId] = []
        while self._heap:
            remaining, arrival, number, job_id = self._heap[0]
            end = self.clock + remaining / self.speed
            if end > now:
                served = max(0.0, now - self.clock) * self.speed
                # the served job had the least work left and has now less: the heap stays a heap
                self._heap[0] = (max(0.0, remaining - served), arrival, number, job_id)
                break
            heapq.heappop(self._heap)
            self.clock = max(self.clock, end)
            del self._work[job_id]
            completed.append(job_id)
        if self._heap:
            self.clock = max(self.clock, now)
        return completed

    def next_completion(self) -> float | None:
        """When the job being served would complete if nobody arrived, or None if the machine is empty."""
        return self.clock + self._heap[0][0] / self.speed if self._heap else None

    def remaining(self) -> list[tuple[JobId, float, float]]:
        """(job, work left, whole work) in the order in which they would complete without arrivals."""
        return [(key[3], key[0], self._work[key[3]]) for key in sorted(self._heap)]

    def dump(self) -> dict[str, Any]:
        return {"clock": self.clock, "jobs": [[k[3], k[0], k[1], self._work[k[3]]] for k in sorted(self._heap)]}

    def load(self, state: Mapping[str, Any], keep: Sequence[JobId] | Mapping[JobId, Any]) -> None:
        """Take up a dump, without the jobs that are not in ``keep``."""
        self.clock = float(state["clock"])
        self._heap, self._work = [], {}
        for job_id, left, arrival, work in state["jobs"]:
            if job_id in keep:
                self._work[JobId(job_id)] = float(work)
                self._heap.append((float(left), float(arrival), id_key(job_id), JobId(job_id)))
        heapq.heapify(self._heap)


def id_key(job_id: str) -> tuple[int, ...]:
    """Job ids compare as numbers: 9 before 10, 7_2 before 7_10."""
    return tuple(int(part) if part.isdigit() else -1 for part in job_id.split("_"))
