"""The speed that a machine bears."""

import pytest

from slurm_asrpt.lab import pace
from slurm_asrpt.lab.pace import MOST_CPU, MOST_LATE_S, Pace


def test_labs_together_are_as_late_as_the_latest_and_take_the_cpus_of_all():
    assert pace.together([Pace(60.0, 10.0, 0.1), Pace(60.0, 20.0, 0.3)]) == Pace(60.0, 20.0, pytest.approx(0.4))


def test_the_bound_that_is_reached_first_counts():
    assert Pace(100.0, MOST_LATE_S / 2, 0.0).bearable == pytest.approx(200.0)
    assert Pace(100.0, MOST_LATE_S / 2, MOST_CPU).bearable == pytest.approx(100.0)


def test_twice_the_jobs_bear_half_the_speed(monkeypatch):
    monkeypatch.setattr(pace.os, "cpu_count", lambda: 2)
    assert pace.bearable_for(200, 86400.0) == pytest.approx(pace.bearable_for(100, 86400.0) / 2)
