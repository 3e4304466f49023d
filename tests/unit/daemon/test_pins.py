"""Pins: the fence before a pin, pins that fail or are not followed, and their withdrawal."""

import itertools

import pytest

from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.writes import rank_maps
from slurm_asrpt.slurm.priorities import BOOSTED_PRIORITY
from slurm_asrpt.slurm.records import Update
from slurm_asrpt.slurm.writeback import (
    AHEAD_PRIORITY,
    MOST_TURNS,
    PINNED_PRIORITY,
    PINNED_SITE_FACTOR,
    TURN,
    pin,
)


def test_a_job_held_while_pinned_loses_its_node_list(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle()
    bench.slurm.hold(job_id)
    bench.cycle(15)
    assert bench.slurm.records[job_id].required_nodes == ""
    assert bench.job(job_id).reason.kind == "held"


def test_a_pinned_job_keeps_its_gpus_from_others_until_it_runs(bench):
    bench.slurm.starts_jobs = False
    first = bench.slurm.submit(8)
    bench.cycle(2)
    second = bench.slurm.submit(8)
    bench.cycle(2)
    assert bench.job_state(first) is JobState.PINNED
    assert bench.job_state(second) is JobState.QUEUED


def test_a_job_that_does_not_start_is_unpinned_completely_and_replanned(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(6)
    bench.cycle()
    assert bench.slurm.records[job_id].required_nodes
    bench.cycle(11)
    assert [e["why"] for e in bench.audit("not-started", job_id)] == ["None"]
    back = [w for w in bench.writes(job_id) if w.get("ReqNodeList") == ""]
    assert back == [{"NumNodes": "1-3", "ReqNodeList": "", "NumCPUs": "6", "Priority": "100"}]
    assert len(bench.audit("start", job_id)) == 2  # replanned at once


@pytest.mark.parametrize("restarted", ["never", "between", "away"])
@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
def test_a_job_requeued_after_its_end_loses_its_node_list(bench, state, restarted):
    """Slurm keeps the pin of an ended job, and scontrol requeue accepts it. restarted: when asrptd restarts."""
    job_id = bench.slurm.submit(6)
    bench.cycle(2)
    bench.slurm.end(job_id, state)
    bench.cycle(2)
    if restarted == "between":
        bench.restart()
        bench.cycle(2)
    if restarted == "away":
        bench.stop()
    bench.slurm.requeued(job_id)
    if restarted == "away":
        bench.start()
    bench.cycle(2)
    record = bench.slurm.records[job_id]
    assert (record.required_nodes, record.max_nodes, record.tasks) == ("", 3, 6)
    assert bench.job(job_id).reason.kind == "begin"


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN*"])
def test_a_start_on_a_node_that_goes_down_is_withdrawn_at_once(bench, state):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle()
    lost = bench.slurm.records[job_id].required_nodes
    bench.slurm.node_state(lost, state)
    bench.cycle()
    assert [e["why"] for e in bench.audit("not-started", job_id)] == ["NodeDown"]
    assert bench.slurm.records[job_id].required_nodes not in ("", lost)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_that_failed_because_of_its_pin_is_audited_once(bench, restarts):
    """slurmctld restarted without the pinned node: the job ends as NODE_FAIL and cannot be requeued."""
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle()
    bench.slurm.end(job_id, "NODE_FAIL")
    for _ in range(2):
        if restarts:
            bench.restart()
        bench.cycle(2)
    (told,) = bench.audit("pin-failed", job_id)
    assert (told["user"], told["nodes"]) == ("asrpt1", bench.slurm.records[job_id].required_nodes)
    assert "submit it again" in told["remedy"]


def test_a_node_failure_of_a_running_job_is_not_blamed_on_the_pin(bench):
    job_id = bench.slurm.submit(4)
    bench.cycle(2)
    bench.slurm.end(job_id, "NODE_FAIL")
    bench.cycle()
    assert bench.audit("ended", job_id)
    assert not bench.audit("pin-failed")


def test_the_start_timeout_counts_from_the_write(bench):
    """If slurmctld answers slowly, the cycle began long before the write."""
    bench.slurm.starts_jobs = False
    job_id, jobs = bench.slurm.submit(4), bench.slurm.jobs

    def slowly():
        found = jobs()
        bench.slurm.tick(12.0)  # daemon.unpin_after_s is 10
        return found

    bench.slurm.jobs = slowly
    bench.cycle(2)
    assert not bench.audit("not-started", job_id)
    bench.slurm.starts_jobs = True
    bench.slurm.tick(0)
    bench.cycle()
    assert (bench.job_state(job_id), len(bench.audit("start", job_id))) == (JobState.RUNNING, 1)


def test_a_start_is_awaited_for_two_pauses_of_slurms_scheduler(bench):
    bench.slurm.start_delay_s = 20.0
    bench.restart()
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle(40)
    assert (bench.job_state(job_id), bench.audit("not-started", job_id)) == (JobState.PINNED, [])
    bench.cycle(4)
    assert bench.audit("not-started", job_id)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_with_a_reused_number_is_another_job(bench, restarts):
    """slurmctld was killed before it saved the first job; the second one is not a requeue of it."""
    bench.slurm.starts_jobs = False
    first = bench.slurm.submit(6, required_nodes="n1,n2")
    bench.cycle(2)
    assert bench.job(first).original is not None
    rank_maps.write_hosts(bench.settings.paths.spool, int(first), ["n1", "n2"])
    number = int(first) - 1
    bench.slurm.forget(first)
    bench.slurm.last_number = number
    if restarts:
        bench.stop()
    bench.slurm.tick(1)
    again = bench.slurm.submit(2, profile="flat", priority=55)
    assert again == first
    if restarts:
        bench.start()
    before = len(bench.slurm.writes)
    bench.cycle(2)
    assert bench.job(again).original.tasks == 2
    assert not any("NumTasks" in update.fields for update in bench.slurm.writes[before:])
    assert bench.audit("vanished", first) or restarts
    assert not bench.hosts(first).exists() or restarts
    assert bench.job(again).tag.profile == "flat"


def test_pauses_between_attempts_grow(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle(120)
    starts = [e["time"] for e in bench.audit("start", job_id)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert len(gaps) >= 4
    assert gaps == sorted(gaps)
    assert gaps[0] < 13 < gaps[-1]


def test_a_job_in_backoff_has_a_lease_and_no_node_list(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle(25)
    assert bench.job_state(job_id) is JobState.INELIGIBLE
    record = bench.slurm.records[job_id]
    assert record.required_nodes == ""
    assert record.eligible_time > bench.slurm.now
    assert bench.job(job_id).reason.kind == "not-started"


def test_a_refused_pin_is_audited_and_retried(bench):
    job_id = bench.slurm.submit(4)
    update = bench.slurm.update

    def refuse_pins(updates):
        return ["Requested node configuration is not available" if "ReqNodeList" in u.fields else e
                for u, e in zip(updates, update([u for u in updates if "ReqNodeList" not in u.fields]
                                                or [lease_of(u) for u in updates]), strict=True)]  # fmt: skip

    def lease_of(u):
        return Update(u.job_id, {"StartTime": "now+600"})

    bench.slurm.update = refuse_pins
    bench.cycle()
    assert [e["why"] for e in bench.audit("not-started", job_id)] == ["Requested node configuration is not available"]
    bench.slurm.update = update
    bench.cycle(5)
    assert bench.job_state(job_id) is JobState.RUNNING


def test_the_fence_prevents_resizing_a_job_that_has_just_started(bench):
    """Between asrptd's read and its write, the owner lets the job start."""
    job_id = bench.slurm.submit(2)
    read = bench.slurm.nodes

    def nodes_and_a_start():
        found = read()
        bench.slurm.nodes = read
        bench.slurm.change(job_id, eligible_time=bench.slurm.now, reason="None")
        return found

    bench.slurm.nodes = nodes_and_a_start
    bench.cycle()
    assert bench.state(job_id) == "RUNNING"
    assert bench.slurm.resized == []
    assert bench.audit("fence-refused", job_id)
    bench.cycle()
    assert bench.job_state(job_id) is JobState.RUNNING
    assert bench.slurm.starts[job_id] == 1


def test_without_the_fence_the_write_would_resize_the_job(bench):
    """FakeSlurm behaves like the real one: otherwise the test above would prove nothing."""
    job_id = bench.slurm.submit(2, leased=False)
    bench.slurm.update([pin(job_id, {"n2": 2}, multifactor=False)])
    assert bench.slurm.resized == [job_id]


def test_withdrawing_a_late_start_does_not_resize_a_job_that_just_started(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(6)
    bench.cycle(11)
    read = bench.slurm.nodes

    def nodes_and_a_start():
        found = read()
        bench.slurm.nodes = read
        bench.slurm.starts_jobs = True
        bench.slurm.tick(0)
        return found

    bench.slurm.nodes = nodes_and_a_start
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING
    assert bench.slurm.resized == []


def test_a_refused_fence_of_a_queued_job_does_not_submit_it_twice(bench):
    """A requeued job that still has its pin is in the queue, and Slurm refuses the fence for a while."""
    job_id, blocker = bench.slurm.submit(4, iterations=30), bench.slurm.submit(8)
    bench.cycle(15)
    bench.slurm.requeue(job_id)
    bench.slurm.errors[job_id] = "Slurm temporarily unable to accept job"
    bench.slurm.node_state("n1", "IDLE+DRAIN")
    bench.cycle(4)
    bench.slurm.errors.clear()
    bench.slurm.node_state("n1", "IDLE")
    bench.slurm.tick(120)  # Slurm defers requeued jobs
    bench.cycle(15)
    assert bench.job_state(job_id) is JobState.RUNNING
    assert bench.job_state(blocker) is JobState.RUNNING


def test_pins_that_share_a_node_with_a_job_on_several_start_in_the_order_of_the_decision(make_bench):
    """Else a large one, with a higher priority, may take the GPUs of a small one: Slurm divides them as it likes."""
    bench = make_bench((7, 7), policy="asrpt-gated")
    bench.slurm.multifactor = True
    bench.restart()
    bench.slurm.starts_jobs = False
    small, large, apart = bench.slurm.submit(1, 100), bench.slurm.submit(8, 1000), bench.slurm.submit(1, 200)
    bench.cycle()
    factors = {each: bench.slurm.site_factors[each] for each in (small, large, apart)}
    assert all(bench.job_state(each) is JobState.PINNED for each in factors)
    assert factors[small] == factors[apart] == PINNED_SITE_FACTOR
    assert factors[large] == PINNED_SITE_FACTOR - TURN
    later = bench.slurm.submit(1, 100)
    bench.cycle()
    assert bench.slurm.site_factors[later] == PINNED_SITE_FACTOR - TURN


def test_the_last_turn_of_pins_is_before_released_jobs():
    assert PINNED_SITE_FACTOR - MOST_TURNS * TURN > AHEAD_PRIORITY
    assert PINNED_PRIORITY - MOST_TURNS > BOOSTED_PRIORITY


@pytest.mark.parametrize("takes_off", [False, True])
def test_a_job_with_cpus_of_each_node_starts_with_a_pin_and_after_one(bench, takes_off):
    """Slurm raises its CPUs as it takes a number of nodes, and then does not start it."""
    if takes_off:
        bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(2, min_cpus_per_node=16)
    bench.cycle()
    assert bench.slurm.records[job_id].min_nodes == 1
    if takes_off:
        bench.mode.disabled = True
        bench.cycle(2)
        assert bench.slurm.records[job_id].required_nodes == ""
        bench.slurm.starts_jobs = True
        bench.slurm.tick(0)
    assert bench.slurm.records[job_id].state == "RUNNING"
