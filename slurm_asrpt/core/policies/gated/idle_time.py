"""GPU time that idles for a job counts as its work.

For a job with a reservation, what idles until it begins (decision 0049); for a job that would delay a larger one, what
it leaves idle of the GPUs that this one needs (decisions 0050, 0052).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies.gated.servers import Reservation

FIRST_RATIO = 2.0
"""Assumed ratio before any reservation has ended; counts as much as one reservation."""
FADE = 0.98
"""What a reservation counts less with each later one of its size."""


def of_delay(work: float, larger: int, jobs: int, beside: float, later: float) -> float:
    """The work of a job that occupies GPUs for which so many jobs of ``larger`` GPUs wait.

    It is the time of all these GPUs, shared with the jobs beside it in proportion to what they use of it. The first of
    the larger jobs waits for all of it, the others for what it is more now than later.
    beside: how many of these GPUs it and the jobs beside it use. later: the same if it runs after the first of the
    larger jobs, beside those that come meanwhile.
    """
    now, then = (max(1.0, larger / used) if used else 1.0 for used in (beside, later))
    return work * (now + (jobs - 1) * max(0.0, now - then))


def shared(idle: float, works: Iterable[float]) -> float:
    """The least (idle + w_1 + ... + w_k) / k over k: the work of each of k jobs, if these share the idle time.

    works: w_1, w_2, ..., ascending, at least one.
    """
    least, total = math.inf, idle
    for number, work in enumerate(works, 1):
        if work >= least:  # from here on, the mean increases
            break
        total += work
        least = total / number
    return least


class Sums(NamedTuple):
    """Faded sums over reservations, seconds but for the number. kept: the predictions of those whose job started."""

    number: float
    lasted: float
    predicted: float
    kept: float


class Watched(NamedTuple):
    """A reservation that is not over: its latest job and servers; when it began; when it was to begin then."""

    job_id: JobId
    gpus: int
    mask: int
    since: float
    until: float


class Overruns:
    """How long reservations have lasted per second predicted for those that led to a start, by size of the jobs.

    A reservation that is given up for nothing has lasted as well. One that goes on for another job on some of the same
    servers is the same reservation.
    """

    def __init__(self) -> None:
        self._sums: dict[int, Sums] = {}
        self._watched: Watched | None = None

    def ratio(self, gpus: int) -> float:
        """The ratio for jobs of about as many GPUs: between powers of two."""
        sums = self._sums.get(gpus.bit_length())
        if sums is None:
            return FIRST_RATIO
        usual = sums.predicted / sums.number
        return (sums.lasted + FIRST_RATIO * usual) / (sums.kept + usual) if usual else FIRST_RATIO

    def follow(self, held: Reservation | None, waiting: Container[JobId], now: float) -> None:
        """The reservation after a decision. waiting: the jobs that still wait."""
        watched = self._watched
        if held is not None and watched is not None and held.mask & watched.mask:
            self._watched = watched._replace(job_id=held.job.id, gpus=held.job.gpus, mask=held.mask)
            return
        if watched is not None:
            self._over(watched, watched.job_id not in waiting, now)
        self._watched = Watched(held.job.id, held.job.gpus, held.mask, now, held.time) if held is not None else None

    def _over(self, watched: Watched, started: bool, now: float) -> None:
        size = watched.gpus.bit_length()
        predicted = max(0.0, watched.until - watched.since)
        new = (1.0, now - watched.since, predicted, predicted * started)
        old = self._sums.get(size, (0.0,) * 4)
        self._sums[size] = Sums(*(FADE * before + one for before, one in zip(old, new, strict=True)))

    def forget(self) -> None:
        """The servers are others now, so the reservation that is not over does not count."""
        self._watched = None

    def dump(self) -> dict[str, Any]:
        return {str(size): list(sums) for size, sums in self._sums.items()}

    def load(self, state: Mapping[str, Sequence[float]]) -> None:
        """Raises TypeError or ValueError for an invalid state."""
        found = {int(size): Sums(*map(float, sums)) for size, sums in state.items()}
        if not all(math.isfinite(figure) and figure >= 0.0 for sums in found.values() for figure in sums):
            raise ValueError("sums over reservations that are negative or not finite")
        if not all(sums.number > 0.0 for sums in found.values()):
            raise ValueError("sums over no reservation")
        self._sums, self._watched = found, None
