"""The room that the first job without GPUs keeps until it can start."""

from __future__ import annotations

import math

from slurm_asrpt.core.cpu_jobs import ALWAYS_S, EVERY_S, KEPT_S, CpuJob, CpuStock, ExpectedEnd, KeptRoom, Room
from slurm_asrpt.core.job import JobId

NODES = ("n1", "n2", "n3")
GPUS = dict.fromkeys(NODES, 4)


def cpu_job(cpus: int, nodes: int = 1, whole: bool = False, limit: float = math.inf) -> CpuJob:
    return CpuJob(JobId("7"), 0.0, cpus, nodes, nodes, candidates=frozenset(NODES), whole_nodes=whole, time_limit=limit)


def stock_of(cpus: dict[str, float], idle: frozenset[str] = frozenset()) -> CpuStock:
    return CpuStock({name: Room(count, math.inf) for name, count in cpus.items()}, GPUS, idle)


def test_it_keeps_the_nodes_where_it_can_start_first() -> None:
    stock = stock_of({"n1": 8.0, "n2": 4.0, "n3": 0.0})
    ends = [ExpectedEnd(50.0, {"n2": Room(6.0, 0.0)}), ExpectedEnd(90.0, {"n1": Room(8.0, 0.0)})]
    kept = stock.room_to_keep(cpu_job(10), ends)
    assert (kept.start, kept.rooms) == (50.0, {"n2": Room(4.0, 0.0)})


def test_jobs_that_end_before_its_start_use_the_room() -> None:
    stock = stock_of({"n1": 8.0, "n2": 0.0, "n3": 0.0})
    kept = stock.room_to_keep(cpu_job(10), [ExpectedEnd(50.0, {"n1": Room(8.0, 0.0)})])
    stock.keep(kept)
    assert kept.rooms == {"n1": Room(2.0, 0.0)}  # the eight that become free count
    assert stock.nodes_for(cpu_job(8), kept.is_brief(40.0, 10.0)) == ("n1",)
    assert stock.nodes_for(cpu_job(8), kept.is_brief(41.0, 10.0)) == ()
    assert stock.nodes_for(cpu_job(6), kept.is_brief(math.inf, 10.0)) == ("n1",)  # it fits beside


def test_whole_nodes_are_those_that_are_idle_first() -> None:
    stock = stock_of({"n1": 63.0, "n2": 1.0, "n3": 60.0}, idle=frozenset())
    ends = [
        ExpectedEnd(40.0, {}, {"n2": Room(64.0, math.inf)}),
        ExpectedEnd(50.0, {"n1": Room(1.0, 0.0)}),
        ExpectedEnd(60.0, {}, {"n3": Room(64.0, math.inf)}),
    ]
    kept = stock.room_to_keep(cpu_job(2, nodes=2, whole=True), ends)
    assert (kept.start, set(kept.rooms)) == (60.0, {"n2", "n3"})
    stock.keep(kept)
    assert stock.nodes_for(cpu_job(1)) == ("n1",)
    assert stock.nodes_for(cpu_job(2, nodes=2)) == ()
    assert stock.nodes_for(cpu_job(2, nodes=2), brief=True) == ("n2", "n3")


def test_a_job_on_whole_nodes_does_not_take_a_node_that_is_kept_in_part() -> None:
    stock = stock_of({"n1": 64.0, "n2": 2.0, "n3": 2.0}, idle=frozenset({"n1"}))
    stock.keep(KeptRoom(cpu_job(70), 50.0, {"n1": Room(4.0, 0.0)}))
    assert stock.nodes_for(cpu_job(1, whole=True)) == ()
    assert stock.nodes_for(cpu_job(1, whole=True), brief=True) == ("n1",)


def test_an_unknown_start_lets_jobs_with_a_limit_pass() -> None:
    stock = stock_of({"n1": 8.0, "n2": 4.0, "n3": 0.0})
    kept = stock.room_to_keep(cpu_job(10), [ExpectedEnd(50.0, {"n2": Room(1.0, 0.0)})])
    assert (kept.start, set(kept.rooms)) == (math.inf, {"n1"})
    assert kept.is_brief(1e6, 0.0)
    assert not kept.is_brief(math.inf, 0.0)
    assert kept.why(0.0).facts == {"head": "7", "in_s": None}


def test_gpu_jobs_wait_for_it_if_it_can_start_soon_or_it_is_its_turn() -> None:
    def keeps(start: float, now: float) -> bool:
        return KeptRoom(cpu_job(10), start, {}).is_kept_from_gpu_jobs(now)

    assert keeps(math.inf, 0.0)
    assert keeps(1e6, KEPT_S - 1)
    assert not keeps(1e6, KEPT_S)
    assert not keeps(math.inf, EVERY_S - 1)
    assert keeps(math.inf, EVERY_S)
    assert keeps(KEPT_S + 5000.0, 5000.0)
    assert not keeps(KEPT_S + 5001.0, 5000.0)


def test_it_keeps_more_of_the_time_from_gpu_jobs_the_longer_it_waits() -> None:
    kept = KeptRoom(cpu_job(10), math.inf, {})

    def share(begin: float) -> float:
        times = [begin + EVERY_S * step / 100 for step in range(100)]
        return sum(kept.is_kept_from_gpu_jobs(now) for now in times) / 100

    shares = [share(EVERY_S * period) for period in range(14)]
    assert shares == sorted(shares)
    assert (shares[0], shares[12], shares[13]) == (0.25, 1.0, 1.0)


def test_a_stream_of_long_gpu_jobs_does_not_starve_a_job_on_a_whole_node() -> None:
    """A job of six hours ends every 90 minutes, on one of four GPUs, and another wants to take its place."""
    runs, step = 6 * 3600.0, 300.0
    ends, now = [runs / 4 * number for number in range(1, 5)], 0.0
    while ends and now < 3 * ALWAYS_S:
        now += step
        ends = [end for end in ends if end > now]
        stock = stock_of({"n1": 4.0 - len(ends), "n2": 0.0, "n3": 0.0})
        kept = stock.room_to_keep(
            cpu_job(4, whole=True), [ExpectedEnd(max(ends, default=now), {}, {"n1": Room(4.0, 0.0)})]
        )
        if not kept.is_kept_from_gpu_jobs(now):
            ends += [now + runs] * (4 - len(ends))
    assert now <= ALWAYS_S + runs + step
