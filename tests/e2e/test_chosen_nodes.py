"""Jobs with -w, -x, -C or --exclusive: asrptd decides their order, with the same meaning as in Slurm."""

import time
from collections.abc import Iterator

import pytest

from slurm_asrpt.status.reason_texts import by_slurm_text

from .conftest import Cluster, wait_for

pytestmark = pytest.mark.e2e

SHORT = "sleep 1"
FEATURES = {"n1": "a100,nvlink", "n2": "a100", "n3": "h100,nvlink", "n4": "h100"}
NODES = {
    ("-w", "n3"): "n3",
    ("-x", "n[1-2,4]"): "n3",
    ("-C", "a100&nvlink"): "n1",
    ("-C", "(a100|h100)&nvlink", "-x", "n1"): "n3",
    ("-C", "h100|a100&nvlink", "-x", "n1"): "n3",  # evaluated from left to right: n4 lacks nvlink
    ("-w", "n[2,4]", "-N2"): "n[2,4]",
    ("-w", "n[1-2]"): "n[1-2]",
}
"""Node constraints, and the nodes where Slurm may start a job on two GPUs."""


@pytest.fixture
def featured(asrpt: Cluster) -> Iterator[Cluster]:
    for node, features in FEATURES.items():
        asrpt.scontrol("update", f"NodeName={node}", f"AvailableFeatures={features}", f"ActiveFeatures={features}")
    try:
        yield asrpt
    finally:
        for node in FEATURES:
            asrpt.scontrol("update", f"NodeName={node}", "ActiveFeatures=", "AvailableFeatures=")


def test_preferred_nodes_come_first_and_others_if_they_are_full(featured: Cluster):
    def submit() -> str:
        return featured.submit("--gpus=4", "-N1", "--prefer=h100", script="sleep 600")

    first, second, third = submit(), submit(), submit()
    featured.wait_all([first, second, third], "RUNNING")
    assert {featured.job(first).nodes, featured.job(second).nodes} == {"n3", "n4"}
    assert featured.job(third).nodes in {"n1", "n2"}
    tasks = featured.submit("--gpus=4", "-N1", "--prefer=h100", "--array=0-1", script=SHORT)
    featured.cancel(first, second)
    ids = [f"{tasks}_{number}" for number in range(2)]
    done = featured.wait_all(ids, "COMPLETED")
    assert {job.nodes for job in done.values()} == {"n3", "n4"}, "before 22.05.9 the only ones for them"
    assert not any(featured.audit(task, "not-started") for task in ids)
    featured.cancel(third)


def test_jobs_with_node_constraints_get_their_nodes_in_queue_order(featured: Cluster):
    blockers = featured.block_all()
    jobs = {featured.submit(*words, "-n2", "--gpus-per-task=1", script=SHORT): node for words, node in NODES.items()}
    counted = featured.submit("-C", "h100*1", "-n1", "--gpus-per-task=1", script=SHORT)
    wait_for(lambda: {*jobs, counted} <= set(featured.order()), "all are in the queue", 10)
    assert all(featured.job(job_id).eligible_time > time.time() for job_id in jobs)
    assert featured.text_of(counted).endswith(by_slurm_text("features"))
    asrpt_order = featured.order()
    featured.cancel(*blockers)
    done = featured.wait_all([*jobs, counted], "COMPLETED")
    assert {job_id: done[job_id].nodes for job_id in jobs} == jobs
    assert len(asrpt_order) == len(jobs) + 1
    for job_id in jobs:
        assert featured.audit(job_id, "start"), "asrptd decided the start time"
        (entry,) = featured.audit(job_id, "running")
        assert entry["as_planned"]


def test_all_nodes_of_a_job_have_the_same_bracketed_feature(featured: Cluster):
    n1, *others = featured.block_all()
    options = ("-C", "[a100|h100]", "--gpus-per-task=1")
    jobs = [featured.submit(*options, tasks, script="sleep 3") for tasks in ("-n8", "-n5")]
    wait_for(lambda: set(jobs) <= set(featured.order()), "both are in the queue", 10)
    featured.cancel(*others)
    done = featured.wait_all(jobs, "COMPLETED")
    assert [done[job_id].nodes for job_id in jobs] == ["n[3-4]"] * 2  # n1 is not idle, and n2 is no h100
    for job_id in jobs:
        (entry,) = featured.audit(job_id, "running")
        assert entry["as_planned"]
    featured.cancel(n1)


def test_excluding_a_node_does_not_bypass_the_queue(asrpt: Cluster):
    asrpt.predict({("asrpt1", "long"): 20, ("asrpt1", "short"): 10})
    blockers = asrpt.block_all()
    options = ("-n4", "--gpus-per-task=1")
    sly = asrpt.submit(*options, "-J", "long", "-x", "n1", script="sleep 2")
    honest = asrpt.submit(*options, "-J", "short", script="sleep 2")
    wait_for(lambda: asrpt.order() == [honest, sly], "the shorter one is first", 10)
    asrpt.cancel(blockers[1])  # n2, which both jobs may use
    first = asrpt.wait(honest, "RUNNING")
    assert first.nodes == "n2"
    assert asrpt.job(sly).state == "PENDING"
    asrpt.cancel(*blockers)
    assert asrpt.wait(sly, "COMPLETED").nodes != "n1"


def test_an_exclusive_job_gets_whole_nodes(asrpt: Cluster):
    one_gpu = asrpt.block("n1", 1)
    one_cpu = asrpt.submit("-p", "other", "-w", "n2", "-n1", script="sleep 600", user=None)
    asrpt.wait(one_cpu, "RUNNING")
    alone, large = (asrpt.submit("--exclusive", gpus, script="sleep 3") for gpus in ("--gpus=1", "--gpus=8"))
    wait_for(lambda: {row["gpus"] for row in asrpt.status().values()} >= {4, 8}, "whole nodes count", 10)
    assert asrpt.wait(alone, "RUNNING").nodes in ("n3", "n4")
    assert asrpt.job(alone).gpus_by_node == {asrpt.job(alone).nodes: 4}
    asrpt.cancel(one_cpu)
    done = asrpt.wait_all([alone, large], "COMPLETED")
    assert "n1" not in done[large].nodes
    for job_id, gpus in ((alone, [4]), (large, [4, 4])):
        (entry,) = asrpt.audit(job_id, "running")
        assert (entry["as_planned"], sorted(entry["gpus"].values())) == (True, gpus)
        assert asrpt.recorded(job_id).gpus == sum(gpus)
    asrpt.cancel(one_gpu)


def test_an_exclusive_partition_is_managed(asrpt: Cluster):
    asrpt.scontrol("update", "PartitionName=gpu", "OverSubscribe=EXCLUSIVE")
    try:
        jobs = [asrpt.submit("--gpus=1", script="sleep 3") for _ in range(3)]
        running = asrpt.wait_all(jobs, "RUNNING")
        assert len({job.nodes for job in running.values()}) == len(jobs)
        asrpt.wait_all(jobs, "COMPLETED")
        assert all(asrpt.audit(job_id, "start") for job_id in jobs)
    finally:
        asrpt.scontrol("update", "PartitionName=gpu", "OverSubscribe=NO")


@pytest.mark.parametrize("by", ["job", "partition"])
def test_jobs_of_a_user_share_a_node_that_others_must_not_use(asrpt: Cluster, by: str):
    asrpt.scontrol("update", "PartitionName=gpu", f"ExclusiveUser={'YES' if by == 'partition' else 'NO'}")
    alone = ["--exclusive=user"] if by == "job" else []
    try:
        first = asrpt.submit("--gpus=1", *alone, script="sleep 600")
        home = asrpt.wait(first, "RUNNING").nodes
        others = [asrpt.submit("--gpus=3", *alone, script="sleep 600", user="asrpt2") for _ in range(3)]
        asrpt.wait_all(others, "RUNNING")
        beside = [asrpt.submit("--gpus=1", *alone, script="sleep 600") for _ in range(2)]
        running = asrpt.wait_all([*others, *beside], "RUNNING")
        assert {running[job_id].nodes for job_id in beside} == {home}
        assert home not in {running[job_id].nodes for job_id in others}
        assert not any(asrpt.audit(job_id, "not-started") for job_id in running)
        asrpt.cancel(first, *running)
    finally:
        asrpt.scontrol("update", "PartitionName=gpu", "ExclusiveUser=NO")


def test_the_owners_nodes_are_restored_when_a_start_is_withdrawn(asrpt: Cluster):
    """If Slurm does not start the job, and after a requeue."""
    asrpt.scontrol("update", "PartitionName=gpu", "MaxTime=1")
    try:
        job_id = asrpt.submit("-t5", "-w", "n[2-3]", "-n4", "--gpus-per-task=1", script="sleep 5")
        wait_for(lambda: asrpt.audit(job_id, "not-started"), "the start is withdrawn", 30)
        wait_for(lambda: asrpt.job(job_id).eligible_time > time.time(), "it has its lease again", 10)
        assert asrpt.job(job_id).required_nodes == "n[2-3]"
    finally:
        asrpt.scontrol("update", "PartitionName=gpu", "MaxTime=INFINITE")
    asrpt.wait(job_id, "RUNNING", timeout=60)
    asrpt.scontrol("requeue", job_id)
    asrpt.wait(job_id, "PENDING")
    wait_for(lambda: "begin" in asrpt.text_of(job_id), "asrptd has withdrawn the start", 10)
    assert asrpt.job(job_id).required_nodes == "n[2-3]"
    time.sleep(2)  # a job started in the second of its requeue fails: its credential is revoked (docs/slurm-notes.md)
    asrpt.start_now(job_id, user="asrpt1")
    assert asrpt.wait(job_id, "COMPLETED").nodes == "n[2-3]"


def test_the_owners_nodes_are_kept_when_all_jobs_are_released(asrpt: Cluster):
    blockers = asrpt.block_all()
    waits = asrpt.submit("-w", "n4", "--gpus=1", script=SHORT)
    wait_for(lambda: asrpt.state_of(waits) == "waiting", "asrptd knows it", 10)
    asrpt.admin("disable")
    try:
        wait_for(lambda: asrpt.job(waits).eligible_time <= time.time(), "it is released to Slurm", 10)
        assert asrpt.job(waits).required_nodes == "n4"
        asrpt.cancel(*blockers)
        assert asrpt.wait(waits, "COMPLETED").nodes == "n4"
    finally:
        asrpt.admin("enable")
