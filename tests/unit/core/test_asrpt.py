"""A-SRPT step by step."""

from random import Random

import pytest

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request, Stage, unprofiled
from slurm_asrpt.core.policies import make_policy, policy_names
from slurm_asrpt.core.policies.asrpt.virtual_machine import VirtualMachine
from slurm_asrpt.core.policies.base import Phase, Start, Wait
from slurm_asrpt.status.reason_texts import text_of

FABRIC = Fabric(1.25e9, 300e9)
HEAVY = JobProfile("heavy", (Stage(4, 0.5, 0.5, param_bytes=1e9),))  # on one server 1.005 s, scattered 10.6 s


def cluster(*free, gpus=4):
    nodes = [Node(f"n{i}", gpus, i) for i in range(1, len(free) + 1)]
    return ClusterView(nodes, {n.name: f for n, f in zip(nodes, free, strict=True)})


def policy(view, **settings):
    made = make_policy("asrpt", fabric=FABRIC, **settings)
    made.cluster_changed(view.nodes, 0.0)
    return made


def job(number, gpus=1, iterations=0.0, profile=None, **more):
    return Job(JobId(str(number)), "ann", gpus, profile or unprofiled(gpus), iterations, **more)


def started(decisions):
    return [d.job.id for d in decisions if isinstance(d, Start)]


def test_an_unseen_job_starts_at_once():
    view = cluster(4)
    asrpt = policy(view)
    asrpt.submitted(job(1, gpus=4), 0.0)
    assert started(asrpt.decide(view, 0.0)) == ["1"]
    assert asrpt.queue(0.0) == []


def test_the_shorter_predicted_work_leaves_the_virtual_machine_first():
    view = cluster(4)  # G = 4
    asrpt = policy(view)
    asrpt.submitted(job(1, 1, 400), 0.0)  # 100 s on the virtual machine
    asrpt.submitted(job(2, 2, 40), 10.0)  # 20 s: preempts job 1, which has 90 s left
    assert asrpt.next_wakeup(10.0) == pytest.approx(30.0)
    assert started(asrpt.decide(view, 29.9)) == []
    assert started(asrpt.decide(view, 30.0)) == ["2"]
    assert asrpt.next_wakeup(30.0) == pytest.approx(120.0)
    assert started(asrpt.decide(view, 120.0)) == ["1"]


def test_ties_go_by_arrival_then_by_number():
    view = cluster(4)
    asrpt = policy(view)
    for number in (10, 9):
        asrpt.submitted(job(number, 1, 40, submit_time=5.0), 5.0)
    asrpt.submitted(job(1, 1, 40, submit_time=5.5), 5.0)
    assert [row[0] for row in asrpt.queue(5.0)] == ["9", "10", "1"]


def test_a_job_that_ties_with_the_one_being_served_takes_its_turn_if_it_goes_first():
    machine = VirtualMachine()
    machine.add(JobId("10"), 4.0, 5.0, 5.0)
    machine.add(JobId("9"), 4.0, 5.0, 5.0)
    machine.add(JobId("8"), 3.0, 6.0, 6.0)  # job 9 has 3 left, and arrived before
    assert machine.advance(20.0) == ["9", "8", "10"]


@pytest.mark.parametrize("seed", range(20))
def test_a_restart_does_not_change_the_end_of_the_job_being_served_by_rounding(seed):
    draw = Random(seed)
    machine, again = VirtualMachine(), VirtualMachine()
    machine.speed = again.speed = 7.0
    machine.add(JobId("1"), 10 + draw.random(), 0.0, draw.random())
    machine.advance(1 + draw.random() / 10)
    again.load(machine.dump(), {JobId("1"): None})
    assert again.end == machine.end
    again.load(machine.dump(), {})
    assert again.advance(99.0) == []


def test_a_delayed_job_needs_gpus_if_others_have_taken_them():
    asrpt = policy(cluster(4, 4))
    asrpt.submitted(heavy(), 0.0)
    turn = asrpt.next_wakeup(0.0)
    for view, kind in ((cluster(2, 2), "placement"), (cluster(0, 0), "gpus"), (cluster(2, 2), "placement")):
        (wait,) = asrpt.decide(view, turn)
        assert wait.reason.kind == kind


def test_the_head_blocks_the_jobs_behind_it():
    view = cluster(2)
    asrpt = policy(view)
    asrpt.submitted(job(1, 4), 0.0)
    asrpt.submitted(job(2, 1), 0.0)
    decisions = asrpt.decide(view, 0.0)
    assert [d.reason.kind for d in decisions if isinstance(d, Wait)] == ["gpus"]
    assert [(job_id, why.kind) for job_id, why in asrpt.queue(0.0)] == [("1", "gpus"), ("2", "behind")]
    assert started(asrpt.decide(cluster(4), 1.0)) == ["1"]
    assert text_of(asrpt.queue(1.0)[0][1]) == "needs 1 GPU, 0 free for it"


def test_a_job_larger_than_the_cluster_blocks_no_other_jobs():
    view = cluster(4)
    asrpt = policy(view)
    asrpt.submitted(job(1, 5), 0.0)
    asrpt.submitted(job(2, 1), 0.0)
    assert started(asrpt.decide(view, 0.0)) == ["2"]
    assert asrpt.queue(0.0)[0][1].kind == "capacity"


def heavy(number=1, iterations=100.0):
    return job(number, 4, iterations, HEAVY)


def test_a_communication_heavy_job_waits_for_whole_servers_and_gets_them():
    view = cluster(2, 2)
    asrpt = policy(view, tau=2.0)
    asrpt.submitted(heavy(), 0.0)
    turn = asrpt.next_wakeup(0.0)  # 4 GPUs x 100 x 1.005 s on 8 GPUs
    assert turn == pytest.approx(50.25)
    (wait,) = asrpt.decide(view, turn)
    assert wait.reason.kind == "placement"
    assert wait.reason.phase is Phase.DELAYED
    assert wait.until == pytest.approx(turn + 2 * 50.25)
    (start,) = asrpt.decide(cluster(4, 2), turn + 1)
    assert dict(start.placement.gpus) == {"n1": 4}


ON_THE_EDGE = JobProfile("edge", (Stage(2, 5.0, 0.0, param_bytes=4.0),))
"""Servers of two GPUs, 1 byte/s for each on the NIC, 4 bytes/s inside: 6 s on one server, 9 s on two."""


@pytest.mark.parametrize(("comm_heavy", "servers"), [(1.5, {"n3": 2}), (1.51, {"n1": 1, "n2": 1})])
def test_at_comm_heavy_a_job_is_communication_heavy(comm_heavy, servers):
    """Line 8: α_max/α_min is 1.5."""
    view = cluster(1, 1, 2, gpus=2)
    asrpt = make_policy("asrpt", fabric=Fabric(2.0, 4.0), comm_heavy=comm_heavy)
    asrpt.cluster_changed(view.nodes, 0.0)
    asrpt.submitted(job(1, 2, profile=ON_THE_EDGE), 0.0)
    (start,) = asrpt.decide(view, 0.0)
    assert dict(start.placement.gpus) == servers


@pytest.mark.parametrize(("comm_heavy", "waits"), [(1.5, False), (1.49, True)])
def test_at_comm_heavy_a_placement_is_good_enough(comm_heavy, waits):
    """Line 12: α/α_min is 1.5."""
    view = cluster(1, 1, gpus=2)
    asrpt = make_policy("asrpt", fabric=Fabric(2.0, 4.0), comm_heavy=comm_heavy)
    asrpt.cluster_changed(view.nodes, 0.0)
    asrpt.submitted(job(1, 2, iterations=8, profile=ON_THE_EDGE), 0.0)
    (decision,) = asrpt.decide(view, 24.0)  # 2 GPUs x 8 x 6 s on 4 GPUs
    assert isinstance(decision, Wait) == waits


def test_a_delayed_job_accepts_a_lower_alpha_and_any_alpha_at_the_deadline():
    asrpt = policy(cluster(4, 4, 4, 4))
    asrpt.submitted(heavy(), 0.0)
    turn = asrpt.next_wakeup(0.0)
    (wait,) = asrpt.decide(cluster(1, 1, 1, 1), turn)
    assert [d.reason.kind for d in asrpt.decide(cluster(1, 1, 1, 1), turn + 1)] == ["placement"]
    (start,) = asrpt.decide(cluster(2, 2, 0, 0), turn + 2)  # still bad, but better than four servers
    assert dict(start.placement.gpus) == {"n1": 2, "n2": 2}
    asrpt.submitted(heavy(2), turn + 2)
    turn = asrpt.next_wakeup(turn + 2)
    (wait,) = asrpt.decide(cluster(1, 1, 1, 1), turn)
    assert started(asrpt.decide(cluster(1, 1, 1, 1), wait.until)) == ["2"]


@pytest.mark.parametrize(("delay", "expected"), [("block", []), ("aside", ["2"])])
def test_a_delayed_job_blocks_the_queue_or_lets_others_pass(delay, expected):
    view = cluster(2, 2)
    asrpt = policy(view, delay=delay)
    asrpt.submitted(heavy(), 0.0)
    turn = asrpt.next_wakeup(0.0)
    asrpt.decide(view, turn)
    asrpt.submitted(job(2, 1), turn)
    assert started(asrpt.decide(view, turn)) == expected
    assert started(asrpt.decide(cluster(4, 2), turn + 1))[0] == "1"


def test_jobs_with_little_communication_use_fragmented_gpus():
    view = cluster(4, 1, 2)
    asrpt = policy(view)
    light = JobProfile("light", (Stage(3, 0.5, 0.5, param_bytes=1e3),))
    asrpt.submitted(job(1, 3, 0.0, light), 0.0)
    (start,) = asrpt.decide(view, 0.0)
    assert dict(start.placement.gpus) == {"n2": 1, "n3": 2}


def test_cancelled_jobs_are_removed_in_every_state():
    view = cluster(1)
    asrpt = policy(view)
    asrpt.submitted(job(1, 1, 50), 0.0)
    asrpt.submitted(job(2, 4), 0.0)
    for number in ("1", "2", "77"):
        asrpt.finished(JobId(number), 1.0)
    assert asrpt.queue(1.0) == []
    assert asrpt.next_wakeup(1.0) is None


def test_a_returned_job_is_first_in_the_queue():
    view = cluster(4)
    asrpt = policy(view)
    asrpt.submitted(job(1, 4), 0.0)
    asrpt.submitted(job(2, 4), 0.0)
    (start, _) = asrpt.decide(view, 0.0)
    asrpt.returned(start.job, 1.0)
    assert [row[0] for row in asrpt.queue(1.0)] == ["1", "2"]


def test_a_changed_job_keeps_its_place_in_the_queue():
    view = cluster(1)
    asrpt = policy(view)
    asrpt.submitted(job(1, 4), 0.0)
    asrpt.submitted(job(2, 1), 0.0)
    asrpt.changed(job(1, 1), 1.0)
    asrpt.changed(job(9, 1), 1.0)  # unknown: ignored
    assert started(asrpt.decide(view, 1.0)) == ["1"]


def test_state_survives_a_save_and_load():
    view = cluster(2, 2)
    jobs = {j.id: j for j in (heavy(1), job(2, 1, 10_000), job(3, 4))}
    first = policy(view)
    first.submitted(jobs["1"], 0.0)
    turn = first.next_wakeup(0.0)
    first.decide(view, turn)
    first.submitted(jobs["2"], turn)
    first.submitted(jobs["3"], turn)
    second = policy(view)
    second.load(first.dump(), jobs)
    assert second.queue(turn + 5)[-1] == first.queue(turn + 5)[-1]
    assert [r[0] for r in second.queue(turn + 5)] == [r[0] for r in first.queue(turn + 5)]
    assert list(second.decide(view, turn + 6)) == list(first.decide(view, turn + 6))
    with pytest.raises(ValueError, match="not a state"):
        second.load({"machine": {}}, jobs)


def test_requested_node_counts_and_partition_are_respected():
    view = cluster(4, 4)
    asrpt = policy(view)
    asrpt.submitted(job(1, 2, request=Request(candidates=frozenset({"n2"}))), 0.0)
    (start,) = asrpt.decide(view, 0.0)
    assert dict(start.placement.gpus) == {"n2": 2}


def test_an_unknown_policy_lists_the_known_ones():
    assert "asrpt" in policy_names()
    with pytest.raises(ValueError, match=r"known: .*asrpt"):
        make_policy("asprt", fabric=FABRIC)


def test_no_job_passes_a_delayed_job_after_its_deadline():
    view = cluster(2, 2)
    asrpt = policy(view, delay="aside")
    asrpt.submitted(heavy(), 0.0)
    turn = asrpt.next_wakeup(0.0)
    (wait,) = asrpt.decide(view, turn)
    asrpt.submitted(job(2, 1), turn)
    crowded = cluster(1, 1)
    assert started(asrpt.decide(crowded, turn + 1)) == ["2"]
    asrpt.submitted(job(3, 1), wait.until)
    assert started(asrpt.decide(crowded, wait.until)) == []


def test_after_a_cold_start_waiting_counts_from_submission():
    view = cluster(4)
    asrpt = make_policy("asrpt", fabric=FABRIC)
    asrpt.cluster_changed(view.nodes, 1000.0)  # the daemon starts at 1000 without saved state
    asrpt.submitted(job(1, 4, 50, submit_time=900.0), 900.0)
    asrpt.submitted(job(2, 4, 70, submit_time=960.0), 960.0)
    assert asrpt.next_wakeup(1000.0) == pytest.approx(1030.0)  # job 1 completed at 950, job 2 has 30 s left
    assert started(asrpt.decide(view, 1000.0)) == ["1"]


def test_a_job_that_does_not_fit_now_is_still_ordered_by_its_work():
    asrpt = policy(cluster(4))  # the other nodes are down
    asrpt.submitted(job(1, 8, 100.0, JobProfile("wide", (Stage(8, 5.0, 5.0),))), 0.0)
    (row,) = asrpt.queue(0.0)
    assert row[1].facts["work_s"] == pytest.approx(8 * 100 * 10 / 4)
