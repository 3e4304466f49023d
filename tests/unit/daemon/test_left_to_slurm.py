"""Jobs that asrptd does not start: those left to Slurm or not eligible, and nodes that it may not use."""

import pytest

from slurm_asrpt.daemon.jobs.saved_state import JobState


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"reservation": "r"}, "reservation"),
        ({"admin_comment": ""}, "untagged"),
        ({"admin_comment": "asrpt1:g=0123456789abcdef;n=0;l=off"}, "off"),
    ],
)
def test_jobs_left_to_slurm_are_never_pinned_and_the_reason_is_audited(bench, changes, why):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4, **changes)
    bench.cycle(3)
    assert bench.job_state(job_id) is JobState.LEFT_TO_SLURM
    assert [e["why"] for e in bench.audit("left", job_id)] == [why]
    assert not [w for w in bench.writes(job_id) if "ReqNodeList" in w or "NumNodes" in w]


def test_a_leased_job_is_handed_over_to_slurm_once(bench):
    job_id = bench.slurm.submit(4, reservation="r")
    bench.cycle(4)
    assert bench.writes(job_id) == [{"StartTime": "now"}]
    assert bench.state(job_id) == "RUNNING"


def test_a_leased_job_whose_tag_something_else_has_overwritten_is_handed_over(bench):
    overwritten = bench.slurm.submit(4, admin_comment="site:42")
    bench.cycle(3)
    assert bench.writes(overwritten) == [{"StartTime": "now"}]
    own = bench.slurm.submit(4, admin_comment="site:42", eligible_time=bench.slurm.now + 300)
    untagged = bench.slurm.submit(4, admin_comment="")
    bench.cycle(3)
    assert bench.writes(own) == bench.writes(untagged) == []  # the owner's begin time


def test_after_a_restart_a_job_that_has_lost_its_tag_is_handed_over(bench):
    bench.slurm.submit(12)
    waits = bench.slurm.submit(4)
    bench.cycle(2)
    bench.slurm.tick(400)
    bench.cycle(2)  # its lease is renewed
    bench.slurm.change(waits, admin_comment="site:42")
    bench.restart()
    bench.cycle(2)
    assert bench.writes(waits)[-1] == {"StartTime": "now"}


def test_a_job_moved_to_an_unmanaged_partition_loses_its_pin_and_lease(bench):
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(4)
    bench.cycle()
    assert bench.slurm.records[job_id].required_nodes
    bench.slurm.change(job_id, partition="other")
    bench.cycle(15)
    assert bench.slurm.records[job_id].required_nodes == ""
    assert bench.slurm.records[job_id].eligible_time <= bench.slurm.now


def test_drained_nodes_are_not_used_until_they_are_resumed(bench):
    bench.slurm.node_state("n1", "IDLE+DRAIN")
    job_id = bench.slurm.submit(8)
    bench.cycle(2)
    assert bench.slurm.records[job_id].gpus_by_node == {"n2": 4, "n3": 4}
    bench.slurm.node_state("n1", "IDLE")
    bench.cycle(2)
    assert [e["gpus"] for e in bench.audit("cluster")] == [8, 12]


def test_a_job_larger_than_the_cluster_blocks_no_other_jobs(bench):
    large, small = bench.slurm.submit(40), bench.slurm.submit(4)
    bench.cycle(2)
    assert bench.job(large).reason.kind == "capacity"
    assert bench.job_state(small) is JobState.RUNNING


def test_a_job_waits_for_its_dependency_hold_or_begin_time(bench):
    dependent = bench.slurm.submit(2, reason="Dependency")
    held = bench.slurm.submit(2)
    bench.slurm.hold(held)
    deferred = bench.slurm.submit(2)
    bench.slurm.change(deferred, eligible_time=bench.slurm.now + 5000)
    bench.cycle(2)
    assert [bench.job(j).reason.kind for j in (dependent, held, deferred)] == ["dependency", "held", "begin"]
    bench.slurm.change(dependent, reason="BeginTime")
    bench.slurm.release(held)
    bench.cycle(2)
    assert [bench.job_state(j) for j in (dependent, held, deferred)] == [
        JobState.RUNNING,
        JobState.RUNNING,
        JobState.INELIGIBLE,
    ]
    bench.slurm.tick(5000)
    bench.cycle(2)
    assert bench.job_state(deferred) is JobState.RUNNING


def test_a_pending_job_shrunk_by_its_owner_starts(bench):
    """``scontrol update NumTasks=2`` on a job that was too large to start."""
    blocker = bench.slurm.submit(8)
    bench.cycle(2)
    job_id = bench.slurm.submit(8)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.QUEUED
    bench.slurm.change(job_id, tasks=2, cpus=2)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING
    assert bench.job_state(blocker) is JobState.RUNNING


def test_nodes_in_unknown_states_are_not_used(bench):
    bench.slurm.node_state("n1", "IDLE+SOMETHING_NEW")
    bench.slurm.node_state("n2", "IDLE+MAINTENANCE+RESERVED")
    job_id = bench.slurm.submit(4)
    bench.cycle(2)
    assert bench.slurm.records[job_id].gpus_by_node == {"n3": 4}
