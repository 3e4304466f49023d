"""Nodes with several GPU types, and MIG instances, which are GPUs of their own types to Slurm."""

import random
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from slurm_asrpt.slurm.node_list import expand

from .conftest import QUICK, Cluster, own_cluster, wait_for

pytestmark = pytest.mark.e2e

MIG = "1g.12gb"
SHOW = "scontrol -d -o show job $SLURM_JOB_ID"
"""What Slurm has given to the job on each group of nodes."""


@pytest.fixture(scope="module")
def one_lab() -> Iterator[Cluster]:
    """Two nodes with two A100 and four MIG instances each."""
    with own_cluster(80, nodes="2x2:a100+4:1g.10gb", settings=QUICK) as cluster:
        yield cluster


def started_by_asrptd(cluster: Cluster, job_id: str) -> bool:
    """Whether asrptd pinned the job, and it has the GPUs of the pin, or released it ahead: then Slurm chooses them."""
    as_planned = all(run.get("as_planned", True) for run in cluster.audit(job_id, "running"))
    return bool(cluster.audit(job_id, "released-ahead") or (cluster.audit(job_id, "start") and as_planned))


def given(cluster: Cluster, job_id: str) -> Counter[str]:
    """GPUs by type, in Slurm's own words."""
    found = Counter[str]()
    said = cluster.output(f"slurm-{job_id}.out")
    for nodes, gres in re.findall(r" Nodes=(\S+) CPU_IDs=\S+ Mem=\S+ GRES=(\S+)", said):
        for kind, count in re.findall(r"gpu:([^:(]+):([1-9][0-9]*)\(", gres):
            found[kind] += int(count) * len(expand(nodes))
    return found


def test_the_fourteen_mig_instances_of_one_node_are_managed():
    with own_cluster(40, nodes=f"1x14:{MIG}", settings=QUICK) as lab:
        lab.start_daemon()
        sizes = [1, 2, 4, 8, 14, 1, 3, 7]
        asks = [f"--gpus={size}" if size % 2 else f"--gres=gpu:{MIG}:{size}" for size in sizes]
        jobs = [lab.submit(ask, script=f"{SHOW}; sleep 1") for ask in asks]
        lab.wait_all(jobs, "COMPLETED")
        wait_for(lambda: all(lab.audit(job_id, "ended") for job_id in jobs), "asrptd has seen all ends", 15)
        assert [given(lab, job_id) for job_id in jobs] == [{MIG: size} for size in sizes]
        assert [lab.audit(job_id, "running")[0]["gpus"] for job_id in jobs] == [{"n1": size} for size in sizes]
        assert {job_id: started_by_asrptd(lab, job_id) for job_id in jobs} == dict.fromkeys(jobs, True)


def queue() -> list[tuple[str, int, list[str]]]:
    """Forty jobs: type, number of GPUs, options."""
    rng = random.Random(5)
    found = []
    for number in range(40):
        kind, sizes = rng.choice([("a100", [1, 1, 2, 3, 4]), ("1g.10gb", [1, 2, 3, 4, 6, 8])])
        gpus = rng.choice(sizes)
        ask = [f"--gpus={kind}:{gpus}"] if number % 3 else [f"-n{gpus}", f"--gpus-per-task={kind}:1"]
        found.append((kind, gpus, ask))
    return found


def run(lab: Cluster, *options: str) -> list[str]:
    """Submit the queue, and wait until all jobs are done."""
    jobs = [lab.submit(*options, *ask, script=f"{SHOW}; sleep 1") for _, _, ask in queue()]
    lab.wait_all(jobs, "COMPLETED", timeout=60)
    return jobs


def test_a_queue_for_two_types_in_each_node_is_managed(lab: Cluster):
    """It takes longer than with Slurm alone: jobs of a second on several nodes, the largest ones at the end."""
    plain = run(lab, "-p", "other")
    lab.start_daemon()
    jobs = run(lab)
    wait_for(lambda: all(lab.audit(job_id, "ended") for job_id in jobs), "asrptd has seen all ends", 15)
    asked = [{kind: gpus} for kind, gpus, _ in queue()]
    assert [given(lab, job_id) for job_id in plain] == asked
    assert [given(lab, job_id) for job_id in jobs] == asked
    for event in ("left", "not-started"):
        assert [lab.audit(job_id, event) for job_id in jobs] == [[]] * len(jobs)
    assert {job_id: started_by_asrptd(lab, job_id) for job_id in jobs} == dict.fromkeys(jobs, True)


def test_a_job_that_names_no_type_waits_for_its_turn_and_slurm_chooses_its_gpus(lab: Cluster):
    """Slurm may give it GPUs of several types."""
    lab.start_daemon()
    first = lab.submit("--gpus=1g.10gb:8", script="sleep 3")
    lab.wait(first, "RUNNING")
    either = lab.submit("-N1", "--gpus=2", script=f"{SHOW}; sleep 1")
    both = lab.submit("--gres=gpu:a100:1,gpu:1g.10gb:1", script=f"{SHOW}; sleep 1")
    lab.wait_all([either, both], "COMPLETED")
    assert given(lab, either) == {"a100": 2}
    assert lab.audit(either, "start")[0]["by_slurm"] == "mixed"
    assert lab.audit(both, "left")[0]["why"] == "gres"
    assert given(lab, both) == {"a100": 1, "1g.10gb": 1}
