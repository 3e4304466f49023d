"""Jobs and user actions that are left to Slurm: Slurm handles them, and asrpt-status shows the reason."""

import re
import subprocess
import time

import pytest

from slurm_asrpt.status.reason_texts import LEFT_WORDS, by_slurm_text

from .conftest import LEASE_S, SOON_S, Cluster, wait_for

pytestmark = pytest.mark.e2e

SHORT = "sleep 1"


def test_jobs_left_to_slurm_show_a_reason_and_run_as_requested(asrpt: Cluster):
    blockers = asrpt.block_all()
    left = {
        "off": asrpt.submit("--gpus=1", "--comment=asrpt:off", script=SHORT),
    }
    unmanaged = asrpt.submit("-p", "other", "--gpus=1", script=SHORT)
    wait_for(lambda: set(left.values()) <= set(asrpt.status()), "asrptd knows them", 10)
    status = asrpt.status()
    for why, job_id in left.items():
        assert status[job_id]["state"] == "left to Slurm", why
        assert status[job_id]["text"] == f"left to Slurm: {LEFT_WORDS[why]}"
    assert unmanaged not in status
    ours = {*left.values(), unmanaged}  # Slurm still reports jobs of other tests
    eligible = [job.eligible_time for job_id, job in asrpt.jobs().items() if re.split("[_+]", job_id)[0] in ours]
    assert len(eligible) >= len(ours)
    assert max(eligible) <= time.time(), "none of them has a lease"

    asrpt.cancel(*blockers)
    asrpt.wait_all([*left.values(), unmanaged], "COMPLETED")


def test_a_job_submitted_held_is_queued_when_released(asrpt: Cluster):
    blockers = asrpt.block_all()
    held = asrpt.submit("--gpus=1", "--hold", script=SHORT)
    wait_for(lambda: "held" in asrpt.text_of(held), "asrptd knows it", 10)
    time.sleep(LEASE_S + 1)  # longer than the hook's lease
    assert asrpt.job(held).eligible_time > time.time()
    asrpt.scontrol("release", held, user="asrpt1")
    wait_for(lambda: asrpt.order() == [held], "it is in the queue", 10)
    assert asrpt.job(held).eligible_time > time.time()
    asrpt.cancel(*blockers)
    asrpt.wait(held, "COMPLETED")
    assert asrpt.audit(held, "start")


def test_a_job_submitted_held_gets_all_nodes_that_its_gpus_need(asrpt: Cluster):
    """From 23.11 on, Slurm shows a limit of one node for it."""
    gpus = max(node.gpus for node in asrpt.client.nodes()) + 2
    held = asrpt.submit(f"--gpus={gpus}", "--hold", script=SHORT)
    wait_for(lambda: "held" in asrpt.text_of(held), "asrptd knows it", 10)
    asrpt.scontrol("release", held, user="asrpt1")
    asrpt.wait(held, "COMPLETED")
    assert asrpt.audit(held, "start")


def test_a_job_that_counts_its_tasks_by_gpu_keeps_them(asrpt: Cluster):
    """From 24.05 on, Slurm changes them at updates."""
    options = ("--gpus=4", "--ntasks-per-gpu=1", "-N1")
    blockers = asrpt.block_all()
    jobs = [asrpt.submit(*options, script="srun true"), asrpt.submit(*options, "--hold", script="srun true")]
    wait_for(lambda: set(jobs) <= set(asrpt.status()), "asrptd knows them", 10)
    time.sleep(LEASE_S + 1)
    asrpt.scontrol("release", jobs[1], user="asrpt1")
    asrpt.cancel(*blockers)
    done = asrpt.wait_all(jobs, "COMPLETED")
    assert {(job.tasks, job.cpus) for job in done.values()} == {(4, 4)}


def test_an_interactive_job_starts_at_once_if_it_fits_and_else_waits_in_the_queue(asrpt: Cluster):
    began = time.monotonic()
    assert asrpt.lab.run(["srun", "--gpus=1", "echo", "here"], user="asrpt1").stdout == "here\n"
    assert time.monotonic() - began < SOON_S
    blockers = asrpt.block_all()
    command = ["srun", "--gpus=1", "--job-name=waits", "echo", "later"]
    waiting = subprocess.Popen(command, env=asrpt.lab.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        rows = asrpt.status
        wait_for(lambda: any(row["name"] == "waits" for row in rows().values()), "srun waits", 10)
        (row,) = [row for row in rows().values() if row["name"] == "waits"]
        assert row["rank"] == 1
        assert row["text"].endswith(by_slurm_text("interactive"))
        asrpt.cancel(*blockers)
        assert waiting.communicate(timeout=20)[0] == b"later\n"
    finally:
        waiting.kill()
        waiting.wait()


def test_holds_dependencies_begin_times_and_scancel(asrpt: Cluster):
    blockers = asrpt.block_all()
    first = asrpt.submit("--gpus=1", script=SHORT)
    second = asrpt.submit("--gpus=1", f"--dependency=afterok:{first}", script=SHORT)
    third = asrpt.submit("--gpus=1", f"--dependency=afterok:{second}", script=SHORT)
    by_admin, by_user, cancelled = (asrpt.submit("--gpus=1", script=SHORT) for _ in range(3))
    submitted = time.time()
    later = asrpt.submit("--gpus=1", "--begin=now+15", script=SHORT)
    wait_for(lambda: "begin" in asrpt.text_of(later), "asrptd knows them", 10)
    asrpt.scontrol("hold", by_admin)
    asrpt.scontrol("uhold", by_user, user="asrpt1")
    asrpt.lab.run(["scancel", cancelled], user="asrpt1")
    wait_for(lambda: "held" in asrpt.text_of(by_admin) and "held" in asrpt.text_of(by_user), "both are held", 10)
    wait_for(lambda: cancelled not in asrpt.status(), "the cancelled job is gone", 10)
    assert f"waits for job {first} to complete" in asrpt.text_of(second)

    asrpt.cancel(*blockers)
    jobs = asrpt.wait_all([first, second, third, later], "COMPLETED")
    assert jobs[first].end_time <= jobs[second].start_time < jobs[second].end_time <= jobs[third].start_time
    assert submitted + 14 <= jobs[later].start_time <= submitted + 14 + SOON_S
    for job_id in (second, third):
        assert len(asrpt.audit(job_id, "start")) == 1, "it was not tried before its dependency was fulfilled"
    assert {asrpt.job(j).state for j in (by_admin, by_user)} == {"PENDING"}
    asrpt.scontrol("release", by_admin, by_user)
    asrpt.wait_all([by_admin, by_user], "COMPLETED")
    assert asrpt.job(cancelled).state == "CANCELLED"


def test_an_owners_later_start_time_is_kept_and_an_earlier_one_is_harmless(asrpt: Cluster):
    """Start times before and after the end of any lease of 8 s (at least 4 s left); StartTime=now: leased at once."""
    blockers = asrpt.block_all()
    sooner, later, now = (asrpt.submit("--gpus=1", script=SHORT) for _ in range(3))
    wait_for(lambda: asrpt.state_of(now) == "waiting", "asrptd knows them", 10)
    set_at = time.time()
    asrpt.scontrol("update", f"JobId={sooner}", "StartTime=now+2", user="asrpt1")
    asrpt.scontrol("update", f"JobId={later}", "StartTime=now+14", user="asrpt1")
    asrpt.start_now(now, user="asrpt1")
    wait_for(lambda: asrpt.job(now).eligible_time > time.time() + 2, "it is leased again", 5)
    wait_for(lambda: "begin" in asrpt.text_of(later), "the later one waits for its begin time", 5)
    asrpt.cancel(*blockers)
    jobs = asrpt.wait_all([sooner, later, now], "COMPLETED")
    assert jobs[now].start_time < set_at + SOON_S
    assert set_at + 1 <= jobs[sooner].start_time <= set_at + SOON_S
    assert set_at + 13 <= jobs[later].start_time <= set_at + 13 + SOON_S


def test_a_requeued_job_loses_its_pin_and_runs_again(asrpt: Cluster):
    script = "sleep 2; echo $SLURM_RESTART_COUNT >> runs.out"
    jobs = [asrpt.submit("--gpus=2", "-n2", "--requeue", script=script) for _ in range(2)]
    before = asrpt.wait_all(jobs, "RUNNING")
    assert all(job.required_nodes for job in before.values()), "they were pinned"
    requeued, held = jobs
    asrpt.scontrol("requeue", requeued)
    asrpt.scontrol("requeuehold", held)
    asrpt.wait_all(jobs, "PENDING")
    wait_for(lambda: all(asrpt.job(j).required_nodes == "" for j in jobs), "their pins are removed", 10)
    # Slurm delays a requeued job for two minutes; asrptd keeps this until the owner changes it
    wait_for(lambda: "begin" in asrpt.text_of(requeued) and "held" in asrpt.text_of(held), "both are distinguished", 10)
    for job_id in jobs:
        after = asrpt.job(job_id)
        assert (after.state, after.tasks, after.min_nodes) == ("PENDING", 2, 1)
    asrpt.scontrol("release", held)
    wait_for(lambda: "begin" in asrpt.text_of(held), "the delay of the held job continues", 10)
    assert asrpt.job(held).eligible_time > time.time() + 60
    asrpt.start_again(requeued)
    asrpt.start_again(held)
    asrpt.wait_all(jobs, "COMPLETED")
    assert asrpt.output("runs.out").split() == ["1", "1"]

    asrpt.stop_daemon()
    asrpt.start_daemon()
    asrpt.scontrol("requeue", requeued)  # Slurm also accepts a job that has ended
    wait_for(lambda: asrpt.job(requeued).state == "PENDING", "it waits again", 10)
    wait_for(lambda: asrpt.job(requeued).required_nodes == "", "their pins are removed", 10)


def test_a_drained_node_and_a_job_larger_than_the_cluster_block_no_other_jobs(asrpt: Cluster):
    blockers = asrpt.block_all()
    jobs = [asrpt.submit("--gpus=4", "-N1", script=SHORT) for _ in range(3)]
    wait_for(lambda: asrpt.state_of(jobs[-1]) == "waiting", "asrptd knows them", 10)
    asrpt.scontrol("update", "NodeName=n2", "State=DRAIN", "Reason=test")
    try:
        big = asrpt.submit("--gpus=16", script=SHORT)
        behind = asrpt.submit("--gpus=1", script=SHORT)
        wait_for(lambda: asrpt.state_of(behind) == "waiting", "asrptd knows them, too", 10)
        asrpt.cancel(*blockers)
        done = asrpt.wait_all([*jobs, behind], "COMPLETED")
        assert {job.nodes for job in done.values()} <= {"n1", "n3", "n4"}
        assert asrpt.job(big).state == "PENDING"
        assert asrpt.status()[big]["reason"] == "capacity"
    finally:
        asrpt.scontrol("update", "NodeName=n2", "State=RESUME")
    asrpt.wait(big, "COMPLETED")
