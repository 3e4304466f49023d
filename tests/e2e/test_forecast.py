"""Waiting jobs get start times that hold together, and calibration says whether they came true."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .conftest import COMMANDS, Cluster, wait_for

pytestmark = pytest.mark.e2e

FORECAST_S = 8.0
"""Ten times that is the least time of which a rate is made: in less, these queues look as if they came for ever."""
JOBS = 10
"""More than the nine starts that must be known before a latest start is told."""
ALL_GPUS = ("-n16", "--gpus-per-task=1")


@pytest.fixture
def foreseeing(cluster: Cluster) -> Cluster:
    """asrptd with estimates every few seconds and runs to predict from."""
    settings = cluster.lab.directory / "forecast.toml"
    text = cluster.lab.settings_path.read_text()
    settings.write_text(text.replace("[daemon]\n", f"[daemon]\nforecast_s = {FORECAST_S}\n"))
    cluster.start_daemon("--config", str(settings))
    taught = [cluster.submit("-n4", "--gpus-per-task=1", script="sleep 3") for _ in range(4)]
    cluster.wait_all(taught, "COMPLETED")
    cluster.all_recorded(taught)
    cluster.admin("retrain")
    return cluster


def estimates(cluster: Cluster) -> dict[str, dict[str, Any]]:
    return {job_id: row for job_id, row in cluster.status().items() if row["start_earliest"] is not None}


def queue_up(cluster: Cluster, key: str, count: int) -> tuple[str, list[str], dict[str, dict[str, Any]]]:
    """Who has all GPUs until the key is there, those who wait behind it, and what they are told."""
    running = cluster.submit(*ALL_GPUS, script=f"until [ -e {key} ]; do sleep 0.1; done; sleep 3")
    cluster.wait(running, "RUNNING", timeout=60)
    jobs = [cluster.submit(*ALL_GPUS, script="sleep 3") for _ in range(count)]
    wait_for(lambda: set(jobs) <= estimates(cluster).keys(), "all that wait have an estimate", 120)
    return running, jobs, estimates(cluster)


def test_a_loaded_queue_gets_start_times_and_is_judged(foreseeing: Cluster) -> None:
    held = foreseeing.submit(*ALL_GPUS, "--hold", script="sleep 3")
    running, jobs, rows = queue_up(foreseeing, "go-forecast", JOBS)
    assert held not in rows
    assert "JobHeldUser" in foreseeing.status()[held]["start_unknown"]
    for row in rows.values():
        assert row["start_made"] < row["start_earliest"] <= row["start_median"]
    ranked = sorted(jobs, key=lambda job_id: rows[job_id]["rank"])
    assert rows[ranked[0]]["start_median"] < rows[ranked[-1]]["start_median"]
    (foreseeing.lab.home("asrpt1") / "go-forecast").touch()
    foreseeing.wait_all([running, *jobs], "COMPLETED", timeout=240)
    foreseeing.all_recorded(jobs)
    found = json.loads(foreseeing.admin("calibration", "--json"))
    assert found["jobs"] >= JOBS  # that which ran first may have had an estimate, too
    assert found["inside"] + found["early"] + found["late"] == pytest.approx(1)
    assert f"{found['jobs']} jobs" in foreseeing.admin("calibration", "--days", "1")
    print(found)  # what holds on a machine that others use is not this test's business
    running, jobs, rows = queue_up(foreseeing, "go-again", 2)
    for job_id in jobs:
        assert rows[job_id]["start_median"] <= rows[job_id]["start_latest"]
    (foreseeing.lab.home("asrpt1") / "go-again").touch()
    foreseeing.wait_all([running, *jobs], "COMPLETED", timeout=60)


def test_tasks_that_still_wait_with_their_array_are_told(foreseeing: Cluster) -> None:
    foreseeing.predict({("asrpt1", "sweep"): 2, ("asrpt1", "long"): 5000})
    foreseeing.submit(*ALL_GPUS, "--time=4", script="sleep 600")
    array = foreseeing.submit("-J", "sweep", "--gpus=1", "--array=0-119")
    long = foreseeing.submit("-J", "long", *ALL_GPUS)
    wait_for(lambda: foreseeing.text_of(array).startswith("20 tasks"), "a hundred tasks are jobs", 60)
    told = {array, f"{array}_0"}
    wait_for(lambda: told <= estimates(foreseeing).keys(), "the rest of the array has an estimate, too", 60)
    rows = estimates(foreseeing)
    assert rows[f"{array}_0"]["start_earliest"] < rows[array]["start_earliest"]
    assert rows[array]["start_earliest"] < rows[array]["last_start_earliest"]
    explained = foreseeing.lab.run([COMMANDS / "asrpt-status", "--explain", f"{array}_110"]).stdout
    assert "Next start" in explained
    assert "Last start" in explained
    behind = foreseeing.lab.run([COMMANDS / "asrpt-status", "--explain", long]).stdout
    assert "and 20 more tasks of their arrays" in " ".join(behind.split())
