"""The FIFO of A-SRPT, in lines of jobs that count the same against the limits of the site."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.limits import Charges, Headroom, Held

Kind = TypeVar("Kind")


class Fifo(Generic[Kind]):
    """Jobs in the order in which they joined, each with its kind.

    A line over a limit is held: the jobs of other lines pass it, and no decision considers it until the limit has room.

    limited: whether any job counts against limits.
    """

    def __init__(self) -> None:
        self._line_of: dict[JobId, OrderedDict[JobId, tuple[int, Job, Kind]]] = {}
        self._open: dict[Charges, OrderedDict[JobId, tuple[int, Job, Kind]]] = {(): OrderedDict()}
        self._held: Held[Charges] = Held()  # these lines
        self._held_lines: dict[Charges, OrderedDict[JobId, tuple[int, Job, Kind]]] = {}
        self._plain = self._open[()]  # the jobs without limits
        self._next, self._front = 0, -1

    def __len__(self) -> int:
        return len(self._line_of)

    def __contains__(self, job_id: JobId) -> bool:
        return job_id in self._line_of

    @property
    def limited(self) -> bool:
        return len(self._line_of) > len(self._plain)

    def append(self, job: Job, kind: Kind) -> None:
        self._enter(self._next, job, kind)
        self._next += 1

    def put_first(self, job: Job, kind: Kind) -> None:
        self._enter(self._front, job, kind)
        self._front -= 1

    def replace(self, job: Job, kind: Kind) -> None:
        """The job in the FIFO has changed; it keeps its place."""
        seat = self._line_of[job.id][job.id][0]
        self.remove(job.id)
        self._enter(seat, job, kind)

    def _enter(self, seat: int, job: Job, kind: Kind) -> None:
        line = self._open.get(job.charges)
        if line is None:
            line = self._held_lines.get(job.charges)
        if line is None:
            line = self._open[job.charges] = OrderedDict()
        last = next(reversed(line.values()))[0] if line else seat
        line[job.id] = seat, job, kind
        if seat < last:
            rows = sorted(line.items(), key=lambda row: row[1][0])
            line.clear()
            line.update(rows)
        self._line_of[job.id] = line

    def remove(self, job_id: JobId) -> None:
        """Remove a job, if it is here."""
        line = self._line_of.pop(job_id, None)
        if line is None:
            return
        _, job, _ = line.pop(job_id)
        if not line and job.charges:
            self._open.pop(job.charges, None)
            self._held_lines.pop(job.charges, None)
            self._held.drop(job.charges)

    def jobs(self) -> list[tuple[Job, Kind]]:
        """All jobs in order."""
        rows = [row for line in (*self._open.values(), *self._held_lines.values()) for row in line.values()]
        return [(job, kind) for _, job, kind in sorted(rows, key=lambda row: row[0])]

    def release(self, headroom: Headroom) -> bool:
        """Put the lines back whose limits have room again. Returns whether there are any."""
        released = self._held.released(headroom) if self._held else []
        for charges in released:
            self._open[charges] = self._held_lines.pop(charges)
        return bool(released)

    def within_limits(self, plan: Plan) -> Iterator[tuple[Job, Kind]]:
        """The jobs within their limits, in order. Jobs must not leave during the iteration."""
        if not self.limited:
            for _, job, kind in self._plain.values():
                yield job, kind
            return
        rows = [(iter(line.values()), charges) for charges, line in self._open.items() if line]
        heads = [(next(line), number) for number, (line, _) in enumerate(rows)]  # seats differ
        heapq.heapify(heads)
        while heads:
            (_, job, kind), number = heads[0]
            line, charges = rows[number]
            limit = plan.over_limit(job)
            if limit is None:
                yield job, kind
            else:
                self._held.hold(charges, charges, limit)
                self._held_lines[charges] = self._open.pop(charges)
            following = next(line, None) if limit is None else None
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, number))
