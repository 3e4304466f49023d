"""easy-backfill in the daemon: time limits come from Slurm, and jobs that Slurm started count."""

import math

import pytest

from slurm_asrpt.daemon.jobs.saved_state import JobState
from tests.benches.fake_slurm import FakeSlurm

HOUR = 3600.0


@pytest.fixture
def bench(make_bench):
    return make_bench((4, 4), policy="easy-backfill")


def rows(bench):
    return {row.job_id: row for row in bench.status(bench.slurm.now).jobs}


@pytest.mark.parametrize(
    ("limit", "passes"),
    [(600.0, True), (2 * HOUR, False), (0.0, False)],  # 0: no limit at all
)
def test_a_job_backfills_only_if_its_time_limit_allows(bench, limit, passes):
    running = bench.slurm.submit(6, time_limit=HOUR)
    bench.cycle(2)
    head = bench.slurm.submit(8, time_limit=HOUR)
    small = bench.slurm.submit(2, time_limit=limit)
    bench.cycle(3)
    assert bench.job_state(running) is JobState.RUNNING
    assert bench.state(head) == "PENDING"
    assert (bench.state(small) == "RUNNING") is passes
    if not passes:
        row = rows(bench)[small]
        assert (row.reason, row.state) == ("reservation", "waiting")
        assert row.facts.keys() == {"head", "need", "in_s"}
        assert (row.facts["head"], row.facts["need"]) == (head, 8)
        assert row.facts["in_s"] == pytest.approx(HOUR, abs=10)
        assert row.text.startswith(f"would delay job {head}, which has 8 GPUs reserved about 00:59:")


def test_a_time_limit_changed_with_scontrol_is_used(bench):
    bench.slurm.submit(6, time_limit=HOUR)
    bench.slurm.submit(8, time_limit=HOUR)
    small = bench.slurm.submit(2, time_limit=2 * HOUR)
    bench.cycle(3)
    assert bench.state(small) == "PENDING"
    bench.slurm.change(small, time_limit=60.0)
    bench.cycle(2)
    assert bench.state(small) == "RUNNING"


def test_jobs_that_slurm_started_count_for_the_reservation(bench):
    bench.slurm.submit(6, time_limit=HOUR, leased=False, reservation="r")  # left to Slurm, which starts it
    head = bench.slurm.submit(8, time_limit=HOUR)
    long, short = bench.slurm.submit(1, time_limit=2 * HOUR), bench.slurm.submit(1, time_limit=600.0)
    bench.cycle(3)
    assert [bench.state(j) for j in (head, long, short)] == ["PENDING", "PENDING", "RUNNING"]


def test_without_time_limits_nothing_is_backfilled(bench):
    bench.slurm.submit(6)
    head = bench.slurm.submit(8)
    small = bench.slurm.submit(2)
    bench.cycle(3)
    row = rows(bench)[small]
    assert row.facts == {"head": head, "need": 8, "in_s": None}
    assert row.text.startswith(f"would delay job {head}, which has 8 GPUs reserved as soon as they are free")
    assert "no time limit" in row.text


def test_a_restart_keeps_the_reservation(bench):
    first = bench.slurm.submit(6, time_limit=HOUR)
    gone = bench.slurm.submit(1, time_limit=HOUR)
    bench.slurm.submit(8, time_limit=HOUR)
    small = bench.slurm.submit(1, time_limit=2 * HOUR)
    bench.cycle(3)
    bench.stop()
    bench.slurm.end(gone)
    bench.slurm.forget(gone)
    bench.slurm.tick(60)
    bench.start()
    bench.cycle(2)
    assert bench.state(small) == "PENDING"
    policy = bench.scheduler.decider.policy
    assert policy.reservation.time == bench.slurm.records[first].start_time + HOUR
    assert [job_id for _, job_id, *_ in policy.dump()["running"]] == [first]


def test_a_job_that_slurm_did_not_start_holds_no_gpus(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(8, time_limit=HOUR)
    bench.cycle(25)
    assert bench.audit("not-started", job_id)
    bench.slurm.hold(job_id)
    bench.cycle(2)
    assert bench.scheduler.decider.policy.dump()["running"] == []


def test_another_policy_than_the_saved_one_counts_waiting_from_submission(make_bench):
    bench = make_bench((4,), policy="asrpt")
    bench.slurm.submit(4)
    bench.cycle(2)
    waiting = bench.slurm.submit(4)
    bench.cycle(2)
    bench.settings = bench.settings.model_copy(
        update={"policy": bench.settings.policy.model_copy(update={"name": "wcs-subtime"})}
    )
    bench.restart()
    bench.cycle()
    assert bench.scheduler.eligibility.feed.cold
    assert [job_id for job_id, _ in bench.scheduler.decider.policy.queue(bench.slurm.now)] == [waiting]


def test_no_limit_is_infinite_for_a_policy(bench):
    job_id = FakeSlurm.submit(bench.slurm, 2)
    bench.cycle()
    assert bench.job(job_id).job.time_limit == math.inf
