"""Jobs without GPUs beside GPU jobs: neither kind takes the CPUs of the other's next jobs."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from slurm_asrpt.audit.inputs import canonical, decide, from_document
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.slurm.notation import fold_gpus
from slurm_asrpt.slurm.partitions import Partition
from slurm_asrpt.slurm.priorities import PartitionPriority, SitePriorities, Weights
from slurm_asrpt.slurm.records import Reservation
from slurm_asrpt.status.reason_texts import text_of
from tests.benches.daemon import Bench


def cpu_job(bench: Bench, cpus: int, **fields: Any) -> str:
    return bench.slurm.submit(1, tres_per_task="", cpus=cpus, **fields)


def gpu_job(bench: Bench, cpus: int) -> str:
    return bench.slurm.submit(1, cpus=cpus)


def nodes_of(bench: Bench, job_id: str) -> str:
    return bench.slurm.records[job_id].nodes


def test_a_job_without_gpus_starts_on_nodes_of_its_own(bench: Bench) -> None:
    first, wide = cpu_job(bench, 48), cpu_job(bench, 100, min_nodes=2)
    bench.cycle(2)
    assert bench.job_state(first) is bench.job_state(wide) is JobState.RUNNING
    assert nodes_of(bench, first) not in nodes_of(bench, wide).split(",")
    assert bench.audit("start-cpus", first)[0]["cpus"] == 48


def test_waiting_gpu_jobs_keep_cpus_from_younger_jobs_without_gpus(bench: Bench) -> None:
    running = [cpu_job(bench, 60) for _ in range(3)]
    bench.cycle(4)
    assert {bench.job_state(job_id) for job_id in running} == {JobState.RUNNING}
    gpu = gpu_job(bench, 8)
    bench.slurm.tick(1.0)
    small = [cpu_job(bench, 2) for _ in range(6)]
    bench.cycle(3)
    assert bench.job(gpu).state is JobState.QUEUED
    waiting = [job_id for job_id in small if bench.job_state(job_id) is not JobState.RUNNING]
    assert waiting == small[4:]  # four CPUs of one node are kept
    assert {bench.job(job_id).reason.kind for job_id in waiting} == {"cpus"}
    kept = next(n for n in ("n1", "n2", "n3") if n not in {nodes_of(bench, job_id) for job_id in small})
    bench.slurm.end(next(job_id for job_id in running if nodes_of(bench, job_id) == kept))
    bench.cycle(3)
    assert {bench.job_state(job_id) for job_id in (gpu, *small)} == {JobState.RUNNING}


def test_of_jobs_of_one_second_the_first_submitted_goes_first(bench: Bench) -> None:
    running = [cpu_job(bench, 60) for _ in range(3)]
    bench.cycle(4)
    gpu, younger = gpu_job(bench, 64), cpu_job(bench, 8)
    bench.cycle(2)
    bench.slurm.end(running[0])
    bench.cycle(2)
    assert bench.job_state(gpu) is JobState.RUNNING
    assert bench.job(younger).state is not JobState.RUNNING


def test_gpu_jobs_keep_the_room_of_the_oldest_job_without_gpus(bench: Bench) -> None:
    running = [gpu_job(bench, 40) for _ in range(3)]
    bench.cycle(2)
    oldest = cpu_job(bench, 60, max_nodes=1)
    bench.slurm.tick(1.0)
    later = [gpu_job(bench, 20) for _ in range(6)]
    bench.cycle(2)
    waiting = [job_id for job_id in later if bench.job_state(job_id) is JobState.QUEUED]
    assert len(waiting) == 4  # one node is kept
    bench.slurm.end(next(job_id for job_id in running if nodes_of(bench, job_id) == "n1"))
    bench.cycle(3)
    assert nodes_of(bench, oldest) == "n1"


def test_a_job_without_gpus_that_slurm_does_not_start_waits_with_its_lease(bench: Bench) -> None:
    bench.slurm.starts_jobs = False
    job_id = cpu_job(bench, 4)
    bench.cycle(24)
    assert bench.audit("not-started", job_id)
    assert bench.slurm.records[job_id].required_nodes == ""
    assert bench.slurm.records[job_id].cpus == 4
    bench.slurm.starts_jobs = True
    bench.cycle(10)
    assert bench.job_state(job_id) is JobState.RUNNING


@pytest.mark.parametrize("mode", ["shadow", "order"])
def test_other_modes_leave_jobs_without_gpus_to_slurm(make_bench: Any, mode: str) -> None:
    bench = make_bench(mode=mode)
    job_id = cpu_job(bench, 4, leased=False)
    bench.cycle(2)
    assert not [w for w in bench.writes(job_id) if "ReqNodeList" in w]


def test_a_job_without_gpus_that_fits_nowhere_is_left_to_slurm(bench: Bench) -> None:
    job_id = cpu_job(bench, 100, max_nodes=1)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.LEFT_TO_SLURM


# beside the site's other rules


def test_a_job_of_a_higher_class_goes_first_and_is_ranked_again(make_bench: Any) -> None:
    bench = make_bench(policy="asrpt-gated")
    weights = Weights(qos=100_000, age=1000)
    bench.slurm.multifactor = True
    bench.slurm.site_priorities = SitePriorities(
        weights, {"gpu": PartitionPriority()}, {"normal": 0.0, "high": 10.0}, known=True
    )
    running = [cpu_job(bench, 64) for _ in range(3)]
    bench.cycle(3)
    normal = cpu_job(bench, 64, qos="normal")
    bench.slurm.tick(1.0)
    low = cpu_job(bench, 64, qos="normal", nice=500, priority=1)
    high = cpu_job(bench, 64, qos="high", priority=100_100)
    bench.cycle(2)
    assert bench.job(high).cpu_job.band < bench.job(normal).cpu_job.band < bench.job(low).cpu_job.band
    bench.slurm.change(low, nice=-10_000, priority=200_000)
    bench.cycle(2)
    assert bench.job(low).cpu_job.band < bench.job(normal).cpu_job.band
    bench.slurm.end(running[0])
    bench.cycle(3)
    assert [bench.job_state(each) is JobState.RUNNING for each in (high, normal, low)].count(True) == 1
    assert bench.job_state(normal) is not JobState.RUNNING


def test_a_gpu_job_of_a_higher_class_keeps_its_room_from_an_older_job_without_gpus(make_bench: Any) -> None:
    bench = make_bench(policy="asrpt-gated", sizes=(4,))
    bench.slurm.multifactor = True
    bench.slurm.site_priorities = SitePriorities(
        Weights(qos=100_000), {"gpu": PartitionPriority()}, {"normal": 0.0, "high": 10.0}, known=True
    )
    first = gpu_job(bench, 40)
    bench.cycle(3)
    older = cpu_job(bench, 60, qos="normal")
    bench.slurm.tick(1.0)
    high = bench.slurm.submit(1, cpus=20, qos="high", priority=100_100)
    bench.cycle(3)
    assert (bench.job_state(older), bench.job_state(high)) == (JobState.INELIGIBLE, JobState.RUNNING)
    bench.slurm.end(first)
    bench.slurm.end(high)
    bench.cycle(3)
    assert bench.job_state(older) is JobState.RUNNING


def test_nodes_that_are_up_come_first_and_those_that_power_down_have_no_room(bench: Bench) -> None:
    bench.slurm.node_state("n1", "IDLE+POWERING_DOWN")
    bench.slurm.node_state("n2", "IDLE+POWERED_DOWN")
    first, second, third = (cpu_job(bench, 64) for _ in range(3))
    bench.cycle(3)
    assert (nodes_of(bench, first), nodes_of(bench, second)) == ("n3", "n2")
    assert bench.job(third).reason.kind == "cpus"
    assert not bench.audit("not-started")
    bench.slurm.node_state("n1", "IDLE+POWERED_DOWN")
    bench.cycle(3)
    assert nodes_of(bench, third) == "n1"


def test_a_magnetic_reservation_takes_whole_jobs_of_its_users_only(bench: Bench) -> None:
    now = bench.slurm.now
    bench.slurm.reserved = [
        Reservation("course", now - 1, now + 3600.0, frozenset({"n2", "n3"}), True, frozenset({"asrpt1"}), frozenset())
    ]
    for name in ("n2", "n3"):
        bench.slurm.node_state(name, "IDLE+RESERVED")
    others = [cpu_job(bench, 60, user="asrpt2") for _ in range(2)]
    bench.cycle(3)
    assert [nodes_of(bench, each) for each in others] == ["n1", ""]
    wide = cpu_job(bench, 100, min_nodes=2, tasks=100, user="asrpt1")
    bench.cycle(3)
    assert nodes_of(bench, wide) == "n2,n3"
    assert not bench.audit("not-started")


# the first one keeps its room only as backfill does


def exclusive(bench: Bench, nodes: int) -> str:
    return cpu_job(bench, nodes, exclusive="node", tasks=nodes, min_nodes=nodes)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_job_of_a_whole_node_that_gets_its_gpus_ran_as_planned(bench: Bench, elsewhere: bool) -> None:
    """Slurm gives it all GPUs of its nodes."""
    job_id = exclusive(bench, 1)
    bench.slurm.starts_jobs = False
    bench.cycle(2)
    (node,) = bench.audit("start-cpus", job_id)[0]["nodes"]
    got = next(name for name in ("n1", "n2", "n3") if (name != node) is elsewhere)
    bench.slurm.change(job_id, state="RUNNING", nodes=got, gpus_by_node={got: 4}, gpus_by_type={got: {"": 4}})
    bench.cycle(2)
    running = bench.audit("running", job_id)[0]
    assert (running["planned"], running["gpus"]) == ({node: 0}, {got: 4})
    assert running["as_planned"] is not elsewhere


def blocked_for(bench: Bench, seconds: float) -> str:
    """A job of whole nodes, and a GPU job on each node that blocks it. Returns its id."""
    running = [bench.slurm.submit(1, cpus=1, time_limit=seconds, required_nodes=f"n{n}") for n in (1, 2, 3)]
    bench.cycle(2)
    assert {bench.job_state(job_id) for job_id in running} == {JobState.RUNNING}
    head = exclusive(bench, 3)
    bench.cycle(2)
    assert bench.job_state(head) is JobState.INELIGIBLE
    return head


@pytest.mark.parametrize("policy", ["asrpt", "asrpt-gated", "easy-backfill", "hlas"])
def test_jobs_that_end_before_it_can_start_do_not_wait_for_it(make_bench: Any, policy: str) -> None:
    bench = make_bench(policy=policy)
    head = blocked_for(bench, 100_000.0)
    brief = [bench.slurm.submit(2, cpus=20, time_limit=60.0), cpu_job(bench, 100, min_nodes=2, time_limit=60.0)]
    bench.cycle(3)
    assert {bench.job_state(job_id) for job_id in brief} == {JobState.RUNNING}
    assert text_of(bench.job(head).reason) == (
        "needs 3 whole nodes and no GPUs (--exclusive); too few that it may use are idle"
    )


@pytest.mark.parametrize("policy", ["asrpt", "asrpt-gated", "easy-backfill", "hlas"])
def test_jobs_that_would_delay_it_say_so_and_gpu_jobs_wait_half_an_hour_at_most(make_bench: Any, policy: str) -> None:
    bench = make_bench(policy=policy)
    head = blocked_for(bench, 100_000.0)
    with_gpus, without = bench.slurm.submit(1, cpus=1), cpu_job(bench, 2)
    bench.cycle(3)
    for job_id in (with_gpus, without):
        assert bench.job(job_id).reason.kind == "kept-room"
        assert f"would delay job {head} (no GPUs)" in text_of(bench.job(job_id).reason)
        shown = next(each for each in bench.status(bench.slurm.now).jobs if each.job_id == job_id)
        assert f"would delay job {head}" in shown.text
    assert not bench.audit("released-ahead")
    bench.cycle(18, seconds=100.0)
    bench.cycle(3)
    assert bench.job_state(with_gpus) is JobState.RUNNING
    assert bench.job(without).reason.facts["head"] == head


@pytest.mark.parametrize("policy", ["asrpt", "asrpt-gated", "easy-backfill"])
def test_a_stream_of_short_gpu_jobs_does_not_delay_it(make_bench: Any, policy: str) -> None:
    bench = make_bench(policy=policy)
    head = blocked_for(bench, 900.0)
    until, began = bench.slurm.now + 900.0, dict[str, float]()
    while bench.slurm.now < until + 30.0:
        bench.slurm.submit(1, cpus=1, time_limit=60.0)
        bench.cycle(1, seconds=10.0)
        for job in list(bench.slurm.records.values()):
            if job.state == "RUNNING" and job.time_limit and bench.slurm.now >= job.start_time + job.time_limit:
                began[job.job_id] = job.start_time
                bench.slurm.end(job.job_id)
    assert len(began) > 50
    assert bench.job_state(head) is JobState.RUNNING


def test_what_starts_in_the_same_cycle_is_not_kept_for_it(make_bench: Any) -> None:
    bench = make_bench(policy="asrpt-gated", sizes=(4, 4, 4))
    ends_first = cpu_job(bench, 60, time_limit=1000.0)
    bench.cycle(3)
    *before, first, after = (cpu_job(bench, cpus, max_nodes=1, time_limit=1e6) for cpus in (64, 64, 64, 4))
    bench.cycle(3)
    assert {bench.job_state(job_id) for job_id in before} == {JobState.RUNNING}
    assert bench.job(first).reason.kind == "cpus"
    assert bench.job_state(after) is not JobState.RUNNING, "it would run on the node where the first may start"
    assert bench.job(after).reason.kind == "kept-room"
    bench.slurm.end(ends_first)
    bench.cycle(3)
    assert bench.job_state(first) is JobState.RUNNING


def test_a_gpu_job_that_fits_beside_it_starts(make_bench: Any) -> None:
    bench = make_bench(policy="asrpt-gated", sizes=(4,))
    bench.slurm.submit(1, cpus=40, time_limit=1000.0)
    bench.cycle(2)
    head = cpu_job(bench, 60)
    bench.cycle(1)
    beside, more, brief = (
        bench.slurm.submit(1, cpus=4),
        bench.slurm.submit(1, cpus=5),
        bench.slurm.submit(1, cpus=5, time_limit=60.0),
    )
    bench.cycle(3)
    assert {bench.job_state(job_id) for job_id in (beside, brief)} == {JobState.RUNNING}
    assert bench.job(more).reason.facts["head"] == head


def test_a_decision_with_kept_room_can_be_repeated(make_bench: Any) -> None:
    bench = make_bench(policy="asrpt-gated")
    blocked_for(bench, 100_000.0)
    bench.slurm.submit(1, cpus=1)
    bench.slurm.submit(1, cpus=1, time_limit=60.0)
    bench.cycle(1)
    decided = bench.scheduler.decider.decided
    assert set(decided.document["kept"]) == {"n1", "n2", "n3"}
    decisions, _ = decide(from_document(json.loads(canonical(decided.document))))
    assert json.loads(canonical(decisions)) == json.loads(canonical(decided.answer))
    assert [each["job"] for each in decisions if "start" in each] == ["6"]


def test_the_status_names_the_nodes_of_running_jobs_without_gpus(bench: Bench) -> None:
    small, wide = cpu_job(bench, 8), cpu_job(bench, 100, min_nodes=2)
    bench.cycle(2)
    found = {row.job_id: row for row in bench.status(bench.slurm.now).jobs}
    for job_id, count in ((small, 1), (wide, 2)):
        names = nodes_of(bench, job_id).split(",")
        assert (found[job_id].nodes, len(names)) == (dict.fromkeys(names, 0), count)
    assert fold_gpus(found[small].nodes) == nodes_of(bench, small)  # as squeue writes it


def test_a_partition_with_a_limit_of_cpus_per_node_has_no_more_jobs_there(bench: Bench) -> None:
    """MaxCPUsPerNode. The fake Slurm has no such limit: it starts all that asrptd lets go."""
    bench.slurm.partition_rules = {"gpu": Partition(max_cpus=8.0)}
    jobs = [cpu_job(bench, 3) for _ in range(8)]
    bench.cycle(3)
    running = [job_id for job_id in jobs if bench.job_state(job_id) is JobState.RUNNING]
    assert Counter(nodes_of(bench, job_id) for job_id in running) == {"n1": 2, "n2": 2, "n3": 2}
    assert {bench.job(job_id).reason.kind for job_id in jobs[6:]} == {"cpus"}
    bench.slurm.end(running[0])
    bench.cycle(3)
    assert bench.job_state(jobs[6]) is JobState.RUNNING


def test_a_job_that_needs_more_cpus_than_its_partition_may_use_is_left_to_slurm(bench: Bench) -> None:
    bench.slurm.partition_rules = {"gpu": Partition(max_cpus=8.0)}
    bench.slurm.starts_jobs = False
    large, several = cpu_job(bench, 9, max_nodes=1), cpu_job(bench, 16, min_nodes=2)
    bench.cycle(3)
    assert [e["why"] for e in bench.audit("left")] == ["nogpu"]
    assert bench.audit("left", large)
    assert bench.audit("start-cpus", several)


def test_a_job_without_gpus_that_waits_for_its_partitions_share_is_not_delayed_by_smaller_ones(bench: Bench) -> None:
    bench.slurm.partition_rules = {"gpu": Partition(max_cpus=8.0)}
    running = [cpu_job(bench, 3, required_nodes="n1", time_limit=3600) for _ in range(2)]
    bench.cycle(3)
    head = cpu_job(bench, 8, required_nodes="n1")
    bench.slurm.tick(1.0)
    small = cpu_job(bench, 1, required_nodes="n1")
    bench.cycle(3)
    assert {bench.job_state(job_id) for job_id in running} == {JobState.RUNNING}
    assert bench.job_state(head) is not JobState.RUNNING
    assert bench.job(small).reason.kind == "kept-room"
    for job_id in running:
        bench.slurm.end(job_id)
    bench.cycle(3)
    assert bench.job_state(head) is JobState.RUNNING is not bench.job_state(small)


def test_jobs_with_gpus_start_within_the_cpus_that_their_partition_may_use(bench: Bench) -> None:
    """MaxCPUsPerNode=8 of 64 on three nodes of four GPUs; the fake Slurm starts all that asrptd lets go."""
    bench.slurm.partition_rules = {"gpu": Partition(max_cpus=8.0)}
    without = [cpu_job(bench, 4, required_nodes="n1")]
    bench.cycle(3)
    jobs = [bench.slurm.submit(1, cpus=3) for _ in range(7)]
    wide = bench.slurm.submit(2, cpus=10, min_nodes=1)
    bench.cycle(3)
    running = [job_id for job_id in jobs if bench.job_state(job_id) is JobState.RUNNING]
    assert Counter(nodes_of(bench, job_id) for job_id in running) == {"n1": 1, "n2": 2, "n3": 2}
    assert bench.job(jobs[5]).reason.kind == "resources"
    for job_id in (*running, *without):
        bench.slurm.end(job_id)
    bench.cycle(3)
    assert {bench.job_state(job_id) for job_id in jobs[5:]} == {JobState.RUNNING}
    bench.cycle(3)
    assert bench.job(wide).job.request.min_nodes == 2, "it needs ten CPUs"
    assert not bench.audit("not-started")


def test_tasks_per_gpu_alone_make_a_job_with_gpus(bench: Bench) -> None:
    """-n4 --ntasks-per-gpu=2: Slurm shows the GPUs in what it counts, and nowhere else."""
    full = bench.slurm.submit(11)
    bench.cycle(2)
    waits = bench.slurm.submit(4, tres_per_task="", tres="cpu=4,mem=1G,node=1,billing=4,gres/gpu=2")
    bench.cycle(2)
    assert (bench.job_state(full), bench.job_state(waits)) == (JobState.RUNNING, JobState.QUEUED)
    assert bench.job(waits).job.gpus == 2
    bench.slurm.end(full)
    bench.cycle(2)
    assert bench.job_state(waits) is JobState.RUNNING
    bench.slurm.end(waits)
    bench.cycle(1)
    assert waits in bench.runs()
