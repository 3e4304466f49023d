"""What has lately come: forecasts draw from it who will come next."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from slurm_asrpt.core.job import Job, JobId, unprofiled
from slurm_asrpt.daemon.lengths import span_of
from slurm_asrpt.forecast.snapshot import Waiting
from slurm_asrpt.forecast.span import Span
from slurm_asrpt.predict.history import Run

WINDOW_S = 86400.0
"""A day: it holds the hours in which people submit and those in which they do not."""
MOST = 2000
"""Of more an even part is told."""
KEPT = 10_000
"""Of more in a day only the latest count, and as all that came: a burst is no rate that goes on."""


class Arrivals:
    """Jobs that became eligible in the last WINDOW_S seconds. runs: those that the history tells of."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        before = sorted(runs, key=lambda run: run.submit_time)
        self._jobs = deque((_lately(run) for run in before if run.gpus > 0), KEPT)

    def came(self, job: Job, span: Span, now: float) -> None:
        self._jobs.append(Waiting(replace(job, submit_time=now), span))

    def recent(self, now: float) -> tuple[Sequence[Waiting], float]:
        """They, and how long a time they came in, seconds: a part of them in the like part of the time."""
        while self._jobs and self._jobs[0].job.submit_time <= now - WINDOW_S:
            self._jobs.popleft()
        part = tuple(islice(self._jobs, 0, None, 1 + len(self._jobs) // MOST))
        share = len(part) / max(len(self._jobs), 1)
        return (part if share == 1 else tuple(_nearer(each, now, share) for each in part)), WINDOW_S * (share or 1)


def _nearer(each: Waiting, now: float, share: float) -> Waiting:
    return replace(each, job=replace(each.job, submit_time=now - share * (now - each.job.submit_time)))


def _lately(run: Run) -> Waiting:
    """A run of the history as a job. Its profile and shape are not known any more: only its length counts here."""
    job = Job(JobId(run.job_id), run.user, run.gpus, unprofiled(run.gpus), submit_time=float(run.submit_time))
    alpha = run.alpha or 1.0
    span = span_of(run.predicted_iterations, run.predicted_low, run.predicted_high)
    return Waiting(replace(job, predicted_iterations=run.predicted_iterations * alpha), span.times(alpha))
