"""The waiting jobs of asrpt-gated: by predicted workload within each kind, and by age."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.gated.gpu_types import Choice

Key = tuple[int, float, float, tuple[int, ...], JobId]
"""Rank (the band, or negative for a returned job), predicted GPU-seconds, submission, numeric ID, ID: least first."""

Age = tuple[float, tuple[int, ...], JobId]
"""Start of the wait, numeric ID, ID: the oldest first."""

_INF = float("inf")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job in the queue. seconds: its predicted runtime in the best placement, with α̃_min of choices[0].

    choices: where it could run; empty if it is too large for the cluster.
    kind: jobs of one kind can start on the same servers. If one cannot start, none with the same or a longer runtime
    can.
    """

    job: Job
    key: Key
    seconds: float
    choices: tuple[Choice, ...]
    kind: Hashable
    age: Age

    def lasts(self, alpha: float) -> float:
        """Its predicted runtime, seconds, with ``alpha`` seconds per iteration."""
        best = self.choices[0].best
        return self.seconds * (alpha / best) if best else self.seconds


class Waitlist:
    """Finds the first job of each kind in O(1), and the late jobs: those that have waited for ``patience_s``.

    While a job with ``by_age`` waits, it and all older jobs are late.

    Entries of jobs that have left stay in the heaps until they reach the top, or until they outnumber the waiting jobs.

    entries: all waiting jobs. heads: the first job of each kind, without jobs that are too large for the cluster.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.entries: dict[JobId, Waiting] = {}
        self.heads: dict[Hashable, Key] = {}
        self._heaps: dict[Hashable, list[Key]] = {}
        self._young: list[Age] = []  # heap: jobs that are not late, and outdated entries
        self._late: list[Age] = []  # ascending
        self._by_age: dict[JobId, Age] = {}
        self._left = 0  # jobs that have left since the last cleanup of the heaps

    def enter(self, entry: Waiting) -> None:
        """Add a job, in place of an older entry of the same job."""
        self.leave(entry.job.id)
        self.entries[entry.job.id] = entry
        if entry.choices:
            heap = self._heaps.setdefault(entry.kind, [])
            heapq.heappush(heap, entry.key)
            self.heads[entry.kind] = heap[0]
            heapq.heappush(self._young, entry.age)
            if entry.job.by_age:
                self._by_age[entry.job.id] = entry.age

    def leave(self, job_id: JobId) -> Waiting | None:
        """Remove a job. Returns its entry, or None for an unknown job."""
        entry = self.entries.pop(job_id, None)
        if entry is None or not entry.choices:
            return entry
        self._by_age.pop(job_id, None)
        at = bisect_left(self._late, entry.age)
        if at < len(self._late) and self._late[at] == entry.age:
            del self._late[at]
        if self.heads[entry.kind] == entry.key:
            self._next_head(entry.kind)
        self._left += 1
        if self._left > 64 + len(self.entries):
            self._drop_outdated()
        return entry

    def clear(self) -> list[Waiting]:
        """Remove all jobs. Returns their entries."""
        entries = list(self.entries.values())
        for part in (self.entries, self.heads, self._heaps, self._young, self._late, self._by_age):
            part.clear()
        self._left = 0
        return entries

    def _next_head(self, kind: Hashable) -> None:
        heap = self._heaps[kind]
        while heap:
            entry = self.entries.get(heap[0][-1])
            if entry is not None and entry.key == heap[0] and entry.kind == kind:
                self.heads[kind] = heap[0]
                return
            heapq.heappop(heap)
        del self._heaps[kind], self.heads[kind]

    def _drop_outdated(self) -> None:
        """Remove outdated entries from the heaps: a daemon runs for years, and an old job may stay at the top."""
        late = set(self._late)
        heaps: dict[Hashable, list[Key]] = {}
        fitting = [entry for entry in self.entries.values() if entry.choices]
        for entry in fitting:
            heaps.setdefault(entry.kind, []).append(entry.key)
        for heap in heaps.values():
            heapq.heapify(heap)
        self._heaps = heaps
        self._young = [entry.age for entry in fitting if entry.age not in late]
        heapq.heapify(self._young)
        self._left = 0

    def _oldest_young(self) -> Age | None:
        """The oldest job that is not late."""
        young = self._young
        while young:
            entry = self.entries.get(young[0][-1])
            if entry is not None and entry.choices and entry.age == young[0]:
                return young[0]  # a changed job that fits no longer may still be here
            heapq.heappop(young)
        return None

    def late(self, now: float) -> Iterator[Waiting]:
        """The late jobs, the oldest first."""
        while (age := self._oldest_young()) is not None and self.is_late(age, now):
            heapq.heappop(self._young)
            at = bisect_left(self._late, age)
            if self._late[at : at + 1] != [age]:  # a returned or changed job may already be here
                insort(self._late, age)
        return iter([self.entries[age[-1]] for age in self._late])

    def is_late(self, age: Age, now: float) -> bool:
        """Whether a job has waited for ``patience_s``, or is no younger than a job that goes by age."""
        return age[0] + self.patience_s <= now or (bool(self._by_age) and age <= max(self._by_age.values()))

    def next_late(self, now: float) -> float | None:
        """When the next job becomes late; None while one is late, because others must wait for it."""
        if self._late:
            return None
        age = self._oldest_young()
        time = _INF if age is None else age[0] + self.patience_s
        return time if now < time < _INF else None
