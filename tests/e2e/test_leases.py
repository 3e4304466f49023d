"""asrptd is killed, restarts, stops, or runs in mode shadow or order: no job is lost, and none runs twice."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from slurm_asrpt.status.document import read_status

from .conftest import COMMANDS, LEASE_S, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

RAN = "echo $SLURM_JOB_ID >> ran.out"


def hook_lease(cluster: Cluster) -> str:
    return re.findall(r"lease_s=(\d+)", (cluster.paths / "hook" / "hook.conf").read_text(encoding="ascii"))[0]


def assert_each_ran_once(cluster: Cluster, jobs: list[str]) -> None:
    assert sorted(cluster.output("ran.out").split(), key=int) == jobs
    (cluster.lab.home("asrpt1") / "ran.out").unlink()


def test_a_killed_and_restarted_asrptd_starts_pending_jobs_in_order(asrpt: Cluster):
    """One GPU stays free: without leases, Slurm would start the small jobs behind the head on it."""
    blockers = [asrpt.block(node, 4) for node in ("n1", "n2", "n3")] + [asrpt.block("n4", 3)]
    jobs = [asrpt.submit("--gpus=2", "-N1", script=RAN)]
    jobs += [asrpt.submit("--gpus=1", script=RAN) for _ in range(4)]
    wait_for(lambda: asrpt.order() == jobs, "all wait in order", 15)
    asrpt.kill_daemon()
    asrpt.start_daemon()
    assert asrpt.order() == jobs
    time.sleep(LEASE_S + 1)
    assert asrpt.order() == jobs
    assert {asrpt.job(j).state for j in jobs} == {"PENDING"}
    asrpt.cancel(*blockers)
    asrpt.wait_all(jobs, "COMPLETED")
    assert_each_ran_once(asrpt, jobs)


def run_daemon(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    return cluster.lab.run([COMMANDS / "asrptd", *arguments], check=False)


def test_sigterm_stops_asrptd_cleanly_and_the_hook_stops_leasing(asrpt: Cluster):
    beside = run_daemon(asrpt, "--once")
    assert beside.returncode == 1
    assert beside.stderr.splitlines()[-1].startswith("asrptd: another asrptd leads (")
    assert hook_lease(asrpt) == str(LEASE_S)
    assert asrpt.stop_daemon(signal.SIGTERM) == 0
    assert hook_lease(asrpt) == "0"
    job_id = asrpt.submit("--gpus=1", script="true")
    asrpt.wait(job_id, "COMPLETED", timeout=5)
    assert run_daemon(asrpt, "--once").returncode == 0
    assert hook_lease(asrpt) == "0"


def leader(cluster: Cluster) -> str:
    return read_status(cluster.paths / "run").leader


def test_a_standby_takes_over_when_the_leader_is_killed(asrpt: Cluster):
    """The target is ten seconds; the limit here is longer than the leases, for busy machines."""
    blockers = asrpt.block_all()
    jobs = [asrpt.submit("--gpus=1", script=RAN) for _ in range(4)]
    wait_for(lambda: asrpt.order() == jobs, "all wait in order", 15)
    first, asrpt.daemon = asrpt.daemon, None
    second = subprocess.Popen([COMMANDS / "asrptd"], env=asrpt.lab.env, stderr=subprocess.PIPE, text=True)
    try:
        assert first is not None
        assert f" pid {first.pid} since " in leader(asrpt)
        said = [second.stderr.readline() for _ in range(2)]
        assert " release " in said[0]
        assert f"standing by: {leader(asrpt)} leads" in said[1]
        first.kill()
        first.wait()
        wait_for(lambda: f" pid {second.pid} since " in leader(asrpt), "the second leads", 30)
        assert asrpt.order() == jobs
        assert {asrpt.job(j).state for j in jobs} == {"PENDING"}
        asrpt.cancel(*blockers)
        asrpt.wait_all(jobs, "COMPLETED")
        assert_each_ran_once(asrpt, jobs)
    finally:
        second.terminate()
        second.communicate(timeout=20)


def test_shadow_mode_records_decisions_and_writes_nothing_to_slurm(cluster: Cluster):
    cluster.start_daemon("--mode", "shadow")
    blockers = cluster.block_all()
    first, second = (cluster.submit("--gpus=2", script="sleep 1") for _ in range(2))
    wait_for(lambda: len(cluster.order()) == 2, "both are known", 10)
    for record in (cluster.job(first), cluster.job(second)):
        assert record.eligible_time <= time.time()
        assert record.required_nodes == ""
    cluster.cancel(*blockers)
    done = cluster.wait_all([first, second], "COMPLETED", timeout=15)
    assert all(record.required_nodes == "" for record in done.values())
    wait_for(lambda: cluster.audit(first, "ended") and cluster.audit(second, "ended"), "both are seen to end", 30)
    assert cluster.audit(first, "queued")
    assert cluster.audit(first, "wait")[0]["reason"] == "gpus"
    assert cluster.audit(first, "running")
    assert {cluster.recorded(job_id).state for job_id in (first, second)} == {"COMPLETED"}
    assert cluster.stop_daemon() == 0
    audit = (cluster.paths / "state" / "audit.jsonl").read_text(encoding="utf-8")
    assert all(json.loads(line) for line in audit.splitlines())


@pytest.fixture
def multifactor() -> Iterator[Cluster]:
    """One node of 4 GPUs under priority/multifactor."""
    with own_cluster(60, "1x4", multifactor=True) as cluster:
        yield cluster


def site_factors(cluster: Cluster, jobs: list[str]) -> list[int]:
    lines = cluster.lab.run(["sprio", "-h", "-o", "%i %S"]).stdout.splitlines()
    factors = {words[0]: int(words[1]) for words in map(str.split, lines)}
    return [factors.get(job_id, 0) for job_id in jobs]


def test_mode_order_sets_site_factors_and_slurm_starts_jobs_in_that_order(multifactor: Cluster):
    """Slurm alone would start jobs by age; the policy starts those with the least predicted work first."""
    cluster = multifactor
    cluster.start_daemon("--mode", "order")
    names = {"long": 3000, "middle": 300, "short": 30}
    cluster.predict({("asrpt1", name): iterations for name, iterations in names.items()})
    (blocker,) = cluster.block_all()
    jobs = [cluster.submit("--gpus=4", "-J", name) for name in names][::-1]
    wait_for(lambda: cluster.order() == jobs, "asrptd has a queue order", 10)

    def descending() -> bool:
        first, second, third = site_factors(cluster, jobs)
        return first > second > third > 0

    wait_for(descending, "site factors are in the policy's order", 10)
    cluster.admin("disable")
    assert site_factors(cluster, jobs) == [0, 0, 0]
    cluster.admin("enable")
    wait_for(descending, "site factors are set again", 10)
    cluster.cancel(blocker)
    done = cluster.wait_all(jobs, "COMPLETED", timeout=40)
    starts = [done[job_id].start_time for job_id in jobs]
    assert starts == sorted(starts)
    assert len(set(starts)) == 3
