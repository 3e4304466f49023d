"""When running jobs free what they hold, as the room of jobs without GPUs is planned."""

from __future__ import annotations

import math
from dataclasses import replace

from slurm_asrpt.core.cpu_jobs import ExpectedEnd, Room
from slurm_asrpt.daemon.expected_ends import expected_ends
from slurm_asrpt.daemon.jobs.saved_state import JobState
from tests.benches.daemon import Bench

WHOLE = Room(64, math.inf)


def found(bench: Bench) -> list[ExpectedEnd]:
    """The expected ends, with times from now on."""
    cluster, now = bench.scheduler.decider.cluster, bench.slurm.now
    return [
        ExpectedEnd(each.time - now, each.rooms, each.whole)
        for each in expected_ends(bench.scheduling.jobs, cluster, now)
    ]


def run(bench: Bench, gpus: int, limit: float, **fields: object) -> str:
    job_id = bench.slurm.submit(gpus, time_limit=limit, **fields)
    bench.cycle(2)
    bench.scheduler.cycle(bench.slurm.now)
    assert bench.state(job_id) == "RUNNING"
    return job_id


def test_jobs_end_at_their_limits_and_nodes_are_idle_after_the_last(bench: Bench) -> None:
    first = run(bench, 2, 100.0, cpus=20, required_nodes="n1")
    second = run(bench, 1, 50.0, cpus=8, required_nodes="n1")
    began = [bench.slurm.records[job_id].start_time - bench.slurm.now for job_id in (first, second)]
    assert [(each.time, {n: r.cpus for n, r in each.rooms.items()}, dict(each.whole)) for each in found(bench)] == [
        (began[1] + 50.0, {"n1": 8.0}, {}),
        (began[0] + 100.0, {"n1": 20.0}, {}),
        (began[0] + 100.0, {}, {"n1": WHOLE}),
    ]


def test_jobs_without_a_limit_and_unknown_jobs_hold_their_nodes_for_good(bench: Bench) -> None:
    run(bench, 1, 0.0, cpus=4, required_nodes="n1")
    run(bench, 1, 50.0, cpus=4, required_nodes="n2")
    cluster = bench.scheduler.decider.cluster
    for index, node in enumerate(cluster.usable):
        if node.name == "n2":  # a job of another partition
            cluster.usable[index] = type(node)(**{**vars(node), "cpus_used": 10})
    assert [set(each.rooms) | set(each.whole) for each in found(bench)] == [{"n2"}]
    assert not any(each.whole or math.isinf(each.time) for each in found(bench))


def test_a_job_beyond_its_limit_and_a_node_that_cleans_up_are_free_at_any_moment(bench: Bench) -> None:
    run(bench, 1, 50.0, cpus=4, required_nodes="n1")
    bench.cycle(6, seconds=10.0)
    bench.slurm.node_state("n2", "IDLE+COMPLETING")
    bench.scheduler.cycle(bench.slurm.now)
    assert {each.time for each in found(bench)} == {0.0}
    assert {name for each in found(bench) for name in each.whole} == {"n1", "n2"}


def test_a_job_on_several_nodes_holds_what_its_gpus_there_need(bench: Bench) -> None:
    run(bench, 5, 100.0, cpus=20, tres="cpu=20,mem=5000M,gres/gpu=5")
    rooms = [each.rooms for each in found(bench) if each.rooms]
    assert [sorted(each.values()) for each in rooms] == [[Room(4, 1000), Room(16, 4000)]]
    assert {name for each in found(bench) for name in each.whole} == set(rooms[0])
    small = next(name for name, room in rooms[0].items() if room.cpus == 4)
    cluster = bench.scheduler.decider.cluster
    for index, node in enumerate(cluster.usable):
        if node.name == small:  # Slurm need not give CPUs in proportion
            cluster.usable[index] = replace(node, cpus_used=node.cpus_used + 3)
    assert small in {name for each in found(bench) for name in each.whole}


def test_a_job_that_is_about_to_start_holds_what_it_asks_for_from_now_on(bench: Bench) -> None:
    bench.slurm.starts_jobs = False
    with_gpus = bench.slurm.submit(2, time_limit=100.0, cpus=8, memory_per_node=500.0, required_nodes="n1")
    without = bench.slurm.submit(1, tres_per_task="", time_limit=50.0, cpus=90, min_nodes=2, memory_per_cpu=10.0)
    bench.cycle(1)
    assert [bench.job_state(job_id) for job_id in (with_gpus, without)] == [JobState.PINNED, JobState.PINNED]
    ends = [(each.time, dict(each.rooms)) for each in found(bench) if each.rooms]
    assert ends == [
        (50.0, dict.fromkeys(bench.job(without).pin.gpus, Room(45, 450))),
        (100.0, {"n1": Room(8, 500)}),
    ]


def test_a_node_that_powers_down_after_a_job_has_no_room(bench: Bench) -> None:
    bench.slurm.node_state("n2", "IDLE+COMPLETING+POWERING_DOWN")
    bench.scheduler.cycle(bench.slurm.now)
    assert not found(bench)
