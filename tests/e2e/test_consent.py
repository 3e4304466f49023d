"""asrpt-gated with policy.interrupts on a real Slurm: who may be preempted may preempt, and continues afterwards."""

from collections.abc import Iterator

import pytest

from .conftest import Cluster, own_cluster, quick, wait_for

pytestmark = pytest.mark.e2e

SPEED = 40
CONSENT = ("--comment=asrpt:interrupt=B:USR1", "--requeue")
HOURS = 4 * 3600
LONG = f"trap 'echo saved >> saved.out' USR1\necho run >> runs.out\nsleep {HOURS} &\nwait\nwait"
"""It does not report its checkpoint, so it is requeued after ``grace_s``."""
SETTINGS = {
    **quick(SPEED),
    "policy": {"name": "asrpt-gated", "interrupts": True, "min_run_s": 120.0},
    "interrupt": {"grace_s": 120.0},
}


@pytest.fixture(scope="module")
def fast_lab() -> Iterator[Cluster]:
    """A node of two GPUs, where an hour takes a minute and a half."""
    with own_cluster(760, "1x2", SETTINGS, speed=SPEED) as cluster:
        yield cluster


def test_a_short_job_that_consents_takes_the_gpus_of_a_long_one_that_consents(fast_lab: Cluster) -> None:
    lab = fast_lab
    lab.start_daemon()
    lab.predict({("asrpt1", "long"): HOURS, ("asrpt2", "short"): 60, ("asrpt2", "other"): 30})
    long = lab.submit("--gpus=2", "-N1", "-t", "600", "-J", "long", *CONSENT, script=LONG)
    lab.wait(long, "RUNNING")
    lab.sleep(150.0)  # no job is preempted before ``min_run_s``
    other = lab.submit("--gpus=2", "-N1", "-J", "other", script="sleep 30", user="asrpt2")
    lab.sleep(100.0)
    assert not lab.audit(long, "interrupt"), "whoever does not consent preempts nobody"
    short = lab.submit("--gpus=2", "-N1", "-J", "short", *CONSENT, script="sleep 60", user="asrpt2")
    wait_for(lambda: lab.audit(long, "interrupt"), "the long job is preempted", 20)
    assert [event["head"] for event in lab.audit(long, "interrupt")] == [short]
    done = lab.wait(short, "COMPLETED", timeout=30)
    began = lab.wait(other, "COMPLETED", timeout=30).start_time
    assert began >= done.end_time, "the GPUs are those of the job that preempted"
    again = lab.wait(long, "RUNNING", timeout=30)
    assert again.restarts == 1
    wait_for(lambda: lab.output("runs.out").count("run") == 2, "it runs again", 15)
    assert lab.output("saved.out").count("saved") == 1
    lab.cancel(long)
    assert lab.stop_daemon() == 0
