"""The jobs of a trace as users submit them: the last ones in so many hours, and those before them."""

import numpy as np
import pandas as pd
import pytest

from slurm_asrpt.errors import InputError
from slurm_asrpt.lab.site.jobs import GPUS, POPULAR_MIN, last_hours
from slurm_asrpt.traces import clean
from slurm_asrpt.traces.sources import load_trace

HOUR = 3600.0


def trace(jobs=400, gpus=4, run_h=1.0, every_h=0.1):
    rows = {"job_id": [str(n) for n in range(jobs)], "submit_s": np.arange(jobs) * every_h * HOUR, "gpus": gpus}
    return clean("t", pd.DataFrame({**rows, "duration_s": run_h * HOUR, "queue": "q"}))


def test_without_servers_the_last_hours_are_played_at_their_own_times():
    found = last_hours(trace(), 12.0, 0.5, 0, 8 * HOUR, 1)
    assert found.stretch == 1.0
    assert (found.jobs[0].submit_s, found.jobs[-1].submit_s) == (0.0, pytest.approx(12 * HOUR, rel=0.01))
    assert len(found.jobs) + len(found.past) == 400
    assert found.servers == 10  # 10 jobs an hour, each 4 GPU hours: 40 GPUs busy, half of 80
    assert found.load == pytest.approx(0.5, rel=0.02)


def test_with_servers_arrivals_are_stretched_to_the_load():
    found = last_hours(trace(), 12.0, 1.0, 4, 8 * HOUR, 1)
    assert found.jobs[-1].submit_s == pytest.approx(12 * HOUR)
    assert found.servers == 4
    assert found.load == pytest.approx(1.0, rel=0.02)
    assert found.stretch == pytest.approx(40 / 32, rel=0.02)


@pytest.mark.parametrize("servers", [0, 12])
def test_the_shipped_sample_keeps_its_run_times(servers):
    sample = load_trace("philly")
    found = last_hours(sample, 24.0, 1.0, servers, 12 * HOUR, 1)
    known = sample.jobs[sample.jobs["gpus"] <= (servers or 1000) * GPUS]["duration_s"].clip(upper=12 * HOUR)
    assert [job.run_s for job in found.jobs] == known.tolist()[-len(found.jobs) :]
    assert 0.9 < found.load < 1.1
    assert all(job.submit_s < 0 for job in found.past)


def test_only_jobs_that_ended_before_the_window_are_known():
    found = last_hours(trace(run_h=3.0, every_h=1.0), 12.0, 1.0, 0, 8 * HOUR, 1)
    assert len(found.past) - len(found.known) == 3
    assert all(job.submit_s + job.run_s < 0 for job in found.known)


def test_no_job_is_larger_than_the_cluster_and_each_asks_for_its_fewest_nodes():
    found = last_hours(load_trace("philly"), 24.0, 1.0, 2, 12 * HOUR, 1)
    assert max(job.gpus for job in found.jobs) <= 16
    assert all(job.nodes == -(-job.gpus // 8) for job in found.jobs)


def test_the_seed_draws_other_limits_and_nothing_else():
    one, same, other = (last_hours(load_trace("philly"), 24.0, 1.0, 12, 12 * HOUR, seed) for seed in (1, 1, 2))
    assert one.jobs == same.jobs
    assert [job.limit_min for job in one.jobs] != [job.limit_min for job in other.jobs]
    assert [(job.run_s, job.submit_s) for job in one.jobs] == [(job.run_s, job.submit_s) for job in other.jobs]
    assert {job.limit_min - 1 for job in other.jobs} <= set(POPULAR_MIN)
    assert all(job.run_s <= 60 * job.limit_min for job in other.jobs)


@pytest.mark.parametrize(("hours", "servers"), [(100.0, 0), (100.0, 4)])
def test_a_trace_that_is_too_short_is_an_error(hours, servers):
    with pytest.raises(InputError, match="too few jobs for 100 hours"):
        last_hours(trace(), hours, 1.0, servers, HOUR, 1)
