"""Partitions with limits of their own, and nodes with weights, on a real Slurm."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from slurm_asrpt.slurm.node_list import expand

from .conftest import LEASE_S, Cluster, own_cluster, quick, wait_for

pytestmark = pytest.mark.e2e

SETTINGS = {
    **quick(1),
    "slurm": {"partitions": ["gpu", "short", "long", "vip", "wide", "cpu", "small"]},
    "policy": {"name": "asrpt-gated"},
}
PARTITIONS = """
PartitionName=short Nodes=n[1-2] MaxTime=5
PartitionName=long Nodes=n[3-4]
PartitionName=vip Nodes=n[1-4] AllowAccounts=vip
PartitionName=wide Nodes=n[1-4] MinNodes=2
PartitionName=cpu Nodes=n[1-2] MaxCPUsPerNode=4
PartitionName=small Nodes=n[1-4] MaxMemPerNode=1000
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Cluster]:
    """Four nodes of two GPUs, asrptd in mode enforce."""
    with own_cluster(830, "4x2", SETTINGS, slurm_conf_extra=PARTITIONS) as cluster:
        cluster.start_daemon()
        yield cluster
        assert cluster.stop_daemon() == 0


def _heeds_accounts(lab: Cluster) -> bool:
    """Whether this Slurm heeds AllowAccounts without slurmdbd."""
    return " 22.05" in lab.lab.run(["sinfo", "-V"]).stdout


def test_a_job_starts_in_the_one_of_its_partitions_that_lets_it(lab: Cluster) -> None:
    """On the first nodes, Slurm would refuse it again and again."""
    job_id = lab.submit("-p", "short,long", "-t", "10", "--gpus=1", script="sleep 1")
    done = lab.wait(job_id, "COMPLETED", timeout=30)
    assert (done.partition, done.nodes) == ("long", "n3")
    assert not lab.audit(job_id, "not-started")


def test_a_partition_that_refuses_one_job_holds_no_others(lab: Cluster) -> None:
    closed = lab.submit("-p", "vip", "--gpus=1", script="sleep 1")
    others = [lab.submit("-p", "gpu", "--gpus=2", script="sleep 1") for _ in range(8)]
    for job_id in others:
        lab.wait(job_id, "COMPLETED", timeout=30)
    if not _heeds_accounts(lab):
        pytest.skip("without slurmdbd, Slurm does not heed AllowAccounts (24.11 and 26.05)")
    assert lab.job(closed).state == "PENDING"
    lab.cancel(closed)


def test_a_job_that_one_partition_of_its_nodes_does_not_admit_starts_in_the_other(lab: Cluster) -> None:
    """With a list of nodes, Slurm 22.05 withdraws them from its cycle when the first partition refuses the job."""
    job_id = lab.submit("-p", "vip,gpu", "--gpus=1", script="sleep 1")
    done = lab.wait(job_id, "COMPLETED", timeout=60)
    assert done.partition == "gpu" or not _heeds_accounts(lab)


def test_a_job_gets_the_nodes_that_its_partition_wants(lab: Cluster) -> None:
    job_id = lab.submit("-p", "wide", "--gpus=2", script="sleep 1")
    assert len(expand(lab.wait(job_id, "COMPLETED", timeout=30).nodes)) == 2  # some may still be busy with earlier jobs


def test_jobs_without_gpus_start_within_the_cpus_that_their_partition_may_use(lab: Cluster) -> None:
    jobs = [lab.submit("-p", "cpu", "-N1", "-n1", "-c3", script="sleep 3") for _ in range(5)]
    gpu = lab.submit("-p", "gpu", "-N1", "--gpus=1", "-c8", "-w", "n1", script="sleep 1")
    lab.wait(gpu, "COMPLETED", timeout=30)
    done = [lab.wait(job_id, "COMPLETED", timeout=60) for job_id in jobs]
    assert {job.nodes for job in done} == {"n1", "n2"}
    assert not [entry for job_id in jobs for entry in lab.audit(job_id, "not-started")]
    started = [lab.audit(job_id, "start-cpus")[0]["time"] for job_id in jobs]
    assert sorted(started)[2] - sorted(started)[0] > 2.0, "the third waited for one of the first two"


def test_jobs_with_gpus_start_within_the_cpus_that_their_partition_may_use(lab: Cluster) -> None:
    """Three CPUs of four on a node; each node has two GPUs, and 60 more CPUs."""
    jobs = [lab.submit("-p", "cpu", "-N1", "--gpus=1", "-n1", "-c3", script="sleep 2") for _ in range(4)]
    free = lab.submit("-p", "gpu", "-w", "n1", "--gpus=1", "-n1", "-c8", script="sleep 1")
    done = [lab.wait(job_id, "COMPLETED", timeout=60) for job_id in (*jobs, free)]
    assert {job.nodes for job in done} == {"n1", "n2"}
    assert not [entry for job_id in (*jobs, free) for entry in lab.audit(job_id, "not-started")]
    assert done[-1].start_time <= min(job.start_time for job in done[2:4]), "the second GPU is not kept for them"


def test_jobs_of_several_partitions_start_where_one_lets_them_use_the_cpus(lab: Cluster) -> None:
    """Slurm refuses them on n1 and n2, where only partition cpu would start them."""
    asked = (["-n1", "--exclusive"], ["-N1", "-n1", "-c8"])
    jobs = [lab.submit("-p", "cpu,long", *words, script="sleep 1") for words in asked]
    done = [lab.wait(job_id, "COMPLETED", timeout=60) for job_id in jobs]
    assert {(job.partition, job.nodes in ("n3", "n4")) for job in done} == {("long", True)}
    assert not [entry for job_id in jobs for entry in lab.audit(job_id, "not-started")]


def test_jobs_of_a_partition_that_was_inactive_start_at_once_when_it_is_up(lab: Cluster) -> None:
    """Meanwhile, Slurm rejects each update of a waiting job, but sets its begin time."""
    blockers = [lab.submit("-p", "long", "--gpus=2", "-N1", script="sleep 600") for _ in range(2)]
    for job_id in blockers:
        lab.wait(job_id, "RUNNING", timeout=30)
    waiting = [lab.submit("-p", "long", "--gpus=2", "-N1", script="sleep 1") for _ in range(3)]
    wait_for(lambda: set(waiting) <= set(lab.order()), "all are in the queue", 10)
    lab.scontrol("update", "PartitionName=long", "State=INACTIVE")
    lab.cancel(*blockers)
    time.sleep(8.0)
    assert all(lab.job(job_id).eligible_time <= time.time() + LEASE_S + 2 for job_id in waiting)
    lab.scontrol("update", "PartitionName=long", "State=UP")
    for job_id in waiting:
        lab.wait(job_id, "COMPLETED", timeout=30)


def test_a_job_over_a_limit_of_its_partition_keeps_a_lease_and_starts_once_it_is_within(lab: Cluster) -> None:
    """MaxMemPerNode. Slurm rejects each update of such a job, but sets its begin time."""
    large = lab.submit("-p", "small", "--gpus=1", "--mem=2000", script="sleep 1")
    wait_for(lambda: lab.audit(large, "fence-refused"), "asrptd has tried to start it", 15)
    time.sleep(8.0)
    assert lab.job(large).eligible_time <= time.time() + LEASE_S + 2
    assert len(lab.audit(large, "fence-refused")) < 6, "with growing pauses"
    lab.scontrol("update", f"JobId={large}", "MinMemoryNode=500")
    lab.wait(large, "COMPLETED", timeout=60)


def test_nodes_of_a_larger_weight_are_used_last(lab: Cluster) -> None:
    lab.scontrol("update", "NodeName=n[1-2]", "Weight=100")
    first = [lab.submit("-p", "gpu", "--gpus=1", "-N1", script="sleep 12") for _ in range(4)]
    started = [lab.wait(job_id, "RUNNING", timeout=30) for job_id in first]
    assert {job.nodes for job in started} == {"n3", "n4"}
    last = lab.submit("-p", "gpu", "--gpus=2", "-N1", script="sleep 1")
    assert lab.wait(last, "COMPLETED", timeout=30).nodes == "n1"
    lab.cancel(*first)
    lab.scontrol("update", "NodeName=n[1-2]", "Weight=1")
