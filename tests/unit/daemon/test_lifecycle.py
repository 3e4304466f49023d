"""The scheduler's cycle: submit, start, end, requeue, cancel, and a Slurm that does not answer."""

import dataclasses

import pytest

from slurm_asrpt.core.job import JobId
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.partitions import Partition


def test_a_job_starts_where_it_was_planned_and_ends(bench):
    job_id = bench.slurm.submit(6)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING
    (started,) = bench.audit("start", job_id)
    (running,) = bench.audit("running", job_id)
    assert running["gpus"] == started["gpus"] == bench.slurm.records[job_id].gpus_by_node
    assert running["as_planned"]
    bench.slurm.end(job_id)
    bench.cycle()
    assert job_id not in bench.scheduling.jobs
    assert [e["state"] for e in bench.audit("ended", job_id)] == ["COMPLETED"]
    assert bench.runs()[job_id].nodes == started["gpus"]


def test_a_start_is_a_lease_followed_by_one_write_of_all_fields(bench):
    job_id = bench.slurm.submit(6)
    bench.cycle()
    fence, written = bench.writes(job_id)
    assert fence == {"StartTime": "now+600"}
    assert written["StartTime"] == "now"
    assert written["NumNodes"] == "2-2"
    assert written["ReqNodeList"] == "n[1-2]"


def test_on_a_full_cluster_jobs_wait_with_a_lease_and_a_reason(bench):
    first, second = bench.slurm.submit(12), bench.slurm.submit(4)
    bench.cycle(3)
    assert bench.state(first) == "RUNNING"
    assert bench.job_state(second) is JobState.QUEUED
    assert bench.job(second).reason.kind == "gpus"
    assert bench.slurm.records[second].eligible_time > bench.slurm.now
    bench.slurm.end(first)
    bench.cycle(2)
    assert bench.job_state(second) is JobState.RUNNING


def test_two_starts_of_one_cycle_do_not_share_gpus(bench):
    jobs = [bench.slurm.submit(4) for _ in range(5)]
    bench.cycle(2)
    running = [j for j in jobs if bench.state(j) == "RUNNING"]
    assert len(running) == 3
    assert max(bench.slurm.used().values()) == 4


def test_a_cancelled_job_leaves_the_queue(bench):
    blocker, waiting, last = bench.slurm.submit(12), bench.slurm.submit(12), bench.slurm.submit(4)
    bench.cycle(2)
    bench.slurm.end(waiting, "CANCELLED")
    bench.cycle()
    assert waiting not in bench.scheduling.jobs
    assert [j for j, _ in bench.scheduler.decider.policy.queue(bench.slurm.now)] == [JobId(last)]
    assert bench.runs().keys() == set()  # it never had a node
    assert bench.job_state(blocker) is JobState.RUNNING


def test_a_vanished_job_is_audited_and_forgotten(bench):
    job_id = bench.slurm.submit(12)
    other = bench.slurm.submit(12)
    bench.cycle(2)
    bench.slurm.forget(other)
    bench.slurm.forget(job_id)
    bench.cycle()
    assert {e["job"] for e in bench.audit("vanished")} == {job_id, other}
    assert bench.scheduling.jobs == {}
    assert list(bench.scheduler.decider.policy.queue(bench.slurm.now)) == []


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
    # the node list is not mistaken for the owner's; Slurm itself defers requeued jobs
    assert bench.job(job_id).reason.kind == "begin"
    assert {"StartTime": "now"} not in bench.writes(job_id)
    bench.slurm.end(blocker)
    bench.slurm.tick(120)
    bench.cycle(2)
    assert bench.job_state(job_id) is JobState.RUNNING
    assert bench.slurm.starts[job_id] == 1


def test_a_slurm_that_does_not_answer_loses_no_job(bench):
    waiting = [bench.slurm.submit(12), bench.slurm.submit(12)]
    bench.cycle(2)
    bench.slurm.answers = False
    with pytest.raises(SlurmError):
        bench.cycle()
    bench.slurm.answers = True
    bench.cycle()
    assert set(bench.scheduling.jobs) == set(waiting)


def test_a_cycle_interrupted_between_its_writes_is_completed_by_later_ones(bench):
    """Slurm stops answering after the fence: the job is not pinned, but asrptd has noted that it may be."""
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
    assert bench.job_state(job_id) is JobState.RUNNING
    assert bench.slurm.starts[job_id] == 1


def test_completing_nodes_have_no_free_gpus_and_no_free_cpus(bench):
    for name in ("n1", "n2", "n3"):
        bench.slurm.states[name] = "IDLE+COMPLETING"
    jobs = [bench.slurm.submit(4), bench.slurm.submit(1, tres_per_task="", cpus=4)]
    bench.cycle()
    assert not bench.audit("start", jobs[0])
    assert not bench.audit("start-cpus", jobs[1])
    bench.slurm.states.clear()
    bench.cycle(2)
    assert [bench.job_state(job_id) for job_id in jobs] == [JobState.RUNNING] * 2


def test_jobs_with_equal_submit_times_are_ordered_by_number(bench):
    blocker = bench.slurm.submit(12)
    bench.cycle(2)
    jobs = [bench.slurm.submit(12) for _ in range(12)]
    bench.cycle(2)
    assert [j for j, _ in bench.scheduler.decider.policy.queue(bench.slurm.now)] == jobs
    assert bench.job_state(blocker) is JobState.RUNNING


def test_the_daemon_never_modifies_job_records(bench):
    """FakeSlurm returns frozen records: a daemon that modifies them would fail here."""
    job_id = bench.slurm.submit(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        bench.slurm.jobs()[0].state = "RUNNING"
    bench.cycle()
    assert job_id in bench.scheduling.jobs


@pytest.mark.parametrize(
    "why", ["AccountNotAllowed", "Job's account not permitted to use this partition (gpu denies lab including lab)"]
)
def test_jobs_whose_account_their_partition_refuses_keep_no_gpus_until_it_changes(make_bench, monkeypatch, why):
    bench = make_bench(policy="asrpt-gated", release_ahead=0)
    bench.slurm.partition_rules = {"gpu": Partition()}
    bench.restart()
    bench.slurm.starts_jobs = False
    refused = bench.slurm.submit(12)
    bench.cycle()
    bench.slurm.change(refused, reason=why)
    other = bench.slurm.submit(12)
    bench.cycle(3)
    assert not bench.slurm.records[refused].required_nodes
    assert {bench.job(each).reason.kind for each in (refused, other)} == {"over-limit"}
    assert not bench.audit("start", other)
    bench.slurm.partition_rules, bench.slurm.starts_jobs = {"gpu": Partition(max_nodes=9)}, True
    monkeypatch.setattr("slurm_asrpt.daemon.jobs.site_reader.SOON", 0.0)
    bench.cycle(3)
    assert bench.job_state(refused) is JobState.RUNNING


@pytest.mark.parametrize("why", ["QOSNotAllowed", "Job's account not permitted to use this partition (b allows ml)"])
def test_a_job_that_one_of_its_partitions_does_not_admit_starts_on_nodes_of_slurms_choice(make_bench, why):
    """Slurm starts it in another partition, but not with a list of nodes."""
    bench = make_bench(policy="asrpt-gated", release_ahead=0)
    bench.slurm.starts_jobs = False
    job_id = bench.slurm.submit(2, 50, partition="gpu,gpu")
    bench.cycle()
    bench.slurm.change(job_id, reason=why)
    bench.cycle(3)
    assert bench.slurm.records[job_id].required_nodes == ""
    assert [each.get("by_slurm") for each in bench.audit("start", job_id)] == [None, "partitions"]
    assert len(bench.audit("not-started", job_id)) == 1, "the reason stays until Slurm starts it"
    bench.slurm.starts_jobs = True
    bench.cycle(3)
    assert bench.job_state(job_id) is JobState.RUNNING


def test_a_job_blocked_by_an_association_limit_frees_its_gpus_at_once(bench):
    """If a limit of the association blocks a start, the reason is shown, and others get the GPUs."""
    bench.slurm.starts_jobs = False
    limited = bench.slurm.submit(12)
    bench.cycle()
    bench.slurm.change(limited, reason="AssocGrpGRES")
    bench.cycle()
    assert bench.slurm.records[limited].required_nodes == ""
    bench.cycle()
    why = bench.job(limited).reason
    assert (why.kind, why.facts["limit"]) == ("over-limit", "AssocGrpGRES (jobs of user asrpt1)")
    assert bench.audit("not-started", limited)[0]["why"] == "AssocGrpGRES"
