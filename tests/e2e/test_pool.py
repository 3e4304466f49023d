"""asrpt-pool in a job on two nodes: cancelled, requeued at its time limit, and done, with equal weights."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from slurm_asrpt.pool.decisions import read_runs
from tests.benches.pool import COMMAND, Pool, same

from .conftest import Cluster, wait_for

pytestmark = pytest.mark.e2e

SWEEP = """
[pool]
before_limit_s = 54

[[training]]
name = "line"
uses = "pool_models:Line"
with = { tasks = 3, rounds = 12, hold = 4 }
grid = { lr = [0.1, 0.2], seed = [0, 1] }
"""
OPTIONS = ("-p", "other", "-N2", "-n4", "--gpus-per-task=1", "--requeue", "--open-mode=append")


def submit(cluster: Cluster, pool: Pool, limit: str) -> str:
    options = [*OPTIONS, f"--time={limit}", f"--chdir={pool.sweep.parent}", "--output=pool.log"]
    return cluster.submit(*options, script=f"exec {COMMAND} run {pool.sweep}", user=None)


def processes(job_id: str) -> list[str]:
    """The pool's processes in this job."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            inside = f"SLURM_JOB_ID={job_id}\0".encode() in (path / "environ").read_bytes()
            command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found += [command] if inside and ("slurm_asrpt.pool" in command or "asrpt-pool" in command) else []
    return found


def test_a_pool_on_two_nodes_is_cancelled_requeued_and_done(cluster: Cluster, tmp_path: Path) -> None:
    alone = Pool(tmp_path / "alone", SWEEP.replace(", hold = 4", ""))
    assert alone.run(slots=1)[0] == 0
    pool = Pool(tmp_path / "pool", SWEEP.replace("[pool]", '[pool]\nswitch = "ahead"'))

    first = submit(cluster, pool, "10")
    wait_for(
        lambda: pool.tasks_done() >= 24 and pool.status().slots_live == 4,
        "all slots hold, in the fifth round of two trainings or more",
        30,
    )
    assert pool.call("status", str(pool.sweep)).stdout.startswith(f"job {first} running: 4 trainings: ")
    assert len([command for command in processes(first) if "executor" in command]) == 4
    cluster.cancel(first)
    cluster.wait(first, "CANCELLED")
    wait_for(lambda: not processes(first), lambda: f"no process is left of {processes(first)}", 30)
    assert pool.status().state == "terminated"
    assert max(snapshot.rounds for snapshot in pool.results().values()) == 4

    again = submit(cluster, pool, "1")
    cluster.wait(again, "PENDING", "RUNNING")
    wait_for(lambda: cluster.job(again).restarts == 1, "the pool has requeued its job", 60)
    assert pool.status().state == "time limit"
    cluster.scontrol("update", f"JobId={again}", "TimeLimit=10")
    pool.go()
    wait_for(lambda: cluster.job(again).state == "PENDING", "the job is pending", 30)
    cluster.sleep(2)
    cluster.start_now(again)
    cluster.wait(again, "COMPLETED", timeout=60)
    log = (pool.sweep.parent / "pool.log").read_text()
    assert log.splitlines()[-1] == "done: 4 trainings done", log
    assert "Traceback" not in log
    assert same(pool.results(), alone.results())
    logs = "".join(path.read_text() for path in pool.folder.trainings.glob("*/log"))
    assert set(logs.split()) == {"on", "n1", "n2"}

    for run in read_runs(pool.folder.decisions):
        assert (run.policy, len(run.fleet.kind), set(run.fleet.kind)) == ("arrival", 4, {0, 1})
    told = pool.call("replay", str(pool.sweep))
    assert (told.returncode, told.stdout.count("the simulator decides the same")) == (0, 3), told.stdout
