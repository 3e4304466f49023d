"""The generated trace has the published statistics of Alibaba's PAI cluster."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from slurm_asrpt.traces.synthetic import DAYS, pai_like


@pytest.fixture(scope="module", params=[0, 1])
def jobs(request: pytest.FixtureRequest) -> pd.DataFrame:
    return pai_like(40_000, seed=request.param).jobs


def test_over_seventy_percent_of_the_jobs_use_one_gpu(jobs: pd.DataFrame) -> None:
    assert 0.70 < (jobs["gpus"] == 1).mean() < 0.75


def test_nearly_65_percent_recur_at_least_five_times_in_two_months(jobs: pd.DataFrame) -> None:
    runs = jobs.groupby("group")["job_id"].transform("size")
    assert (runs >= 5).mean() == pytest.approx(0.65, abs=0.01)
    assert jobs["submit_s"].max() == pytest.approx(DAYS * 86400, rel=0.02)


def test_run_times_have_the_published_median_and_ninetieth_percentile_and_a_heavy_tail(jobs: pd.DataFrame) -> None:
    assert jobs["duration_s"].median() == pytest.approx(23 * 60, rel=0.1)
    assert jobs["duration_s"].quantile(0.9) == pytest.approx(4.5 * 3600, rel=0.15)
    work = np.sort(jobs["gpus"] * jobs["duration_s"])[::-1]
    assert work[: len(work) // 10].sum() > 0.75 * work.sum()


def test_arrivals_follow_the_day(jobs: pd.DataFrame) -> None:
    by_hour = np.bincount((jobs["submit_s"] // 3600).astype(int) % 24, minlength=24)
    assert by_hour[9:18].min() > 2 * by_hour[3:6].max()


def test_a_group_has_one_user_and_one_size(jobs: pd.DataFrame) -> None:
    assert (jobs.groupby("group")[["user", "gpus"]].nunique() == 1).all(axis=None)


def test_no_job_runs_longer_than_requested(jobs: pd.DataFrame) -> None:
    assert (jobs["time_limit_s"] >= jobs["duration_s"]).all()


def test_the_seed_determines_the_trace() -> None:
    pd.testing.assert_frame_equal(pai_like(500, seed=3).jobs, pai_like(500, seed=3).jobs)
    assert not pai_like(500, seed=3).jobs.equals(pai_like(500, seed=4).jobs)


@pytest.mark.parametrize(("jobs", "days"), [(0, 60), (10, 0), (-1, 60)])
def test_zero_jobs_or_zero_time_is_rejected(jobs: int, days: float) -> None:
    with pytest.raises(ValueError, match="at least one job"):
        pai_like(jobs, days)
