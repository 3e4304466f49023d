"""Other cluster configurations: sched/builtin, and accounting with slurmdbd on MariaDB."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from .conftest import QUICK, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e


@contextmanager
def other_cluster(
    port: int, policy: str = "asrpt", partitions: Sequence[str] = ("gpu",), **options: Any
) -> Iterator[Cluster]:
    """A lab of its own with asrptd in mode enforce, for these partitions."""
    settings = QUICK | {"policy": {"name": policy}, "slurm": {"partitions": list(partitions)}}
    with own_cluster(port, "2x4", settings, **options) as cluster:
        cluster.start_daemon()
        yield cluster


def test_with_sched_builtin_a_blocked_head_does_not_block_other_partitions():
    with other_cluster(80, scheduler="builtin") as asrpt:
        blocker = asrpt.block("n1", 2)
        big = asrpt.submit("-n8", "--gpus-per-task=1", script="sleep 1")
        small = asrpt.submit("-n1", "--gpus-per-task=1", script="sleep 1")
        wait_for(lambda: asrpt.state_of(big) == "waiting", "the big job waits", 15)
        unmanaged = asrpt.submit("-p", "other", "-n1", "--gres=gpu:1", script="sleep 1")
        asrpt.wait(unmanaged, "COMPLETED")
        assert asrpt.job(small).state == "PENDING"  # the head of the FIFO queue blocks, as in the paper
        asrpt.lab.run(["scancel", blocker])
        jobs = asrpt.wait_all([big, small], "COMPLETED", timeout=40)
        assert jobs[big].start_time <= jobs[small].start_time


@pytest.mark.parametrize("policy", ["wcs-workload", "wcs-subtime", "asrpt-gated", "sjf-bco-online"])
def test_another_policy_schedules_jobs(policy: str):
    with other_cluster(80, policy=policy) as asrpt:
        blocker = asrpt.block("n1", 4)
        big = asrpt.submit("-n8", "--gpus-per-task=1", "--time=5", script="sleep 1")
        wait_for(lambda: asrpt.state_of(big) == "waiting", "the big job waits", 15)
        small = asrpt.submit("-n1", "--gpus-per-task=1", "--time=1", script="sleep 1")
        asrpt.wait(small, "COMPLETED")  # work-conserving: it does not wait for the large job
        asrpt.lab.run(["scancel", blocker])
        asrpt.wait(big, "COMPLETED")


def test_easy_backfill_uses_time_limits():
    with other_cluster(80, policy="easy-backfill") as asrpt:
        running = asrpt.submit("-n6", "--gpus-per-task=1", "--time=3", script="sleep 60")
        asrpt.wait(running, "RUNNING")
        head = asrpt.submit("-n8", "--gpus-per-task=1", "--time=3", script="sleep 1")
        wait_for(lambda: asrpt.state_of(head) == "waiting", "the head waits", 15)
        long = asrpt.submit("-n1", "--gpus-per-task=1", "--time=10", script="sleep 1")
        short = asrpt.submit("-n1", "--gpus-per-task=1", "--time=1", script="sleep 1")
        asrpt.wait(short, "COMPLETED")  # ends before the head's reservation
        asrpt.wait(head, "PENDING")
        assert asrpt.job(long).state == "PENDING"
        said = f"would delay job {head}, which has 8 GPUs reserved about 00:0"
        wait_for(lambda: asrpt.text_of(long).startswith(said), lambda: asrpt.text_of(long), 10)
        asrpt.cancel(running)
        jobs = asrpt.wait_all([head, long], "COMPLETED", timeout=40)
        assert jobs[head].start_time <= jobs[long].start_time


@pytest.mark.parametrize(("policy", "event"), [("asrpt", "left"), ("asrpt-gated", "start")])
def test_jobs_of_a_preempting_partition_start_and_preempted_jobs_run_again(policy: str, event: str):
    """Only asrpt-gated counts on preemption; other policies leave such jobs to Slurm."""
    extra = """PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=urgent Nodes=n[1-2] PriorityTier=10"""
    with other_cluster(80, policy, ("gpu", "urgent"), slurm_conf_extra=extra) as asrpt:
        victim = asrpt.submit("-n8", "--gpus-per-task=1", "--requeue", script="[ $SLURM_RESTART_COUNT ] || sleep 600")
        asrpt.wait(victim, "RUNNING")
        wait_for(lambda: asrpt.audit(victim, "running"), "asrptd has seen it run", 10)
        urgent = asrpt.submit("-p", "urgent", "--gpus=1", script="sleep 3")
        asrpt.wait(urgent, "RUNNING", "COMPLETED")
        wait_for(lambda: asrpt.audit(urgent, event), event, 10)
        found = asrpt.audit(urgent, event)[0]
        assert found["why"] == "preempts" if event == "left" else found["preempts"] == [victim]
        asrpt.start_again(victim)
        asrpt.wait(victim, "COMPLETED")


def test_jobs_that_may_preempt_others_by_suspension_are_left_to_slurm():
    extra = """PreemptType=preempt/partition_prio
PreemptMode=SUSPEND,GANG
PartitionName=urgent Nodes=n[1-2] PriorityTier=10"""
    with other_cluster(80, "asrpt-gated", ("gpu", "urgent"), slurm_conf_extra=extra) as asrpt:
        urgent, other = asrpt.submit("-p", "urgent", "--gpus=1"), asrpt.submit("--gpus=1")
        asrpt.wait_all([urgent, other], "COMPLETED")
        assert asrpt.audit(urgent, "left")[0]["why"] == "suspends"
        assert asrpt.audit(other, "start")


def test_sacct_shows_the_tag_and_the_gpus():
    missing = [name for name in ("slurmdbd", "mariadbd") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"missing: {', '.join(missing)} (make test installs them)")
    with other_cluster(30, accounting=True) as asrpt:
        job_id = asrpt.submit("-n2", "--gpus-per-task=1", script="sleep 1")
        asrpt.wait(job_id, "COMPLETED")
        command = ["sacct", "-X", "-P", "-n", "-j", job_id, "--format=State,AllocTRES,AdminComment"]
        wait_for(lambda: "COMPLETED" in asrpt.lab.run(command).stdout, "sacct knows it", 15)
        state, tres, comment = asrpt.lab.run(command).stdout.strip().split("|")
        assert state == "COMPLETED"
        assert "gres/gpu=2" in tres
        assert comment.startswith("asrpt1:g=")
