"""The scheduler's cycle: submit, start, end; taking back what did not start; what it leaves alone."""

import dataclasses
import errno
import itertools

import pytest

from slurm_asrpt.core.job import JobId
from slurm_asrpt.daemon import rankmap
from slurm_asrpt.daemon.placing import placement_of
from slurm_asrpt.daemon.tracked import Place
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.records import Update
from slurm_asrpt.slurm.writeback import pin


def test_a_job_starts_where_it_was_planned_and_ends(bench):
    job_id = bench.slurm.submit(6)
    bench.cycle(2)
    assert bench.place(job_id) is Place.RUNNING
    (started,) = bench.audit("start", job_id)
    (running,) = bench.audit("running", job_id)
    assert running["gpus"] == started["gpus"] == bench.slurm.records[job_id].gpus_by_node
    assert running["as_planned"]
    bench.slurm.end(job_id)
    bench.cycle()
    assert job_id not in bench.scheduler.world.tracked
    assert [e["state"] for e in bench.audit("ended", job_id)] == ["COMPLETED"]
    assert bench.runs()[job_id].nodes == started["gpus"]


def test_a_start_is_a_lease_and_then_one_write_of_nodes_that_fit_their_number(bench):
    job_id = bench.slurm.submit(6)
    bench.cycle()
    fence, written = bench.writes(job_id)
    assert fence == {"StartTime": "now+600"}
    assert written["StartTime"] == "now"
    assert written["NumNodes"] == "2-2"
    assert written["ReqNodeList"] == "n[1-2]"


def test_a_full_cluster_makes_jobs_wait_leased_with_a_reason(bench):
    first, second = bench.slurm.submit(12), bench.slurm.submit(4)
    bench.cycle(3)
    assert bench.state(first) == "RUNNING"
    assert bench.place(second) is Place.QUEUED
    assert bench.job(second).why.kind == "gpus"
    assert bench.slurm.records[second].eligible_time > bench.slurm.now
    bench.slurm.end(first)
    bench.cycle(2)
    assert bench.place(second) is Place.RUNNING


def test_a_job_held_while_pinned_loses_its_node_list(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle()
    bench.slurm.hold(job_id)
    bench.cycle(15)
    assert bench.slurm.records[job_id].required_nodes == ""
    assert bench.job(job_id).why.kind == "held"


def test_two_starts_of_one_cycle_do_not_share_gpus(bench):
    jobs = [bench.slurm.submit(4) for _ in range(5)]
    bench.cycle(2)
    running = [j for j in jobs if bench.state(j) == "RUNNING"]
    assert len(running) == 3
    assert max(bench.slurm.used().values()) == 4


def test_a_pinned_job_keeps_its_gpus_from_others_until_it_runs(bench):
    bench.slurm.starts_jobs = False
    first = bench.slurm.submit(8)
    bench.cycle(2)
    second = bench.slurm.submit(8)
    bench.cycle(2)
    assert bench.place(first) is Place.PINNED
    assert bench.place(second) is Place.QUEUED


def test_what_does_not_start_is_taken_back_without_a_trace_and_planned_again(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(6)
    bench.cycle()
    assert bench.slurm.records[job_id].required_nodes
    bench.cycle(11)
    assert [e["why"] for e in bench.audit("not-started", job_id)] == ["None"]
    back = [w for w in bench.writes(job_id) if w.get("ReqNodeList") == ""]
    assert back == [{"NumNodes": "1-3", "ReqNodeList": "", "NumTasks": "6", "NumCPUs": "6", "Priority": "100"}]
    assert len(bench.audit("start", job_id)) == 2  # at once again


@pytest.mark.parametrize("state", ["IDLE+DRAIN", "DOWN*"])
def test_a_start_on_a_node_that_is_lost_meanwhile_is_taken_back_at_once(bench, state):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle()
    lost = bench.slurm.records[job_id].required_nodes
    bench.slurm.node_state(lost, state)
    bench.cycle()
    assert [e["why"] for e in bench.audit("not-started", job_id)] == ["NodeDown"]
    assert bench.slurm.records[job_id].required_nodes not in ("", lost)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_job_that_our_pin_made_fail_is_told_once(bench, restarts):
    """slurmctld came back without the node that our pin named: NODE_FAIL, and no way to requeue it."""
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle()
    bench.slurm.end(job_id, "NODE_FAIL")
    if restarts:
        bench.restart()
    bench.cycle(2)
    (told,) = bench.audit("pin-failed", job_id)
    assert (told["user"], told["nodes"]) == ("asrpt1", bench.slurm.records[job_id].required_nodes)
    assert "submit it again" in told["remedy"]


def test_a_node_that_fails_under_a_running_job_is_not_our_pins_doing(bench):
    job_id = bench.slurm.submit(4)
    bench.cycle(2)
    bench.slurm.end(job_id, "NODE_FAIL")
    bench.cycle()
    assert bench.audit("ended", job_id)
    assert not bench.audit("pin-failed")


def test_pauses_between_attempts_grow(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle(120)
    starts = [e["time"] for e in bench.audit("start", job_id)]
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
    assert len(gaps) >= 4
    assert gaps == sorted(gaps)
    assert gaps[0] < 13 < gaps[-1]


def test_a_job_backing_off_has_no_node_list_and_a_lease(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle(25)
    assert bench.place(job_id) is Place.APART
    record = bench.slurm.records[job_id]
    assert record.required_nodes == ""
    assert record.eligible_time > bench.slurm.now
    assert bench.job(job_id).why.kind == "not-started"


def test_a_refused_pin_is_audited_and_tried_again(bench):
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
    assert bench.place(job_id) is Place.RUNNING


def test_the_fence_keeps_a_job_that_has_just_started_from_being_resized(bench):
    """Between our read and our write the owner lets the job start on its own."""
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
    assert bench.place(job_id) is Place.RUNNING
    assert bench.slurm.starts[job_id] == 1


def test_without_the_fence_that_write_would_have_resized_it(bench):
    """The fake Slurm behaves like the real one: else the test above would prove nothing."""
    job_id = bench.slurm.submit(2, leased=False)
    bench.slurm.update([pin(job_id, {"n2": 2}, multifactor=False)])
    assert bench.slurm.resized == [job_id]


def test_the_taking_back_of_a_late_job_that_starts_meanwhile_does_not_resize_it(bench):
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
    assert bench.place(job_id) is Place.RUNNING
    assert bench.slurm.resized == []


def test_a_cancelled_job_leaves_the_queue(bench):
    blocker, waiting, last = bench.slurm.submit(12), bench.slurm.submit(12), bench.slurm.submit(4)
    bench.cycle(2)
    bench.slurm.end(waiting, "CANCELLED")
    bench.cycle()
    assert waiting not in bench.scheduler.world.tracked
    assert [j for j, _ in bench.scheduler.policy.queue(bench.slurm.now)] == [JobId(last)]
    assert bench.runs().keys() == set()  # it never had a node
    assert bench.place(blocker) is Place.RUNNING


def test_a_vanished_job_is_said_to_be_gone(bench):
    job_id = bench.slurm.submit(12)
    other = bench.slurm.submit(12)
    bench.cycle(2)
    bench.slurm.forget(other)
    bench.slurm.forget(job_id)
    bench.cycle()
    assert {e["job"] for e in bench.audit("vanished")} == {job_id, other}
    assert bench.scheduler.world.tracked == {}
    assert list(bench.scheduler.policy.queue(bench.slurm.now)) == []


def test_a_requeued_job_loses_the_old_node_list_and_runs_again(bench):
    job_id = bench.slurm.submit(8)
    bench.cycle(2)
    bench.slurm.tick(5)
    blocker = bench.slurm.submit(12)
    bench.slurm.requeue(job_id)
    bench.slurm.change(blocker, state="RUNNING", eligible_time=bench.slurm.now, nodes="n[1-3]", reason="None",
                       gpus_by_node={"n1": 4, "n2": 4, "n3": 4}, start_time=bench.slurm.now)  # fmt: skip
    assert bench.slurm.records[job_id].required_nodes
    bench.cycle(2)
    assert bench.slurm.records[job_id].required_nodes == ""
    assert bench.slurm.records[job_id].max_nodes == 3
    # not taken for one whose owner chose the nodes, and given to Slurm; Slurm itself defers what was requeued
    assert bench.job(job_id).why.kind == "begin"
    assert {"StartTime": "now"} not in bench.writes(job_id)
    bench.slurm.end(blocker)
    bench.slurm.tick(120)
    bench.cycle(2)
    assert bench.place(job_id) is Place.RUNNING
    assert bench.slurm.starts[job_id] == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"required_nodes": "n1"}, "nodelist"),
        ({"exclusive": True}, "exclusive"),
        ({"tres_per_task": ""}, "nogpu"),
        ({"admin_comment": ""}, "untagged"),
        ({"admin_comment": "asrpt1:g=0123456789abcdef;n=0;l=off"}, "off"),
    ],
)
def test_what_is_left_to_slurm_is_never_pinned_and_said_to_be_left(bench, changes, why):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4, **changes)
    bench.cycle(3)
    assert bench.place(job_id) is Place.LEFT
    assert [e["why"] for e in bench.audit("left", job_id)] == [why]
    assert not [w for w in bench.writes(job_id) if "ReqNodeList" in w or "NumNodes" in w]


def test_a_leased_job_that_we_leave_is_handed_over_once(bench):
    job_id = bench.slurm.submit(4, features="fast")
    bench.cycle(4)
    assert bench.writes(job_id) == [{"StartTime": "now"}]
    assert bench.state(job_id) == "RUNNING"


def test_a_job_moved_to_a_foreign_partition_is_given_back_clean(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle()
    assert bench.slurm.records[job_id].required_nodes
    bench.slurm.change(job_id, partition="other")
    bench.cycle(15)
    assert bench.slurm.records[job_id].required_nodes == ""
    assert bench.slurm.records[job_id].eligible_time <= bench.slurm.now


def test_a_drained_node_is_planned_around_and_the_policy_told(bench):
    bench.slurm.node_state("n1", "IDLE+DRAIN")
    job_id = bench.slurm.submit(8)
    bench.cycle(2)
    assert bench.slurm.records[job_id].gpus_by_node == {"n2": 4, "n3": 4}
    bench.slurm.node_state("n1", "IDLE")
    bench.cycle(2)
    assert [e["gpus"] for e in bench.audit("cluster")] == [8, 12]


def test_a_job_larger_than_the_cluster_blocks_nobody(bench):
    large, small = bench.slurm.submit(40), bench.slurm.submit(4)
    bench.cycle(2)
    assert bench.job(large).why.kind == "capacity"
    assert bench.place(small) is Place.RUNNING


def test_a_job_waits_for_its_dependency_its_hold_and_its_own_begin(bench):
    dependent = bench.slurm.submit(2, reason="Dependency")
    held = bench.slurm.submit(2)
    bench.slurm.hold(held)
    deferred = bench.slurm.submit(2)
    bench.slurm.change(deferred, eligible_time=bench.slurm.now + 5000)
    bench.cycle(2)
    assert [bench.job(j).why.kind for j in (dependent, held, deferred)] == ["dependency", "held", "begin"]
    bench.slurm.change(dependent, reason="BeginTime")
    bench.slurm.release(held)
    bench.cycle(2)
    assert [bench.place(j) for j in (dependent, held, deferred)] == [Place.RUNNING, Place.RUNNING, Place.APART]
    bench.slurm.tick(5000)
    bench.cycle(2)
    assert bench.place(deferred) is Place.RUNNING


def test_a_refused_fence_of_a_queued_job_does_not_submit_it_twice(bench):
    """A requeued job that still carries our pin sits in the queue; Slurm refuses the fence for a while."""
    job_id, blocker = bench.slurm.submit(4, iterations=30), bench.slurm.submit(8)
    bench.cycle(15)
    bench.slurm.requeue(job_id)
    bench.slurm.errors[job_id] = "Slurm temporarily unable to accept job"
    bench.slurm.node_state("n1", "IDLE+DRAIN")
    bench.cycle(4)
    bench.slurm.errors.clear()
    bench.slurm.node_state("n1", "IDLE")
    bench.slurm.tick(120)  # Slurm defers what was requeued
    bench.cycle(15)
    assert bench.place(job_id) is Place.RUNNING
    assert bench.place(blocker) is Place.RUNNING


def test_a_silent_slurm_raises_and_loses_nothing(bench):
    waiting = [bench.slurm.submit(12), bench.slurm.submit(12)]
    bench.cycle(2)
    bench.slurm.answers = False
    with pytest.raises(SlurmError):
        bench.cycle()
    bench.slurm.answers = True
    bench.cycle()
    assert set(bench.scheduler.world.tracked) == set(waiting)


def test_a_cycle_cut_off_between_its_writes_is_mended_by_the_next(bench):
    """Slurm stops answering after the fence: the job is not pinned there, but we have noted that it may be."""
    job_id = bench.slurm.submit(4)
    update = bench.slurm.update

    def once(updates):
        bench.slurm.update = update
        answers = update(updates)
        bench.slurm.answers = False
        return answers

    bench.slurm.update = once
    with pytest.raises(SlurmError):
        bench.cycle()
    bench.slurm.answers = True
    bench.slurm.tick(1)
    bench.cycle(14)
    assert bench.place(job_id) is Place.RUNNING
    assert bench.slurm.starts[job_id] == 1


def test_the_policy_sees_a_node_that_cleans_up_as_full(bench):
    for name in ("n1", "n2", "n3"):
        bench.slurm.states[name] = "IDLE+COMPLETING"
    job_id = bench.slurm.submit(4)
    bench.cycle()
    assert bench.place(job_id) is Place.QUEUED
    bench.slurm.states.clear()
    bench.cycle(2)
    assert bench.place(job_id) is Place.RUNNING


def test_an_allocation_that_cannot_be_the_jobs_own_makes_no_rank_map(make_bench):
    """A user may name a job like scontrol's own fields; what comes of it must not stop the daemon."""
    bench = make_bench(sizes=(1, 4, 1))
    job_id = bench.slurm.submit(6, profile="tail")
    bench.slurm.allocations = lambda ids: {i: {"n1": 1, "n2": 4, "n9": 8} for i in ids}
    bench.cycle()
    assert not bench.hosts(job_id).exists()
    bench.cycle()
    assert bench.place(job_id) is Place.RUNNING


def test_a_rank_map_is_announced_written_and_removed(make_bench):
    bench = make_bench(sizes=(1, 4, 1))
    job_id = bench.slurm.submit(6, profile="tail")
    bench.cycle()
    tracked = bench.job(job_id)
    assert tracked.mapped
    hosts = bench.hosts(job_id).read_text(encoding="utf-8").split()
    gpus = bench.slurm.records[job_id].gpus_by_node
    expected = placement_of(tracked, gpus, bench.scheduler.world.servers, bench.scheduler.world.fabric)
    assert hosts == list(expected.ranks)
    assert sorted(hosts) == ["n1"] + ["n2"] * 4 + ["n3"]
    assert not bench.hosts(f"{job_id}.wait").exists()
    assert bench.hosts(job_id).stat().st_mode & 0o777 == 0o644
    bench.cycle()
    assert bench.hosts(job_id).exists()
    bench.slurm.end(job_id)
    bench.cycle()
    assert not bench.hosts(job_id).exists()


def test_a_start_that_takes_longer_than_the_pause_gets_its_rank_map_in_the_next_one(make_bench):
    bench = make_bench(sizes=(1, 4, 1))
    job_id = bench.slurm.submit(6, profile="tail")
    bench.slurm.starts_jobs = False
    bench.cycle(seconds=0.5)
    assert not bench.hosts(job_id).exists()
    bench.slurm.starts_jobs = True
    bench.slurm.tick(0.1)
    bench.scheduler.between_cycles(0.5)
    assert bench.hosts(job_id).exists()


def test_a_job_that_was_not_started_gets_no_rank_map_later(make_bench):
    """Its files are removed with its pin; Slurm may be about to start it elsewhere."""
    bench = make_bench(sizes=(1, 4, 1))
    job_id = bench.slurm.submit(6, profile="tail")
    bench.slurm.starts_jobs = False
    bench.cycle(seconds=0.1)
    bench.job(job_id).place = Place.APART
    bench.slurm.allocations = lambda ids: pytest.fail(f"asked for {ids}")
    bench.scheduler.between_cycles(0.5)


def test_a_spool_that_is_full_costs_the_rank_map_and_nothing_else(make_bench, monkeypatch, caplog):
    """Users write there, too: none of them may stop the scheduling by filling it."""

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device", "hosts")

    bench = make_bench(sizes=(1, 4, 1))
    job_id = bench.slurm.submit(6, profile="tail")
    with monkeypatch.context() as patch:
        patch.setattr(rankmap.Path, "write_text", full)
        bench.cycle(2)
    assert bench.job(job_id).mapped
    assert bench.place(job_id) is Place.RUNNING
    assert not bench.hosts(job_id).exists()
    assert "No space left" in caplog.text


def test_a_mapped_job_that_does_not_start_in_time_gets_its_map_when_it_runs(make_bench):
    bench = make_bench(sizes=(1, 4, 1))
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(6, profile="tail")
    bench.cycle()
    assert bench.hosts(f"{job_id}.wait").exists()
    bench.slurm.starts_jobs = True
    bench.slurm.tick(1)
    bench.cycle()
    assert bench.hosts(job_id).exists()
    assert not bench.hosts(f"{job_id}.wait").exists()


def test_a_job_taken_back_leaves_no_announcement(make_bench):
    bench = make_bench(sizes=(1, 4, 1))
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(6, profile="tail")
    bench.cycle()
    while bench.job(job_id).failures < 2:
        bench.cycle()
    assert bench.place(job_id) is Place.APART
    assert list(bench.hosts("x").parent.iterdir()) == []


def test_jobs_of_equal_submit_time_queue_by_number(bench):
    blocker = bench.slurm.submit(12)
    bench.cycle(2)
    jobs = [bench.slurm.submit(12) for _ in range(12)]
    bench.cycle(2)
    assert [j for j, _ in bench.scheduler.policy.queue(bench.slurm.now)] == jobs
    assert bench.place(blocker) is Place.RUNNING


def test_records_are_only_ever_replaced(bench):
    """The fake hands out frozen records: a daemon that edits them would fail here."""
    job_id = bench.slurm.submit(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        bench.slurm.jobs()[0].state = "RUNNING"
    bench.cycle()
    assert job_id in bench.scheduler.world.tracked


def test_an_owner_who_shrinks_a_waiting_job_is_heard(bench):
    """``scontrol update NumTasks=2`` on a job that was too large to start."""
    blocker = bench.slurm.submit(8)
    bench.cycle(2)
    job_id = bench.slurm.submit(8)
    bench.cycle(2)
    assert bench.place(job_id) is Place.QUEUED
    bench.slurm.change(job_id, tasks=2, cpus=2)
    bench.cycle(2)
    assert bench.place(job_id) is Place.RUNNING
    assert bench.place(blocker) is Place.RUNNING


def test_a_job_under_a_limit_gives_its_gpus_back_at_once(bench):
    """Slurm answers a start with a limit of an association: the reason is told, and others get the GPUs."""
    bench.slurm.starts_jobs = False
    limited = bench.slurm.submit(12)
    bench.cycle()
    bench.slurm.change(limited, reason="AssocGrpGRES")
    bench.cycle()
    assert bench.slurm.records[limited].required_nodes == ""
    bench.cycle()
    assert bench.job(limited).why.kind == "limit"
    assert bench.audit("not-started", limited)[0]["why"] == "AssocGrpGRES"


def test_a_node_in_a_state_that_we_do_not_know_is_not_used(bench):
    bench.slurm.node_state("n1", "IDLE+SOMETHING_NEW")
    bench.slurm.node_state("n2", "IDLE+MAINTENANCE+RESERVED")
    job_id = bench.slurm.submit(4)
    bench.cycle(2)
    assert bench.slurm.records[job_id].gpus_by_node == {"n3": 4}
