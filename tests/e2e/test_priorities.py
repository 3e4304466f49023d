"""The site's priorities on a real Slurm: tiers, QOS, nice, an admin's priority, and a boost (docs/priorities.md)."""

from collections.abc import Iterator

import pytest

from slurm_asrpt.slurm.writeback import is_boosted

from .conftest import QUICK, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

WHOLE = ("-N2", "--gres=gpu:4")
EXTRA = """PriorityWeightQOS=100000
AccountingStorageEnforce=associations,limits,qos
PartitionName=urgent Nodes=n[1-2] PriorityTier=10 MaxTime=INFINITE State=UP"""
SETTINGS = {**QUICK, "slurm": {"partitions": ["gpu", "urgent"]}}


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    """QOS high, partition urgent in a higher tier; age, size, fair share and QOS have weights."""
    with own_cluster(640, "2x4", SETTINGS, accounting=True, multifactor=True, slurm_conf_extra=EXTRA) as cluster:
        cluster.lab.run(["sacctmgr", "-i", "add", "qos", "high", "Priority=1000"])
        cluster.lab.run(["sacctmgr", "-i", "modify", "user", "asrpt1,asrpt2", "set", "qos+=high"])
        yield cluster
        cluster.stop_daemon()


def submit_all(lab: Cluster) -> dict[str, str]:
    """Jobs on the whole cluster in another order than that of their priorities."""
    return {
        "nice": lab.submit(*WHOLE, "--nice=10000", script="sleep 1"),
        "usual": lab.submit(*WHOLE, script="sleep 1"),
        "array": lab.submit(*WHOLE, "--array=0-1", "--nice=100", script="sleep 1"),
        "raised": lab.submit(*WHOLE, script="sleep 1", user="asrpt2"),
        "high": lab.submit(*WHOLE, "--qos=high", script="sleep 1"),
        "boosted": lab.submit(*WHOLE, "--nice=5000", script="sleep 1"),
        "tier": lab.submit(*WHOLE, "-p", "urgent", script="sleep 1"),
    }


ORDER = ["tier", "boosted", "high", "raised", "usual", "array", "nice"]


@pytest.mark.parametrize("mode", ["enforce", "order"])
def test_jobs_start_in_the_order_of_the_sites_priorities(lab: Cluster, mode: str) -> None:
    lab.start_daemon("--mode", mode)
    blockers = lab.block_all()
    jobs = submit_all(lab)
    lab.scontrol("update", f"JobId={jobs['raised']}", "Priority=50000")
    lab.admin("boost", jobs["boosted"])
    assert is_boosted(lab.job(jobs["boosted"]), multifactor=True)
    names = {job_id: name for name, job_id in jobs.items()}

    def order() -> list[str]:
        return list(dict.fromkeys(names[job_id.partition("_")[0]] for job_id in lab.order()))

    wait_for(lambda: order() == ORDER, lambda: f"the order is {order()}", 15)
    rows = lab.status()
    assert rows[jobs["high"]]["priority"] == "QOS high"
    assert rows[jobs["raised"]]["priority"] == "priority 50000 set by an admin"
    lab.cancel(*blockers)
    array = [f"{jobs['array']}_{task}" for task in range(2)]
    ended = lab.wait_all([*(job_id for job_id in names if job_id != jobs["array"]), *array], "COMPLETED")
    starts = sorted(ended, key=lambda job_id: ended[job_id].start_time)
    assert list(dict.fromkeys(names[job_id.partition("_")[0]] for job_id in starts)) == ORDER
    lab.stop_daemon()


def test_a_boost_is_undone(lab: Cluster) -> None:
    lab.start_daemon()
    blockers = lab.block_all()
    first, second = (lab.submit(*WHOLE, f"--nice={nice}", script="sleep 1") for nice in (10, 7000))
    assert "goes before all others" in lab.admin("boost", second)
    assert "already" in lab.admin("boost", second)
    wait_for(lambda: lab.order() == [second, first], "the boosted job is first", 15)
    assert "no longer goes" in lab.admin("boost", second, "--undo")
    wait_for(lambda: lab.order() == [first, second], "it is not", 15)
    assert lab.job(second).nice == 7000
    lab.cancel(*blockers, first, second)
    lab.stop_daemon()
