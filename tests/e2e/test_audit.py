"""audit, snapshot, replay and metrics agree with squeue and Slurm's own records."""

from __future__ import annotations

import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from .conftest import Cluster, wait_for

pytestmark = pytest.mark.e2e

ALL_GPUS = ("-n16", "--gpus-per-task=1")


@pytest.fixture
def metered(cluster: Cluster) -> tuple[Cluster, int]:
    """asrptd with metrics, and their port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    settings = cluster.lab.directory / "metered.toml"
    text = cluster.lab.settings_path.read_text().replace('name = "asrpt"', 'name = "asrpt-gated"')
    text = text.replace("tau = 20.0\n", "")
    settings.write_text(text.replace("[daemon]\n", f'[daemon]\nrelease_ahead = 0\nmetrics = "127.0.0.1:{port}"\n'))
    cluster.start_daemon("--config", str(settings))
    return cluster, port


def figures(port: int) -> dict[str, float]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def audit(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cluster.admin("audit", "--json", *words))["entries"]
    return found


def test_audit_snapshot_and_metrics_agree_with_slurm(metered: tuple[Cluster, int], tmp_path: Path) -> None:
    cluster, port = metered
    flag = "until [ -e go-audit ]; do sleep 0.1; done"
    first = cluster.submit(*ALL_GPUS, "-J", "[red]first", script=flag)
    running = cluster.wait(first, "RUNNING", timeout=60)
    second = cluster.submit("-n4", "--gpus-per-task=1", script="sleep 1", user="asrpt2")
    wait_for(lambda: cluster.audit(second, "wait"), "asrptd has shown why it waits", 30)

    wait_for(lambda: cluster.state_of(first) == "running", "asrptd has seen it run", 20)
    snapshot = tmp_path / "now.json"
    cluster.admin("snapshot", "-o", str(snapshot))
    (job,) = json.loads(snapshot.read_text())["inputs"]["jobs"]
    assert job[:3] == [second, "asrpt2", 4]
    replayed = json.loads(cluster.admin("replay", "--json", str(snapshot)))
    assert replayed["same"]
    assert not any("start" in each for each in replayed["decisions"])
    assert replayed["digest"] == json.loads(snapshot.read_text())["digest"]
    now = figures(port)
    assert (now["asrpt_gpus"], now["asrpt_gpus_free"], now["asrpt_leases"]) == (16.0, 0.0, 1.0)
    assert now['asrpt_jobs{state="running"}'] == now['asrpt_jobs{state="waiting"}'] == 1.0
    assert now['asrpt_mode{mode="enforce"}'] == 1.0

    (cluster.lab.home("asrpt1") / "go-audit").touch()
    done = cluster.wait_all([first, second], "COMPLETED")
    wait_for(lambda: all(cluster.audit(job_id, "ended") for job_id in done), "both are recorded", 20)
    for job_id, record in done.items():
        told = {entry["event"]: entry for entry in audit(cluster, "--job", job_id)}
        assert list(told) == ["queued", *(["wait"] if job_id == second else []), "start", "running", "ended"]
        assert told["ended"]["state"] == record.state
        assert (told["ended"]["began"], told["ended"]["ended"]) == (record.start_time, record.end_time)
        assert told["running"]["user"] == record.user
        assert told["start"]["gpus"] == told["running"]["gpus"] == told["ended"]["gpus"]
        assert sum(told["ended"]["gpus"].values()) == record.tasks
    assert {entry["job"] for entry in audit(cluster, "--user", "asrpt2") if "job" in entry} == {second}
    assert dict(running.gpus_by_node) == cluster.audit(first, "start")[0]["gpus"]

    then = figures(port)
    spent = sum(record.tasks * (record.end_time - record.start_time) for record in done.values())
    assert then["asrpt_gpu_seconds_total"] == pytest.approx(spent)
    assert then['asrpt_starts_total{outcome="as_planned"}'] == 2.0
    assert then["asrpt_wait_duration_seconds_count"] == 2.0
    page = tmp_path / "audit.html"
    cluster.admin("audit", "--html", str(page))
    assert f'"job":"{second}"' in page.read_text()
    assert "[red]first: 16 GPUs" in cluster.admin("audit", "--job", first)
