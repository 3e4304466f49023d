"""HLAS-P on a real Slurm: of two jobs that report their losses, the one that converges sooner goes first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .conftest import COMMANDS, QUICK, SOON_S, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

ALPHA_GPU_S = 100.0
HLAS_P = {
    "name": "hlas",
    "predict": "loss",
    "alpha_gpu_s": ALPHA_GPU_S,
    "queues": 3,
    "first_gpu_s": 8.0,
    "min_run_s": 6.0,
    "max_interruptions": 1,
}
A_SECOND = 20
FAST, SLOW = 30 * A_SECOND, 1000 * A_SECOND
"""Iterations until the loss has converged, when training ends."""


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """One node of two GPUs."""
    settings = {"daemon": {**QUICK["daemon"], "progress_s": 0.5}, "policy": HLAS_P, "interrupt": {"grace_s": 30.0}}
    with own_cluster(800, "1x2", settings) as made:
        made.start_daemon()
        yield made


def train(cluster: Cluster, name: str, converges: int) -> str:
    """A job of one GPU that may be preempted, and reports a loss that has converged when it ends."""
    command = f"{cluster.lab.train} --checkpoint {name}.at --iterations {converges} --converges {converges}"
    script = f"trap '' USR1\nexec {command} --speedup {A_SECOND} --report-every 0.5 --wait 300"
    own = ["-J", name, "-o", f"{name}.out", "--open-mode=append", "--requeue", "--gpus=1", "-N1"]
    return cluster.submit(*own, "--comment=asrpt:interrupt=B:USR1", script=script)


def test_the_job_that_converges_sooner_goes_first(cluster: Cluster):
    """The slow job is submitted first, so by attained service alone it would go first."""
    slow, fast = train(cluster, "slow", SLOW), train(cluster, "fast", FAST)
    cluster.wait_all([slow, fast], "RUNNING")
    wait_for(
        lambda: [cluster.status()[job_id]["queue"] for job_id in (fast, slow)] == [2, 3],
        "both have had 8 GPU-seconds, and the slow one is expected to have 100 more",
        SOON_S,
    )
    told = cluster.lab.run([COMMANDS / "asrpt-status", "--explain", slow]).stdout
    assert "expected by its losses (hlas-p); queue 3" in told
    predicted = cluster.audit(slow, "size-predicted")[-1]
    assert predicted["expected_gpu_s"] == pytest.approx(predicted["gpu_s"] + ALPHA_GPU_S)
    assert predicted["left_gpu_s"] > ALPHA_GPU_S

    wide = cluster.submit("--gpus=2", "-N1", script="sleep 5")
    cluster.wait(wide, "RUNNING")
    narrow = cluster.submit("--gpus=1", "-N1", script="sleep 900")
    cluster.wait(wide, "COMPLETED")
    cluster.wait_all([narrow, fast], "RUNNING")
    assert cluster.job(slow).state == "PENDING"
    assert cluster.order() == [slow]
    cluster.wait(fast, "COMPLETED", timeout=60)
    jobs = cluster.jobs()
    assert [jobs[job_id].restarts for job_id in (fast, slow)] == [1, 1]
    again = cluster.wait(slow, "RUNNING")
    assert again.start_time >= jobs[fast].end_time
    assert max(each["expected_gpu_s"] for each in cluster.audit(fast, "size-predicted")) == 0.0
    cluster.cancel(slow, narrow)
