"""When running jobs free what they hold, as the room of jobs without GPUs is planned."""

from __future__ import annotations

import math

from slurm_asrpt.core.cpu_jobs import ExpectedEnd, Room
from slurm_asrpt.daemon.expected_ends import expected_ends
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
