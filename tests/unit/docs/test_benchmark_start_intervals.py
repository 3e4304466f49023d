"""The figures and the jobs of benchmarks.start_intervals."""

from __future__ import annotations

import pytest

from benchmarks.start_intervals import DAY_S, Estimate, figures, parse, workload


def estimate(job: str, latest: float | None, open_end: str = "") -> Estimate:
    return Estimate(job, 1, 10.0, 10.0, 20.0, latest, open_end)


def test_only_an_interval_with_an_upper_end_can_be_late() -> None:
    estimates = [estimate("1", 40.0), estimate("2", 40.0), estimate("3", 40.0), estimate("4", None, "horizon")]
    found = figures(estimates, {"1": 30.0, "2": 15.0, "3": 50.0, "4": 1000.0})
    assert (found["jobs"], found["upper"]["share"], found["open"]) == (4, 0.75, {"horizon": 1})
    assert (found["inside"], found["early"], found["late"]) == (0.5, 0.25, 0.25)
    assert found["closed"]["jobs"] == 3
    assert (found["width_s"], found["wait_s"]) == (20, 30)


def test_without_estimates_there_are_no_shares() -> None:
    assert figures([], {})["width_s"] is None


def test_more_jobs_arrive_by_day_than_by_night() -> None:
    options = parse(["--days", "2", "--seed", "3"])
    made = workload(options)
    times = [job.submit_s for job in made.jobs]
    assert times == sorted(times)
    assert made.load == pytest.approx(options.load, rel=0.15)
    by_day = sum(time % DAY_S < DAY_S / 2 for time in times)
    assert by_day > 2 * (len(times) - by_day)
    assert made.known
    assert max(job.gpus for job in made.jobs) <= options.servers * 4
