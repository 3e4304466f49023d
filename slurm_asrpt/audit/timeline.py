"""From the events of the trail to the runs of jobs: when each waited, ran and ended, and where."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_asrpt.audit.trail import Entry


@dataclass
class Life:
    """One run of a job, its wait before it included. Times are seconds since the epoch, None where nobody told.

    gpus: by node, as allocated. predicted_s, ran_s: of a run that has ended, None without a prediction.
    alpha, best: seconds per iteration where it ran, and at best. why: the kinds of reasons for which it waited.
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
        """How many times longer it ran than predicted."""
        return self.ran_s / self.predicted_s if self.ran_s and self.predicted_s else None


@dataclass(frozen=True)
class Queue:
    """How many jobs waited (for the policy) and ran, and how many GPUs were free, from ``time`` on."""

    time: float
    waiting: int
    running: int
    free: int


class Lives:
    """What a part of the trail tells. Facts that are not as asrptd writes them are skipped, not trusted."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.lives: list[Life] = []
        self.queue: list[Queue] = []
        self.nodes: set[str] = set()
        self._open: dict[str, Life] = {}
        tell = {
            "queued": self._queued,
            "wait": self._waits,
            "running": self._runs,
            "ended": self._ends,
            "cut": self._ends,
            "gone": self._is_gone,
            "vanished": self._vanishes,
            "cycle": self._cycle,
        }
        for entry in entries:
            told = tell.get(entry["event"])
            if told is not None:
                try:
                    told(entry)
                except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
                    continue  # of another release, or damaged

    def _life(self, entry: Entry) -> Life:
        job = str(entry["job"])
        life = self._open.get(job)
        if life is None:
            life = self._open[job] = Life(job)
            self.lives.append(life)
        life.user = str(entry.get("user", life.user))
        return life

    def _queued(self, entry: Entry) -> None:
        life = self._life(entry)
        life.name, life.size = str(entry.get("name", "")), int(entry["gpus"])
        if life.queued is None:  # a start that was taken back queues it again, but it has waited since then
            life.queued = entry["time"]

    def _waits(self, entry: Entry) -> None:
        self._life(entry).why.append(str(entry["reason"]))

    def _runs(self, entry: Entry) -> None:
        life = self._life(entry)
        self._ran_on(life, entry["gpus"])
        life.start = float(entry["began"])
        life.alpha, life.best = _number(entry.get("alpha")), _number(entry.get("alpha_min"))
        if life.queued is None and "submitted" in entry:
            life.queued = float(entry["submitted"])

    def _ends(self, entry: Entry) -> None:
        life = self._life(entry)
        if entry.get("gpus"):
            self._ran_on(life, entry["gpus"])
        life.start, life.end = float(entry["began"]), float(entry["ended"])
        life.state = str(entry.get("state", ""))
        life.ran_s = max(0.0, life.end - life.start)
        done, predicted = _number(entry.get("iterations")), _number(entry.get("predicted"))
        if done and predicted:
            life.predicted_s = life.ran_s * predicted / done
        del self._open[life.job]

    def _is_gone(self, entry: Entry) -> None:
        life = self._life(entry)
        life.end, life.state = float(entry["ended"]) or entry["time"], str(entry["state"])
        if life.start is not None:
            life.ran_s = max(0.0, life.end - life.start)
        del self._open[life.job]

    def _vanishes(self, entry: Entry) -> None:
        life = self._open.pop(str(entry["job"]), None)
        if life is not None:
            life.end, life.state = entry["time"], "?"

    def _ran_on(self, life: Life, gpus: Mapping[str, Any]) -> None:
        life.gpus = {str(name): int(count) for name, count in gpus.items()}
        life.size = sum(life.gpus.values())
        self.nodes |= life.gpus.keys()

    def _cycle(self, entry: Entry) -> None:
        free = sum(int(count) * int(servers) for count, servers in entry["free"].items())
        self.queue.append(Queue(entry["time"], int(entry["queued"]), int(entry["running"]), free))


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None


def slots(lives: Sequence[Life], node: str, until: float) -> list[tuple[Life, list[int]]]:
    """Which rows of a node's GPUs each run is drawn on: the lowest that are free then. The GPUs' numbers nobody told.

    until: when runs end that have not ended.
    """
    ran = [life for life in lives if life.start is not None and life.gpus.get(node)]
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    most, found = 0, list[tuple[Life, list[int]]]()
    for life in sorted(ran, key=lambda life: (life.start or 0.0, life.job)):
        while busy and busy[0][0] <= (life.start or 0.0):
            heapq.heappush(free, heapq.heappop(busy)[1])
        rows: list[int] = []
        while len(rows) < life.gpus[node]:
            if not free:
                heapq.heappush(free, most)
                most += 1
            rows.append(heapq.heappop(free))
        for row in rows:
            heapq.heappush(busy, (life.end if life.end is not None else until, row))
        found.append((life, rows))
    return found
