"""asrpt-admin history with a live slurmdbd: it imports each run once with its state, beside asrptd's own records."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from slurm_asrpt.history.store import FILE_NAME, History, Origin

from .conftest import Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e


@pytest.fixture
def accounted() -> Iterator[Cluster]:
    with own_cluster(70, "2x4", users=1, accounting=True, speed=20) as cluster:
        yield cluster


def sacct_states(cluster: Cluster) -> dict[tuple[str, int], str]:
    """State of every run, by job id and start."""
    command = ["env", "SLURM_TIME_FORMAT=%s", "sacct", "-aXPnD", "-S", "now-1days", "-o", "JobID,Start,State"]
    rows = (line.split("|") for line in cluster.lab.run(command).stdout.splitlines())
    return {(job_id, int(start)): state.split()[0] for job_id, start, state in rows if start.isdigit()}


def take(cluster: Cluster, *words: str) -> dict[str, Any]:
    return json.loads(cluster.admin("history", "import", "--sacct", "--json", *words))


def run_jobs(cluster: Cluster) -> dict[str, str]:
    """Job ids by the state in which they end; asrptd sees the first two, only sacct sees the others."""
    cluster.start_daemon()
    ids = {"seen": cluster.submit("-n1", "--gpus=1", script="sleep 30")}
    once = '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || sleep 600'  # runs until it is requeued
    ids["requeued"] = cluster.submit("-n1", "--gpus=1", "--requeue", script=once)
    cluster.wait(ids["requeued"], "RUNNING")
    wait_for(lambda: cluster.status()[ids["requeued"]]["state"] == "running", "asrptd sees it run", 10)
    cluster.scontrol("requeue", ids["requeued"])
    wait_for(lambda: cluster.audit(ids["requeued"], "cut"), "the requeued run is recorded", 10)
    cluster.recorded(ids["seen"])
    cluster.stop_daemon()
    ids["timeout"] = cluster.submit("-n1", "--gpus=1", "--time=1", script="sleep 600")
    ids["failed"] = cluster.submit("-n2", "--gpus-per-task=1", script="sleep 30; exit 3")
    ids["cancelled"] = cluster.submit("-n1", "--gpus=1", script="sleep 600")
    ids["done"] = cluster.submit("-n1", "--gpus=1", "--job-name=x\n1|1|\x1b[2J'\"é", script="sleep 30")
    ids["cpu"] = cluster.submit("-n1", script="true")
    cluster.wait(ids["cancelled"], "RUNNING")
    cluster.cancel(ids["cancelled"])
    cluster.start_now(ids["requeued"])
    return ids


def test_job_states_are_imported_and_a_second_import_adds_nothing(accounted: Cluster):
    ids = run_jobs(accounted)
    endings = {"timeout": "TIMEOUT", "failed": "FAILED", "cancelled": "CANCELLED", "done": "COMPLETED"}
    for name, state in endings.items():
        accounted.wait(ids[name], state, timeout=150)
    accounted.wait(ids["requeued"], "COMPLETED")
    wait_for(lambda: len(sacct_states(accounted)) == 8, "sacct knows all", 20)
    wait_for(lambda: "RUNNING" not in sacct_states(accounted).values(), "sacct knows how they ended", 20)
    told = {key: state for key, state in sacct_states(accounted).items() if key[0] != ids["cpu"]}

    tried = take(accounted, "--since", "1days", "--dry-run")
    first, second = take(accounted, "--since", "1days"), take(accounted)
    assert (tried["added"], tried["dry_run"]) == (first["added"], True)
    assert (first["added"], first["there"], first["updated"]) == (5, 2, 0)
    assert (second["added"], second["there"], second["updated"]) == (0, 7, 0)
    assert first["skipped"]["no GPUs"] == 1
    with History(accounted.paths / "state" / FILE_NAME, read_only=True) as history:
        runs = {run.key: run for run in history.all_runs()}
        learnable = {sample.state for sample in history.samples()}
    assert {key: run.state for key, run in runs.items()} == told
    assert learnable == {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "REQUEUED"}
    origins = {name: {run.origin for run in runs.values() if run.job_id == ids[name]} for name in ids}
    assert (origins["seen"], origins["failed"]) == ({Origin.ASRPTD}, {Origin.SACCT})
    assert origins["requeued"] == {Origin.ASRPTD, Origin.SACCT}
    (failed,) = (run for run in runs.values() if run.job_id == ids["failed"])
    assert (failed.gpus, failed.exit_code, failed.user, len(failed.group_id)) == (2, 3, "asrpt1", 16)
    uids = {run.uid for run in runs.values()}
    assert len(uids) == 1
    assert min(uids) > 0
    (timeout,) = (run for run in runs.values() if run.job_id == ids["timeout"])
    assert timeout.end_time - timeout.start_time >= 60

    figures = json.loads(accounted.admin("history", "stats", "--json"))
    assert (figures["runs"], figures["origins"]) == (7, {"sacct": 5, "asrptd": 2})
    assert "\x1b" not in accounted.admin("history", "stats") + accounted.admin("history", "export", "--format=jsonl")
    gone = json.loads(accounted.admin("history", "forget", "--yes", "--json", "asrpt1"))
    assert gone["removed"] == 7
