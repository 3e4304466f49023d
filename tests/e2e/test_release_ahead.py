"""Release ahead on a real Slurm: the next jobs start when a job ends, although asrptd is stopped at that moment."""

import signal
from collections.abc import Iterator

import pytest

from .conftest import COMMANDS, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

SETTINGS: dict[str, dict[str, float]] = {"daemon": {"interval_s": 1.0, "lease_s": 3600, "release_ahead": 2}}
ONE = ("--gpus=1", "-t", "60")


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    with own_cluster(700, "2x2", SETTINGS, multifactor=True) as cluster:
        yield cluster


def test_the_next_jobs_start_at_once_and_in_the_policys_order_while_asrptd_stands_still(lab: Cluster) -> None:
    lab.start_daemon()
    lab.predict({("asrpt1", "short"): 60, ("asrpt1", "middle"): 600, ("asrpt1", "long"): 3000})
    running = [lab.submit(*ONE, "-J", f"first{number}", script="sleep 600") for number in range(4)]
    lab.wait_all(running, "RUNNING")
    long, middle, short = (lab.submit(*ONE, "-J", name, script="sleep 600") for name in ("long", "middle", "short"))
    wait_for(lambda: lab.order() == [short, middle, long], lambda: f"the order is {lab.order()}", 30)
    wait_for(lambda: lab.audit(middle, "released-ahead"), "two jobs are released ahead", 30)
    assert lab.audit(short, "released-ahead")
    assert not lab.audit(long, "released-ahead")
    assert lab.job(long).reason == "BeginTime"
    said = lab.lab.run([COMMANDS / "asrpt-admin", "doctor"], check=False, timeout_s=120).stdout
    assert "ok       leases: 1 waiting job with a valid lease, 2 released ahead" in said
    assert lab.daemon is not None
    lab.daemon.send_signal(signal.SIGSTOP)
    try:
        lab.cancel(running[0])
        lab.wait(short, "RUNNING")
        assert lab.job(middle).state == "PENDING"
        lab.cancel(running[1])
        lab.wait(middle, "RUNNING")
        lab.cancel(running[2])
        assert lab.job(long).state == "PENDING", "it has a lease"
    finally:
        lab.daemon.send_signal(signal.SIGCONT)
    lab.wait(long, "RUNNING")
    for job_id in (short, middle):
        wait_for(lambda job_id=job_id: lab.state_of(job_id) == "running", f"asrptd knows that {job_id} runs", 15)  # type: ignore[misc]
        assert not lab.audit(job_id, "fence-refused")
    lab.cancel(*running[3:], short, middle, long)
    assert lab.stop_daemon() == 0


def test_a_shorter_job_that_comes_later_takes_the_place_of_a_released_one(lab: Cluster) -> None:
    lab.start_daemon()
    lab.predict({("asrpt1", "short"): 60, ("asrpt1", "long"): 3000, ("asrpt2", "long"): 3600})
    running = [lab.submit(*ONE, "-J", f"second{number}", script="sleep 600") for number in range(4)]
    lab.wait_all(running, "RUNNING")
    first, second = (lab.submit(*ONE, "-J", "long", script="sleep 600", user=f"asrpt{each}") for each in (1, 2))
    for job_id in (first, second):
        wait_for(lambda job_id=job_id: lab.audit(job_id, "released-ahead"), f"{job_id} is released ahead", 30)  # type: ignore[misc]
    short = lab.submit(*ONE, "-J", "short", script="sleep 600")
    wait_for(lambda: lab.audit(short, "released-ahead"), "the shorter one is released", 30)
    wait_for(lambda: lab.audit(second, "leased-again"), "the longest one is leased again", 30)
    lab.cancel(running[0])
    lab.wait(short, "RUNNING")
    assert lab.job(first).state == lab.job(second).state == "PENDING"
    lab.cancel(*running[1:], short, first, second)
    assert lab.stop_daemon() == 0


def test_a_job_that_slurm_would_scatter_is_released_for_one_node(lab: Cluster) -> None:
    """Else it would start on one GPU of each of two nodes, in the moment in which the second one is free."""
    lab.start_daemon()
    lab.predict({("asrpt1", "two"): 60})
    running = {node: [lab.submit(*ONE, "-w", node, script="sleep 600") for _ in range(2)] for node in ("n1", "n2")}
    lab.wait_all([job_id for some in running.values() for job_id in some], "RUNNING")
    # 26.05 might give a job with --gpus and this limit fewer GPUs, so that asrptd does not release it
    gpus = ("-n2", "--gpus-per-task=1") if lab.client.config().may_give_fewer_gpus else ("--gpus=2",)
    loose = lab.submit(*gpus, "-t", "60", "-J", "two", script="sleep 600")
    together = lab.submit(*gpus, "-N1", "-t", "60", "-J", "two", script="sleep 600")
    wait_for(lambda: lab.order() == [loose, together], lambda: f"the order is {lab.order()}", 30)
    lab.cancel(running["n1"][0])
    wait_for(lambda: lab.audit(loose, "released-ahead"), "it is released", 30)
    assert lab.daemon is not None
    lab.daemon.send_signal(signal.SIGSTOP)
    try:
        lab.cancel(*running["n2"])
        lab.wait(loose, "RUNNING")
        assert lab.job(loose).gpus_by_node == {"n2": 2}
    finally:
        lab.daemon.send_signal(signal.SIGCONT)
    lab.cancel(running["n1"][1], loose, together)
    assert lab.stop_daemon() == 0
