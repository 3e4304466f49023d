"""Nodes with two NVLink domains of two GPUs: which GPUs a real Slurm gives, and where asrptd puts jobs."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from slurm_asrpt.slurm.records import with_indexes

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
bytes_in = 0
bytes_out = 0
param_bytes = 1e9
"""
FORMS = (("--gpus=2", "-n2"), ("--gpus-per-task=1", "-n2"), ("--gres=gpu:2", "-N1"))


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    fabric = {"nvlink_domain": 2, "across_bytes_per_s": 1e9}
    settings = {**QUICK, "policy": {"name": "asrpt-gated"}, "fabric": fabric}
    with own_cluster(860, "2x4", settings) as cluster:
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
    n1, _ = with_indexes(lab.client.nodes(), lab.client.jobs())
    assert n1.indexes_used == 0b1010
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


def test_a_job_waits_for_a_domain_of_the_node_that_its_owner_names(lab: Cluster) -> None:
    """In two domains it would run at half the speed. After holder 1 has ended, GPU 0 and 1 are the lowest free ones."""
    first, last = fragmented(lab)
    job = lab.submit("-w", "n1", "-N1", "-n2", "--gpus-per-task=1", "--comment=asrpt:profile=ring", script="sleep 600")
    wait_for(lambda: lab.status().get(job), "asrptd manages the job", 15)
    lab.cancel(last)  # GPUs 0, 2 and 3 are free: the lowest two are still in two domains
    wait_for(lambda: lab.client.nodes()[0].gpus_used == 1, "three GPUs are free", 15)
    lab.sleep(3)
    assert lab.job(job).state == "PENDING"
    lab.cancel(first)
    assert lab.wait(job, "RUNNING").gpu_indexes == {"n1": 0b11}
    lab.cancel(job)


def test_a_job_that_slurm_starts_is_timed_with_the_gpus_it_got(lab: Cluster) -> None:
    holders = fragmented(lab)
    lab.stop_daemon()
    words = ("-w", "n1", "-N1", "-n2", "--gpus-per-task=1", "--comment=asrpt:profile=ring")
    job = lab.submit(*words, script="sleep 600")
    lab.start_now(job)
    assert lab.wait(job, "RUNNING").gpu_indexes == {"n1": 0b101}
    lab.start_daemon()
    wait_for(lambda: lab.audit(job, "running"), "asrptd has read the allocation", 15)
    (entry,) = lab.audit(job, "running")
    assert entry["alpha"] == pytest.approx(2.0, abs=0.01)
    lab.cancel(job, *holders)
