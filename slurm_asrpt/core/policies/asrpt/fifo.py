"""The FIFO of A-SRPT, in lines of jobs that count the same against the limits of the site."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.limits import Charges, Headroom, Held

Kind = TypeVar("Kind")


class Fifo(Generic[Kind]):
    """Jobs in the order in which they joined, each with its seat and its kind.

    A line over a limit is held: the jobs of other lines pass it, and no decision considers it until the limit has room.

    plain: the jobs without limits, one line. line_of: the line of each other job.
    """

    __slots__ = ("_first", "_held", "_held_lines", "_next", "_open", "line_of", "plain")

    def __init__(self) -> None:
        self.plain: OrderedDict[JobId, tuple[int, Job, Kind]] = OrderedDict()
        self.line_of: dict[JobId, OrderedDict[JobId, tuple[int, Job, Kind]]] = {}
        self._open: dict[Charges, OrderedDict[JobId, tuple[int, Job, Kind]]] = {}
        self._held: Held[Charges] = Held()  # these lines
        self._held_lines: dict[Charges, OrderedDict[JobId, tuple[int, Job, Kind]]] = {}
        self._next, self._first = 0, -1

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self.plain or job_id in self.line_of

    def append(self, job: Job, kind: Kind) -> None:
        seat = self._next
        self._next += 1
        if job.charges:
            self._enter(seat, job, kind)
        else:
            self.plain[job.id] = seat, job, kind

    def put_first(self, job: Job, kind: Kind) -> None:
        self._enter(self._first, job, kind)
        self._first -= 1

    def replace(self, job: Job, kind: Kind) -> None:
        """The job in the FIFO has changed; it keeps its place."""
        seat = self.line_of.get(job.id, self.plain)[job.id][0]
        self.remove(job.id)
        self._enter(seat, job, kind)

    def _enter(self, seat: int, job: Job, kind: Kind) -> None:
        """Add a job anywhere in its line."""
        line = self._line(job)
        last = next(reversed(line.values()))[0] if line else seat
        line[job.id] = seat, job, kind
        if seat < last:
            rows = sorted(line.items(), key=lambda row: row[1][0])
            line.clear()
            line.update(rows)

    def _line(self, job: Job) -> OrderedDict[JobId, tuple[int, Job, Kind]]:
        if not job.charges:
            return self.plain
        line = self._held_lines.get(job.charges)
        if line is None:
            line = self._open.setdefault(job.charges, OrderedDict())
        self.line_of[job.id] = line
        return line

    def remove(self, job_id: JobId) -> None:
        """Remove a job, if it is here."""
        if self.plain.pop(job_id, None) is not None or job_id not in self.line_of:
            return
        line = self.line_of.pop(job_id)
        charges = line.pop(job_id)[1].charges
        if not line:
            self._open.pop(charges, None)
            self._held_lines.pop(charges, None)
            self._held.drop(charges)

    def jobs(self) -> list[tuple[Job, Kind]]:
        """All jobs in order."""
        rows = [row for line in (self.plain, *self._open.values(), *self._held_lines.values()) for row in line.values()]
        return [(job, kind) for _, job, kind in sorted(rows, key=lambda row: row[0])]

    def release(self, headroom: Headroom) -> bool:
        """Put the lines back whose limits have room again. Returns whether there are any."""
        released = self._held.released(headroom) if self._held else []
        for charges in released:
            self._open[charges] = self._held_lines.pop(charges)
        return bool(released)

    def within_limits(self, plan: Plan) -> Iterable[tuple[int, Job, Kind]]:
        """The jobs within their limits, in order. Jobs must not leave during the iteration."""
        return self._merged(plan) if self.line_of else self.plain.values()

    def _merged(self, plan: Plan) -> Iterator[tuple[int, Job, Kind]]:
        lines = [iter(line.values()) for line in (self.plain, *self._open.values()) if line]
        heads = [(next(line), number) for number, line in enumerate(lines)]  # seats differ
        heapq.heapify(heads)
        while heads:
            row, number = heads[0]
            limit = plan.over_limit(row[1])
            if limit is None:
                yield row
                following = next(lines[number], None)
            else:
                self._hold(row[1].charges, limit)
                following = None
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, number))

    def _hold(self, charges: Charges, limit: str) -> None:
        self._held.hold(charges, charges, limit)
        self._held_lines[charges] = self._open.pop(charges)
