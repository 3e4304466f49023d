"""HLAS step by step: starts and preemptions."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import Request
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.hlas.policy import service_rate
from tests.benches.hlas import FABRIC, HlasBench, SimulatedJob, simulated_job

SETTINGS = {"queues": 3, "first_gpu_s": 10.0, "factor": 4.0, "min_run_s": 2.0}


def bench(*sizes: int, **settings: object) -> HlasBench:
    return HlasBench(sizes, **{**SETTINGS, **settings})


def test_service_counts_gpus_by_their_speed_and_a_job_runs_at_its_slowest():
    speeds = {"h100": 1.0, "t4": 0.25, "": 1.0}
    kinds = {"a": "h100", "b": "t4", "c": ""}
    nodes = {name: Node(name, 4, gpu_type=kind, speed=speeds[kind]) for name, kind in kinds.items()}
    assert service_rate({"a": 4}, nodes) == 4.0
    assert service_rate({"b": 4}, nodes) == 1.0
    assert service_rate({"a": 2, "b": 2}, nodes) == 1.0
    assert service_rate({"c": 3, "gone": 1}, nodes) == 4.0


def test_the_attained_service_determines_the_queue():
    policy = bench(4).policy
    assert [policy.queue_of(service) for service in (0.0, 9.9, 10.0, 39.9, 40.0, 1e9)] == [0, 0, 1, 1, 2, 2]


def test_a_long_job_is_preempted_once_in_a_later_queue_and_continues():
    cluster = bench(4)
    done = cluster.play([simulated_job("1", 4, 400.0), simulated_job("2", 4, 8.0, submit=1.0)])
    short, long = done
    assert short.job.id == "2"
    assert (long.interruptions, short.interruptions) == (1, 0)
    assert long.ran[0] == (0.0, pytest.approx(2.5 + cluster.grace_s)), "ten GPU-seconds on four GPUs, then the grace"
    assert sum(end - begin for begin, end in long.ran) == pytest.approx(100.0)
    assert cluster.why["room"] > 0


def test_nobody_makes_room_for_a_job_of_its_own_queue_or_in_its_first_seconds():
    same = bench(4, first_gpu_s=1e6).play([simulated_job("1", 4, 400.0), simulated_job("2", 4, 8.0, submit=1.0)])
    assert [each.job.id for each in same] == ["1", "2"]
    later = bench(4, min_run_s=50.0).play([simulated_job("1", 4, 400.0), simulated_job("2", 4, 8.0, submit=1.0)])
    assert later[1].ran[0][1] >= 50.0


def test_only_as_many_jobs_as_needed_are_preempted_most_served_first():
    cluster = bench(2, 2, 2)
    old, middle, young = (simulated_job(str(n), 2, 1000.0, submit=float(10 * n)) for n in range(3))
    cluster.play([old, middle, young, simulated_job("9", 2, 4.0, submit=60.0)], until=70.0)
    assert [each.interruptions for each in (old, middle, young)] == [1, 0, 0]


def test_a_job_that_would_still_not_fit_preempts_no_jobs():
    cluster = bench(2, 2)
    yields, stays = simulated_job("1", 2, 400.0), simulated_job("2", 2, 400.0, opted_in=False)
    done = cluster.play([yields, stays, simulated_job("3", 4, 4.0, submit=20.0)])
    assert yields.interruptions == 0
    assert done[-1].job.id == "3"


def test_gpus_being_freed_are_reserved_for_the_preempting_job():
    """Two GPUs are free and two more will be: they are for the job of four GPUs, not for the later one of two."""
    cluster = HlasBench((4,), 5.0, **SETTINGS)
    long, four = simulated_job("1", 2, 1000.0), simulated_job("2", 4, 8.0, submit=10.0)
    two = simulated_job("3", 2, 100.0, submit=11.0)
    cluster.play([long, four, two], until=40.0)
    assert four.ran[0][0] == pytest.approx(15.0)
    assert (two.ran or [(math.inf, 0.0)])[0][0] >= four.ran[0][1] or two.began >= four.ran[0][1]


def stream(seconds: float, every: float, until: float) -> list[SimulatedJob]:
    """Jobs of one GPU, one after another."""
    return [simulated_job(str(n + 1), 1, seconds, submit=n * every) for n in range(int(until / every))]


@pytest.mark.parametrize("opted_in", [True, False])
def test_a_wide_job_gets_the_gpus_that_become_free_once_it_has_waited(opted_in: bool):
    """One-GPU jobs of 10 s fill two servers of four GPUs, and are never all gone at once."""
    settings = {"first_gpu_s": 1e6, "min_run_s": 600.0, "reserve_after_s": 100.0}
    wide = simulated_job("9999", 8, 80.0, submit=50.0, opted_in=opted_in)
    small = stream(10.0, 1.3, 1000.0)
    for each in small:
        each.opted_in = opted_in
    bench(4, 4, **settings).play([*small, wide])
    assert 150.0 <= wide.ran[0][0] <= 165.0
    starved = simulated_job("9999", 8, 80.0, submit=50.0)
    bench(4, 4, **{**settings, "reserve_after_s": 1e9}).play([*stream(10.0, 1.3, 1000.0), starved])
    assert starved.ran[0][0] > 900.0


def test_gpus_are_kept_on_as_few_servers_as_the_late_job_needs():
    """The job of four GPUs gets one of the servers; the others go on."""
    cluster = bench(4, 4, 4, first_gpu_s=1e6, reserve_after_s=100.0)
    wide = simulated_job("9999", 4, 40.0, submit=50.0)
    wide.job = replace(wide.job, request=Request(per_node=4))
    small = stream(10.0, 0.9, 400.0)
    cluster.play([*small, wide])
    begin, end = wide.ran[0]
    assert 150.0 <= begin <= 165.0
    (server,) = wide.first_gpus
    beside = [each for each in small if server in each.first_gpus and 150.0 < each.ran[0][0] < end]
    others = [each for each in small if server not in each.first_gpus and 150.0 < each.ran[0][0] < end]
    assert not beside
    assert others


def test_no_gpus_are_kept_beside_jobs_that_have_run_for_long():
    """They would be idle for long."""
    cluster = bench(4, first_gpu_s=1e6, reserve_after_s=100.0)
    long, wide = simulated_job("1", 1, 2000.0), simulated_job("9999", 4, 40.0, submit=50.0)
    cluster.play([long, wide, *stream(10.0, 4.0, 500.0)[1:]])
    assert wide.ran[0][0] == 2000.0
    assert sum(each.ran[0][0] > 160.0 for each in cluster.done if each.job.gpus == 1) > 80


def test_of_a_queue_jobs_with_a_predicted_size_go_first_the_largest_rest_before_the_others():
    """Hare's sub-queues; a job in an earlier queue goes before all of them, and a preempted one is the largest."""
    cluster = bench(4, predict="loss")
    lives = [simulated_job(str(n), 4, 8.0, submit=1.0) for n in range(1, 6)]
    for each, size in zip(lives, (0.0, 0.0, 4.0, 9.0, 30.0), strict=True):
        each.expected = size
    done = cluster.play([simulated_job("9", 4, 8.0, opted_in=False), *lives])
    assert [each.job.id for each in done] == ["9", "4", "3", "1", "2", "5"]


def test_users_see_the_order_of_the_sub_queues():
    cluster = bench(4, predict="loss")
    lives = [simulated_job(str(n), 4, 8.0, submit=1.0) for n in range(1, 4)]
    lives[1].expected = 9.0
    cluster.play([simulated_job("9", 4, 800.0, opted_in=False), *lives], until=2.0)
    assert [job_id for job_id, _ in cluster.policy.queue(2.0)] == ["2", "1", "3"]


def test_the_job_of_the_largest_predicted_size_is_preempted_first():
    cluster = bench(2, 2, 2, predict="loss")
    old, middle, young = (simulated_job(str(n), 2, 1000.0, submit=float(10 * n)) for n in range(3))
    middle.expected = 1000.0
    cluster.play([old, middle, young, simulated_job("9", 2, 4.0, submit=60.0)], until=70.0)
    assert [each.interruptions for each in (old, middle, young)] == [0, 1, 0]


def test_an_invalid_state_is_rejected():
    policy = make_policy("hlas", fabric=FABRIC)
    good = policy.dump()
    for broken in (
        {},
        {**good, "runs": [{}]},
        {**good, "service": []},
        {**good, "room": {"1": 3}},
        {**good, "expected": {"1": "much"}},
    ):
        with pytest.raises(ValueError, match="not a state"):
            policy.load(broken, {})
