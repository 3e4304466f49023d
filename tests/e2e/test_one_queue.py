"""Jobs without GPUs, and jobs whose nodes Slurm must choose, are in one queue with all others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import chain

import pytest

from slurm_asrpt.status.reason_texts import by_slurm_text

from .conftest import Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

SETTINGS = {"daemon": {"interval_s": 0.5}, "policy": {"name": "asrpt-gated"}}
SHORT, LONG = "sleep 3", "sleep 600"


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    """Two nodes of eight GPUs and 16 CPUs under asrpt-gated."""
    with own_cluster(950, "2x8", SETTINGS, cpus=16, multifactor=True) as cluster:
        cluster.start_daemon()
        yield cluster


def test_jobs_without_gpus_leave_the_cpus_that_waiting_gpu_jobs_need(lab: Cluster) -> None:
    """Four CPUs become free at a time, on one node, then on the other; a GPU job needs eight."""
    first = [lab.submit("-N1", "-n1", "-c4", script=LONG) for _ in range(8)]
    lab.wait_all(first, "RUNNING")
    with_gpus = [lab.submit("--gpus=1", "-c8", script=LONG) for _ in range(4)]
    younger = [lab.submit("-N1", "-n1", "-c4", script=SHORT) for _ in range(8)]
    wait_for(lambda: "needs 4 CPUs and no GPUs" in lab.text_of(younger[-1]), "asrpt-status says why it waits", 10)
    on_each = sorted(first, key=lambda job_id: (lab.job(job_id).nodes, job_id))
    for job_id in chain(*zip(on_each[:4], on_each[4:], strict=True)):
        lab.cancel(job_id)
        lab.wait(job_id, "CANCELLED")
        time.sleep(1)
    started = lab.wait_all(with_gpus, "RUNNING")
    lab.cancel(*with_gpus)
    done = lab.wait_all(younger, "COMPLETED", timeout=60)
    last = max(job.start_time for job in started.values())
    assert not [job_id for job_id in younger if done[job_id].start_time < last]
    for job_id in younger:
        assert done[job_id].nodes == lab.audit(job_id, "start-cpus")[-1]["nodes"][0]


def test_a_job_without_gpus_keeps_whole_nodes_only_from_jobs_that_would_delay_it(lab: Cluster) -> None:
    blockers = [lab.submit("--gpus=1", "-w", name, "--time=600", script=LONG) for name in ("n1", "n2")]
    lab.wait_all(blockers, "RUNNING")
    head = lab.submit("--exclusive", "-N2", script=SHORT)
    wait_for(lambda: "needs 2 whole nodes and no GPUs" in lab.text_of(head), "asrpt-status says why it waits", 10)
    brief = [lab.submit("--gpus=1", "--time=1", script=SHORT), lab.submit("-n2", "--time=1", script=SHORT)]
    lab.wait_all(brief, "COMPLETED", timeout=30)
    endless = [lab.submit("--gpus=1", script=SHORT), lab.submit("-n2", script=SHORT)]
    for job_id in endless:
        wait_for(lambda job_id=job_id: f"would delay job {head}" in lab.text_of(job_id), "it names the first job", 10)
    lab.cancel(*blockers)
    done = lab.wait_all([head, *endless], "COMPLETED", timeout=60)
    assert all(done[job_id].start_time >= done[head].start_time for job_id in endless)


def test_a_stream_of_small_jobs_does_not_starve_a_job_on_contiguous_nodes(lab: Cluster) -> None:
    """Under multifactor with a weight of the size, plain Slurm starts it before small jobs, also older ones."""
    blockers = lab.block_all()
    older = [lab.submit("--gpus=2", "-N1", script=SHORT) for _ in range(8)]
    wide = lab.submit("--contiguous", "-N2", "--gpus-per-node=8", script=SHORT)
    wait_for(lambda: lab.text_of(wide).endswith(by_slurm_text("contiguous")), "it is in the queue", 10)
    younger = [lab.submit("--gpus=2", "-N1", script=SHORT) for _ in range(8)]
    wait_for(lambda: lab.order()[:1] == [wide], "it is the first", 10)
    lab.cancel(*blockers)
    began = lab.wait(wide, "RUNNING", "COMPLETED", timeout=30).start_time
    done = lab.wait_all([*older, *younger, wide], "COMPLETED", timeout=60)
    assert not [job_id for job_id in (*older, *younger) if done[job_id].start_time < began]
    assert not lab.audit(wide, "not-started")


def test_a_heterogeneous_job_waits_in_the_queue_with_all_its_components(lab: Cluster) -> None:
    blockers = lab.block_all()
    job_id = lab.submit("--gpus=8", "-N1", ":", "--gpus=4", "-N1", script=SHORT)
    wait_for(lambda: lab.order() == [job_id], "it is in the queue", 10)
    assert lab.status()[job_id]["gpus"] == 12
    parts = [job for job in lab.jobs().values() if job.het_id == job_id]
    assert len(parts) == 2
    wait_for(lambda: all(lab.job(part.job_id).eligible_time > time.time() for part in parts), "both are leased", 10)
    lab.cancel(blockers[0])
    small = lab.submit("--gpus=2", "-N1", script=SHORT)
    lab.wait(blockers[0], "CANCELLED")
    time.sleep(2)
    assert {lab.job(one).state for one in (job_id, small)} == {"PENDING"}, "the room of the older job is kept"
    lab.cancel(blockers[1])
    done = lab.wait_all([part.job_id for part in parts], "COMPLETED")
    assert len({job.nodes for job in done.values()}) == 2
    lab.wait(small, "COMPLETED")


def test_a_heterogeneous_job_without_gpus_waits_in_the_queue(lab: Cluster) -> None:
    blocker = lab.submit("-N2", "-n2", "-c16", script=LONG)
    lab.wait(blocker, "RUNNING")
    job_id = lab.submit("-n1", "-c8", ":", "-n1", "-c4", script=SHORT)
    wait_for(lambda: lab.text_of(job_id).endswith(by_slurm_text("het")), "it is in the queue", 10)
    parts = [job.job_id for job in lab.jobs().values() if job.het_id == job_id]
    wait_for(lambda: all(lab.job(part).eligible_time > time.time() for part in parts), "both are leased", 10)
    small = [lab.submit("-n1", "-c16", script=SHORT) for _ in range(2)]
    wait_for(lambda: "needs 16 CPUs" in lab.text_of(small[-1]), "they wait behind it", 10)
    lab.cancel(blocker)
    began = lab.wait(job_id, "RUNNING", "COMPLETED", timeout=60).start_time
    done = lab.wait_all([*parts, *small], "COMPLETED", timeout=60)
    assert all(done[each].start_time >= began for each in small)
    assert lab.audit(job_id, "start-cpus")
    assert not lab.audit(job_id, "not-started")
