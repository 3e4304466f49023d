"""Which jobs start, when and where, on a real Slurm."""

import itertools
import time
from pathlib import Path

import pytest

from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.records import JobRecord

from .conftest import COMMANDS, SOON_S, Cluster, wait_for

pytestmark = pytest.mark.e2e

# the last stage communicates most, so Heavy-Edge places the last four ranks together, unlike Slurm's block order
TAIL_HEAVY = """
version = 1
name = "tail-heavy"
model = "test"
batch = 2
allreduce = "ring"
device = "none"

[provenance]
kind = "analytic"
origin = "made up for a test"
formula = "none"
{stages}
"""
STAGE = """
[[stage]]
replicas = 2
forward_s = 0.01
backward_s = 0.01
bytes_in = {bytes_in}
bytes_out = {bytes_out}
param_bytes = {params}
"""


def write_tail_heavy(folder: Path) -> None:
    figures = [(0, 1e6, 1e6), (1e6, 1e6, 2e6), (1e6, 0, 20e6)]
    stages = "".join(STAGE.format(bytes_in=i, bytes_out=o, params=p) for i, o, p in figures)
    folder.mkdir(exist_ok=True)
    (folder / "tail-heavy.toml").write_text(TAIL_HEAVY.format(stages=stages))


def test_an_uneven_placement_starts_as_planned_with_heavy_edges_rank_order(asrpt: Cluster):
    write_tail_heavy(asrpt.lab.directory / "profiles")
    for node, gpus in (("n1", 3), ("n3", 3), ("n4", 4)):
        asrpt.block(node, gpus)
    script = "srun -l sh -c 'echo $SLURMD_NODENAME' > ranks.out\ncp $SLURM_HOSTFILE hosts.out\nsleep 3"
    options = ["-n6", "-c1", "--gpus-per-task=1", "--comment=asrpt:profile=tail-heavy"]
    job_id = asrpt.submit(*options, script=script)
    job = asrpt.wait(job_id, "RUNNING")
    assert job.gpus_by_node == {"n1": 1, "n2": 4, "n3": 1}
    wait_for(lambda: asrpt.audit(job_id, "running"), "asrptd has read the allocation", 10)
    (entry,) = asrpt.audit(job_id, "running")
    assert entry["as_planned"]
    assert asrpt.status()[job_id]["nodes"] == {"n1": 1, "n2": 4, "n3": 1}
    asrpt.wait(job_id, "COMPLETED")
    hosts = asrpt.output("hosts.out").split()
    assert hosts[2:] == ["n2"] * 4
    assert sorted(hosts[:2]) == ["n1", "n3"]
    ranks = dict(line.split(": ") for line in asrpt.output("ranks.out").splitlines())
    assert [ranks[str(i)] for i in range(6)] == hosts


def test_a_job_on_whole_servers_has_heavy_edges_rank_order(asrpt: Cluster):
    """Its host file exists before it starts."""
    script = "srun -l sh -c 'echo $SLURMD_NODENAME' > ranks.out\ncp $SLURM_HOSTFILE hosts.out\nsleep 3"
    job_id = asrpt.submit("-n8", "-c1", "--gpus-per-task=1", "--comment=asrpt:profile=gpt-6.7b-pp4dp2", script=script)
    asrpt.wait(job_id, "COMPLETED")
    first, second = sorted(set(hosts := asrpt.output("hosts.out").split()))
    assert hosts == [second] * 2 + [first] * 4 + [second] * 2  # Slurm's own order lists no node twice
    ranks = dict(line.split(": ") for line in asrpt.output("ranks.out").splitlines())
    assert [ranks[str(i)] for i in range(8)] == hosts


def test_a_requeued_job_does_not_keep_the_rank_map_of_its_first_run(asrpt: Cluster):
    """The second run is on other nodes, where Slurm's own order is as good; with the old host file srun would fail."""
    ranks = asrpt.lab.home("asrpt1") / "ranks.out"
    write_tail_heavy(asrpt.lab.directory / "profiles")
    blockers = [asrpt.block(node, gpus) for node, gpus in (("n1", 3), ("n3", 3), ("n4", 4))]
    script = "srun -l sh -c 'echo $SLURMD_NODENAME' > ranks$SLURM_RESTART_COUNT.out\nsleep 5"
    options = ["-n6", "-c1", "--gpus-per-task=1", "--requeue", "--comment=asrpt:profile=tail-heavy"]
    job_id = asrpt.submit(*options, script=script)
    assert asrpt.wait(job_id, "RUNNING").gpus_by_node == {"n1": 1, "n2": 4, "n3": 1}
    wait_for(lambda: ranks.exists() and len(ranks.read_text().splitlines()) == 6, "its tasks have run", 15)
    asrpt.scontrol("requeue", job_id)
    asrpt.wait(job_id, "PENDING")
    asrpt.cancel(*blockers)
    for node, gpus in (("n1", 2), ("n2", 4), ("n4", 4)):
        asrpt.block(node, gpus)
    asrpt.start_again(job_id)
    asrpt.wait(job_id, "COMPLETED", timeout=40)
    assert [line[-2:] for line in sorted(asrpt.output("ranks1.out").splitlines())] == ["n1"] * 2 + ["n3"] * 4


def test_the_model_of_slurms_gpu_split_holds_where_slurm_has_a_choice(asrpt: Cluster):
    """6 GPUs on three nodes with 3, 4 and 4 free GPUs: Slurm's split equals the plan."""
    asrpt.block("n1", 1)
    job_id = asrpt.submit("--gpus=6", "-N3", script="sleep 2")
    asrpt.wait(job_id, "RUNNING")
    wait_for(lambda: asrpt.audit(job_id, "running"), "asrptd has read the allocation", 10)
    (entry,) = asrpt.audit(job_id, "running")
    assert entry["planned"] == entry["gpus"]
    assert sorted(entry["gpus"].values()) == [1, 2, 3]


def test_an_unseen_job_starts_at_once_and_the_fourth_submission_is_predicted(asrpt: Cluster):
    job_id = asrpt.train(200, "vgg19-1gpu", "-n1", "--gpus-per-task=1", speedup=200)
    submitted = time.time()
    job = asrpt.wait(job_id, "RUNNING", "COMPLETED")
    assert parse_tag(job.admin_comment).iterations == 0
    assert job.start_time - submitted < SOON_S
    others = [asrpt.train(30, "vgg19-1gpu", "-n1", "--gpus-per-task=1", speedup=200, user="asrpt2")]
    others += [asrpt.train(200, "vgg19-1gpu", "-n1", "--gpus-per-task=1", speedup=200) for _ in range(2)]
    asrpt.wait_all([job_id, *others], "COMPLETED")
    asrpt.all_recorded([job_id, *others])
    asrpt.admin("retrain")
    fourth = asrpt.train(200, "vgg19-1gpu", "-n1", "--gpus-per-task=1", speedup=200)
    predicted = parse_tag(asrpt.job(fourth).admin_comment).iterations
    assert predicted == pytest.approx(200, rel=0.10)
    wait_for(lambda: asrpt.status().get(fourth, {}).get("predicted_iterations") == predicted, "status shows it", 10)
    asrpt.wait(fourth, "COMPLETED")


Recipe = tuple[int, str, str, float]
"""Iterations, profile, number of tasks, and speed-up."""


def run_one(cluster: Cluster, recipe: Recipe) -> str:
    iterations, profile, tasks, speedup = recipe
    return cluster.train(iterations, profile, tasks, "--gpus-per-task=1", speedup=speedup)


def learn(cluster: Cluster, *recipes: Recipe) -> None:
    """Run each job twice and retrain."""
    jobs = [run_one(cluster, recipe) for recipe in recipes * 2]
    cluster.wait_all(jobs, "COMPLETED")
    cluster.all_recorded(jobs)
    cluster.admin("retrain")


def test_less_predicted_work_starts_first_when_gpus_are_scarce(asrpt: Cluster):
    long_one, short_one = (400, "vgg19-1gpu", "-n1", 100.0), (40, "vgg19-1gpu", "-n1", 10.0)  # 1.5 s both
    learn(asrpt, long_one, short_one)
    for node, gpus in (("n1", 4), ("n2", 4), ("n3", 4), ("n4", 3)):
        asrpt.block(node, gpus)
    last = asrpt.block("n4", 1)
    long, short = run_one(asrpt, long_one), run_one(asrpt, short_one)
    wait_for(lambda: {asrpt.state_of(long), asrpt.state_of(short)} == {"waiting"}, "both are in the FIFO", 30)
    ranks = asrpt.status()
    assert ranks[short]["rank"] < ranks[long]["rank"]
    asrpt.lab.run(["scancel", last])
    jobs = asrpt.wait_all([short, long], "COMPLETED")
    assert jobs[short].start_time < jobs[long].start_time


def test_a_communication_heavy_job_waits_for_a_whole_server_and_gets_it(asrpt: Cluster):
    recipe = (80, "vgg19-dp4", "-n4", 1000.0)
    learn(asrpt, recipe)
    blockers = {node: asrpt.block(node, 1) for node in ("n1", "n2", "n3", "n4")}
    heavy = run_one(asrpt, recipe)
    wait_for(lambda: asrpt.state_of(heavy) == "delayed for placement", "it waits for a server", 30)
    assert "better placement" in asrpt.status()[heavy]["text"]
    time.sleep(2)
    assert asrpt.job(heavy).state == "PENDING"
    asrpt.lab.run(["scancel", blockers["n3"]])
    asrpt.wait(heavy, "RUNNING", "COMPLETED")
    assert asrpt.audit(heavy, "start")[0]["gpus"] == {"n3": 4}
    asrpt.wait(heavy, "COMPLETED")


def test_a_start_that_slurm_refuses_is_withdrawn_and_retried(asrpt: Cluster):
    asrpt.scontrol("update", "PartitionName=gpu", "MaxTime=1")
    try:
        job_id = asrpt.submit("--gpus=5", "-t5", script="sleep 1")
        before = asrpt.job(job_id)
        wait_for(lambda: asrpt.audit(job_id, "not-started"), "the start is withdrawn", 20)
        shapes: list[JobRecord] = []
        wait_for(lambda: unpinned(asrpt.job(job_id), shapes), "its pin is removed", 10)
        assert (shapes[-1].tasks, shapes[-1].cpus, shapes[-1].priority) == (1, before.cpus, before.priority)
        assert shapes[-1].max_nodes != shapes[-1].min_nodes
    finally:
        asrpt.scontrol("update", "PartitionName=gpu", "MaxTime=INFINITE")
    asrpt.wait(job_id, "COMPLETED", timeout=60)


def test_slurm_starts_a_job_of_which_a_start_was_withdrawn_in_a_partition_with_max_nodes(asrpt: Cluster):
    """It refuses jobs whose maximum of nodes is above MaxNodes (PartitionNodeLimit), also if asrptd has written it."""
    asrpt.scontrol("update", "PartitionName=gpu", "MaxNodes=2", "MaxTime=1")
    try:
        job_id = asrpt.submit("--gres=gpu:1", "-t5", script="sleep 1")
        wait_for(lambda: asrpt.audit(job_id, "not-started"), "the start is withdrawn", 30)
        asrpt.admin("disable")
        asrpt.scontrol("update", "PartitionName=gpu", "MaxTime=INFINITE")
        asrpt.wait(job_id, "COMPLETED", timeout=60)
    finally:
        asrpt.scontrol("update", "PartitionName=gpu", "MaxNodes=UNLIMITED", "MaxTime=INFINITE")
        asrpt.admin("enable")


def test_jobs_of_a_partition_that_is_down_keep_no_gpus_from_others_and_start_when_it_is_up(asrpt: Cluster):
    asrpt.scontrol("update", "PartitionName=gpu", "State=DOWN")
    try:
        waiting = [asrpt.submit("--gpus=4", script="sleep 1") for _ in range(6)]
        wait_for(lambda: all("starts no jobs now" in asrpt.text_of(job) for job in waiting), "asrptd knows it", 30)
        assert not any(asrpt.job(job).required_nodes for job in waiting)
    finally:
        asrpt.scontrol("update", "PartitionName=gpu", "State=UP")
    asrpt.wait_all(waiting, "COMPLETED", timeout=60)


def unpinned(job: JobRecord, seen: list[JobRecord]) -> bool:
    """Whether the job has no pin now. asrptd retries soon, so all fields must be from one read."""
    seen.append(job)
    return not job.required_nodes


def test_reserved_nodes_are_not_used(asrpt: Cluster):
    words = ["ReservationName=wall", "StartTime=now", "Duration=10", "Users=root", "Nodes=n4,n3,n2"]
    asrpt.scontrol("create", "reservation", *words)
    try:
        job_id = asrpt.submit("-n4", "--gpus-per-task=1", script="sleep 1")
        job = asrpt.wait(job_id, "RUNNING", "COMPLETED", timeout=30)
        assert job.start_time - job.submit_time < SOON_S
        assert asrpt.audit(job_id, "start")[0]["gpus"] == {"n1": 4}
    finally:
        asrpt.scontrol("delete", "ReservationName=wall")
    asrpt.wait(job_id, "COMPLETED", timeout=60)


def test_jobs_start_beside_the_reserved_cores_of_a_node(asrpt: Cluster):
    """Of 64 CPUs, 40 are reserved: jobs of 20 run one after the other."""
    words = ["ReservationName=class", "StartTime=now", "Duration=10", "Users=root", "Nodes=n1", "CoreCnt=40"]
    asrpt.scontrol("create", "reservation", *words)
    try:
        wait_for(lambda: "RESERVED" in asrpt.scontrol("show", "node", "n1"), "Slurm shows it as reserved", 30)
        jobs = [asrpt.submit("--gpus=1", "-n1", "-c20", "-w", "n1", script="sleep 2") for _ in range(3)]
        done = sorted(asrpt.wait_all(jobs, "COMPLETED", timeout=60).values(), key=lambda job: job.start_time)
        assert all(first.end_time <= second.start_time for first, second in itertools.pairwise(done))
        assert not [entry for job_id in jobs for entry in asrpt.audit(job_id, "not-started")]
    finally:
        asrpt.scontrol("delete", "ReservationName=class")


def test_jobs_that_name_a_reservation_wait_in_the_queue_for_its_nodes(asrpt: Cluster):
    words = ["ReservationName=course", "StartTime=now+8", "Duration=10", "Users=asrpt1", "Nodes=n[3-4]"]
    asrpt.scontrol("create", "reservation", *words)
    try:
        early = asrpt.submit("--gpus=8", "-N2", "--reservation=course", script="sleep 5")
        wait_for(lambda: "its reservation course begins" in asrpt.text_of(early), "it says what it waits for", 5)
        assert asrpt.job(early).eligible_time > time.time(), "it is leased"
        others = [asrpt.submit("--gpus=4", script="sleep 600", user="asrpt2") for _ in range(2)]
        own = [asrpt.submit("--gpus=4", "--reservation=course", script="sleep 2") for _ in range(3)]
        contiguous = asrpt.submit("-N2", "--gpus=8", "--contiguous", "--reservation=course", script="sleep 2")
        without = asrpt.submit("-n1", "--reservation=course", script="sleep 2")
        done = asrpt.wait_all([early, *own, contiguous, without], "COMPLETED", timeout=60)
        assert {name for job in done.values() for name in expand(job.nodes)} == {"n3", "n4"}
        assert done[early].start_time >= done[early].submit_time + 6
        assert all(asrpt.audit(job_id, "start") for job_id in (early, *own, contiguous))
        assert asrpt.audit(without, "start-cpus")
        assert {job.nodes for job in asrpt.wait_all(others, "RUNNING").values()} <= {"n1", "n2"}
        assert not [entry for job_id in (*done, *others) for entry in asrpt.audit(job_id, "not-started")]
    finally:
        asrpt.cancel("--user=asrpt1")
        wait_for(lambda: not asrpt.lab.run(["squeue", "-h", "--user=asrpt1"]).stdout, "nobody is in it", 20)
        asrpt.scontrol("delete", "ReservationName=course")


def test_a_magnetic_reservation_draws_the_jobs_of_its_users_and_nobody_elses(asrpt: Cluster):
    words = ["ReservationName=course", "StartTime=now", "Duration=10", "Users=asrpt1", "Nodes=n[3-4]"]
    asrpt.scontrol("create", "reservation", *words, "Flags=MAGNETIC")
    try:
        others = [asrpt.submit("--gpus=4", script="sleep 600", user="asrpt2") for _ in range(2)]
        runs = asrpt.wait_all(others, "RUNNING", timeout=30)
        assert {job.nodes for job in runs.values()} == {"n1", "n2"}
        own = [asrpt.submit("--gpus=4", "-t3", script="sleep 5") for _ in range(2)]
        given = asrpt.wait_all(own, "RUNNING", timeout=30)
        assert {job.nodes: job.reservation for job in given.values()} == {"n3": "course", "n4": "course"}
        assert all(job.start_time - job.submit_time < SOON_S for job in given.values())
        wait_for(lambda: asrpt.state_of(own[0]) == "running", "asrptd has seen it run", 10)
        explained = asrpt.lab.run([COMMANDS / "asrpt-status", "--explain", own[0]]).stdout
        assert [line.split()[-1] for line in explained.splitlines() if "Reservation" in line] == ["course"]
        asrpt.scontrol("requeue", own[0])
        asrpt.start_again(own[0])
        assert asrpt.wait(own[0], "RUNNING").reservation == "course"
        asrpt.wait_all(own, "COMPLETED")
        waits = asrpt.submit("--gpus=4", script="sleep 600", user="asrpt2")
        wait_for(lambda: "in reservation course" in asrpt.text_of(waits), "it says what keeps it", 10)
        asrpt.cancel(waits)
        unlimited = asrpt.submit("--gpus=4", script="sleep 600")
        if asrpt.client.config().draws_by_time_limit:
            wait_for(lambda: "in reservation course" in asrpt.text_of(unlimited), "it could exceed its end", 10)
            assert not asrpt.audit(unlimited, "start")
        else:
            assert asrpt.wait(unlimited, "RUNNING").reservation == "course"
        assert not [entry for job_id in (*others, *own) for entry in asrpt.audit(job_id, "not-started")]
    finally:
        asrpt.cancel("--user=asrpt1")
        wait_for(lambda: not asrpt.lab.run(["squeue", "-h", "--user=asrpt1"]).stdout, "nobody is in it", 20)
        asrpt.scontrol("delete", "ReservationName=course")
