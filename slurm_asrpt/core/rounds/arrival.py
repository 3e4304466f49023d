"""The default of pools: rounds in the order in which their trainings arrived."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from slurm_asrpt.core.rounds.jobs import Fleet, Part, Progress, RoundJob
from slurm_asrpt.core.rounds.policy import register


@register("arrival")
class Arrival:
    """Rounds in the order of arrival; later trainings fill the GPUs that earlier ones leave idle."""

    in_order_of_arrival = True
    """It need not see trainings that arrive later than those which fill the GPUs."""

    def __init__(self, fleet: Fleet, jobs: Sequence[RoundJob]) -> None:
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
