"""Release ahead: Slurm starts the next jobs in the moment in which a job ends, in the policy's order."""

from dataclasses import replace

import pytest

from slurm_asrpt.core.cluster import Placement
from slurm_asrpt.core.policies.base import Phase, reason
from slurm_asrpt.daemon.jobs.saved_state import UNKNOWN_FACTOR, JobState
from slurm_asrpt.daemon.writes.starts import Starts
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.priorities import PartitionPriority, SitePriorities, Weights
from slurm_asrpt.slurm.records import Reservation
from tests.benches.fake_slurm import typed_node

SITE = SitePriorities(Weights(qos=1000), {"gpu": PartitionPriority()}, {"normal": 0.0, "high": 10.0}, known=True)


@pytest.fixture
def ahead(make_bench):
    """Two nodes of two GPUs under priority/multifactor; two jobs are released ahead."""

    def make(sizes=(2, 2), most=2, policy="asrpt-gated", site=None, **options):
        bench = make_bench(sizes, policy=policy, release_ahead=most, **options)
        bench.slurm.multifactor, bench.slurm.site_priorities = True, site or SitePriorities()
        bench.restart()
        return bench

    return make


def fill(bench):
    """One-GPU jobs on all GPUs."""
    jobs = [bench.slurm.submit(1, 1000) for _ in range(sum(bench.slurm.sizes))]
    bench.cycle(2)
    assert all(bench.state(job_id) == "RUNNING" for job_id in jobs)
    return jobs


def released_with_room(ahead):
    """A bench with a job that is released, and for which there is room; but Slurm starts nothing."""
    bench = ahead()
    running = fill(bench)
    job_id = bench.slurm.submit(1, 300)
    bench.cycle(2)
    bench.slurm.starts_jobs = False
    bench.slurm.end(running[0])
    return bench, job_id


def leased(bench, job_id):
    record = bench.slurm.records[job_id]
    return record.state == "PENDING" and record.eligible_time > bench.slurm.now


def test_slurm_starts_the_next_jobs_without_a_cycle_of_asrptd_in_the_policys_order(ahead):
    bench = ahead()
    running = fill(bench)
    long, short, middle = (bench.slurm.submit(1, iterations) for iterations in (900, 100, 300))
    bench.cycle(2)
    assert [leased(bench, job_id) for job_id in (long, short, middle)] == [True, False, False]
    assert bench.slurm.records[short].priority > bench.slurm.records[middle].priority
    bench.slurm.end(running[0])
    assert (bench.state(short), bench.state(middle)) == ("RUNNING", "PENDING")
    bench.slurm.end(running[1])
    assert (bench.state(middle), bench.state(long)) == ("RUNNING", "PENDING")
    bench.cycle(2)
    assert (bench.job_state(short), bench.job_state(middle)) == (JobState.RUNNING, JobState.RUNNING)
    assert not leased(bench, long), "it is the next one now"
    assert not bench.audit("not-started")
    assert not bench.audit("fence-refused")


def test_more_jobs_are_released_if_more_start_between_two_cycles_and_fewer_again_later(ahead):
    bench = ahead(sizes=(2, 2, 2, 2))
    running = fill(bench)
    jobs = [bench.slurm.submit(1, 1000 + number) for number in range(24)]

    def released():
        return sum(not leased(bench, job_id) for job_id in jobs if bench.state(job_id) == "PENDING")

    bench.cycle(2)
    counts = [released()]
    for ended in (2, 4, 1, 0, 0):
        for _ in range(ended):
            bench.slurm.end(running.pop())
        bench.cycle()
        counts.append(released())
    assert counts == [2, 4, 8, 7, 6, 5]
    bench.cycle(10)
    assert released() == 2
    assert [bench.job_state(job_id) for job_id in jobs[6:8]] == [JobState.RUNNING, JobState.QUEUED]


def test_the_status_says_which_jobs_are_released_ahead(ahead):
    bench = ahead()
    fill(bench)
    long, short, middle = (bench.slurm.submit(1, iterations) for iterations in (900, 100, 300))
    bench.cycle(2)
    rows = {row.job_id: row.released_ahead for row in bench.status(bench.slurm.now).jobs if row.rank}
    assert rows == {short: True, middle: True, long: False}


def test_a_job_that_is_no_longer_among_the_next_is_leased_again_with_its_own_priority(ahead):
    bench = ahead(most=1)
    fill(bench)
    first = bench.slurm.submit(1, 300)
    bench.cycle(2)
    assert not leased(bench, first)
    shorter = bench.slurm.submit(1, 100)
    bench.cycle(2)
    assert (leased(bench, first), leased(bench, shorter)) == (True, False)
    assert bench.slurm.records[first].priority == 100
    assert bench.slurm.site_factors[first] == 0
    assert [event["job"] for event in bench.audit("released-ahead")] == [first, shorter]
    assert [event["job"] for event in bench.audit("leased-again")] == [first]


def test_priorities_change_no_more_than_the_order_needs(ahead):
    """scontrol top gives the other jobs of a user nice values as large as the priority that it has to exceed."""
    bench = ahead(most=16)
    fill(bench)
    jobs = [bench.slurm.submit(1, 1000 - number) for number in range(10)]
    bench.cycle(2)
    priorities = [bench.slurm.records[job_id].priority for job_id in jobs]
    assert priorities == sorted(set(priorities))
    assert max(priorities) - 100 <= 16 * 10
    writes = len(bench.slurm.writes)
    bench.cycle(5)
    assert len(bench.slurm.writes) == writes


def test_jobs_whose_own_priorities_descend_keep_them(ahead):
    bench = ahead()
    fill(bench)
    jobs = [bench.slurm.submit(1, 100 + number, priority=300 - number) for number in range(2)]
    bench.cycle(2)
    assert not any(leased(bench, job_id) for job_id in jobs)
    assert [bench.slurm.records[job_id].priority for job_id in jobs] == [300, 299]


def test_a_higher_priority_goes_first(ahead):
    bench = ahead(site=SITE)
    running = fill(bench)
    normal, high = (
        bench.slurm.submit(1, 100, qos="normal", priority=1),
        bench.slurm.submit(1, 900, qos="high", priority=1000),
    )
    bench.cycle(2)
    assert not leased(bench, normal)
    bench.slurm.end(running[0])
    assert (bench.state(high), bench.state(normal)) == ("RUNNING", "PENDING")


def test_a_job_with_a_priority_of_an_admin_keeps_it(ahead):
    """Slurm adds no SiteFactor to it; the jobs before and behind it get priorities above and below."""
    bench = ahead(most=3, site=SITE)
    running = fill(bench)
    raised = bench.slurm.submit(1, 900, qos="normal", priority=7000)
    normal = bench.slurm.submit(1, 100, qos="normal", priority=1)
    bench.cycle(2)
    lowered = bench.slurm.submit(1, 50, qos="high", priority=500)
    bench.cycle(3)
    jobs = (raised, lowered, normal)
    assert not any(leased(bench, job_id) for job_id in jobs)
    priorities = [bench.slurm.records[job_id].priority for job_id in jobs]
    assert priorities[:2] == [7000, 500]
    assert priorities == sorted(priorities, reverse=True)
    bench.slurm.end(running[0])
    assert bench.state(raised) == "RUNNING"


def test_released_jobs_are_leased_again_before_a_job_with_a_priority_of_an_admin_is_pinned(ahead):
    """Its priority stays below theirs, so that Slurm would start them in its place."""
    bench = ahead(site=SITE)
    running = fill(bench)
    released = [bench.slurm.submit(1, 100, qos="normal", priority=1) for _ in range(2)]
    bench.cycle(2)
    raised = bench.slurm.submit(2, 900, qos="normal", priority=7000)
    bench.cycle(2)
    assert all(leased(bench, job_id) for job_id in released), "the first job needs two GPUs of a node"
    bench.slurm.starts_jobs = False
    for job_id in running[:2]:
        bench.slurm.end(job_id)
    bench.slurm.writes.clear()
    bench.cycle(2)
    assert bench.job_state(raised) is JobState.PINNED
    assert all(leased(bench, job_id) for job_id in released)
    bench.slurm.starts_jobs = True
    bench.cycle(3)
    assert bench.state(raised) == "RUNNING"
    assert not leased(bench, released[0])


def test_nothing_is_released_if_it_depends_on_which_job_ends(ahead):
    """The first job needs two GPUs of one node, and the end of a job frees only one."""
    bench = ahead()
    fill(bench)
    two, one = bench.slurm.submit(2, 10), bench.slurm.submit(1, 900)
    bench.cycle(2)
    assert leased(bench, two)
    assert leased(bench, one)


def test_jobs_as_large_as_those_that_run_are_released(ahead):
    bench = ahead()
    running = [bench.slurm.submit(2, 1000) for _ in range(2)]
    bench.cycle(2)
    two = bench.slurm.submit(2, 10)
    bench.cycle(2)
    assert not leased(bench, two)
    bench.slurm.end(running[1])
    assert bench.slurm.records[two].gpus_by_node == {"n2": 2}


@pytest.mark.parametrize("policy", ["fifo", "wcs-workload", "easy-backfill"])
def test_other_policies_release_nothing_ahead(ahead, policy):
    bench = ahead(policy=policy)
    fill(bench)
    job_id = bench.slurm.submit(1, 10)
    bench.cycle(3)
    assert leased(bench, job_id)
    assert not bench.audit("released-ahead")


@pytest.mark.parametrize("multifactor", [False, True])
def test_nothing_is_released_with_0(make_bench, multifactor):
    bench = make_bench((2, 2), policy="asrpt-gated", release_ahead=0)
    bench.slurm.multifactor = multifactor
    bench.restart()
    fill(bench)
    job_id = bench.slurm.submit(1, 10)
    bench.cycle(3)
    assert leased(bench, job_id)


@pytest.fixture
def basic(make_bench):
    """A bench with priority/basic, on which all GPUs are in use."""
    bench = make_bench((2, 2), policy="asrpt-gated", release_ahead=3)
    fill(bench)
    return bench


def descending(bench, *iterations):
    """One-GPU jobs, with the default priorities of priority/basic."""
    return [bench.slurm.submit(1, each, priority=90 - number) for number, each in enumerate(iterations)]


def test_with_priority_basic_jobs_are_released_whose_priorities_descend_already(basic):
    first, second, last, between = descending(basic, 100, 200, 900, 300)
    basic.cycle(2)
    assert [leased(basic, job_id) for job_id in (first, second, between, last)] == [False, False, False, True]
    shortest = basic.slurm.submit(1, 10, priority=50)
    basic.cycle(2)
    assert [leased(basic, job_id) for job_id in (shortest, first, second)] == [False, True, True]
    assert all("SiteFactor" not in update.fields for update in basic.slurm.writes)
    basic.slurm.end("1")
    assert basic.state(shortest) == "RUNNING"
    basic.cycle(2)
    assert not basic.audit("not-started")


def test_with_priority_basic_a_disabled_asrptd_forgets_what_was_released(basic):
    first, _ = descending(basic, 100, 200)
    basic.cycle(2)
    basic.mode.disabled = True
    basic.cycle()
    assert basic.job(first).site_factor is None
    basic.mode.disabled = False
    basic.cycle(2)
    assert not leased(basic, first)


def half_free(bench):
    """A job of two GPUs on one node, and two of one GPU on the other, which are returned."""
    last = bench.slurm.submit(2, 1000)
    bench.cycle(2)
    assert bench.state(last) == "RUNNING"
    return [bench.slurm.submit(1, 1000) for _ in range(2)]


@pytest.mark.parametrize(
    ("asks", "confined"), [({}, True), ({"max_nodes": 3}, True), ({"max_nodes": 1}, False), ({"cpus": 2}, True)]
)
def test_a_job_that_slurm_could_scatter_is_released_for_one_node(ahead, asks, confined):
    """On 22.05, a job of two GPUs without a limit on its nodes starts on one GPU of each of two nodes."""
    bench = ahead()
    small = half_free(bench)
    bench.cycle(2)
    job_id = bench.slurm.submit(2, 10, **asks)
    before = bench.slurm.records[job_id]
    bench.cycle(3)
    record = bench.slurm.records[job_id]
    assert not leased(bench, job_id)
    assert (record.min_nodes, record.max_nodes, record.tasks) == (1, 1, before.tasks)
    assert (bench.job(job_id).original is not None) is confined
    assert bench.job(job_id).job.request.max_nodes == (before.max_nodes or None), "the request is still the owner's"
    bench.slurm.end(small[0])
    assert bench.state(job_id) == "PENDING"
    bench.slurm.end(small[1])
    assert bench.state(job_id) == "RUNNING"
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING
    assert bench.slurm.resized == []
    assert not bench.audit("not-started")


PER_JOB = {"tres_per_job": "gres/gpu:2", "tres_per_task": ""}


@pytest.mark.parametrize(
    ("version", "asks", "released"),
    [
        ("25.11.2", PER_JOB, True),
        ("26.05.5", PER_JOB, False),
        ("26.05.5", PER_JOB | {"max_nodes": 1}, False),
        ("26.05.5", {}, True),
        ("26.05.5", PER_JOB | {"tres_per_node": "gres/gpu:2"}, True),
    ],
)
def test_a_job_to_which_slurm_might_give_fewer_gpus_is_not_released_ahead(ahead, version, asks, released):
    """26.05 starts ``--gpus=2 -N1`` on one GPU of a node if another node has one, too."""
    bench = ahead()
    bench.slurm.version = version
    bench.restart()
    small = half_free(bench)
    bench.cycle(2)
    job_id = bench.slurm.submit(2, 10, **asks)
    bench.cycle(3)
    assert leased(bench, job_id) is not released
    for running in small:
        bench.slurm.end(running)
    bench.cycle(3)
    assert bench.job_state(job_id) is JobState.RUNNING


@pytest.mark.parametrize(("asks", "scattered"), [({}, True), ({"max_nodes": 1}, False)])
def test_with_scatter_slurm_may_start_a_released_job_on_several_nodes(ahead, asks, scattered):
    bench = ahead(tables={"policy": {"scatter": True}})
    running = fill(bench)
    job_id = bench.slurm.submit(2, 10, **asks)
    before = bench.slurm.records[job_id]
    bench.slurm.end(running[0])
    bench.cycle(3)
    assert not leased(bench, job_id)
    assert bench.slurm.records[job_id].max_nodes == before.max_nodes
    assert bench.job(job_id).original is None
    bench.slurm.end(running[2])
    bench.cycle(2)
    assert bench.state(job_id) == ("RUNNING" if scattered else "PENDING")
    assert bench.job_state(job_id) is (JobState.RUNNING if scattered else JobState.QUEUED)
    if scattered:
        assert bench.slurm.records[job_id].gpus_by_node == {"n1": 1, "n2": 1}


def released_for_one_node(ahead):
    """A job that is released for one node, and its record before that."""
    bench = ahead(most=1)
    half_free(bench)
    bench.cycle(2)
    job_id = bench.slurm.submit(2, 10)
    before = bench.slurm.records[job_id]
    bench.cycle(3)
    assert bench.slurm.records[job_id].max_nodes == 1
    assert bench.job(job_id).confined
    return bench, job_id, before


def as_before(bench, job_id, before):
    """Slurm cannot have no upper bound again: it becomes the number of nodes."""
    now = bench.slurm.records[job_id]
    names = ("min_nodes", "tasks", "cpus", "priority", "required_nodes")
    return all(getattr(now, name) == getattr(before, name) for name in names) and now.max_nodes == 2


def test_a_job_that_is_no_longer_next_gets_its_own_number_of_nodes_back(ahead):
    bench, job_id, before = released_for_one_node(ahead)
    bench.slurm.submit(2, 5)
    bench.cycle(3)
    assert leased(bench, job_id)
    assert as_before(bench, job_id, before)
    assert bench.job(job_id).original is None
    assert not bench.audit("not-started")


def test_a_disabled_asrptd_gives_the_number_of_nodes_back(ahead):
    bench, job_id, before = released_for_one_node(ahead)
    bench.mode.disabled = True
    bench.cycle(2)
    assert not leased(bench, job_id)
    assert as_before(bench, job_id, before)


@pytest.mark.parametrize("held", [False, True])
def test_a_restart_knows_that_a_job_is_released_for_one_node(ahead, held):
    bench, job_id, before = released_for_one_node(ahead)
    bench.restart()
    if held:
        bench.slurm.change(job_id, priority=0, reason="JobHeldUser")
        bench.cycle(4)
        assert bench.slurm.records[job_id].max_nodes == 2
        return
    bench.cycle(2)
    assert bench.job(job_id).confined
    bench.slurm.submit(2, 5)
    bench.cycle(3)
    assert as_before(bench, job_id, before)


def test_a_requeued_job_that_was_released_for_one_node_is_as_before(ahead):
    bench, job_id, before = released_for_one_node(ahead)
    for each in ("1", "2", "3"):
        bench.slurm.end(each)
    assert bench.state(job_id) == "RUNNING"
    bench.cycle(2)
    bench.slurm.requeue(job_id)
    bench.cycle(3)
    assert as_before(bench, job_id, before)


def test_a_job_that_starts_while_it_is_released_is_not_resized(ahead):
    """Its owner sets StartTime=now in the moment in which asrptd decides to release it."""
    bench = ahead(most=1)
    half_free(bench)
    bench.cycle(2)
    job_id = bench.slurm.submit(2, 10)
    update, calls = bench.slurm.update, []

    def at_once(updates):
        if not updates:
            return []
        calls.append(updates)
        for each in ("2", "3"):
            bench.slurm.records[each] = replace(bench.slurm.records[each], state="COMPLETED", gpus_by_node={})
        bench.slurm.change(job_id, eligible_time=bench.slurm.now)
        bench.slurm.update = update
        return update(updates)

    bench.slurm.update = at_once
    bench.cycle(3)
    assert "StartTime" in calls[0][0].fields
    assert bench.state(job_id) == "RUNNING"
    assert bench.slurm.resized == []
    assert bench.job_state(job_id) is JobState.RUNNING


@pytest.mark.parametrize(
    ("nodes", "asks", "released"),
    [
        ("one", {"tres_per_task": "gres:gpu:a100:1"}, True),
        ("one", {}, False),  # planned on n2, but Slurm might start it on n1
        ("all", {}, True),  # Slurm chooses its GPUs in any case
    ],
)
def test_beside_several_gpu_types_in_a_node_jobs_are_released_that_slurm_starts_where_they_are_planned(
    ahead, nodes, asks, released
):
    bench = ahead((2, 2))
    for index in (0,) if nodes == "one" else (0, 1):
        bench.slurm.table[index] = typed_node(f"n{index + 1}", index + 1, {"a100": 1, "t4": 1})
    if nodes == "one":
        bench.slurm.table[1] = replace(bench.slurm.table[1], gpu_type="a100")
    kinds = ["a100", "t4", "a100", "a100" if nodes == "one" else "t4"]
    running = [bench.slurm.submit(1, 1000, tres_per_task=f"gres:gpu:{kind}:1") for kind in kinds]
    bench.cycle(3)
    job_id = bench.slurm.submit(1, 10, **asks)
    bench.cycle(3)
    assert [bench.state(blocker) for blocker in running] == ["RUNNING"] * 4
    assert bench.state(job_id) == "PENDING"
    assert leased(bench, job_id) is not released


def test_nothing_is_released_beside_nodes_with_shared_gpus(ahead):
    """Slurm might start the job there."""
    bench = ahead()
    fill(bench)
    bench.slurm.table[1] = replace(bench.slurm.table[1], other_gres=True)
    job_id = bench.slurm.submit(1, 10)
    bench.cycle(3)
    assert leased(bench, job_id)


def test_a_job_with_other_generic_resources_is_not_released_ahead_nor_one_behind_it(ahead):
    """While they are in use, Slurm's main scheduler starts nothing behind the job."""
    bench = ahead()
    bench.slurm.table = [replace(node, gres={"nvme": 1}) for node in bench.slurm.table]
    fill(bench)
    disk, other = bench.slurm.submit(1, 10, tres_per_node="gres:nvme:1"), bench.slurm.submit(1, 20)
    bench.cycle(3)
    assert leased(bench, disk)
    assert leased(bench, other)


def test_behind_a_job_for_some_of_the_nodes_of_a_partition_no_other_is_released(ahead):
    """Slurm's main scheduler stops at the first job of a partition that cannot start."""
    bench = ahead()
    fill(bench)
    chosen, other = bench.slurm.submit(1, 10, required_nodes="n1"), bench.slurm.submit(1, 20)
    bench.cycle(3)
    assert (leased(bench, chosen), leased(bench, other)) == (False, True)


def test_each_reservation_has_its_own_next_jobs(ahead):
    bench = ahead()
    hour = 3600.0
    owned = Reservation(
        "owned", bench.slurm.now - hour, bench.slurm.now + 9 * hour, frozenset({"n2"}), users=frozenset({"asrpt1"})
    )
    bench.slurm.reserved = [owned]
    inside = [bench.slurm.submit(1, 1000, reservation="owned") for _ in range(2)]
    outside = [bench.slurm.submit(1, 1000, user="asrpt2") for _ in range(2)]
    bench.cycle(2)
    assert all(bench.state(job_id) == "RUNNING" for job_id in [*inside, *outside])
    named, other = bench.slurm.submit(1, 20, reservation="owned"), bench.slurm.submit(1, 10, user="asrpt2")
    bench.cycle(3)
    assert not leased(bench, named)
    assert not leased(bench, other)
    assert bench.slurm.records[other].priority > bench.slurm.records[named].priority


def test_nothing_is_released_beside_jobs_that_slurm_starts_by_itself(ahead):
    """Slurm's main scheduler starts no job of a partition behind one that cannot start."""
    bench = ahead()
    fill(bench)
    left = bench.slurm.submit(1, leased=False, admin_comment="", reason="Resources")
    job_id = bench.slurm.submit(1, 10)
    bench.cycle(3)
    assert bench.job_state(left) is JobState.LEFT_TO_SLURM
    assert leased(bench, job_id)


def test_a_job_whose_nodes_slurm_chooses_is_released_alone_when_it_is_its_turn(ahead):
    bench = ahead()
    running = fill(bench)
    wide = bench.slurm.submit(4, 10, contiguous=True)
    younger = [bench.slurm.submit(1, 5) for _ in range(3)]
    bench.cycle(3)
    assert not leased(bench, wide)
    assert all(leased(bench, job_id) for job_id in younger)
    for job_id in running:
        assert bench.state(wide) == "PENDING"
        bench.slurm.end(job_id)
    assert bench.state(wide) == "RUNNING"
    bench.cycle(3)
    assert bench.job_state(wide) is JobState.RUNNING
    bench.slurm.end(wide)
    bench.cycle(3)
    assert [bench.state(job_id) for job_id in younger] == ["RUNNING"] * 3
    assert not bench.audit("not-started")


def test_a_job_whose_nodes_asrptd_chooses_is_not_released_in_its_turn(ahead):
    """A near deadline gives it Slurm's place; Slurm might scatter it."""
    bench = ahead()
    fill(bench)
    job_id = bench.slurm.submit(2, 10, deadline=bench.slurm.now + 3616.0, time_limit=3600.0)
    bench.cycle(10)
    assert bench.slurm.now > bench.slurm.records[job_id].submit_time + 8.0
    assert leased(bench, job_id)


def test_ahead_of_maintenance_no_job_passes_one_that_reaches_into_it(ahead):
    bench = ahead()
    fill(bench)
    start = bench.slurm.now + 3600.0
    bench.slurm.reserved = [Reservation("maint", start, start + 60.0, frozenset({"n1"}))]
    long, short = bench.slurm.submit(1, 10, time_limit=7200.0), bench.slurm.submit(1, 20, time_limit=60.0)
    bench.cycle(3)
    assert (leased(bench, long), leased(bench, short)) == (False, True)


def test_a_restart_knows_the_released_jobs(ahead):
    bench = ahead(most=1)
    fill(bench)
    job_id = bench.slurm.submit(1, 300)
    bench.cycle(2)
    bench.restart()
    bench.cycle(2)
    assert not leased(bench, job_id)
    bench.slurm.submit(1, 100)
    bench.restart()
    bench.cycle(2)
    assert leased(bench, job_id)
    assert bench.slurm.records[job_id].priority == 100


def test_a_lost_answer_is_written_again(ahead):
    bench = ahead(most=1)
    fill(bench)
    job_id = bench.slurm.submit(1, 300)
    update, bench.slurm.update = bench.slurm.update, lambda updates: ["Socket timed out"] * len(updates)
    bench.cycle()
    assert bench.job(job_id).site_factor == UNKNOWN_FACTOR
    assert leased(bench, job_id)
    bench.slurm.update = update
    bench.cycle()
    assert not leased(bench, job_id)


def test_disable_gives_released_jobs_their_own_priority_back(ahead):
    bench = ahead()
    fill(bench)
    job_id = bench.slurm.submit(1, 300)
    bench.cycle(2)
    assert not leased(bench, job_id)
    bench.mode.disabled = True
    bench.cycle(2)
    assert bench.slurm.records[job_id].priority == 100
    assert bench.job(job_id).site_factor is None


def test_a_released_job_that_is_requeued_later_gets_its_own_priority_back(ahead):
    bench = ahead()
    running = fill(bench)
    job_id = bench.slurm.submit(1, 300)
    bench.cycle(2)
    bench.slurm.end(running[0])
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING
    bench.slurm.requeued(job_id)
    bench.cycle(3)
    assert bench.slurm.records[job_id].priority == 100
    assert bench.job(job_id).site_factor is None


def test_a_hold_by_the_owner_ends_the_release(ahead):
    bench = ahead()
    fill(bench)
    job_id = bench.slurm.submit(1, 300)
    bench.cycle(2)
    bench.slurm.hold(job_id)
    bench.cycle(2)
    bench.slurm.release(job_id)
    bench.cycle()
    assert bench.job_state(job_id) is JobState.QUEUED


def test_released_jobs_are_planned_with_their_predicted_ends(ahead):
    """Otherwise a reservation would count on their time limits."""
    bench = ahead()
    running = fill(bench)
    job_id = bench.slurm.submit(1, 300, time_limit=86400.0)
    bench.cycle(2)
    bench.slurm.end(running[0])
    bench.cycle(1)
    assert bench.job_state(job_id) is JobState.RUNNING
    assert job_id in bench.scheduler.decider.policy.dump()["started"]


def test_a_start_of_a_released_job_is_left_to_slurm_for_one_cycle(ahead):
    """Slurm is about to make it. If it does not, the job is planned again and pinned, as any other one."""
    bench, job_id = released_with_room(ahead)
    before = len(bench.writes(job_id))
    bench.cycle()
    assert bench.job_state(job_id) is JobState.PINNED
    assert len(bench.writes(job_id)) == before
    bench.cycle()
    assert bench.job(job_id).site_factor is None
    assert [fields.get("ReqNodeList") for fields in bench.writes(job_id)[before:]] == [None, "n1"]
    bench.cycle(15)
    assert [event["why"] for event in bench.audit("not-started", job_id)] == ["None"]
    bench.slurm.starts_jobs = True
    bench.cycle(15)
    assert bench.state(job_id) == "RUNNING"
    assert bench.slurm.site_factors[job_id] == writeback.PINNED_SITE_FACTOR


def test_other_starts_wait_for_those_that_are_left_to_slurm(ahead):
    """Slurm chooses the nodes of these, perhaps the ones that the others would be pinned to."""
    bench = ahead(sizes=(2, 2, 2), most=1)
    running = fill(bench)
    released, leased_job = bench.slurm.submit(1, 100), bench.slurm.submit(1, 300)
    bench.cycle(2)
    assert [leased(bench, job_id) for job_id in (released, leased_job)] == [False, True]
    bench.slurm.starts_jobs = False
    bench.slurm.end(running[0])
    bench.slurm.end(running[5])
    bench.cycle()
    assert not [fields for fields in bench.writes(leased_job) if "ReqNodeList" in fields]
    bench.slurm.starts_jobs = True
    bench.slurm.tick(0.1)
    assert bench.state(released) == "RUNNING"
    bench.cycle(2)
    assert bench.state(leased_job) == "RUNNING"
    assert not bench.audit("not-started")
    assert bench.slurm.used() == {"n1": 2, "n2": 2, "n3": 2}


def test_a_job_with_an_older_pin_in_slurm_does_not_wait_for_them(ahead):
    """asrptd would forget what that pin has overwritten."""
    bench, released = released_with_room(ahead)
    pinned, now = bench.slurm.submit(1, 900), bench.slurm.now
    bench.cycle()
    jobs = [bench.job(job_id) for job_id in (released, pinned)]
    why, older = reason(Phase.STARTING, "starting"), writeback.original(jobs[1].record)
    jobs[1].pinned(Placement({"n2": 1}, ("n2",), 1.0), now, older, True, why)
    for job in jobs:
        job.site_factor_is(0 if job is jobs[0] else None)
        job.pinned(Placement({"n1": 1}, ("n1",), 1.0), now, job.original or writeback.original(job.record), True, why)
    jobs[0].postponed = jobs[0].pinned_before = False
    starts = Starts(bench.scheduling.jobs, bench.slurm, bench.scheduling.leases, None, None, None, None)
    assert starts.intend(jobs, now).starts == [jobs[1]]
    assert (jobs[0].original, jobs[1].original) == (None, older)


def test_a_restart_between_plans_the_start_again(ahead):
    bench, job_id = released_with_room(ahead)
    bench.cycle()
    bench.restart()
    bench.slurm.starts_jobs = True
    bench.slurm.tick(1.0)
    bench.cycle(3)
    assert bench.job_state(job_id) is JobState.RUNNING
    assert not bench.audit("not-started")


def test_disable_also_takes_back_a_start_that_is_left_to_slurm(ahead):
    bench, job_id = released_with_room(ahead)
    bench.cycle()
    bench.mode.disabled = True
    bench.cycle()
    assert bench.slurm.records[job_id].priority == 100
    assert not leased(bench, job_id)
