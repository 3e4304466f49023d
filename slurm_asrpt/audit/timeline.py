"""Builds the runs of jobs from the events of the audit trail: when each job waited, ran and ended, and where."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_asrpt.audit.trail import Entry


@dataclass
class JobRun:
    """One run of a job and the wait before it. Times are seconds since the epoch, None if unknown.

    queued: when it was submitted or requeued, as in sacct; in trails of early releases, when the policy first saw it.
    gpus: allocated GPUs by node. ran_s, predicted_s: seconds that an ended run took, and the prediction of them.
    alpha, best: seconds per iteration where it ran, and at best. why: kinds of its pending reasons.
    """

    job: str
    user: str = ""
    name: str = ""
    size: int = 0
    queued: float | None = None
    start: float | None = None
    end: float | None = None
    state: str = ""
    gpus: dict[str, int] = field(default_factory=dict)
    predicted_s: float | None = None
    ran_s: float | None = None
    alpha: float | None = None
    best: float | None = None
    why: list[str] = field(default_factory=list)

    @property
    def wait_s(self) -> float | None:
        return None if self.start is None or self.queued is None else max(0.0, self.start - self.queued)

    @property
    def error(self) -> float | None:
        """Actual over predicted runtime."""
        return self.ran_s / self.predicted_s if self.ran_s and self.predicted_s else None


@dataclass(frozen=True)
class QueueLength:
    """Jobs in the policy's queue, running jobs and free GPUs, from ``time`` on."""

    time: float
    waiting: int
    running: int
    free: int


class Timeline:
    """Runs, queue lengths and nodes in a part of the trail. Malformed entries are skipped."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.runs: list[JobRun] = []
        self.queue: list[QueueLength] = []
        self.nodes: set[str] = set()
        self._open: dict[str, JobRun] = {}
        self._ended_at: dict[str, float] = {}
        handlers = {
            "queued": self._queued,
            "wait": self._pending,
            "running": self._running,
            "ended": self._ended,
            "cut": self._ended,
            "gone": self._gone,
            "vanished": self._vanished,
            "cycle": self._cycle,
        }
        for entry in entries:
            handle = handlers.get(entry["event"])
            if handle is not None:
                try:
                    handle(entry)
                except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                    continue  # written by another release, or damaged

    def _run(self, entry: Entry) -> JobRun:
        job = str(entry["job"])
        run = self._open.get(job)
        if run is None:
            run = self._open[job] = JobRun(job)
            self.runs.append(run)
        run.user = str(entry.get("user", run.user))
        return run

    def _queued(self, entry: Entry) -> None:
        run = self._run(entry)
        run.name, run.size = str(entry.get("name", "")), int(entry["gpus"])
        if run.queued is None:  # a withdrawn start queues the job again, but its wait began here
            run.queued = self._submitted(entry, float(entry["time"]))

    def _pending(self, entry: Entry) -> None:
        self._run(entry).why.append(str(entry["reason"]))

    def _running(self, entry: Entry) -> None:
        run = self._run(entry)
        self._set_gpus(run, entry["gpus"])
        run.start = float(entry["began"])
        run.alpha, run.best = _number(entry.get("alpha")), _number(entry.get("alpha_min"))
        if run.queued is None:
            run.queued = self._submitted(entry, None)

    def _ended(self, entry: Entry) -> None:
        run = self._run(entry)
        if entry.get("gpus"):
            self._set_gpus(run, entry["gpus"])
        run.start, run.end = float(entry["began"]), float(entry["ended"])
        run.state = str(entry.get("state", ""))
        run.ran_s = max(0.0, run.end - run.start)
        done, predicted = _number(entry.get("iterations")), _number(entry.get("predicted"))
        if done and predicted:
            run.predicted_s = run.ran_s * predicted / done
        self._close(run)

    def _gone(self, entry: Entry) -> None:
        run = self._run(entry)
        run.end, run.state = float(entry["ended"]) or entry["time"], str(entry["state"])
        if run.start is not None:
            run.ran_s = max(0.0, run.end - run.start)
        self._close(run)

    def _close(self, run: JobRun) -> None:
        del self._open[run.job]
        if run.end is not None:
            self._ended_at[run.job] = run.end

    def _submitted(self, entry: Entry, otherwise: float | None) -> float | None:
        """When the wait of a run began. A requeued job did not wait while it ran, whatever its time of submission."""
        submitted = _number(entry.get("submitted"))
        began = otherwise if submitted is None else submitted
        return None if began is None else max(began, self._ended_at.get(str(entry["job"]), began))

    def _vanished(self, entry: Entry) -> None:
        run = self._open.pop(str(entry["job"]), None)
        if run is not None:
            run.end, run.state = entry["time"], "?"

    def _set_gpus(self, run: JobRun, gpus: Mapping[str, Any]) -> None:
        run.gpus = {str(name): int(count) for name, count in gpus.items()}
        run.size = sum(run.gpus.values())
        self.nodes |= run.gpus.keys()

    def _cycle(self, entry: Entry) -> None:
        free = sum(int(count) * int(servers) for count, servers in entry["free"].items())
        self.queue.append(QueueLength(entry["time"], int(entry["queued"]), int(entry["running"]), free))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def gpu_rows(runs: Sequence[JobRun], node: str, until: float) -> list[tuple[JobRun, list[int]]]:
    """The rows of a node on which each run is drawn: free ones side by side if there are. GPU indices are not recorded.

    until: end time of runs that have not ended.
    """
    ran = [run for run in runs if run.start is not None and run.gpus.get(node)]
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    most, found = 0, list[tuple[JobRun, list[int]]]()
    for run in sorted(ran, key=lambda run: (run.start or 0.0, run.job)):
        while busy and busy[0][0] <= (run.start or 0.0):
            free.append(heapq.heappop(busy)[1])
        while len(free) < run.gpus[node]:
            free.append(most)
            most += 1
        rows = _side_by_side(sorted(free), run.gpus[node])
        free = [row for row in free if row not in rows]
        for row in rows:
            heapq.heappush(busy, (run.end if run.end is not None else until, row))
        found.append((run, rows))
    return found


def stretches(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Adjacent rows as (first, count). rows: in ascending order."""
    found = list[tuple[int, int]]()
    for row in rows:
        first, count = found[-1] if found else (0, 0)
        if count and row == first + count:
            found[-1] = first, count + 1
        else:
            found.append((row, 1))
    return found


def _side_by_side(free: Sequence[int], count: int) -> list[int]:
    """So many of the free rows: of the shortest stretch that has them, else the lowest ones."""
    fitting = [(length, first) for first, length in stretches(free) if length >= count]
    if not fitting:
        return list(free[:count])
    _, first = min(fitting)
    return list(range(first, first + count))
