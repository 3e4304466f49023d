"""The waiting jobs of asrpt-gated: by predicted workload within each kind, and by age."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.gated.gpu_types import Choice

Key = tuple[int, float, float, tuple[int, ...], JobId]
"""Rank (the band, or negative: handed back), predicted GPU-seconds, submission, numeric id, id: least first."""

Age = tuple[float, tuple[int, ...], JobId]
"""Since when it waits, numeric id, id: the oldest first."""

_INF = float("inf")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job in the queue. seconds: its predicted run time in the best placement, α̃_min being that of choices[0].

    choices: where it could run, none if the cluster can never hold it.
    kind: jobs of one kind can start on the same servers, so that one that cannot start stands for all that last as
    long or longer.
    """

    job: Job
    key: Key
    seconds: float
    choices: tuple[Choice, ...]
    kind: Hashable
    age: Age

    def lasts(self, alpha: float) -> float:
        """Its predicted run time, seconds, at so many seconds an iteration."""
        best = self.choices[0].best
        return self.seconds * (alpha / best) if best else self.seconds


class Waitlist:
    """Finds the first job of each kind in O(1), and those that have lost their patience.

    Heaps in which what has left stays until it comes up, or until there is more of it than of what waits.

    entries: all waiting jobs. heads: the first of each kind that the cluster can hold.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.entries: dict[JobId, Waiting] = {}
        self.heads: dict[Hashable, Key] = {}
        self._shelves: dict[Hashable, list[Key]] = {}
        self._young: list[Age] = []  # heap: those that can still wait, and some that have left
        self._late: list[Age] = []  # ascending: those that have lost their patience
        self._left = 0  # since the heaps were last rid of what has left

    def enter(self, entry: Waiting) -> None:
        """A job waits from now on; an older entry of the same job is forgotten."""
        self.leave(entry.job.id)
        self.entries[entry.job.id] = entry
        if entry.choices:
            shelf = self._shelves.setdefault(entry.kind, [])
            heapq.heappush(shelf, entry.key)
            self.heads[entry.kind] = shelf[0]
            heapq.heappush(self._young, entry.age)

    def leave(self, job_id: JobId) -> Waiting | None:
        """A job waits no more; its entry, or None for an unknown one."""
        entry = self.entries.pop(job_id, None)
        if entry is None or not entry.choices:
            return entry
        at = bisect_left(self._late, entry.age)
        if at < len(self._late) and self._late[at] == entry.age:
            del self._late[at]
        if self.heads[entry.kind] == entry.key:
            self._next_head(entry.kind)
        self._left += 1
        if self._left > 64 + len(self.entries):
            self._tidy()
        return entry

    def clear(self) -> list[Waiting]:
        """Forget all jobs; what they were."""
        entries = list(self.entries.values())
        for part in (self.entries, self.heads, self._shelves, self._young, self._late):
            part.clear()
        self._left = 0
        return entries

    def _next_head(self, kind: Hashable) -> None:
        shelf = self._shelves[kind]
        while shelf:
            entry = self.entries.get(shelf[0][-1])
            if entry is not None and entry.key == shelf[0] and entry.kind == kind:
                self.heads[kind] = shelf[0]
                return
            heapq.heappop(shelf)
        del self._shelves[kind], self.heads[kind]

    def _tidy(self) -> None:
        """Rid the heaps of what has left: a daemon runs for years, and an old job may keep its place at the top."""
        late = set(self._late)
        shelves: dict[Hashable, list[Key]] = {}
        fitting = [entry for entry in self.entries.values() if entry.choices]
        for entry in fitting:
            shelves.setdefault(entry.kind, []).append(entry.key)
        for shelf in shelves.values():
            heapq.heapify(shelf)
        self._shelves = shelves
        self._young = [entry.age for entry in fitting if entry.age not in late]
        heapq.heapify(self._young)
        self._left = 0

    def _in_patience(self) -> Age | None:
        """The oldest job that can still wait."""
        young = self._young
        while young:
            entry = self.entries.get(young[0][-1])
            if entry is not None and entry.choices and entry.age == young[0]:
                return young[0]  # one that has changed so that it fits nowhere may still be here
            heapq.heappop(young)
        return None

    def late(self, now: float) -> Iterator[Waiting]:
        """The jobs that have waited for ``patience_s`` or longer, the oldest first."""
        while (age := self._in_patience()) is not None and age[0] + self.patience_s <= now:
            heapq.heappop(self._young)
            at = bisect_left(self._late, age)
            if self._late[at : at + 1] != [age]:  # handed back or changed, it may have been put here before
                insort(self._late, age)
        return iter([self.entries[age[-1]] for age in self._late])

    def next_late(self, now: float) -> float | None:
        """When the next job loses its patience; None while one has lost it, for which it waits anyway."""
        if self._late:
            return None
        age = self._in_patience()
        time = _INF if age is None else age[0] + self.patience_s
        return time if now < time < _INF else None
