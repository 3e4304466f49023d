"""Exact end times of jobs that share the NICs of their servers.

The speed of a job that spans servers changes when another such job starts or ends on one of its servers. Between two
changes it is constant, so the integral is exact. A change affects only the jobs on the servers concerned.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from slurm_asrpt.core.timing.ring import iterations_per_slot

Pace = Callable[[tuple[int, ...]], float]
"""Time per iteration, given how many jobs use the NIC of each server, including this job; () on a single server."""

K = TypeVar("K", bound=Hashable)
_NEVER = math.inf
_ROUNDING = 1e-9  # of a slot


@dataclass(slots=True)
class _Job:
    servers: tuple[Hashable, ...]
    pace: Pace
    tau: float  # time per iteration now
    left: float  # iterations, at ``since``
    since: float
    turn: int = 0  # number of its valid entry in the heap


class ContendingJobs(Generic[K]):
    """The running jobs, and when the next one ends.

    slot: length of the paper's slots, with whole iterations per slot only, (9); 0 for continuous time.
    A job makes no progress while no iteration fits into a slot; its end is infinity until neighbors end.
    """

    def __init__(self, slot: float = 0.0) -> None:
        self.slot = slot
        self._jobs: dict[K, _Job] = {}
        self._leaving: dict[Hashable, dict[K, None]] = {}  # by server, the jobs that use its NIC, in a fixed order
        self._ends: list[tuple[float, int, K]] = []  # heap; outdated entries are dropped at the top
        self._turns = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def leaving(self, server: Hashable) -> int:
        """How many jobs use the NIC of a server."""
        return len(self._leaving.get(server, ()))

    def start(self, key: K, servers: Iterable[Hashable], iterations: float, pace: Pace, now: float) -> None:
        """Start a job. servers: its servers. Raises ValueError if it is already running."""
        if key in self._jobs:
            raise ValueError(f"{key} runs already")
        shared = tuple(servers)
        shared = shared if len(shared) > 1 else ()
        for server in shared:
            self._leaving.setdefault(server, {})[key] = None
        job = self._jobs[key] = _Job(shared, pace, 0.0, iterations, now)
        job.tau = self._tau(job)
        self._push_end(key, job)
        self._update_neighbors(shared, key, now)

    def end(self, key: K, now: float) -> None:
        """Remove a job, whether or not it is done. Raises KeyError if it is not running."""
        job = self._jobs.pop(key)
        for server in job.servers:
            del self._leaving[server][key]
        self._update_neighbors(job.servers, key, now)

    def next_end(self) -> float:
        """When the next job ends if no other starts before, or infinity."""
        while self._ends:
            end, turn, key = self._ends[0]
            job = self._jobs.get(key)
            if job is not None and job.turn == turn:
                return end
            heapq.heappop(self._ends)
        return _NEVER

    def pop(self) -> tuple[float, K]:
        """End the next job; returns its end and its key. Raises ValueError if no job will ever end."""
        end = self.next_end()
        if end == _NEVER:
            raise ValueError(f"none of {len(self)} jobs ever ends: no iteration fits into a slot")
        key = self._ends[0][2]
        self.end(key, end)
        return end, key

    def _update_neighbors(self, servers: tuple[Hashable, ...], skip: K, now: float) -> None:
        """Update the speed of the other jobs on these servers."""
        for key in dict.fromkeys(key for server in servers for key in self._leaving[server]):
            if key != skip:
                self._update_speed(key, now)

    def _update_speed(self, key: K, now: float) -> None:
        job = self._jobs[key]
        tau = self._tau(job)
        if tau != job.tau:
            job.left = max(0.0, job.left - (now - job.since) / job.tau)
            job.tau, job.since = tau, now
            self._push_end(key, job)

    def _tau(self, job: _Job) -> float:
        leaving = self._leaving
        tau = job.pace(tuple([len(leaving[server]) for server in job.servers]))
        if not self.slot:
            return tau
        whole = iterations_per_slot(tau, self.slot)
        return self.slot / whole if whole else _NEVER  # no progress until neighbors end

    def _push_end(self, key: K, job: _Job) -> None:
        self._turns += 1
        job.turn = self._turns
        end = job.since + job.left * job.tau if job.left else job.since
        if self.slot and end < _NEVER:
            end = math.ceil(end / self.slot - _ROUNDING) * self.slot
        heapq.heappush(self._ends, (end, job.turn, key))
