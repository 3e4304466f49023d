"""What decides which training's tasks run next, and where: the interface of the round policies (decision 14).

The events are those of the simulator of rounds, so that one object can serve both.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from slurm_asrpt.core.registry import Registry


@dataclass(frozen=True)
class RoundJob:
    """A training as policies see it. tasks: per round. arrival_s: when it came, in seconds."""

    id: str
    tasks: int
    arrival_s: float = 0.0


@dataclass(slots=True, eq=False)
class Progress:
    """An active training. Policies read it and ``take`` its tasks; the board updates everything else.

    done: ended rounds. left: unscheduled tasks of the current round.
    """

    job: RoundJob
    done: int = 0
    left: int = 0

    def take(self, gpus: Sequence[int], tasks: Sequence[int]) -> Part:
        """Schedule tasks of the current round on idle slots. Raises ValueError for more tasks than are left."""
        if sum(tasks) > self.left:
            raise ValueError(f"{self.job.id} has {self.left} tasks left in its round, not {sum(tasks)}")
        self.left -= sum(tasks)
        return Part(self, gpus, tasks, not self.left)


@dataclass(slots=True)
class Part:
    """Tasks of a training's current round. tasks: their number per slot. last: whether the round has no more."""

    progress: Progress
    gpus: Sequence[int]
    tasks: Sequence[int]
    last: bool


class RoundPolicy(Protocol):
    """Gets events, and returns parts of rounds."""

    def arrived(self, job: Progress, now: float) -> None:
        """A training has arrived and needs a round."""

    def round_ended(self, job: Progress, now: float) -> None:
        """A round has ended, and the training needs another."""

    def finished(self, job: Progress, now: float) -> None:
        """A training's last round has ended."""

    def freed(self, gpus: Sequence[int], now: float) -> None:
        """These slots have become free."""

    def assign(self, now: float) -> Sequence[Part]:
        """The parts to start now, on idle slots."""


POLICIES = Registry[RoundPolicy]("round policy")


@POLICIES.register("arrival")
class Arrival:
    """Rounds in the order in which their trainings arrived; later ones fill the slots that earlier ones leave idle."""

    in_order_of_arrival = True
    """It need not see trainings that arrive later than those which fill the slots."""

    def __init__(self) -> None:
        self._arrivals: dict[str, int] = {}
        self._ready: list[tuple[int, str, Progress]] = []
        self._idle: list[int] = []

    def arrived(self, job: Progress, now: float) -> None:
        self._arrivals[job.job.id] = len(self._arrivals)
        self.round_ended(job, now)

    def round_ended(self, job: Progress, now: float) -> None:
        insort(self._ready, (self._arrivals[job.job.id], job.job.id, job))

    def finished(self, job: Progress, now: float) -> None:
        """Nothing to do: a training without a round to run is not in the queue."""

    def freed(self, gpus: Sequence[int], now: float) -> None:
        for gpu in gpus:
            insort(self._idle, gpu)

    def assign(self, now: float) -> list[Part]:
        parts = []
        while self._ready and self._idle:
            job = self._ready[0][2]
            gpus = self._idle[: job.left]
            del self._idle[: len(gpus)]
            parts.append(job.take(gpus, [1] * len(gpus)))
            if not job.left:
                del self._ready[0]
        return parts
