"""The recent arrivals in a snapshot: their rate stays that of a day, however many there were."""

import math
from itertools import pairwise

import pytest

from slurm_asrpt.core.job import Job, JobId, unprofiled
from slurm_asrpt.daemon.forecasts.recent_jobs import MAX_ARRIVALS, MAX_PER_DAY, WINDOW_S, Arrivals
from slurm_asrpt.forecast.sampling import Quantiles
from slurm_asrpt.history.store import Run

NOW = 1e6


def arrivals_at(*times: float, since: float = -math.inf) -> Arrivals:
    arrivals = Arrivals(since=since)
    for number, time in enumerate(times):
        arrivals.arrived(Job(JobId(str(number)), "u", 1, unprofiled(1)), Quantiles(1.0, 2.0, 3.0), 1.0, time)
    return arrivals


def test_few_arrivals_are_all_listed() -> None:
    jobs, window_s = arrivals_at(NOW - WINDOW_S - 1, NOW - 500, NOW - 3).recent(NOW)
    assert [job.job.submit_time for job in jobs] == [NOW - 500, NOW - 3]
    assert window_s == WINDOW_S


def test_without_arrivals_the_list_is_empty() -> None:
    assert arrivals_at().recent(NOW) == ((), WINDOW_S)


@pytest.mark.parametrize("number", [MAX_ARRIVALS, 3 * MAX_ARRIVALS - 1, MAX_PER_DAY])
def test_a_sample_of_many_arrivals_keeps_their_rate(number: int) -> None:
    jobs, window_s = arrivals_at(*(NOW - WINDOW_S * (1 - n / number) for n in range(1, number))).recent(NOW)
    assert len(jobs) <= MAX_ARRIVALS
    assert len(jobs) / window_s == pytest.approx((number - 1) / WINDOW_S)
    times = [job.job.submit_time for job in jobs]
    assert NOW - window_s < times[0] < NOW - 0.99 * window_s
    assert max(b - a for a, b in pairwise(times)) == pytest.approx(WINDOW_S / number, rel=0.01)


def test_a_burst_does_not_raise_the_rate_for_the_whole_day() -> None:
    jobs, window_s = arrivals_at(*(NOW - 60 + n / MAX_PER_DAY for n in range(2 * MAX_PER_DAY))).recent(NOW)
    assert len(jobs) / window_s == pytest.approx(MAX_PER_DAY / WINDOW_S)


def test_time_before_the_first_observation_does_not_lower_the_rate() -> None:
    assert arrivals_at(NOW - 50, since=NOW - 300).recent(NOW)[1] == 300
    assert arrivals_at(NOW - 500, since=NOW - 300).recent(NOW)[1] == 500
    assert arrivals_at(NOW - 50, since=NOW - 300).recent(NOW, least_s=600)[1] == 600
    assert arrivals_at(NOW - 50, since=NOW - 2 * WINDOW_S).recent(NOW)[1] == WINDOW_S


def test_jobs_without_a_prediction_get_the_usual_runtime() -> None:
    arrivals = arrivals_at(NOW - 9)
    arrivals.arrived(Job(JobId("8"), "u", 1, unprofiled(1)), None, 2.0, NOW - 3)
    known, unknown = arrivals.recent(NOW, Quantiles(10.0, 20.0, 40.0))[0]
    assert (known.span, unknown.span) == (Quantiles(1.0, 2.0, 3.0), Quantiles(5.0, 10.0, 20.0))


def test_a_job_that_has_ended_comes_again_with_what_it_took() -> None:
    """And not with its prediction, whose range may be wide. A run's own length counts until its work is known."""
    arrivals = arrivals_at(NOW - 9, NOW - 7, NOW - 5, NOW - 3)
    arrivals.arrived(Job(JobId("4"), "u", 1, unprofiled(1)), Quantiles(1.0, 2.0, 3.0), 2.0, NOW - 1)
    start = round(NOW)
    for run in (
        Run("0", start, end_time=start + 60, work_s=50),
        Run("1", start, end_time=start + 60),
        Run("2", 0, end_time=start),  # cancelled before it started
        Run("4", start, end_time=start + 60, work_s=50),
    ):
        arrivals.ended(run)
    spans = [each.span for each in arrivals.recent(NOW)[0]]
    predicted = Quantiles(1.0, 2.0, 3.0)
    assert spans == [Quantiles(50, 50, 50), Quantiles(60, 60, 60), predicted, predicted, Quantiles(25, 25, 25)]


def test_a_run_that_left_the_window_is_forgotten() -> None:
    arrivals = arrivals_at(NOW - WINDOW_S + 5)
    arrivals.ended(Run("0", round(NOW), end_time=round(NOW) + 60))
    assert len(arrivals.recent(NOW)[0]) == 1
    assert arrivals.recent(NOW + 10)[0] == ()
    assert not arrivals._work_s
