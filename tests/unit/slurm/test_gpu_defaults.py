"""CPUs and memory that a job gets although Slurm does not show them yet: DefCpuPerGPU, --mincpus, --mem=0 ..."""

from dataclasses import replace

import pytest

from slurm_asrpt.slurm.gpu_defaults import GpuDefaults, gpu_defaults_of
from slurm_asrpt.slurm.limits import use_of
from slurm_asrpt.slurm.parse import job_record, parse_nodes
from slurm_asrpt.slurm.partitions import rows_of
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.request import read_request
from tests.benches.fake_slurm import node

CONFIG = {"JobDefaults": "DefCpuPerGPU=3", "DefMemPerCPU": "64", "DefMemPerNode": ""}
PARTITIONS = """\
PartitionName=gpu Default=YES DefaultTime=NONE SelectTypeParameters=NONE JobDefaults=(null) DefMemPerNode=UNLIMITED
PartitionName=other Default=NO JobDefaults=DefCpuPerGPU=12,DefMemPerGPU=2000 DefMemPerNode=UNLIMITED MaxMemPerNode=1
PartitionName=large Default=NO JobDefaults=DefMemPerGPU=4000 DefMemPerCPU=100 MaxMemPerNode=UNLIMITED
"""
"""As 22.05 prints them."""
TWO = JobRecord(
    "7", "a", "u", 1000, "other", "PENDING", "None", 0.0, 7, cpus=1, memory_per_cpu=64.0, tres_per_job="gres:gpu:2"
)
NODES = [replace(node("n1", 0, 8), partitions=frozenset({"other"}))]


def test_a_partitions_defaults_go_before_those_of_the_cluster():
    assert gpu_defaults_of(CONFIG, rows_of(PARTITIONS)) == {
        "gpu": GpuDefaults(3, 0.0, 64.0, 0.0),
        "other": GpuDefaults(12, 2000.0, 64.0, 0.0),
        "large": GpuDefaults(3, 4000.0, 100.0, 0.0),
    }
    assert gpu_defaults_of({}, rows_of(PARTITIONS.splitlines()[0])) == {}


def test_a_partition_may_give_memory_alone():
    rows = rows_of(PARTITIONS.splitlines()[0])
    found = gpu_defaults_of({"DefMemPerCPU": "64"}, rows)["gpu"]
    assert found == GpuDefaults(0, 0.0, 64.0, 0.0)
    assert found.applied(TWO) is TWO
    assert found.shown(replace(TWO, memory_per_cpu=0.0)) == TWO
    asks = replace(TWO, memory_per_cpu=0.0, memory_per_gpu=300.0)
    assert found.shown(asks) is asks


@pytest.mark.parametrize(
    ("fields", "cpus", "memory"),
    [
        ({}, 12, 2000.0),
        ({"cpus_per_gpu": 3}, 3, 2000.0),
        ({"cpus": 4}, 0, 2000.0),  # -c4
        ({"cpus": 3, "tasks": 3}, 12, 2000.0),
        ({"memory_per_cpu": 100.0}, 12, 0.0),
        ({"memory_per_cpu": 0.0, "memory_per_node": 500.0}, 12, 0.0),
        ({"memory_per_cpu": 0.0, "memory_per_gpu": 300.0}, 12, 300.0),
        ({"state": "RUNNING", "cpus": 24}, 0, 0.0),
    ],
)
def test_what_a_job_does_not_ask_for_is_added(fields, cpus, memory):
    found = GpuDefaults(12, 2000.0, 64.0, 0.0).applied(replace(TWO, **fields))
    assert (found.cpus_per_gpu, found.memory_per_gpu) == (cpus, memory)


@pytest.mark.parametrize(("text", "cpus"), [("gres:gpu:16", 16), ("gpu:12", 12), ("", 0)])
def test_slurm_shows_the_option_and_the_default_that_it_has_added(text, cpus):
    raw = {"job_id": 7, "job_state": "PENDING", "cpus_per_tres": text}
    assert job_record(raw).cpus_per_gpu == cpus


def test_a_request_has_the_cpus_of_its_tasks_or_of_its_gpus():
    """As 22.05 starts them: --cpus-per-gpu=2 with 8 tasks gets 8 CPUs, with one task 4."""
    for tasks, each, cpus in ((8, 2, 8), (1, 2, 4), (1, 0, 1)):
        job = replace(TWO, tasks=tasks, cpus=tasks, cpus_per_gpu=each)
        request = read_request(job, NODES, ["other"]).request
        assert (2 * request.cpus_per_gpu, 2 * request.memory_per_gpu) == (cpus, 64 * cpus)


@pytest.mark.parametrize(
    ("fields", "cpus", "memory"),
    [
        ({}, 2, 128.0),
        ({"cpus": 3}, 4, 256.0),
        ({"cpus": 3, "one_thread": True}, 6, 192.0),
        ({"cpus": 8, "own_cores": True}, 8, 512.0),
        ({"cpus": 3, "tasks": 3, "own_cores": True}, 6, 384.0),
        ({"cpus": 6, "tasks": 2, "own_cores": True}, 8, 512.0),
        ({"cpus": 6, "tasks": 2, "one_thread": True, "own_cores": True}, 12, 384.0),
        ({"cpus": 1, "cpus_per_gpu": 3, "own_cores": True}, 6, 384.0),
        ({"cpus": 12, "tasks": 4, "min_nodes": 2, "max_nodes": 2}, 12, 768.0),
        ({"cpus": 10, "tasks": 5, "min_nodes": 2, "max_nodes": 2}, 12, 768.0),
    ],
)
def test_slurm_allocates_whole_cores(fields, cpus, memory):
    """As 22.05 does with two threads in each core."""
    threads = [replace(node, threads=2) for node in NODES]
    request = read_request(replace(TWO, **fields), threads, ["other"]).request
    assert (2 * request.cpus_per_gpu, 2 * request.memory_per_gpu) == (cpus, memory)


@pytest.mark.parametrize(
    ("text", "threads"),
    [
        ("CPUTot=16 Sockets=1 CoresPerSocket=8 ThreadsPerCore=2", 2),
        ("CPUTot=8 Sockets=1 CoresPerSocket=8 ThreadsPerCore=2", 1),  # slurm.conf counts cores as CPUs
        ("CPUTot=16 Sockets=2 CoresPerSocket=8 ThreadsPerCore=1", 1),
    ],
)
def test_the_threads_of_a_nodes_cores_are_read(text, threads):
    line = f"NodeName=n1 {text} CPUAlloc=0 RealMemory=1 AllocMem=0 State=IDLE Partitions=gpu"
    assert [each.threads for each in parse_nodes(line)] == [threads]


@pytest.mark.parametrize(
    ("raw", "one_thread", "own_cores"),
    [({"threads_per_core": 1}, True, False), ({"tasks_per_core": 1}, False, True), ({}, False, False)],
)
def test_how_jobs_share_cores_is_read(raw, one_thread, own_cores):
    job = job_record({"job_id": 7, "job_state": "PENDING", **raw})
    assert (job.one_thread, job.own_cores) == (one_thread, own_cores)


def test_cpus_of_each_node_count():
    """--mincpus: of a job on two nodes, which shows those of its two tasks."""
    job = replace(TWO, min_nodes=2, max_nodes=2, tasks=2, cpus=2, min_cpus_per_node=8)
    assert read_request(job, NODES, ["other"]).request.cpus_per_gpu == 8
    assert replace(job, state="RUNNING", cpus=16).cpus_for(2) == 16


@pytest.mark.parametrize(
    ("fields", "memory"),
    [
        ({"memory_per_cpu": 0.0, "tres": "cpu=1,mem=500G,node=1,billing=1"}, 512000.0),  # --mem=0
        ({"memory_per_cpu": 0.0, "tres": "cpu=2,mem=1000G,node=2,billing=2"}, 512000.0),
        ({"memory_per_cpu": 0.0, "memory_per_node": 10.0, "tres": "cpu=1,mem=10M,node=1"}, 10.0),
        ({"tres": "cpu=1,mem=64M,node=1,billing=1"}, 0.0),
        ({"memory_per_cpu": 0.0}, 0.0),
    ],
)
def test_a_job_that_asks_for_all_memory_gets_what_slurm_has_counted(fields, memory):
    assert read_request(replace(TWO, **fields), NODES, ["other"]).request.memory_per_node == memory


def test_limits_count_them_before_slurm_does():
    job = replace(TWO, cpus_per_gpu=16, tres="cpu=1,mem=64M,node=1,billing=1")
    assert use_of(job, 2).tres | {"billing": 1.0} == {
        "cpu": 32.0, "mem": 2048.0, "node": 1.0, "gres/gpu": 2.0, "billing": 1.0,
    }  # fmt: skip
    assert use_of(replace(job, state="RUNNING", cpus=32, tres="cpu=32,mem=2G,node=1"), 2).tres["cpu"] == 32
