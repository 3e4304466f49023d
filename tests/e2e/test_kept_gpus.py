"""asrpt-gated with interruptions on a real Slurm: a job that consents runs on GPUs that are kept for another one."""

from collections.abc import Iterator

import pytest

from .conftest import Cluster, own_cluster, quick, wait_for

pytestmark = pytest.mark.e2e

SPEED = 40
HOURS = 4 * 3600
LONG = f"trap 'echo saved >> saved.out' USR1\necho run >> runs.out\nsleep {10 * HOURS} &\nwait\nwait"
"""It does not report its checkpoint, so it is requeued after ``grace_s``."""
SETTINGS = {
    **quick(SPEED),
    "policy": {"name": "asrpt-gated", "interrupts": True, "fills": True},
    "interrupt": {"grace_s": 120.0},
}


@pytest.fixture
def two_nodes() -> Iterator[Cluster]:
    """Two nodes of two GPUs."""
    with own_cluster(780, "2x2", SETTINGS, speed=SPEED) as cluster:
        yield cluster


def test_a_filler_makes_room_even_if_asrptd_died_meanwhile(two_nodes: Cluster) -> None:
    lab = two_nodes
    lab.start_daemon()
    lab.predict({("asrpt1", "first"): HOURS, ("asrpt1", "wide"): 6000, ("asrpt1", "long"): 10 * HOURS}, {"long": LONG})
    first = lab.submit("--gpus=2", "-N1", "-J", "first", script=f"sleep {HOURS}")
    lab.wait(first, "RUNNING")
    wide = lab.submit("--gpus=4", "-J", "wide", script="sleep 60")
    wait_for(lambda: lab.audit(wide, "wait"), "it waits for both nodes", 20)
    long = lab.submit(
        "--gpus=2", "-N1", "-t", "1000", "-J", "long", "--requeue", "--comment=asrpt:interrupt=B:USR1", script=LONG
    )
    lab.wait(long, "RUNNING", timeout=30)
    assert [event["filling"] for event in lab.audit(long, "start")] == [wide]
    lab.sleep(60.0)
    lab.kill_daemon()
    lab.start_daemon()
    lab.sleep(60.0)
    assert not lab.audit(long, "interrupt"), "it runs until its GPUs are needed"
    lab.cancel(first)
    wait_for(lambda: lab.audit(long, "interrupt"), "it must make room", 20)
    assert [event["head"] for event in lab.audit(long, "interrupt")] == [wide]
    done = lab.wait(wide, "COMPLETED", timeout=30)
    again = lab.wait(long, "RUNNING", timeout=30)
    assert again.restarts == 1
    assert again.start_time >= done.end_time
    wait_for(lambda: lab.output("runs.out").count("run") == 2, "it runs again", 15)
    assert lab.output("saved.out").count("saved") == 1
    lab.cancel(long)
    assert lab.stop_daemon() == 0
