"""Runtimes of jobs as 10-90% intervals, from the tag's prediction and the job's reports."""

from __future__ import annotations

from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.record.progress import Observed
from slurm_asrpt.forecast.sampling import UNKNOWN_S, Quantiles
from slurm_asrpt.predict.conformal import RunConformal


def span_of(
    iterations: float, low: float, high: float, alpha: float = 1.0, unknown: Quantiles = UNKNOWN_S
) -> Quantiles:
    """Iterations from a prediction and its interval; without one, the runtimes ``unknown`` over alpha."""
    return Quantiles.ordered(iterations, low, high) if iterations > 0 else unknown.scaled(1 / alpha)


def predicted_interval(job: ManagedJob, adjustment: RunConformal) -> tuple[float, float]:
    """The interval of a job's iterations: the tag's, with the conformal adjustment; (0, 0) if there is none."""
    tag = job.prediction
    if tag is None or not tag.iterations or not tag.high:
        return 0.0, 0.0
    return adjustment.adjusted(job.record.uid, tag.low, tag.iterations, tag.high)


def iterations_of(
    job: ManagedJob, adjustment: RunConformal, alpha: float = 1.0, unknown: Quantiles = UNKNOWN_S
) -> Quantiles:
    tag = job.prediction
    return span_of(tag.iterations if tag else 0, *predicted_interval(job, adjustment), alpha, unknown)


def run_of(
    job: ManagedJob,
    adjustment: RunConformal,
    observed: Observed | None,
    best: float | None,
    ran_s: float,
    unknown: Quantiles = UNKNOWN_S,
) -> tuple[Quantiles, float]:
    """The total runtime of a running job, and how much of it has elapsed, seconds.

    best: α̃_min, used if the placement is unknown. unknown: runtimes of jobs without a prediction, seconds.
    If the job reports its total iterations, only its speed is uncertain.
    """
    alpha = (job.placement.alpha if job.placement else None) or best or 1.0
    span = iterations_of(job, adjustment, alpha, unknown)
    if observed is None or job.job is None or not job.job.profiled:  # without a profile, predictions are seconds
        return span.scaled(alpha), ran_s
    progress, pace = observed.progress, observed.alpha or alpha
    left = progress.total - progress.done
    if left > 0:
        return Quantiles(left * pace, left * pace, left * pace), 0.0
    return span.scaled(pace), (progress.done - progress.start) * pace
