"""What is learned of a run, and expected of one that runs: seconds per iteration, seconds of work, the rest."""

from types import SimpleNamespace

import pytest

from slurm_asrpt.daemon.forecasts.run_lengths import run_of
from slurm_asrpt.daemon.record.history import _iteration_s, _work
from slurm_asrpt.daemon.record.progress import Observed
from slurm_asrpt.forecast.sampling import Quantiles
from slurm_asrpt.history.store import Source
from slurm_asrpt.spool import Progress

ELAPSED = 100.0
UNKNOWN = Quantiles(10.0, 20.0, 40.0)


def ended(restarts=0, reference_alpha=2.0):
    """A job whose last run took 100 s."""
    record = SimpleNamespace(start_time=1_000_000.0, end_time=1_000_000.0 + ELAPSED, restarts=restarts)
    return SimpleNamespace(record=record, reference_alpha=reference_alpha)


@pytest.mark.parametrize(
    ("restarts", "reported", "seconds"),
    [
        (0, Progress(250, start=50), 0.5),
        (0, Progress(50, start=50), 0.0),
        (0, None, 0.0),
        (1, Progress(250, start=50), 0.0),  # of all its runs, not of this one
        (0, Progress(100_000), 0.001),
        (0, Progress(100_001), 0.0),  # too quick to be true
    ],
)
def test_seconds_per_iteration_are_those_of_the_iterations_that_the_run_itself_did(restarts, reported, seconds):
    assert _iteration_s(ended(restarts), reported) == pytest.approx(seconds, abs=1e-12)


def run(iterations=1000, alpha=4.0, source=Source.REPORTED, elapsed=ELAPSED):
    return SimpleNamespace(
        iterations=iterations, alpha=alpha, iterations_source=source, start_time=7.0, end_time=7.0 + elapsed
    )


@pytest.mark.parametrize(
    ("job", "of", "seconds"),
    [
        (ended(), run(), 50),  # its placement was twice as slow as the best one
        (ended(), run(alpha=0.0), 100),
        (ended(reference_alpha=0.0), run(), 100),
        (ended(), run(elapsed=0.0), 1),
        (ended(restarts=1), run(), 2000),  # of all runs together
        (ended(restarts=1), run(iterations=0), 1),
        (ended(restarts=1), run(source=Source.ELAPSED), 50),
        (ended(restarts=1, reference_alpha=0.0), run(), 100),
    ],
)
def test_the_work_of_a_run_is_its_elapsed_time_or_of_a_requeued_job_its_reported_iterations(job, of, seconds):
    assert _work(job, of) == seconds


@pytest.mark.parametrize(
    ("progress", "alpha", "span", "elapsed"),
    [
        (Progress(30, start=10), 3.0, (15.0, 30.0, 60.0), 60.0),  # it did 20 iterations itself, of 3 s each
        (Progress(30, start=10), None, (10.0, 20.0, 40.0), 40.0),
        (Progress(30, 30, start=10), 3.0, (15.0, 30.0, 60.0), 60.0),
        (Progress(30, 31, start=10), 3.0, (3.0, 3.0, 3.0), 0.0),
        (Progress(30, 50, start=10), 3.0, (60.0, 60.0, 60.0), 0.0),
    ],
)
def test_the_runtime_of_a_job_that_reports_is_counted_in_its_own_iterations(progress, alpha, span, elapsed):
    """Of a job without a prediction, in a placement of 2 s per iteration."""
    placement, profiled = SimpleNamespace(alpha=2.0), SimpleNamespace(profiled=True)
    job = SimpleNamespace(placement=placement, prediction=None, job=profiled)
    assert run_of(job, None, Observed(progress, alpha), 1.0, 999.0, UNKNOWN) == (Quantiles(*span), elapsed)
