"""The waiting jobs of asrpt-gated: by predicted workload within each kind, by age, and by the limits that hold them."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from slurm_asrpt.core.job import Job, JobId, PreemptionClass
from slurm_asrpt.core.limits import Charges, Headroom, Held
from slurm_asrpt.core.policies.gated.gpu_types import Choice

Key = tuple[float, float, float, tuple[int, ...], JobId]
"""Rank, predicted GPU-seconds by weight, submission, numeric ID, ID: least first.

Rank: the band; for a returned job just before it.
"""

Age = tuple[float, float, tuple[int, ...], JobId]
"""The job's turn (infinity for none), start of the wait, numeric ID, ID: those with a turn, then the oldest first."""

_INF = float("inf")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job in the queue. seconds: its predicted runtime in the best placement, with α̃_min of choices[0].

    choices: where it could run; empty if it is too large for the cluster.
    shape: jobs of one shape can start on the same servers. If one cannot start, none with the same or a longer runtime
    can. kind: jobs of one shape, band and weight, of which the first by key is the shortest.
    """

    job: Job
    key: Key
    seconds: float
    choices: tuple[Choice, ...]
    kind: Hashable
    shape: Hashable
    age: Age

    @property
    def since(self) -> float:
        """When its wait began."""
        return self.age[1]

    def lasts(self, alpha: float) -> float:
        """Its predicted runtime, seconds, with ``alpha`` seconds per iteration."""
        best = self.choices[0].best
        return self.seconds * (alpha / best) if best else self.seconds

    def key_with(self, work: float) -> Key:
        """Its key if its work were that."""
        rank, _, submitted, number, job_id = self.key
        return rank, work, submitted, number, job_id


@dataclass(slots=True, eq=False)
class Line:
    """The jobs that count the same against the limits of the site. heads: the first of each kind. late: ascending.

    works: predicted GPU-seconds by weight, ascending, of the jobs of one rank and number of GPUs.
    """

    heads: dict[Hashable, Key] = field(default_factory=dict)
    late: list[Age] = field(default_factory=list)
    works: dict[tuple[float, int], list[float]] = field(default_factory=dict)


class FirstBySize:
    """Finds the first waiting job of each number of GPUs. Jobs may leave meanwhile, but not enter."""

    def __init__(self, waitlist: Waitlist) -> None:
        self._entries = waitlist.entries
        self._heaps: dict[tuple[float, PreemptionClass | None], dict[int, list[tuple[Key, Hashable, Line]]]] = {}
        for line in waitlist.lines.values():
            for kind, key in line.heads.items():
                job = self._entries[key[-1]].job
                sizes = self._heaps.setdefault((key[0], job.preemption), {})
                sizes.setdefault(job.gpus, []).append((key, kind, line))  # keys differ by job ID
        for sizes in self._heaps.values():
            for heap in sizes.values():
                heapq.heapify(heap)

    def larger(self, entry: Waiting, most: int) -> Waiting | None:
        """The first job of its rank and class that is larger, and has more than ``most`` GPUs together with it."""
        gpus, sizes = entry.job.gpus, self._heaps.get((entry.key[0], entry.job.preemption), {})
        found = (self._first(heap) for size, heap in sizes.items() if size > gpus and size + gpus > most)
        key = min((key for key in found if key is not None), default=None)
        return None if key is None else self._entries[key[-1]]

    @staticmethod
    def _first(heap: list[tuple[Key, Hashable, Line]]) -> Key | None:
        while heap:
            key, kind, line = heap[0]
            head = line.heads.get(kind)
            if head == key:
                return key
            heapq.heappop(heap)
            if head is not None:
                heapq.heappush(heap, (head, kind, line))
        return None


class Waitlist:
    """Finds the first job of each kind in O(1), and the late jobs.

    Late are jobs that have waited for ``patience_s``, and those with a turn.

    Entries of jobs that have left stay in the heaps until they reach the top, or until they outnumber the waiting jobs.

    entries: all waiting jobs. lines: the jobs that no limit is known to hold, by charges, without jobs that are too
    large for the cluster.
    """

    def __init__(self, patience_s: float) -> None:
        self.patience_s = patience_s
        self.entries: dict[JobId, Waiting] = {}
        self._plain = Line()  # the jobs without limits
        self.lines: dict[Charges, Line] = {(): self._plain}
        self._held: Held[Charges] = Held()  # these lines
        self._held_lines: dict[Charges, Line] = {}
        self._heaps: dict[Hashable, list[Key]] = {}
        self._young: list[Age] = []  # heap: jobs that are not late, and outdated entries
        self._late = 0  # jobs that are late
        self._left = 0  # jobs that have left since the last cleanup of the heaps

    def enter(self, entry: Waiting) -> None:
        """Add a job, in place of an older entry of the same job."""
        self.leave(entry.job.id)
        self.entries[entry.job.id] = entry
        if entry.choices:
            heap = self._heaps.setdefault(entry.kind, [])
            heapq.heappush(heap, entry.key)
            charges = entry.job.charges
            line = self._line(charges) if charges else self._plain
            line.heads[entry.kind] = heap[0]
            insort(line.works.setdefault((entry.key[0], entry.job.gpus), []), entry.key[1])
            heapq.heappush(self._young, entry.age)

    def leave(self, job_id: JobId) -> Waiting | None:
        """Remove a job. Returns its entry, or None for an unknown job."""
        entry = self.entries.pop(job_id, None)
        if entry is None or not entry.choices:
            return entry
        charges = entry.job.charges
        line = self._line(charges) if charges else self._plain
        late = line.late
        at = bisect_left(late, entry.age)
        if at < len(late) and late[at] == entry.age:
            del late[at]
            self._late -= 1
        works = line.works[entry.key[0], entry.job.gpus]
        del works[bisect_left(works, entry.key[1])]
        if not works:
            del line.works[entry.key[0], entry.job.gpus]
        if line.heads[entry.kind] == entry.key:
            self._next_head(entry.kind, line)
            if charges and not line.heads:
                self._close(charges)
        self._left += 1
        if self._left > 64 + len(self.entries):
            self._drop_outdated()
        return entry

    def _line(self, charges: Charges) -> Line:
        found = self.lines.get(charges) or self._held_lines.get(charges)
        if found is None:
            found = self.lines[charges] = Line()
        return found

    def _close(self, charges: Charges) -> None:
        """Remove an empty line."""
        if self.lines.pop(charges, None) is None:
            del self._held_lines[charges]
            self._held.drop(charges)

    def hold(self, charges: Charges, limit: str) -> None:
        """Take a line out of the decisions: a limit has no room for its jobs."""
        line = self.lines.pop(charges, None)
        if line is not None:
            self._held_lines[charges] = line
            self._held.hold(charges, charges, limit)

    def release(self, headroom: Headroom) -> None:
        """Put the lines back whose limits have room again."""
        if self._held_lines:
            for charges in self._held.released(headroom):
                self.lines[charges] = self._held_lines.pop(charges)

    def works_from(self, entry: Waiting) -> Iterator[float]:
        """The predicted GPU-seconds by weight of this job and of those with as many GPUs behind it, ascending.

        Without the jobs that a limit holds.
        """
        form, least = (entry.key[0], entry.job.gpus), entry.key[1]
        each = [works for line in self.lines.values() if (works := line.works.get(form))]
        rests = [islice(works, bisect_left(works, least), None) for works in each]
        return heapq.merge(*rests) if len(rests) > 1 else chain(*rests)

    def beside(self, entry: Waiting, below: int) -> float:
        """How many GPUs this job and those of its rank with fewer than ``below`` could use while it runs, averaged.

        Without the jobs that a limit holds.
        """
        rank, work = entry.key[0], entry.key[1] / entry.job.gpus
        used = 0.0
        for line in self.lines.values():
            for (of, gpus), works in line.works.items():
                if of == rank and gpus < below:
                    at = bisect_left(works, gpus * work)  # the others last at least as long
                    used += sum(works[:at]) / work + gpus * (len(works) - at) if work else gpus * len(works)
        return used

    def number_of(self, rank: float, gpus: int) -> int:
        """How many jobs of this rank need so many GPUs, without those that a limit holds."""
        return sum([len(line.works.get((rank, gpus), ())) for line in self.lines.values()])

    def clear(self) -> list[Waiting]:
        """Remove all jobs. Returns their entries."""
        entries = list(self.entries.values())
        for part in (self.entries, self.lines, self._held, self._held_lines, self._heaps, self._young):
            part.clear()
        self._plain = self.lines[()] = Line()
        self._late = self._left = 0
        return entries

    def _next_head(self, kind: Hashable, line: Line) -> None:
        heap = self._heaps[kind]
        while heap:
            entry = self.entries.get(heap[0][-1])
            if entry is not None and entry.key == heap[0] and entry.kind == kind:
                line.heads[kind] = heap[0]
                return
            heapq.heappop(heap)
        del self._heaps[kind], line.heads[kind]

    def _drop_outdated(self) -> None:
        """Remove outdated entries from the heaps: a daemon runs for years, and an old job may stay at the top."""
        late = set(self._all_late())
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

    def _all_late(self) -> Iterator[Age]:
        lines = chain(self.lines.values(), self._held_lines.values())
        return chain.from_iterable(line.late for line in lines)

    def all_late(self, now: float) -> list[Waiting]:
        """The late jobs, the oldest first."""
        self._find_late(now)
        return [self.entries[age[-1]] for age in sorted(self._all_late())]

    def late(self, now: float) -> Iterator[Waiting]:
        """The same without jobs that a limit holds. Lines may be held and jobs may leave during the iteration."""
        self._find_late(now)
        return self._merged_late() if self._late else iter(())

    def _merged_late(self) -> Iterator[Waiting]:
        rows = [(iter(list(line.late)), charges) for charges, line in self.lines.items() if line.late]
        heads = [(next(ages), number) for number, (ages, _) in enumerate(rows)]
        heapq.heapify(heads)
        while heads:
            age, number = heads[0]
            ages, charges = rows[number]
            if charges not in self._held:
                yield self.entries[age[-1]]
            following = None if charges in self._held else next(ages, None)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, number))

    def _find_late(self, now: float) -> None:
        """Move jobs that have become late from the young ones to the late ones."""
        while (age := self._oldest_young()) is not None and self._late_from(age) <= now:
            heapq.heappop(self._young)
            late = self._line(self.entries[age[-1]].job.charges).late
            at = bisect_left(late, age)
            if late[at : at + 1] != [age]:  # a returned or changed job may already be here
                insort(late, age)
                self._late += 1

    def _late_from(self, age: Age) -> float:
        return age[1] + self.patience_s if age[0] == _INF else -_INF

    def is_late(self, entry: Waiting, now: float) -> bool:
        """Whether a job has waited for ``patience_s``, or has a turn."""
        return self._late_from(entry.age) <= now

    @property
    def any_charges(self) -> bool:
        """Whether jobs wait that count against limits of the site."""
        return bool(self._held_lines) or len(self.lines) > 1

    @property
    def any_late(self) -> bool:
        """Whether jobs were late when late ones were last looked for."""
        return self._late > 0

    def next_late(self, now: float) -> float | None:
        """When the next job becomes late."""
        age = self._oldest_young()
        time = _INF if age is None else self._late_from(age)
        return time if now < time < _INF else None
