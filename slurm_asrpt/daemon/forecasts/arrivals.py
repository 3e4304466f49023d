"""What has lately come, how long it ran, and how long GPUs rested in between: what forecasts draw the future from."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from slurm_asrpt.core.job import Job, JobId, unprofiled
from slurm_asrpt.daemon.forecasts.run_lengths import span_of
from slurm_asrpt.forecast.sampling import UNKNOWN_S, Span
from slurm_asrpt.forecast.snapshot import Waiting
from slurm_asrpt.forecast.survival import usual
from slurm_asrpt.history.store import Run

WINDOW_S = 86400.0
"""A day: it holds the hours in which people submit and those in which they do not."""
MOST = 2000
"""Of more an even part is told."""
KEPT = 10_000
"""Of more in a day only the latest count, and as all that came: a burst is no rate that goes on."""
ENDED = 100
"""So many of the latest runs say what is usual."""


@dataclass(frozen=True)
class _Came:
    """span: its iterations, None where nothing is predicted; each takes alpha seconds in the best placement."""

    job: Job
    span: Span | None
    alpha: float

    def waiting(self, unknown: Span) -> Waiting:
        return Waiting(self.job, self.span or unknown.times(1 / self.alpha))


class Arrivals:
    """Jobs that became eligible in the last WINDOW_S seconds.

    runs: those that the history tells of. since: when one began to look, seconds since the epoch; of what was before
    nothing is known, which does not mean that nobody came.
    """

    def __init__(self, runs: Iterable[Run] = (), since: float = -math.inf) -> None:
        known = [run for run in runs if run.gpus > 0]
        self._jobs = deque((_lately(run) for run in sorted(known, key=lambda run: run.submit_time)), KEPT)
        self._since = min([since, *(run.submit_time for run in known)])
        self._ended = deque[float](maxlen=ENDED)
        self.rests = Rests()
        for run in sorted(known, key=lambda run: run.end_time):
            self._ran(run)

    def came(self, job: Job, span: Span | None, alpha: float, now: float) -> None:
        """Eligible at ``now``, a task with its array; span and alpha as in _Came."""
        self._jobs.append(_Came(replace(job, submit_time=now), span, alpha))
        self._since = min(self._since, now)

    def ended(self, run: Run, now: float) -> None:
        """Seen at ``now`` to have ended."""
        self._ran(run)
        self.rests.ended(now - run.end_time)

    def _ran(self, run: Run) -> None:
        if run.start_time:
            self._ended.append(float(run.end_time - run.start_time))

    def usual(self, going_s: Sequence[float]) -> Span:
        """Seconds that jobs run; going_s: how long those have run that do now."""
        return usual(self._ended, going_s)

    def recent(self, now: float, unknown: Span = UNKNOWN_S, least_s: float = 0.0) -> tuple[Sequence[Waiting], float]:
        """They, and how long a time they came in, seconds: a part of them in the like part of the time.

        unknown: seconds that one lasts of which nothing is predicted. least_s: the time is never taken to be shorter.
        """
        lately = [came for came in self._jobs if came.job.submit_time > now - WINDOW_S]
        lately.sort(key=lambda came: came.job.submit_time)  # tasks of an array are seen after others that came later
        self._jobs = deque(lately, KEPT)
        window_s = min(WINDOW_S, max(now - self._since, least_s))
        part = [came.waiting(unknown) for came in lately[:: 1 + len(lately) // MOST]]
        share = len(part) / max(len(lately), 1)
        return tuple(part if share == 1 else (_nearer(each, now, share) for each in part)), window_s * (share or 1)


def _nearer(each: Waiting, now: float, share: float) -> Waiting:
    return replace(each, job=replace(each.job, submit_time=now - share * (now - each.job.submit_time)))


def _lately(run: Run) -> _Came:
    """A run of the history as a job. Its profile and shape are not known any more: only its length counts here."""
    job = Job(JobId(run.job_id), run.user, run.gpus, unprofiled(run.gpus), submit_time=float(run.submit_time))
    alpha = run.alpha or 1.0
    span = span_of(run.predicted_iterations, run.predicted_low, run.predicted_high).times(alpha)
    known = run.predicted_iterations > 0
    order = (run.predicted_mean or run.predicted_iterations) * alpha
    return _Came(replace(job, predicted_iterations=order), span if known else None, 1.0)


KEPT_GAPS = 50
"""So many of the latest ends and starts are remembered."""


class Rests:
    """Seconds that ends took to be seen here, and starts to happen once they were decided."""

    def __init__(self) -> None:
        self._ends, self._starts = deque[float](maxlen=KEPT_GAPS), deque[float](maxlen=KEPT)

    def ended(self, seconds: float) -> None:
        self._ends.append(seconds)

    def started(self, seconds: float) -> None:
        self._starts.append(seconds)

    def usual(self) -> float:
        """From the end of a job to the next start on its GPUs: in the median, as some are seen after hours."""
        return max(0.0, sum(median(each) for each in (self._ends, self._starts) if each))
