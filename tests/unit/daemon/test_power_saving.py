"""Jobs on nodes that are powered down: planned there, awaited, and what the daemon learns of it."""

import pytest

from slurm_asrpt.daemon.cluster import StartupDelay
from slurm_asrpt.daemon.jobs.saved_state import JobState


def test_a_job_is_started_on_a_node_that_is_powered_down_and_its_wait_is_learned(make_bench):
    bench = make_bench(policy="asrpt-gated")
    for name in ("n2", "n3"):
        bench.slurm.node_state(name, "IDLE+POWERED_DOWN")
    first = bench.slurm.submit(4)
    bench.cycle(2)
    assert bench.slurm.records[first].nodes == "n1"
    second = bench.slurm.submit(2)
    bench.cycle(2)
    assert bench.slurm.records[second].state == "CONFIGURING"
    assert bench.scheduler.decider.cluster.startup_delay.seconds == 60
    assert {row.job_id: row.reason for row in bench.status(bench.slurm.now).jobs}[second] == "configuring"
    bench.slurm.tick(20)
    bench.cycle()
    assert bench.job_state(second) is JobState.RUNNING  # nothing is taken back meanwhile
    waited = bench.slurm.now - bench.slurm.records[second].start_time
    bench.slurm.powered_up("n2")
    bench.cycle()
    assert bench.scheduler.decider.cluster.startup_delay.seconds == waited > 20


def test_a_job_waits_for_one_that_ends_before_a_node_would_be_up(make_bench):
    bench = make_bench(policy="asrpt-gated", sizes=(4, 4))
    bench.slurm.node_state("n2", "IDLE+POWERED_DOWN")
    bench.slurm.submit(4, iterations=30)
    bench.cycle(2)
    second = bench.slurm.submit(4, iterations=30)
    bench.cycle(3)
    assert bench.job_state(second) is JobState.QUEUED
    assert bench.job(second).reason.kind == "gpus"
    bench.slurm.change("1", time_limit=7200.0)
    third = bench.slurm.submit(4, iterations=30)  # the first one's room is for the second
    bench.cycle(2)
    assert sorted([bench.state(second), bench.state(third)]) == ["CONFIGURING", "PENDING"]


def test_a_node_that_does_not_come_up_is_planned_around(make_bench):
    bench = make_bench(policy="asrpt-gated", sizes=(4, 4, 4))
    for name in ("n1", "n2"):
        bench.slurm.node_state(name, "IDLE+POWERED_DOWN")
    blocker = bench.slurm.submit(4)
    bench.cycle(2)
    assert bench.slurm.records[blocker].nodes == "n3"
    failed = bench.slurm.submit(4)
    bench.cycle(2)
    assert bench.slurm.records[failed].nodes == "n1"
    bench.slurm.node_state("n1", "DOWN+POWERED_DOWN+NOT_RESPONDING")
    bench.slurm.requeued(failed)
    bench.cycle()
    bench.slurm.tick(121)
    bench.cycle(2)
    assert bench.slurm.records[failed].nodes == "n2"


def test_the_delay_is_an_average_that_survives_restarts_and_damage():
    delay = StartupDelay(60.0)
    for seconds in (20.0, 40.0):
        delay.observed(seconds)
    assert delay.seconds == pytest.approx(30.0)
    after = StartupDelay(90.0)
    after.load(delay.dump())
    assert (after.seconds, after.default_s) == (pytest.approx(30.0), 90.0)
    for damaged in (None, 3, {}, {"default_s": 1, "average_s": "nan", "seen": 2}):
        fresh = StartupDelay(90.0)
        fresh.load(damaged)
        assert fresh.seconds == 90.0
