"""HLAS on a real Slurm: preemptible long jobs yield to new jobs and lose no work."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest

from .conftest import QUICK, SOON_S, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

HLAS = {"name": "hlas", "queues": 3, "first_gpu_s": 8.0, "min_run_s": 6.0, "max_interruptions": 2}
ITERATIONS, A_SECOND = 400, 20
"""So that a job still runs for seconds after its preemption: asrptd then tells its owner."""


@pytest.fixture
def hlas() -> Iterator[Cluster]:
    """Three nodes of two GPUs."""
    settings = {**QUICK, "policy": HLAS, "interrupt": {"grace_s": 15.0}}
    with own_cluster(620, "3x2", settings) as cluster:
        cluster.start_daemon()
        yield cluster


def train(cluster: Cluster, name: str, *options: str, before: str = "") -> str:
    """A job with checkpoints; it ignores USR1 until Python handles it."""
    command = f"{cluster.lab.train} --checkpoint {name}.at --iterations {ITERATIONS} --speedup {A_SECOND} --wait 300"
    script = f"trap '' USR1\nexec {before} {command}"
    own = ["-J", name, "-o", f"{name}.out", "--open-mode=append", "--requeue", "--gpus=2", "-N1"]
    return cluster.submit(*own, *options, script=script)


def spans(cluster: Cluster, name: str) -> list[tuple[int, int]]:
    """The iterations that each run of a job reported as done, as (first, last)."""
    said = re.findall(r"iterations (\d+) to (\d+) are done", cluster.output(f"{name}.out"))
    return [(int(first), int(last)) for first, last in said]


def test_preempted_jobs_run_each_iteration_once_even_if_asrptd_dies(hlas: Cluster):
    """Job a reports its checkpoint and is requeued at once; job silent does not, and asrptd is killed meanwhile.

    Job silent is told so when it runs again. Neither waits for Slurm's pause of two minutes.
    """
    allowed = "--comment=asrpt:interrupt=B:USR1"
    a, loner = train(hlas, "a", allowed), train(hlas, "loner")
    silent = train(hlas, "silent", allowed, before="env -u ASRPT_PROGRESS_DIR")
    hlas.wait_all([a, loner, silent], "RUNNING")
    wait_for(
        lambda: {hlas.status()[j]["queue"] for j in (a, loner, silent)} == {2},
        "all jobs have had 8 GPU-seconds",
        SOON_S,
    )
    short = [hlas.submit("--gpus=2", "-N1", script="sleep 1") for _ in range(2)]
    saved = hlas.lab.home("asrpt1") / "silent.at"
    wait_for(saved.exists, "job silent has received its signal", SOON_S)
    wait_for(lambda: hlas.audit(a, "requeued"), "job a has reported its checkpoint and is requeued", SOON_S)
    hlas.kill_daemon()
    before = hlas.job(silent)
    hlas.start_daemon()
    assert (before.state, before.restarts) == ("RUNNING", 0), "it was between signal and requeue"

    jobs = hlas.wait_all([a, loner, silent, *short], "COMPLETED", timeout=90)
    assert [jobs[job_id].restarts for job_id in (a, loner, silent)] == [1, 0, 1]
    for name in ("a", "loner", "silent"):
        done = spans(hlas, name)
        assert (done[0][0], done[-1][1]) == (0, ITERATIONS), name
        assert all(one[1] == other[0] for one, other in pairwise(done)), (
            f"{name}: no iteration repeated or missing: {done}"
        )
    assert len(spans(hlas, "a")) == len(spans(hlas, "silent")) == 2
    assert [e["reported"] for job_id in (a, silent) for e in hlas.audit(job_id, "requeued")] == [True, False]
    told = [
        re.findall(r"reported no checkpoint within (\d+) s of SIGUSR1", hlas.output(f"{name}.out"))
        for name in ("a", "silent")
    ]
    assert list(map(len, told)) == [0, 1]
    assert int(told[1][0]) >= 15, "its grace; a busy asrptd waits for longer"
    assert [len(hlas.audit(job_id, "interrupt")) for job_id in (a, loner, silent)] == [1, 0, 1]
    assert len(hlas.audit(silent, "signalled")) == 2, "by each asrptd"
    assert {e["head"] for job_id in (a, silent) for e in hlas.audit(job_id, "interrupt")} == set(short)
    began = {job_id: jobs[job_id].start_time for job_id in jobs}
    assert max(began[j] for j in short) <= min(began[a], began[silent]), "their last runs started after the new jobs"
    assert all(began[job_id] < hlas.audit(job_id, "requeued")[0]["time"] + 60 for job_id in (a, silent))
