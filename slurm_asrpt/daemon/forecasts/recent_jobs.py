"""What forecasts learn from recent jobs: arrivals, runtimes, idle gaps of GPUs, and conformal adjustments."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from typing import Any

from pydantic import TypeAdapter

from slurm_asrpt.core.job import Job, JobId, unprofiled
from slurm_asrpt.daemon.forecasts.run_lengths import iterations_of, span_of
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.errors import one_line
from slurm_asrpt.forecast.conformal import StartConformal
from slurm_asrpt.forecast.sampling import UNKNOWN_S, Quantiles
from slurm_asrpt.forecast.snapshot import Waiting
from slurm_asrpt.forecast.survival import typical_run_time
from slurm_asrpt.history.store import History, HistoryError, Run
from slurm_asrpt.predict.conformal import RunConformal

LOG = logging.getLogger("asrptd")
WINDOW_S = 86400.0
"""A day, so that it covers busy and quiet hours."""
MAX_ARRIVALS = 2000
"""Maximum number of arrivals; of more, an even sample is used."""
MAX_PER_DAY = 10_000
"""Maximum number of jobs in a day; of more, only the latest count. A burst is not a lasting rate."""
MAX_ENDED = 100
"""Number of latest runs that runtimes are estimated from."""


@dataclass(frozen=True)
class _Arrival:
    """span: the job's iterations, None without a prediction. alpha: seconds per iteration in the best placement."""

    job: Job
    span: Quantiles | None
    alpha: float

    def waiting(self, unknown: Quantiles, work_s: float | None = None) -> Waiting:
        """work_s: what the job took, if it has ended: seconds in its best placement."""
        span = self.span or unknown.scaled(1 / self.alpha)
        return Waiting(self.job, span if work_s is None else Quantiles(work_s, work_s, work_s).scaled(1 / self.alpha))


class Arrivals:
    """Jobs that became eligible in the last WINDOW_S seconds.

    Those that have ended come with what they took, which is known, and not with their predictions.

    runs: from the history. since: when asrptd began to observe, seconds since the epoch. Arrivals before that are
    unknown, not zero.
    """

    def __init__(self, runs: Iterable[Run] = (), since: float = -math.inf) -> None:
        known = [run for run in runs if run.gpus > 0]
        self._jobs = deque((_from_history(run) for run in sorted(known, key=lambda run: run.submit_time)), MAX_PER_DAY)
        self._since = min([since, *(run.submit_time for run in known)])
        self._ended = deque[float](maxlen=MAX_ENDED)
        self._work_s = dict[JobId, float]()  # of the jobs that have ended
        for run in sorted(known, key=lambda run: run.end_time):
            self.ended(run)

    def arrived(self, job: Job, span: Quantiles | None, alpha: float, now: float) -> None:
        """A job became eligible at ``now``, an array task with its array. span, alpha: as in _Arrival."""
        self._jobs.append(_Arrival(replace(job, submit_time=now), span, alpha))
        self._since = min(self._since, now)

    def ended(self, run: Run) -> None:
        """Take an ended run into account."""
        if run.start_time:
            ran_s = run.end_time - run.start_time
            self._ended.append(float(ran_s))
            self._work_s[JobId(run.job_id)] = float(max(1, run.work_s or ran_s))

    def run_times(self, going_s: Sequence[float]) -> Quantiles:
        """Runtimes of jobs, seconds. going_s: elapsed seconds of the running jobs."""
        return typical_run_time(self._ended, going_s)

    def recent(
        self, now: float, unknown: Quantiles = UNKNOWN_S, least_s: float = 0.0
    ) -> tuple[Sequence[Waiting], float]:
        """The arrivals and the seconds that they cover. If there are many, a sample in a proportionally shorter time.

        unknown: runtimes of jobs without a prediction, seconds. least_s: lower bound of the time.
        """
        recent = [each for each in self._jobs if each.job.submit_time > now - WINDOW_S]
        recent.sort(key=lambda each: each.job.submit_time)  # array tasks may appear after later jobs
        self._jobs = deque(recent, MAX_PER_DAY)
        self._work_s = {each.job.id: self._work_s[each.job.id] for each in recent if each.job.id in self._work_s}
        window_s = min(WINDOW_S, max(now - self._since, least_s))
        sample = recent[:: 1 + len(recent) // MAX_ARRIVALS]
        part = [each.waiting(unknown, self._work_s.get(each.job.id)) for each in sample]
        share = len(part) / max(len(recent), 1)
        return tuple(part if share == 1 else (_compressed(each, now, share) for each in part)), window_s * (share or 1)


def _compressed(each: Waiting, now: float, share: float) -> Waiting:
    return replace(each, job=replace(each.job, submit_time=now - share * (now - each.job.submit_time)))


def _from_history(run: Run) -> _Arrival:
    """A run of the history as a job. Its profile and shape are unknown; only its length counts."""
    job = Job(JobId(run.job_id), run.user, run.gpus, unprofiled(run.gpus), submit_time=float(run.submit_time))
    alpha = run.alpha or 1.0
    span = span_of(run.predicted_iterations, run.predicted_low, run.predicted_high).scaled(alpha)
    known = run.predicted_iterations > 0
    order = (run.predicted_mean or run.predicted_iterations) * alpha
    return _Arrival(replace(job, predicted_iterations=order), span if known else None, 1.0)


KEPT_GAPS = 50
"""Number of latest ends and starts that are kept."""


class IdleGaps:
    """Delays between a job's end and its observation, and between the decision and the start of a job. Seconds."""

    def __init__(self) -> None:
        self._ends, self._starts = deque[float](maxlen=KEPT_GAPS), deque[float](maxlen=MAX_PER_DAY)

    def ended(self, seconds: float) -> None:
        self._ends.append(seconds)

    def started(self, seconds: float) -> None:
        self._starts.append(seconds)

    def typical_s(self) -> float:
        """Seconds from the end of a job to the next start on its GPUs. Medians, because a few delays are very long."""
        return max(0.0, sum(median(each) for each in (self._ends, self._starts) if each))


_ADJUSTMENT = TypeAdapter(StartConformal)


@dataclass
class RecentJobs:
    """run_adjustment, start_adjustment: the conformal adjustments of predicted runtimes and of start-time forecasts."""

    arrivals: Arrivals = field(default_factory=Arrivals)
    run_adjustment: RunConformal = field(default_factory=RunConformal)
    start_adjustment: StartConformal = field(default_factory=StartConformal)
    idle_gaps: IdleGaps = field(default_factory=IdleGaps)

    @classmethod
    def of_history(cls, connect: Callable[[], History], now: float) -> RecentJobs:
        """From the history; if it cannot be read, asrptd starts without it."""
        recent = cls(Arrivals(since=now))
        try:
            recent.arrivals = _arrivals_of(connect(), now)
        except HistoryError as error:
            LOG.error("%s", one_line(error))
        try:
            recent.run_adjustment = RunConformal.of_history(connect(), now)
        except HistoryError as error:
            LOG.error("%s", one_line(error))
        return recent

    def dump_adjustment(self) -> dict[str, Any]:
        """The adjustment of start times, to be saved."""
        return asdict(self.start_adjustment)

    def load_adjustment(self, saved: Any) -> None:
        """Continue from what ``dump_adjustment`` returned; from nothing if it is missing or damaged."""
        try:
            self.start_adjustment = _ADJUSTMENT.validate_python(saved)
        except ValueError:
            self.start_adjustment = StartConformal()

    def arrived(self, job: ManagedJob, admitted: Job, alpha: float, since: float) -> None:
        """A job became eligible at ``since``. alpha: α̃_min."""
        span = iterations_of(job, self.run_adjustment) if admitted.predicted_iterations > 0 else None
        self.arrivals.arrived(admitted, span, alpha, since)

    def ended(self, run: Run, now: float) -> None:
        """The end of a run was observed at ``now``."""
        self.arrivals.ended(run)
        self.idle_gaps.ended(now - run.end_time)
        self.run_adjustment.learn_run(run)


def _arrivals_of(history: History, now: float) -> Arrivals:
    """Jobs of the last day. Raises HistoryError."""
    first = int(now - WINDOW_S)
    known = history.count("submit_time BETWEEN 1 AND ?", (first,))
    runs = history.runs_where("end_time >= ? AND submit_time >= ?", [first] * 2)
    return Arrivals(runs, first if known else now)
