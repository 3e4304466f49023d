"""Pending jobs get consistent start times, and calibration checks them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import COMMANDS, Cluster, wait_for

pytestmark = pytest.mark.e2e

FORECAST_S = 8.0
"""Arrival rates use at least ten times this period; in a shorter one, the arrivals of these tests look endless."""
JOBS = 10
"""More than the nine starts that an upper bound requires."""
ALL_GPUS = ("-n16", "--gpus-per-task=1")


@pytest.fixture
def forecasting_daemon(cluster: Cluster) -> Cluster:
    """asrptd with estimates every few seconds, and a history to predict from."""
    cluster.start_forecasting_daemon(FORECAST_S)
    taught = [cluster.submit("-n4", "--gpus-per-task=1", script="sleep 3") for _ in range(4)]
    cluster.wait_all(taught, "COMPLETED")
    cluster.all_recorded(taught)
    cluster.admin("retrain")
    return cluster


def estimates(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {job_id: row for job_id, row in cluster.status().items() if row["start_earliest"] is not None}


def queue_up(cluster: Cluster, key: str, count: int) -> tuple[str, list[str], dict[str, dict[str, Any]]]:
    """A job that holds all GPUs until the key file exists, the jobs behind it, and their estimates."""
    running = cluster.submit(*ALL_GPUS, script=f"until [ -e {key} ]; do sleep 0.1; done; sleep 3")
    cluster.wait(running, "RUNNING", timeout=60)
    jobs = [cluster.submit(*ALL_GPUS, script="sleep 3") for _ in range(count)]
    wait_for(lambda: set(jobs) <= estimates(cluster).keys(), "all pending jobs have an estimate", 120)
    return running, jobs, estimates(cluster)


def test_jobs_in_a_long_queue_get_start_times_and_calibration_checks_them(forecasting_daemon: Cluster) -> None:
    held = forecasting_daemon.submit(*ALL_GPUS, "--hold", script="sleep 3")
    running, jobs, rows = queue_up(forecasting_daemon, "go-forecast", JOBS)
    assert held not in rows
    assert "JobHeldUser" in forecasting_daemon.status()[held]["start_unknown"]
    for row in rows.values():
        assert row["start_made"] < row["start_earliest"] <= row["start_median"]
    ranked = sorted(jobs, key=lambda job_id: rows[job_id]["rank"])
    assert rows[ranked[0]]["start_median"] < rows[ranked[-1]]["start_median"]
    (forecasting_daemon.lab.home("asrpt1") / "go-forecast").touch()
    forecasting_daemon.wait_all([running, *jobs], "COMPLETED", timeout=240)
    forecasting_daemon.all_recorded(jobs)
    found = json.loads(forecasting_daemon.admin("calibration", "--json"))
    assert found["jobs"] >= JOBS  # the first job to run may have had an estimate, too
    assert found["inside"] + found["early"] + found["late"] == pytest.approx(1)
    assert f"{found['jobs']} jobs" in forecasting_daemon.admin("calibration", "--since", "1d")
    print(found)  # on a shared machine, the width of the intervals is not tested
    running, jobs, rows = queue_up(forecasting_daemon, "go-again", 2)
    for job_id in jobs:
        assert rows[job_id]["start_median"] <= rows[job_id]["start_latest"]
    (forecasting_daemon.lab.home("asrpt1") / "go-again").touch()
    forecasting_daemon.wait_all([running, *jobs], "COMPLETED", timeout=60)


def test_unsplit_array_tasks_get_start_times(forecasting_daemon: Cluster) -> None:
    forecasting_daemon.predict({("asrpt1", "sweep"): 2, ("asrpt1", "long"): 5000})
    forecasting_daemon.submit(*ALL_GPUS, "--time=4", script="sleep 600")
    array = forecasting_daemon.submit("-J", "sweep", "--gpus=1", "--array=0-119")
    long = forecasting_daemon.submit("-J", "long", *ALL_GPUS)
    wait_for(lambda: forecasting_daemon.text_of(array).startswith("20 tasks"), "a hundred tasks are jobs", 60)
    told = {array, f"{array}_0"}
    wait_for(
        lambda: told <= estimates(forecasting_daemon).keys(), "the unsplit tasks of the array also have an estimate", 60
    )
    rows = estimates(forecasting_daemon)
    assert rows[f"{array}_0"]["start_earliest"] < rows[array]["start_earliest"]
    assert rows[array]["start_earliest"] < rows[array]["last_start_earliest"]
    explained = forecasting_daemon.lab.run([COMMANDS / "asrpt-status", "--explain", f"{array}_110"]).stdout
    assert "Next start" in explained
    assert "Last start" in explained
    behind = forecasting_daemon.lab.run([COMMANDS / "asrpt-status", "--explain", long]).stdout
    assert "and 20 more tasks of their arrays" in " ".join(behind.split())
