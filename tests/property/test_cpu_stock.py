"""Jobs without GPUs: no CPU is given twice, and what is kept for others stays free."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from slurm_asrpt.core.cpu_jobs import CpuJob, CpuStock, ExpectedEnd, Room, share_of
from slurm_asrpt.core.job import Job, JobId, Request, unprofiled

NAMES = ("n1", "n2", "n3")
rooms = st.fixed_dictionaries(
    {name: st.builds(Room, st.integers(0, 16).map(float), st.integers(0, 64).map(float)) for name in NAMES}
)


@st.composite
def cpu_jobs(draw: st.DrawFn) -> CpuJob:
    least = draw(st.integers(1, 3))
    return CpuJob(
        JobId(str(draw(st.integers(1, 10**6)))),
        0.0,
        cpus=draw(st.integers(least, 24)),
        min_nodes=least,
        max_nodes=draw(st.sampled_from([None, least, 3])),
        memory_per_cpu=draw(st.sampled_from([0.0, 1.0])),
        memory_per_node=draw(st.sampled_from([0.0, 8.0])),
        candidates=frozenset(draw(st.sets(st.sampled_from(NAMES)))),
        whole_nodes=draw(st.booleans()),
    )


@given(rooms, st.lists(cpu_jobs(), max_size=12))
def test_no_cpus_and_memory_are_given_twice(free: dict[str, Room], jobs: list[CpuJob]) -> None:
    idle = frozenset(name for name in NAMES if free[name].cpus == 16)
    stock, taken, whole = CpuStock(free, dict.fromkeys(NAMES, 0), idle), dict.fromkeys(NAMES, Room(0, 0)), set[str]()
    for job in jobs:
        nodes = stock.nodes_for(job)
        if not nodes:
            continue
        assert set(nodes) <= job.candidates
        assert job.min_nodes <= len(nodes) <= (job.max_nodes or 3)
        assert not whole.intersection(nodes)
        stock.start(job, nodes)
        need = job.share(len(nodes))
        for name in nodes:
            taken[name] = Room(taken[name].cpus + need.cpus, taken[name].memory + need.memory)
        whole.update(nodes if job.whole_nodes else ())
    assert all(free[name].holds(taken[name]) for name in NAMES)


@given(
    rooms,
    st.integers(0, 8),
    st.lists(cpu_jobs(), max_size=12),
    st.integers(1, 4),
    st.integers(1, 4),
    st.none() | st.frozensets(st.sampled_from(NAMES)),
)
def test_a_waiting_gpu_job_finds_the_cpus_that_it_had(
    free: dict[str, Room],
    free_gpus: int,
    jobs: list[CpuJob],
    gpus: int,
    cpus: int,
    able: frozenset[str] | None,
) -> None:
    """On one of its nodes with enough free GPUs and CPUs for it, jobs without GPUs leave enough."""
    gpu_job = Job(JobId("1"), "u", gpus, unprofiled(gpus), request=Request(cpus_per_gpu=float(cpus), candidates=able))
    fits = [
        name
        for name in NAMES
        if (able is None or name in able) and free_gpus >= gpus and free[name].cpus >= gpus * cpus
    ]
    stock, left = CpuStock(free, dict.fromkeys(NAMES, free_gpus), frozenset()), dict(free)
    stock.keep_for_gpus([gpu_job])
    for job in jobs:
        nodes = stock.nodes_for(job)
        if nodes:
            stock.start(job, nodes)
            for name in nodes:
                left[name] = Room(left[name].cpus - job.share(len(nodes)).cpus, left[name].memory)
    assert not fits or any(left[name].cpus >= gpus * cpus for name in fits)


def test_cpus_are_kept_on_nodes_that_the_waiting_gpu_job_may_use() -> None:
    """Not on n1, which may be reserved for others."""
    only = Request(cpus_per_gpu=4.0, candidates=frozenset({"n2"}))
    stock = CpuStock({"n1": Room(16, 64), "n2": Room(8, 64)}, {"n1": 4, "n2": 4}, frozenset())
    stock.keep_for_gpus([Job(JobId("1"), "u", 2, unprofiled(2), request=only)])
    assert stock.nodes_for(CpuJob(JobId("2"), 0.0, cpus=8, candidates=frozenset({"n1", "n2"}))) == ("n1",)
    assert stock.nodes_for(CpuJob(JobId("3"), 0.0, cpus=8, candidates=frozenset({"n2"}))) == ()


def test_cpus_are_gathered_for_gpu_jobs_on_each_node_that_has_some() -> None:
    """Neither node has the eight CPUs that each of the two jobs needs."""
    stock = CpuStock({"n1": Room(4, 64), "n2": Room(4, 64)}, {"n1": 8, "n2": 8}, frozenset())
    needs = Request(cpus_per_gpu=8.0)
    stock.keep_for_gpus([Job(JobId(str(n)), "u", 1, unprofiled(1), request=needs) for n in (1, 2)])
    assert stock.nodes_for(CpuJob(JobId("3"), 0.0, cpus=4, candidates=frozenset({"n1", "n2"}))) == ()


def test_no_cpus_are_kept_for_gpu_jobs_on_nodes_without_gpus() -> None:
    stock = CpuStock({"c1": Room(8, 64), "n1": Room(8, 64)}, {"n1": 1}, frozenset())
    stock.keep_for_gpus([Job(JobId("1"), "u", 4, unprofiled(4), request=Request(cpus_per_gpu=2.0))])
    assert stock.nodes_for(CpuJob(JobId("2"), 0.0, cpus=8, candidates=frozenset({"c1"}))) == ("c1",)
    assert stock.nodes_for(CpuJob(JobId("3"), 0.0, cpus=8, candidates=frozenset({"n1"}))) == ()


def asking_for(cpus: int, nodes: int = 1, partition: str = "") -> CpuJob:
    return CpuJob(JobId("7"), 0.0, cpus, nodes, nodes, candidates=frozenset(NAMES), partitions=on(partition))


def on(partition: str, *nodes: str) -> tuple[tuple[str, frozenset[str]], ...]:
    """A partition with these nodes (default: all)."""
    return ((partition, frozenset(nodes or NAMES)),)


ends = st.lists(st.tuples(st.integers(1, 100), st.sampled_from(NAMES), st.integers(1, 8)), max_size=8)
others = st.lists(st.tuples(st.integers(1, 8), st.none() | st.integers(1, 100)), max_size=8)


@given(ends, st.integers(1, 40), st.integers(1, 3), others)
def test_no_job_that_may_start_delays_it(
    running: list[tuple[int, str, int]], cpus: int, nodes: int, waiting: list[tuple[int, int | None]]
) -> None:
    """The nodes have 24 CPUs each. Jobs behind the first one start if they are brief, or beside it."""
    used = {name: sum(count for _, at, count in running if at == name) for name in NAMES}
    stock = CpuStock({n: Room(max(0.0, 24.0 - used[n]), inf) for n in NAMES}, dict.fromkeys(NAMES, 4), frozenset())
    left = [ExpectedEnd(float(end), {name: Room(float(count), 0.0)}) for end, name, count in sorted(running)]
    head = asking_for(cpus, nodes)
    if max(used.values()) > 24 or stock.nodes_for(head):
        return
    kept = stock.room_to_keep(head, left)
    stock.keep(kept)
    for count, limit in waiting:
        brief = kept.is_brief(inf if limit is None else float(limit), 0.0)
        found = stock.nodes_for(asking_for(count), brief)
        if found:
            taken = stock.start(asking_for(count), found)
            left += [ExpectedEnd(float(limit), taken)] if limit is not None else []
    after = stock.room_to_keep(head, sorted(left, key=lambda each: each.time))
    assert after.start <= kept.start


CAP = 8
shared = st.tuples(st.integers(1, 12), st.sampled_from(["", "cpu", "open"]))


@given(rooms, st.lists(st.tuples(shared, st.integers(1, 3)), max_size=12))
def test_a_partition_uses_no_more_cpus_of_a_node_than_it_may(
    free: dict[str, Room], jobs: list[tuple[tuple[int, str], int]]
) -> None:
    shares = {share_of(name, "cpu"): Room(CAP, inf) for name in NAMES}
    stock = CpuStock({**free, **shares}, {}, frozenset(), capped=frozenset({"cpu"}))
    used, all_used = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, 0.0)
    for (cpus, partition), nodes in jobs:
        job = asking_for(cpus, nodes, partition)
        found = stock.nodes_for(job)
        need = job.share(len(found) or nodes).cpus
        able = [
            name
            for name in NAMES
            if all_used[name] + need <= free[name].cpus and (partition != "cpu" or used[name] + need <= CAP)
        ]
        assert found or len(able) < nodes or cpus < nodes
        stock.start(job, found)
        for name in found:
            all_used[name] += need
            used[name] += need if partition == "cpu" else 0.0
    assert max(used.values()) <= CAP
    assert all(all_used[name] <= free[name].cpus for name in NAMES)


@given(st.lists(st.tuples(st.integers(1, 8), st.booleans(), st.none() | st.integers(1, 100)), max_size=8))
def test_no_job_of_its_partition_delays_one_that_waits_for_its_share(
    waiting: list[tuple[int, bool, int | None]],
) -> None:
    """Of n1, the partition may use 8 CPUs, and uses 6 until 50 s from now. Its first job needs all of them."""
    whole = {"n1": Room(24.0, inf), share_of("n1", "cpu"): Room(2.0, inf)}
    stock = CpuStock(whole, {}, frozenset(), capped=frozenset({"cpu"}))
    ends = [ExpectedEnd(50.0, {"n1": Room(6.0, 0.0), share_of("n1", "cpu"): Room(6.0, 0.0)})]
    head = replace(asking_for(CAP, partition="cpu"), candidates=frozenset({"n1"}))
    kept = stock.room_to_keep(head, ends)
    assert (kept.start, stock.nodes_for(head)) == (50.0, ())
    stock.keep(kept)
    for cpus, own, limit in waiting:
        job = replace(head, cpus=cpus, partitions=on("cpu" if own else ""))
        found = stock.nodes_for(job, kept.is_brief(inf if limit is None else float(limit), 0.0))
        if found:
            taken = stock.start(job, found)
            ends += [ExpectedEnd(float(limit), taken)] if limit is not None else []
    assert stock.room_to_keep(head, sorted(ends, key=lambda each: each.time)).start <= 50.0


SHARE = share_of("n1", "cpu")


def capped(**share: float) -> CpuStock:
    """Two idle nodes of 24 CPUs; of n1, partition cpu may use its share."""
    rooms = {"n1": Room(24.0, inf), "n2": Room(24.0, inf), SHARE: Room(share["cpus"], inf)}
    return CpuStock(rooms, {}, frozenset({"n1", "n2"}), capped=frozenset({"cpu"}))


def test_a_job_of_several_partitions_keeps_to_the_share_of_one_where_no_other_of_them_has_the_node() -> None:
    either = replace(asking_for(9), candidates=frozenset({"n1", "n2"}), partitions=on("cpu", "n1") + on("open", "n2"))
    assert capped(cpus=8).nodes_for(either) == ("n2",)
    assert capped(cpus=9).nodes_for(either) == ("n1",)
    both = replace(either, partitions=on("cpu", "n1") + on("open", "n1", "n2"))
    assert capped(cpus=8).nodes_for(both) == ("n1",)


def test_a_job_with_whole_nodes_starts_only_where_its_partition_may_use_all_of_a_node() -> None:
    """Slurm never starts it elsewhere, as it gets all CPUs of its nodes."""
    whole = replace(asking_for(1), candidates=frozenset({"n1"}), partitions=on("cpu", "n1"), whole_nodes=True)
    assert capped(cpus=8).nodes_for(whole) == ()
    assert capped(cpus=24).nodes_for(whole) == ("n1",)
