"""The K queues of HLAS and 2D-LAS by attained service (section IV-C; HLAS-P's sub-queues: section V-B)."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Sequence

from slurm_asrpt.core.policies.hlas.policy import level_of
from slurm_asrpt.core.rounds.jobs import Progress


class Level:
    """One queue. Jobs with a partially scheduled round come first, then those with predicted rounds, then FIFO."""

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
        """The index of the queue for a size."""
        return level_of(size, self._ends)

    def add(self, job: Progress, size: float, predicted: float = 0.0) -> None:
        """Add a job that needs a round. predicted: R^p, rounds; above 0, it is in the first sub-queue, most first."""
        level = self.levels[self.level(size)]
        self._added += 1
        if predicted > 0:
            insort(level.predicted, (-predicted, self._added, job))
        else:
            level.fifo.append(job)

    def keep(self, job: Progress, size: float) -> None:
        """Return a job that was taken out and still has tasks of its round."""
        self.levels[self.level(size)].partial.appendleft(job)

    def pop(self) -> Progress | None:
        """Take out the next job; None if there is none."""
        for level in self.levels:
            if level:
                return level.pop()
        return None
