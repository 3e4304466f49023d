"""CPUs and memory that Slurm shows only once it starts a job: no start fails for want of them."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import pytest

from slurm_asrpt.slurm.records import JobRecord

from .conftest import Cluster, own_cluster, quick

pytestmark = pytest.mark.e2e
SPEED = 10
READING = 1.0 * SPEED
"""Decisions carry the time at which asrptd began to read: a job that ended within that is free, too."""


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    """Nodes of 8 GPUs and 16 CPUs."""
    settings = {**quick(SPEED), "policy": {"name": "asrpt-gated"}}
    with own_cluster(160, "2x8", settings, cpus=16, slurm_conf_extra="DefCpuPerGPU=4", speed=SPEED) as cluster:
        cluster.start_daemon()
        yield cluster


@pytest.mark.parametrize("eight", ["--cpus-per-gpu=8", "--mincpus=8"])
def test_jobs_start_where_the_cpus_for_their_gpus_are_free(lab: Cluster, eight: str) -> None:
    options = (eight, eight, "--comment=default")
    jobs = [lab.submit_or_skip("--gpus=1", option, script="sleep 20") for _ in range(4) for option in options]
    done = lab.wait_all(jobs, "COMPLETED", timeout=60)
    assert Counter(job.cpus for job in done.values()) == {8: 8, 4: 4}
    assert_asrptd_has_started(lab, jobs)


def test_a_job_whose_cpus_or_memory_need_more_nodes_than_its_gpus_starts(lab: Cluster) -> None:
    """A node has the CPUs for four GPUs, and the memory for two of the last one's."""
    asks = (("--gpus=8",), ("-n6", "--gpus=6"), ("--gpus=3", "--mem-per-gpu=200G", "--cpus-per-gpu=1"))
    jobs = [lab.submit(*options, script="sleep 20") for options in asks]
    done = lab.wait_all(jobs, "COMPLETED", timeout=60)
    assert {job.nodes for job in done.values()} == {"n[1-2]"}
    assert_asrptd_has_started(lab, jobs)


def test_a_job_with_all_memory_of_a_node_waits_until_no_other_runs_there(lab: Cluster) -> None:
    jobs = [lab.submit("--gpus=1", *options, script="sleep 20") for _ in range(3) for options in ((), ("--mem=0",), ())]
    done = lab.wait_all(jobs, "COMPLETED", timeout=60)
    pinned = {job_id: (lab.audit(job_id, "start") or lab.audit(job_id, "running"))[0]["time"] for job_id in jobs}
    spans = {job_id: (job.nodes, pinned[job_id], job.end_time - READING) for job_id, job in done.items()}
    for alone in jobs[1::3]:
        node, start, end = spans.pop(alone)
        assert all(where != node or begin >= end or until <= start for where, begin, until in spans.values())
    assert_asrptd_has_started(lab, jobs)


@pytest.mark.parametrize("memory", ["--mem=6000", "--mincpus=6"])
def test_jobs_whose_memory_or_request_needs_more_cpus_than_their_tasks_start(memory: str) -> None:
    """Slurm raises the CPUs of such a job as asrptd writes its number of nodes, and would not start it."""
    settings = {**quick(SPEED), "policy": {"name": "asrpt-gated"}}
    with own_cluster(200, "2x4", settings, cpus=16, slurm_conf_extra="MaxMemPerCPU=1000", speed=SPEED) as lab:
        lab.start_daemon()
        tasks = ("-n1", "-n2", "-n6")
        options = ("--gpus-per-task=1", memory)
        jobs = [lab.submit_or_skip(each, *options, script="sleep 20") for _ in range(3) for each in tasks]
        lab.wait_all(jobs, "COMPLETED", timeout=60)
        assert_asrptd_has_started(lab, jobs)


def test_a_job_gets_whole_cores() -> None:
    """8 cores with two threads each: 3 CPUs take two of them, as do 2 with --hint=nomultithread."""
    settings = {**quick(SPEED), "policy": {"name": "asrpt-gated"}}
    with own_cluster(180, "1x8", settings, cpus=16, threads=2, speed=SPEED) as lab:
        lab.start_daemon()
        options = ("-c3", "-c1", "-c2 --hint=nomultithread")
        jobs = [lab.submit("--gpus=1", *each.split(), script="sleep 20") for _ in range(4) for each in options]
        done = lab.wait_all(jobs, "COMPLETED", timeout=60)
        assert Counter(job.cpus for job in done.values()) == {4: 8, 2: 4}
        assert_no_more_are_pinned_than_fit(lab, done, lambda job: job.cpus, 16)
        assert_asrptd_has_started(lab, jobs)


def test_tasks_that_share_no_core_take_whole_cores() -> None:
    """8 cores with two threads each and CR_ONE_TASK_PER_CORE: a task of 4 CPUs takes two cores, as do two of one."""
    settings = {**quick(SPEED), "policy": {"name": "asrpt-gated"}}
    conf = "SelectTypeParameters=CR_Core_Memory,CR_ONE_TASK_PER_CORE"
    with own_cluster(440, "1x8", settings, cpus=16, threads=2, slurm_conf_extra=conf, speed=SPEED) as lab:
        lab.start_daemon()
        jobs = [lab.submit("--gpus=1", *option, script="sleep 20") for option in [("-n1", "-c4"), ("-n2",)] * 4]
        done = lab.wait_all(jobs, "COMPLETED", timeout=60)
        assert Counter(job.cpus for job in done.values()) == {4: 8}
        starts = sorted(job.start_time for job in done.values())
        assert starts[3] < min(job.end_time for job in done.values())  # four run at a time
        assert_no_more_are_pinned_than_fit(lab, done, lambda job: job.cpus, 16)
        assert_asrptd_has_started(lab, jobs)


@pytest.mark.parametrize(("option", "needs", "there"), [("-c5", 5, 16), ("--mem=64000", 64000, 500000)])
def test_the_cores_and_the_memory_that_a_node_keeps_for_itself_are_not_used(
    option: str, needs: int, there: int
) -> None:
    settings = {**quick(SPEED), "policy": {"name": "asrpt-gated"}}
    with own_cluster(560, "1x8", settings, cpus=20, speed=SPEED) as lab:
        keep_for_itself(lab, "CoreSpecCount=4 MemSpecLimit=12000")
        lab.start_daemon()
        jobs = [lab.submit("--gpus=1", "-n1", option, script="sleep 20") for _ in range(16)]
        done = lab.wait_all(jobs, "COMPLETED", timeout=60)
        assert_no_more_are_pinned_than_fit(lab, done, lambda job: needs, there)
        assert_asrptd_has_started(lab, jobs)


def keep_for_itself(cluster: Cluster, words: str) -> None:
    """Write this to the node's line of slurm.conf, and restart Slurm's daemons."""
    lab = cluster.lab
    lab.stop_slurmctld()
    text = lab.slurm_conf.read_text()
    lab.slurm_conf.write_text(re.sub(r"(?m)^(NodeName=n\d.*) State=", rf"\1 {words} State=", text))
    lab.stop_node("n1")
    lab.start_slurmctld()
    lab.start_node("n1")
    lab.wait_for_nodes()


def assert_no_more_are_pinned_than_fit(
    lab: Cluster, done: Mapping[str, JobRecord], needs: Callable[[JobRecord], int], there: int
) -> None:
    """At no time do the jobs of the only node need more than is there, from their pins to their ends."""
    pinned = {job_id: (lab.audit(job_id, "start") or lab.audit(job_id, "running"))[0]["time"] for job_id in done}
    for time in pinned.values():
        at_once = [needs(job) for job_id, job in done.items() if pinned[job_id] <= time < job.end_time - READING]
        assert sum(at_once) <= there


def assert_asrptd_has_started(lab: Cluster, jobs: list[str]) -> None:
    assert all(lab.audit(job_id, "start") or lab.audit(job_id, "released-ahead") for job_id in jobs)
    assert not [entry for job_id in jobs for entry in lab.audit(job_id, "not-started")]
