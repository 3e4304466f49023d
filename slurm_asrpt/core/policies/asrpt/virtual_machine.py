"""Ã1: the hypothetical single machine that serves all jobs by preemptive SRPT (paper, section IV-C.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from slurm_asrpt.core.job import JobId, id_key

Key = tuple[float, float, tuple[int, ...], JobId, float]
"""Remaining work, arrival, numeric ID, ID, total work: least first, so ties are broken by arrival, then by ID."""

_NEVER = float("inf")


class VirtualMachine:
    """Preemptive shortest-remaining-processing-time-first on one machine.

    Work is in GPU-seconds (g_i ñ_i α̃_i^min), and the speed of the machine is G GPU-seconds per second. The schedule is
    the same as with lengths (g_i/G) ñ_i α̃_i^min at speed 1, but it stays correct when G changes. If GPUs differ, both
    refer to reference GPUs: α̃_i^min is taken on them, and G is the sum of the speeds.

    Only the remaining work of the job being served decreases, so the passage of time costs nothing: its key has the
    work left at the beginning of its turn, and ``end`` is its completion. An arrival or a departure costs O(log n).
    """

    def __init__(self, clock: float = 0.0) -> None:
        self.clock = clock
        self.end = _NEVER
        """When the job being served will complete if no other arrives, seconds; inf if the machine is empty."""
        self._speed = 1.0
        self._served: Key | None = None
        self._since = clock  # beginning of the turn of the served job
        self._heap: list[Key] = []  # the others, and some that have left
        self._inside: dict[JobId, Key] = {}

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._inside

    def __len__(self) -> int:
        return len(self._inside)

    @property
    def speed(self) -> float:
        """G, GPU-seconds per second. Service before a change counts at the old speed."""
        return self._speed

    @speed.setter
    def speed(self, speed: float) -> None:
        served = self._served
        if served is None:
            self._speed = speed
            return
        current = self._inside[served[3]] = self._current_key(served)
        self._speed = speed
        self._serve(current)

    def add(self, job_id: JobId, work: float, arrival: float, now: float) -> None:
        """A job arrives now (call ``advance`` first if ``end`` is reached). Raises ValueError if it is already here."""
        if job_id in self._inside:
            raise ValueError(f"job {job_id} is already on the virtual machine")
        if now > self.clock:
            self.clock = now
        key = self._inside[job_id] = (work, arrival, id_key(job_id), job_id, work)
        served = self._served
        if served is None:  # the clock of an idle machine does not matter; it may even be ahead
            self.clock = now
            self._serve(key)
            return
        if work <= self._work_left(served):
            current = self._current_key(served)
            if key < current:
                self._inside[served[3]] = current
                self._serve(key)
                key = current
        heappush(self._heap, key)

    def remove(self, job_id: JobId) -> None:
        """A job leaves before it completes here; unknown IDs are ignored."""
        if self._inside.pop(job_id, None) is None:
            return
        if self._served is not None and self._served[3] == job_id:
            self._next()
        elif len(self._heap) > 2 * len(self._inside) + 8:  # too many outdated keys
            self._heap = self._waiting()
            heapify(self._heap)

    def advance(self, now: float) -> Sequence[JobId]:
        """Serve until ``now`` and return the jobs that completed, in order. Time never runs backwards."""
        completed: list[JobId] = []
        inside = self._inside
        while self.end <= now and (served := self._served) is not None:
            completed.append(served[3])
            del inside[served[3]]
            if self.end > self.clock:
                self.clock = self.end
            self._next()
        if now > self.clock and inside:
            self.clock = now
        return completed

    def _work_left(self, served: Key) -> float:
        """The remaining work of the job being served."""
        left = served[0] - (self.clock - self._since) * self._speed
        return left if left > 0.0 else 0.0

    def _current_key(self, served: Key) -> Key:
        """The current key of the job being served."""
        return (self._work_left(served), *served[1:])

    def _serve(self, key: Key) -> None:
        self._served, self._since = key, self.clock
        self.end = self.clock + key[0] / self._speed

    def _next(self) -> None:
        """Serve the first waiting job."""
        heap = self._heap
        while heap:
            key = heappop(heap)
            if self._inside.get(key[3]) is key:
                self._serve(key)
                return
        self._served, self.end = None, _NEVER

    def _waiting(self) -> list[Key]:
        """The valid keys in the heap. A job that leaves is not removed from the heap at once."""
        return [key for key in self._heap if self._inside.get(key[3]) is key]

    def remaining(self) -> list[tuple[JobId, float, float]]:
        """(job, remaining work, total work) in the order in which they would complete without arrivals."""
        return [(job_id, left, work) for left, _, _, job_id, work in self._keys()]

    def _keys(self) -> list[Key]:
        served = self._served
        first = [] if served is None else [self._current_key(served)]
        return sorted([*first, *self._waiting()])

    def dump(self) -> dict[str, Any]:
        jobs = [[job_id, left, arrival, work] for left, arrival, _, job_id, work in self._keys()]
        served = self._served
        turn = None if served is None else [served[3], served[0], self._since]
        return {"clock": self.clock, "jobs": jobs, "turn": turn}

    def load(self, state: Mapping[str, Any], keep: Sequence[JobId] | Mapping[JobId, Any]) -> None:
        """Restore a saved state, without the jobs that are not in ``keep``."""
        self.clock = float(state["clock"])
        self._heap, self._inside = [], {}
        for job_id, left, arrival, work in state["jobs"]:
            if job_id in keep:
                key = (float(left), float(arrival), id_key(job_id), JobId(job_id), float(work))
                self._inside[key[3]] = key
                self._heap.append(key)
        heapify(self._heap)
        self._next()
        self._resume_turn(state.get("turn"))

    def _resume_turn(self, turn: Any) -> None:
        """Restore the turn of the job being served, so that rounding does not change its end."""
        if turn is None or self._served is None:
            return
        job_id, left, since = turn
        if self._served[3] == job_id:
            key = (float(left), *self._served[1:])
            self._inside[key[3]] = self._served = key
            self._since = float(since)
            self.end = self._since + key[0] / self._speed
