"""What jobs that were submitted next to each other tell about each other's runtimes (docs/decisions/0034)."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_asrpt.core.job import Job, JobId, id_key
from slurm_asrpt.core.policies.running_jobs import OVERDUE_SHARE

MAX_RUNTIMES = 64
"""Runtimes that are kept of one kind of jobs, those of the jobs submitted last, beside those of neighbors."""
MAX_CHANGED = 32
"""Waiting jobs on each side of a job that are estimated again when its runtime is known."""
MAX_KINDS = 4096
"""Kinds whose runtimes are kept. A daemon runs for years."""

Kind = tuple[str, str, int, float]
"""User, group, GPUs and time limit: what similar jobs have in common."""
Place = tuple[float, tuple[int, ...]]
"""Submission and numeric ID of a job: its place among the jobs of its kind."""


class SimilarRun(NamedTuple):
    """A running job, with its α/α̃_min. due: when to look next whether it has outlived its estimate."""

    kind: Kind
    place: Place
    start: float
    slowdown: float
    due: float


class SimilarJobs:
    """The runtime of the similar job that was submitted next to a waiting job, if it is known.

    Similar are jobs of one kind. Neighbors are often parts of one sweep, and run for similar times; while some wait,
    others end. A job that outlives its estimate counts as well, with its expected runtime. Runtimes are in seconds in
    the best placement.
    """

    def __init__(self) -> None:
        self._runtimes: dict[Kind, list[tuple[Place, float]]] = {}  # by place; the kind used last is the last
        self._waiting: dict[Kind, list[tuple[Place, JobId]]] = {}
        self._running: dict[JobId, SimilarRun] = {}
        self._due: list[tuple[float, JobId]] = []  # heap; entries of jobs that have ended stay until their time

    def runtime(self, job: Job) -> float:
        """The runtime of the neighbor that was submitted nearest in time, seconds; 0 if none is known."""
        known, place = self._runtimes.get(_kind(job), []), _place(job)
        at = bisect_left(known, (place, 0.0))
        neighbors = known[max(0, at - 1) : at + 1]
        return min(neighbors, key=lambda one: abs(one[0][0] - place[0]))[1] if neighbors else 0.0

    def waits(self, job: Job) -> None:
        """A job waits, from now on or still."""
        rows, row = self._waiting.setdefault(_kind(job), []), (_place(job), job.id)
        at = bisect_left(rows, row)
        if rows[at : at + 1] != [row]:
            rows.insert(at, row)

    def left(self, job: Job) -> None:
        """A job does not wait any longer."""
        rows, row = self._waiting[_kind(job)], (_place(job), job.id)
        rows.pop(bisect_left(rows, row))
        if not rows:
            del self._waiting[_kind(job)]

    def started(self, job: Job, now: float, slowdown: float, end: float) -> None:
        """A job starts. end: when it is expected to end."""
        self._runs(job.id, SimilarRun(_kind(job), _place(job), now, slowdown, end))

    def _runs(self, job_id: JobId, run: SimilarRun) -> None:
        self._running[job_id] = run
        heapq.heappush(self._due, (run.due, job_id))

    def stopped(self, job_id: JobId) -> None:
        """A job runs no longer; ``ended`` is for one whose runtime counts."""
        self._running.pop(job_id, None)

    def ended(self, job_id: JobId, seconds: float) -> list[JobId]:
        """A job has ended after this time. Returns the waiting jobs whose nearest neighbor it may be now."""
        run = self._running.pop(job_id, None)
        return [] if run is None else self._learn(run, max(1.0, seconds))

    def outlived(self, now: float) -> list[JobId]:
        """The waiting jobs of which a neighbor has outlived its estimate."""
        found: dict[JobId, None] = {}
        while self._due and self._due[0][0] <= now:
            due, job_id = heapq.heappop(self._due)
            run = self._running.get(job_id)
            if run is not None and run.due == due:
                left_s = OVERDUE_SHARE * (now - run.start) + 1.0
                found.update(dict.fromkeys(self._learn(run, (now - run.start + left_s) / run.slowdown)))
                self._runs(job_id, run._replace(due=now + left_s))
        return list(found)

    def _learn(self, run: SimilarRun, seconds: float) -> list[JobId]:
        """Keep a runtime. Returns the waiting jobs near its job, which may now be their nearest neighbor."""
        known = self._runtimes[run.kind] = self._runtimes.pop(run.kind, [])  # now the last
        at = bisect_left(known, (run.place, 0.0))
        if at < len(known) and known[at][0] == run.place:
            known.pop(at)
        known.insert(at, (run.place, seconds))
        waiting = self._waiting.get(run.kind, [])
        found = waiting[_between(waiting, known, at)]
        if len(known) > 2 * (MAX_RUNTIMES + len(waiting)):
            self._runtimes[run.kind] = self._useful(run.kind, MAX_RUNTIMES)
        if len(self._runtimes) > MAX_KINDS:
            del self._runtimes[next(iter(self._runtimes))]
        return [job_id for _, job_id in found]

    def _useful(self, kind: Kind, last: int) -> list[tuple[Place, float]]:
        """The runtimes of neighbors of waiting jobs, and of the jobs submitted last."""
        known = self._runtimes.get(kind, [])
        after = {bisect_left(known, (place, 0.0)) for place, _ in self._waiting.get(kind, [])}
        least = len(known) - last
        return [one for at, one in enumerate(known) if at >= least or at in after or at + 1 in after]

    def dump(self) -> list[Any]:
        """For each kind that jobs wait for: one of them, the runtimes of neighbors, the running jobs; as JSON values.

        The kinds themselves hold names of users, and the state is published for ``--what-if``.
        """
        running: dict[Kind, dict[JobId, list[Any]]] = {}
        for job_id, run in self._running.items():
            row = [*_row(run.place), run.start, run.slowdown, run.due]
            running.setdefault(run.kind, {})[job_id] = row
        return [
            [
                waiting[0][1],
                [[*_row(place), seconds] for place, seconds in self._useful(kind, 1)],
                running.get(kind, {}),
            ]
            for kind, waiting in self._waiting.items()
            if kind in self._runtimes or kind in running
        ]

    def load(self, state: Sequence[Any], jobs: Mapping[JobId, Job]) -> None:
        """Into a new object. jobs: those that wait. Raises ValueError or TypeError for an invalid state."""
        for waiting, rows, running in state:
            runtimes = sorted([(_read_place(at, number), float(seconds)) for at, number, seconds in rows])
            runs = [
                (JobId(job_id), _read_place(at, number), float(start), float(slowdown), float(due))
                for job_id, (at, number, start, slowdown, due) in dict(running).items()
            ]
            if waiting in jobs:
                kind = _kind(jobs[waiting])
                self._runtimes[kind] = runtimes
                for job_id, place, start, slowdown, due in runs:
                    self._runs(job_id, SimilarRun(kind, place, start, slowdown, due))


def _between(waiting: Sequence[tuple[Place, JobId]], known: Sequence[tuple[Place, float]], at: int) -> slice:
    """The waiting jobs between the neighbors of the known runtime at this index, at most MAX_CHANGED on each side."""

    def first_after(neighbor: int) -> int:
        return bisect_left(waiting, (known[neighbor][0], JobId("")))

    here = first_after(at)
    first = first_after(at - 1) if at else 0
    last = first_after(at + 1) if at + 1 < len(known) else len(waiting)
    return slice(max(first, here - MAX_CHANGED), min(last, here + MAX_CHANGED))


def _kind(job: Job) -> Kind:
    return job.user, job.group, job.gpus, job.time_limit


def _place(job: Job) -> Place:
    return job.submit_time, id_key(job.id)


def _row(place: Place) -> list[Any]:
    return [place[0], list(place[1])]


def _read_place(submitted: Any, number: Sequence[Any]) -> Place:
    return float(submitted), tuple([int(part) for part in number])
