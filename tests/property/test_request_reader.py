"""Requests that many jobs share: each is what reading the job's own record gives, also after the nodes have changed."""

from dataclasses import fields, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_asrpt.config.settings import parse_settings
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs import request_reader
from slurm_asrpt.daemon.jobs.request_reader import RequestReader
from slurm_asrpt.slurm.chosen_by_slurm import read_any_request
from slurm_asrpt.slurm.records import FEDERATED, PENDING, JobRecord
from slurm_asrpt.slurm.request import LeftToSlurm, read_cpu_request, read_request
from tests.benches.fake_slurm import node
from tests.examples import examples

SETTINGS = parse_settings({}, "test")
CHOICES = {
    "partition": ["gpu", "else", "gpu,else"],
    "number": [1, 2, FEDERATED],
    "user": ["ann", "bob"],
    "submit_time": [1.0, 2.0],
    "time_limit": [0.0, 60.0],
    "deadline": [0.0, 9.0],
    "min_nodes": [1, 2],
    "max_nodes": [0, 1],
    "tasks": [1, 4],
    "tasks_per_node": [0, 2],
    "cpus": [4, 12],
    "cpus_per_gpu": [0, 3],
    "min_cpus_per_node": [0, 9],
    "tmp_disk": [0.0, 5.0],
    "memory_per_cpu": [0.0, 400.0],
    "tres_per_job": ["", "gres:gpu:4"],
    "tres_per_node": ["", "gres:gpu:2"],
    "tres_per_task": ["", "gres:gpu:1"],
    "required_nodes": ["", "n1", "n[1-2]"],
    "excluded_nodes": ["", "n1"],
    "features": ["", "ib"],
    "exclusive": ["", "node", "user"],
    "contiguous": [False, True],
    "reservation": ["", "ours"],
    "tres": ["", "mem=100M,node=1,gres/gpu=2"],
}
BASE = JobRecord("1", "train", "ann", 1, "gpu", PENDING, "None", 0.0, cpus=4, tasks=4)
changes = st.fixed_dictionaries({}, optional={name: st.sampled_from(some) for name, some in CHOICES.items()})
one_change = st.sampled_from([{name: value} for name, values in CHOICES.items() for value in values])


@st.composite
def alike(draw):
    """Jobs that differ in a field each."""
    first = replace(BASE, **draw(changes))
    others = [replace(first, **each) for each in draw(st.lists(one_change, min_size=4, max_size=12))]
    return [replace(job, job_id=str(number)) for number, job in enumerate([first, *others], start=1)]


tables = st.lists(st.sampled_from([2, 4, 8]), min_size=1, max_size=3).map(
    lambda sizes: [replace(node(f"n{index}", index, gpus), tmp_disk=index) for index, gpus in enumerate(sizes, start=1)]
)


def outcome(read):
    try:
        return read()
    except LeftToSlurm as verdict:
        return verdict.why


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(tables, min_size=1, max_size=2), alike(), st.booleans())
def test_a_shared_request_is_what_the_own_record_gives(versions, jobs, by_slurm):
    cluster = ClusterState(SETTINGS, memory_consumed=True)
    reader = RequestReader(cluster, ["gpu"])
    for nodes in versions:
        cluster.update(nodes)
        for job in [*jobs, *jobs]:
            read = read_any_request if by_slurm else read_request
            assert outcome(lambda: reader.gpus([job], "", by_slurm, None)) == outcome(lambda: read(job, nodes, ["gpu"]))  # noqa: B023
            alone = outcome(lambda: read_cpu_request([job], nodes, ["gpu"]))  # noqa: B023
            assert outcome(lambda: reader.cpus([job], None)) == alone  # noqa: B023


def test_all_fields_of_a_record_may_differ():
    unknown = CHOICES.keys() - {field.name for field in fields(JobRecord)}
    assert not unknown


@pytest.mark.parametrize("gpus", ["gres:gpu:2", "gres:gpu:90"])
def test_equal_requests_are_read_once(monkeypatch, gpus):
    reads = []
    monkeypatch.setattr(request_reader, "read_any_request", lambda *asked: reads.append(1) or read_any_request(*asked))
    cluster = ClusterState(SETTINGS, memory_consumed=True)
    reader = RequestReader(cluster, ["gpu"])
    cluster.update([node("n1", 1, 8)])
    for number in range(5):
        job = replace(BASE, job_id=str(number), number=number, user=f"user{number}", tres_per_job=gpus)
        outcome(lambda: reader.gpus([job], "", True, None))  # noqa: B023
    cluster.update([replace(node("n1", 1, 8), state="MIXED", gpus_used=3)])
    outcome(lambda: reader.gpus([job], "", True, None))
    assert len(reads) == 1
    cluster.update([node("n1", 1, 4)])
    outcome(lambda: reader.gpus([job], "", True, None))
    assert len(reads) == 2
