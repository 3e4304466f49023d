"""A round policy that differs from the pool's own as much as it may."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from slurm_asrpt.core.rounds.jobs import Fleet, Part, Progress, RoundJob
from slurm_asrpt.core.rounds.policy import register


@register("turns")
class Turns:
    """Trainings in turns, a round each, all tasks of a round on one slot. On one slot, every round is a switch."""

    def __init__(self, fleet: Fleet, jobs: Sequence[RoundJob]) -> None:
        self._ready = deque[Progress]()
        self._idle: list[int] = []

    def arrived(self, job: Progress, now: float) -> None:
        self._ready.append(job)

    def round_ended(self, job: Progress, now: float) -> None:
        self._ready.append(job)

    def finished(self, job: Progress, now: float) -> None:
        """Nothing to do."""

    def freed(self, gpus: Sequence[int], now: float) -> None:
        self._idle += gpus

    def assign(self, now: float) -> list[Part]:
        if not (self._ready and self._idle):
            return []
        job = self._ready.popleft()
        return [job.take([self._idle.pop()], [job.left])]
