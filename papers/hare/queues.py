"""K queues by attained service, as HLAS and 2D-LAS have them (section IV-C; HLAS-P's sub-queues: section V-B)."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence

from papers.hare.jobs import Progress
from slurm_asrpt.core.policies.hlas.policy import level_of


class Level:
    """One queue. Jobs whose round is partially scheduled go first, then those with predicted rounds left, then FIFO."""

    __slots__ = ("fifo", "partial", "predicted")

    def __init__(self) -> None:
        self.partial: deque[Progress] = deque()
        self.predicted: list[tuple[float, int, Progress]] = []
        self.fifo: deque[Progress] = deque()

    def __bool__(self) -> bool:
        return bool(self.partial or self.predicted or self.fifo)

    def pop(self) -> Progress:
        if self.partial:
            return self.partial.popleft()
        return self.predicted.pop(0)[2] if self.predicted else self.fifo.popleft()


class Queues:
    """The queues, Q_1 first. ends: E_k^H in ascending order; a job of that size is in the next queue."""

    def __init__(self, ends: Sequence[float]) -> None:
        self._ends = tuple(ends)
        self.levels = [Level() for _ in range(len(self._ends) + 1)]
        self._added = 0

    def level(self, size: float) -> int:
        """The queue of a size, from 0."""
        return level_of(size, self._ends)

    def add(self, job: Progress, size: float, predicted: float = 0.0) -> None:
        """A job that wants a round. predicted: R^p, rounds; with any it waits in the first sub-queue, most first."""
        level = self.levels[self.level(size)]
        self._added += 1
        if predicted > 0:
            insort(level.predicted, (-predicted, self._added, job))
        else:
            level.fifo.append(job)

    def keep(self, job: Progress, size: float) -> None:
        """A job that has been taken out and has tasks of its round left."""
        self.levels[self.level(size)].partial.appendleft(job)

    def pop(self) -> Progress | None:
        """The job to serve next, taken out; None if nobody waits."""
        for level in self.levels:
            if level:
                return level.pop()
        return None
