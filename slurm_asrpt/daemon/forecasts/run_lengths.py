"""How long jobs run, as 10-90% intervals: from the tag's prediction, and from what a running job reports."""

from __future__ import annotations

from slurm_asrpt.daemon.jobs.managed_job import Tracked
from slurm_asrpt.daemon.record.progress import Observed
from slurm_asrpt.forecast.sampling import UNKNOWN_S, Span
from slurm_asrpt.predict.conformal import Misses


def span_of(iterations: float, low: float, high: float, alpha: float = 1.0, unknown: Span = UNKNOWN_S) -> Span:
    """Iterations from a prediction and its interval. Without one, so many as take ``unknown`` at alpha seconds each."""
    return Span.around(iterations, low, high) if iterations > 0 else unknown.times(1 / alpha)


def told(tracked: Tracked, misses: Misses) -> tuple[float, float]:
    """The interval of a job's iterations as the misses move the tag's; 0 and 0 where there is none."""
    tag = tracked.tag
    if tag is None or not tag.iterations or not tag.high:
        return 0.0, 0.0
    return misses.around(tracked.record.uid, tag.low, tag.iterations, tag.high)


def iterations_of(tracked: Tracked, misses: Misses, alpha: float = 1.0, unknown: Span = UNKNOWN_S) -> Span:
    return span_of(tracked.tag.iterations if tracked.tag else 0, *told(tracked, misses), alpha, unknown)


def run_of(
    tracked: Tracked,
    misses: Misses,
    observed: Observed | None,
    best: float | None,
    ran_s: float,
    unknown: Span = UNKNOWN_S,
) -> tuple[Span, float]:
    """The whole run of a running job in seconds, and how much of it is over.

    best: α̃_min, for one whose placement is not known. unknown: seconds that a job lasts of which nothing is predicted.
    A total that it reports leaves but the speed to chance.
    """
    alpha = (tracked.real.alpha if tracked.real else None) or best or 1.0
    span = iterations_of(tracked, misses, alpha, unknown)
    if observed is None or tracked.job is None or not tracked.job.profiled:  # others count seconds, not iterations
        return span.times(alpha), ran_s
    progress, pace = observed.progress, observed.alpha or alpha
    left = progress.total - progress.done
    if left > 0:
        return Span(left * pace, left * pace, left * pace), 0.0
    return span.times(pace), (progress.done - progress.start) * pace
