"""Preemption where nodes take their time to clean up: a real Slurm starts nothing there until the epilog has ended."""

from collections.abc import Iterator

import pytest

from .conftest import QUICK, SOON_S, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

HLAS = {"name": "hlas", "queues": 2, "first_gpu_s": 8.0, "min_run_s": 6.0, "max_interruptions": 2}


@pytest.fixture
def slow() -> Iterator[Cluster]:
    """Two nodes of two GPUs, whose epilog takes six seconds: a dozen cycles of asrptd."""
    with own_cluster(1060, "2x2", {**QUICK, "policy": HLAS}) as cluster:
        epilog = cluster.lab.directory / "etc" / "asrpt-epilog"
        first, *rest = epilog.read_text().splitlines()
        epilog.write_text("\n".join([first, "sleep 6", *rest, ""]))
        cluster.start_daemon()
        yield cluster


def test_a_job_waits_for_the_node_of_the_job_that_it_has_preempted_and_preempts_no_other(slow: Cluster) -> None:
    command = f"{slow.lab.train} --checkpoint %s.at --iterations 600 --speedup 20 --wait 300"
    own = ("--comment=asrpt:interrupt=B:USR1", "--requeue", "--gpus=2", "-N1")
    long = [slow.submit(*own, script=f"trap '' USR1\nexec {command % name}") for name in ("a", "b")]
    slow.wait_all(long, "RUNNING")
    wait_for(lambda: {slow.status()[j]["queue"] for j in long} == {2}, "both have had 8 GPU-seconds", SOON_S)
    short = slow.submit("--gpus=2", "-N1", script="sleep 1")
    slow.wait(short, "COMPLETED")
    preempted = [entry["head"] for job_id in long for entry in slow.audit(job_id, "interrupt")]
    assert preempted == [short]
    slow.cancel(*long)
    assert slow.stop_daemon() == 0
