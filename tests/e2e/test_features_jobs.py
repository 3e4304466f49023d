"""Requests of jobs, and events while they are pending (docs/slurm-features.md)."""

import subprocess
import time

import pytest

from slurm_asrpt.slurm.records import PENDING
from slurm_asrpt.status.reason_texts import LEFT_WORDS, by_slurm_text

from .conftest import Cluster, wait_for

pytestmark = pytest.mark.e2e

SHORT = "sleep 1"


def allocated(cluster: Cluster, job_id: str) -> list[int]:
    """GPUs on each node of a job, once they equal asrptd's plan."""
    wait_for(lambda: cluster.audit(job_id, "running"), f"asrptd has seen job {job_id} run", 20)
    (entry,) = cluster.audit(job_id, "running")
    assert entry["as_planned"]
    return sorted(entry["gpus"].values())


def test_dependencies_of_every_kind(asrpt: Cluster):
    first = asrpt.submit("--gpus=1", script="sleep 3")
    fails = asrpt.submit("--gpus=1", "-J", "one-at-a-time", script="sleep 3; exit 1")
    kinds = {
        "after": f"after:{first}",
        "afterok": f"afterok:{first}",
        "afterany": f"afterany:{fails}",
        "afternotok": f"afternotok:{fails}",
        "either": f"afterok:{fails}?afterok:{first}",
        "singleton": "singleton",
        "never": f"afterok:{fails}",
    }
    jobs = {k: asrpt.submit("--gpus=1", "-J", "one-at-a-time", "-d", d, script=SHORT) for k, d in kinds.items()}
    array = asrpt.submit("--gpus=1", "--array=1-2", script="sleep 2; [ $SLURM_ARRAY_TASK_ID = 1 ]")
    follows = asrpt.submit("--gpus=1", "--array=1-2", "-d", f"aftercorr:{array}", script=SHORT)
    never = jobs.pop("never")
    asrpt.wait_all([*jobs.values(), f"{follows}_1"], "COMPLETED")
    done = asrpt.jobs()
    assert done[jobs["after"]].start_time >= done[first].start_time
    for kind, before in (("afterok", first), ("either", first), ("afterany", fails), ("afternotok", fails)):
        assert done[jobs[kind]].start_time >= done[before].end_time, kind
    namesakes = [done[job_id] for job_id in (fails, *jobs.values()) if job_id != jobs["singleton"]]
    assert done[jobs["singleton"]].start_time >= done[fails].end_time
    assert all(j.end_time <= done[jobs["singleton"]].start_time for j in namesakes if j.job_id < jobs["singleton"])
    assert done[f"{follows}_1"].start_time >= done[f"{array}_1"].end_time
    for job_id in (never, f"{follows}_2"):
        wait_for(lambda j=job_id: asrpt.status()[j]["reason"] == "dependency-never", "it never starts", 10)
    assert not asrpt.audit(never, "start")
    assert done[f"{follows}_2"].state == "PENDING"
    assert asrpt.audit(f"{follows}_1", "start")


def test_every_form_of_gpu_request_and_the_cpus_and_memory_of_nodes(asrpt: Cluster):
    """Two jobs whose GPUs fit on one node, but not their memory or CPUs, get a node each."""
    spellings = {
        ("-N1", "--gpus=3"): [3],
        ("-n2", "--gpus-per-task=1", "-N1"): [2],
        ("-N2", "--gpus-per-node=1"): [1, 1],
        ("-N1", "-n4", "--ntasks-per-gpu=2"): [2],
        ("-N2", "--gres=gpu:2"): [2, 2],
        ("-n4", "--ntasks-per-node=2", "--gpus-per-task=1"): [2, 2],
    }
    jobs = {asrpt.submit(*options, script=SHORT): gpus for options, gpus in spellings.items()}
    assert {job_id: allocated(asrpt, job_id) for job_id in jobs} == jobs
    asrpt.wait_all(list(jobs), "COMPLETED")
    for limits in (["--mem=400000"], ["-c40"]):
        pair = [asrpt.submit("--gpus=1", *limits, script="sleep 600") for _ in range(2)]
        running = asrpt.wait_all(pair, "RUNNING")
        assert len({job.nodes for job in running.values()}) == 2
        asrpt.cancel(*pair)


SHAPES = {
    "features": ["--gpus=1", "-C", "fast*1"],
    "contiguous": ["--gpus=1", "--contiguous"],
    "switches": ["--gpus=1", "--switches=1"],
    "socket": ["--gpus-per-socket=1", "--sockets-per-node=1", "-N1"],
}
"""Options with which Slurm must choose the nodes, and the reason shown."""


def test_slurm_chooses_the_nodes_of_unusual_requests_and_of_salloc_at_their_turn(asrpt: Cluster):
    asrpt.scontrol("update", "NodeName=n2", "AvailableFeatures=fast")
    blockers = asrpt.block_all()
    deadline = asrpt.submit("--gpus=1", "--deadline=now+1hour", "--time=1", script=SHORT)
    shaped = {why: asrpt.submit(*words, "-n1", script=SHORT) for why, words in SHAPES.items()}
    command = ["salloc", "--gpus=1", "--job-name=alloc", "srun", "echo", "later"]
    waiting = subprocess.Popen(command, env=asrpt.lab.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: len(asrpt.status()) == 2 + len(shaped), "asrptd knows all", 10)
        wait_for(lambda: len(asrpt.order()) == 2 + len(shaped), "all are in the queue", 10)
        assert min(job.eligible_time for job in asrpt.jobs().values() if job.state == PENDING) > time.time(), "leased"
        (alloc,) = [row for row in asrpt.status().values() if row["name"] == "alloc"]
        assert alloc["text"].endswith(by_slurm_text("interactive"))
        for why, job_id in shaped.items():
            assert asrpt.text_of(job_id).endswith(by_slurm_text(why))
        asrpt.cancel(*blockers)
        assert waiting.communicate(timeout=20)[0] == b"later\n"
    finally:
        waiting.kill()
        waiting.wait()
        asrpt.scontrol("update", "NodeName=n2", "ActiveFeatures=", "AvailableFeatures=")
    done = asrpt.wait_all([deadline, *shaped.values()], "COMPLETED")
    assert done[shaped["features"]].nodes == "n2"


def test_slurm_cancels_a_job_whose_deadline_can_no_longer_be_met(asrpt: Cluster):
    asrpt.block_all()
    job_id = asrpt.submit("--gpus=1", "--deadline=now+70", "--time=1", script=SHORT)
    wait_for(lambda: asrpt.jobs()[job_id].eligible_time > time.time(), "it has a lease", 10)
    asrpt.wait_all([job_id], "DEADLINE")


def update_by_owner(asrpt: Cluster, job_id: str, *words: str) -> None:
    """Without slurmdbd, slurmctld may refuse a new partition with a stale errno (docs/slurm-notes.md): repeat it."""
    command = ["scontrol", "update", f"JobId={job_id}", *words]
    wait_for(lambda: not asrpt.lab.run(command, user="asrpt1", check=False).returncode, f"{words} of {job_id}", 10)


def test_changes_by_the_owner_while_pending_and_scontrol_reconfigure(asrpt: Cluster):
    blockers = asrpt.block_all()
    more, picky, moved, plain = (asrpt.submit("--gres=gpu:1", "-N1", script=SHORT) for _ in range(4))
    wait_for(lambda: asrpt.state_of(plain) == "waiting", "asrptd knows them", 10)
    changes = {more: ["Gres=gpu:2", "TimeLimit=5"], picky: ["ReqNodeList=n3"], moved: ["Partition=other"]}
    for job_id, words in changes.items():
        update_by_owner(asrpt, job_id, *words)
    asrpt.scontrol("reconfigure")
    wait_for(lambda: asrpt.status()[more]["gpus"] == 2, "it requests two GPUs now", 10)
    wait_for(lambda: asrpt.text_of(moved) == f"left to Slurm: {LEFT_WORDS['partition']}", "it is left to Slurm", 10)
    wait_for(lambda: asrpt.job(moved).eligible_time <= time.time(), "its lease has ended", 10)
    before = asrpt.job(plain).eligible_time
    wait_for(lambda: asrpt.job(plain).eligible_time > before, "its lease is renewed after the reconfigure", 15)
    assert asrpt.job(plain).state == "PENDING"
    asrpt.cancel(*blockers)
    done = asrpt.wait_all([more, picky, moved, plain], "COMPLETED")
    assert allocated(asrpt, more) == [2]
    assert done[picky].nodes == "n3"
    assert done[moved].partition == "other"


def test_jobs_that_would_run_into_maintenance_stay_pending_and_reservations_admit_jobs_that_name_them(asrpt: Cluster):
    words = ["StartTime=now+600", "Duration=10", "Users=root", "Nodes=n[1-3]", "Flags=MAINT"]
    asrpt.scontrol("create", "reservation", "ReservationName=maint", *words)
    try:
        long = asrpt.submit("--gpus=6", "--time=30", script=SHORT)
        short = asrpt.submit("--gpus=6", "--time=1", script=SHORT)
        beside = asrpt.submit("--gpus=4", "-N1", "--time=30", script=SHORT)
        done = asrpt.wait_all([short, beside], "COMPLETED")
        assert done[beside].nodes == "n4"
        assert not asrpt.audit(beside, "not-started")
        assert asrpt.text_of(long).startswith("its time limit reaches into reservation maint, which begins about 00:")
        shortened = asrpt.submit("--gpus=6", "--time=30", "--time-min=1", script=SHORT)
        assert asrpt.wait(shortened, "COMPLETED").time_limit < 600, "Slurm has shortened it"
        assert asrpt.job(long).state == "PENDING"
        assert not asrpt.audit(long, "start"), "asrptd did not try to start it"
        words = ["StartTime=now", "Duration=10", "Users=asrpt1", "Nodes=n4"]
        asrpt.scontrol("create", "reservation", "ReservationName=mine", *words)
        inside = asrpt.submit("--gpus=1", "--reservation=mine", script=SHORT)
        job = asrpt.wait(inside, "COMPLETED")
        assert job.nodes == "n4"
        assert asrpt.audit(inside, "start"), "asrptd has started it"
    finally:
        for name in ("mine", "maint"):
            asrpt.lab.run(["scontrol", "delete", f"ReservationName={name}"], check=False)
    asrpt.wait(long, "COMPLETED")


def test_a_job_whose_node_goes_down_runs_again_elsewhere_and_the_node_returns(asrpt: Cluster):
    job_id = asrpt.submit("--gpus=4", "-N1", "--requeue", script="[ $SLURM_RESTART_COUNT ] || sleep 600")
    node = asrpt.wait(job_id, "RUNNING").nodes
    wait_for(lambda: asrpt.audit(job_id, "running"), "asrptd has seen it run", 10)
    for state in ("DRAIN", "DOWN"):  # a node that is only down returns by itself (ReturnToService=2)
        asrpt.scontrol("update", f"NodeName={node}", f"State={state}", "Reason=test")
    try:
        asrpt.wait(job_id, "PENDING")
        wait_for(lambda: asrpt.job(job_id).required_nodes == "", "its pin is removed", 15)
        asrpt.start_now(job_id, user="asrpt1")
        assert asrpt.wait(job_id, "COMPLETED").nodes != node
    finally:
        asrpt.scontrol("update", f"NodeName={node}", "State=RESUME")
    everywhere = asrpt.submit("-N4", "--gres=gpu:4", script=SHORT)
    asrpt.wait(everywhere, "COMPLETED")
