"""Nodes with two NVLink domains of two GPUs: which GPUs a real Slurm gives, and where asrptd puts jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from .conftest import QUICK, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

RING = """
version = 1
name = "ring"
model = "test"
batch = 2
allreduce = "ring"
device = "none"

[provenance]
kind = "analytic"
origin = "made up for a test: two GPUs that all-reduce; an iteration takes 2 s in two domains, else 1 s"
formula = "none"

[[stage]]
replicas = 2
forward_s = 0.5
backward_s = 0.5
param_bytes = 1e9
"""
FORMS = (("--gpus=2", "-n2"), ("--gpus-per-task=1", "-n2"), ("--gres=gpu:2", "-N1"))


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    fabric = {"nvlink_domain": 2, "across_bytes_per_s": 1e9}
    settings = {**QUICK, "policy": {"name": "asrpt-gated"}, "fabric": fabric}
    with own_cluster(1400, "2x4", settings) as cluster:
        folder = cluster.lab.paths.etc / "profiles"
        folder.mkdir(exist_ok=True)
        (folder / "ring.toml").write_text(RING)
        cluster.start_daemon()
        yield cluster


def fragmented(lab: Cluster) -> list[str]:
    """Jobs of one GPU hold GPUs 1 and 3 of n1."""
    jobs = [lab.block("n1", 1) for _ in range(4)]
    lab.cancel(jobs[0], jobs[2])
    wait_for(lambda: lab.client.nodes()[0].gpus_used == 2, "two GPUs are free", 15)
    assert lab.client.nodes()[0].indexes_used == 0b1010
    return [jobs[1], jobs[3]]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[0])
def test_slurm_gives_the_lowest_free_gpus(lab: Cluster, form: tuple[str, ...]) -> None:
    holders = fragmented(lab)
    job = lab.submit("-p", "other", "-w", "n1", *form, script="sleep 600", user=None)
    assert lab.wait(job, "RUNNING").gpu_indexes == {"n1": 0b101}
    shown = lab.scontrol("-d", "show", "job", job)
    assert re.search(r"IDX:0,2\)", shown), shown
    lab.cancel(job, *holders)


def test_a_job_that_communicates_runs_in_one_domain(lab: Cluster) -> None:
    holders = fragmented(lab)
    job = lab.submit("-n2", "--gpus-per-task=1", "--comment=asrpt:profile=ring", script="sleep 600")
    assert lab.wait(job, "RUNNING").gpu_indexes == {"n2": 0b11}
    wait_for(lambda: lab.audit(job, "running"), "asrptd has read the allocation", 10)
    (entry,) = lab.audit(job, "running")
    assert entry["alpha"] == pytest.approx(1.0, abs=0.01)
    lab.cancel(job, *holders)


def test_the_speed_of_a_job_is_that_of_the_gpus_it_got(lab: Cluster) -> None:
    """Where the only free GPUs of n1 are in two domains, a job whose owner names n1 runs at half the speed."""
    holders = fragmented(lab)
    job = lab.submit("-w", "n1", "-N1", "-n2", "--gpus-per-task=1", "--comment=asrpt:profile=ring", script="sleep 600")
    lab.wait(job, "PENDING")
    lab.cancel(holders[1])  # now GPU 0 and 2, 3 are free: still two domains first
    wait_for(lambda: lab.client.nodes()[0].gpus_used == 1, "three GPUs are free", 15)
    assert lab.state_of(job) == "PENDING"
    lab.cancel(holders[0])
    assert lab.wait(job, "RUNNING").gpu_indexes == {"n1": 0b11}
    lab.cancel(job)
