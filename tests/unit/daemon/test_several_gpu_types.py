"""Nodes with several GPU types: pins, allocations, the CPUs that the types share, reservations, and restarts."""

from dataclasses import replace

import pytest

from slurm_asrpt.daemon.disable import release_instead
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.slurm.records import Reservation
from slurm_asrpt.spool import hosts_dir
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm, typed_node

TYPES = {"a100": 2, "1g": 4}


@pytest.fixture
def bench(tmp_path):
    """Two nodes with two A100 and four MIG instances each, and one with four A100."""
    slurm = FakeSlurm((6, 6, 4))
    slurm.table = [typed_node("n1", 1, TYPES), typed_node("n2", 2, TYPES), replace(slurm.table[2], gpu_type="a100")]
    bench = Bench(tmp_path, slurm)
    bench.cycle()
    yield bench
    bench.close()


def submit(bench, kind, gpus, **fields):
    """``sbatch -n GPUS --gpus-per-task=KIND:1``."""
    return bench.slurm.submit(gpus, tres_per_task=f"gres:gpu:{kind}:1", **fields)


def pinned_to(bench, job_id):
    """The node list and node count that asrptd wrote."""
    writes = [w for w in bench.writes(job_id) if w.get("ReqNodeList")]
    return [(write["ReqNodeList"], write["NumNodes"]) for write in writes]


def test_jobs_are_pinned_to_nodes_and_their_gpus_are_counted_by_type(bench):
    mig, fast = submit(bench, "1g", 6), submit(bench, "a100", 8)
    bench.cycle(3)
    assert (pinned_to(bench, mig), pinned_to(bench, fast)) == ([("n[1-2]", "2-2")], [("n[1-3]", "3-3")])
    got = [bench.audit("running", job_id)[0] for job_id in (mig, fast)]
    assert [facts["gpus"] for facts in got] == [{"n1:1g": 4, "n2:1g": 2}, {"n1:a100": 2, "n2:a100": 2, "n3": 4}]
    assert all(facts["as_planned"] for facts in got)
    free = {row.name: (row.gpus, row.gpus_free) for row in bench.status(bench.slurm.now).nodes}
    assert free == {"n1:a100": (2, 0), "n1:1g": (4, 0), "n2:a100": (2, 0), "n2:1g": (4, 2), "n3": (4, 0)}


def test_a_job_waits_for_its_type_although_the_nodes_have_free_gpus(bench):
    first, second = submit(bench, "1g", 8), submit(bench, "1g", 1)
    bench.cycle(3)
    assert [bench.job_state(job_id) for job_id in (first, second)] == [JobState.RUNNING, JobState.QUEUED]
    bench.slurm.end(first)
    bench.cycle(3)
    assert bench.job_state(second) is JobState.RUNNING


def test_the_types_of_a_node_share_its_cpus(bench):
    for index in (0, 1):
        bench.slurm.table[index] = replace(bench.slurm.table[index], cpus=6)
    first = submit(bench, "1g", 4, cpus=4, min_nodes=1, max_nodes=1, required_nodes="n1")
    bench.cycle(3)
    large = submit(bench, "a100", 1, cpus=3, required_nodes="n1")
    bench.cycle(3)
    assert [bench.job_state(job_id) for job_id in (first, large)] == [JobState.RUNNING, JobState.QUEUED]
    bench.slurm.end(large, "CANCELLED")
    small = submit(bench, "a100", 1, cpus=2, required_nodes="n1")
    bench.cycle(3)
    assert bench.job_state(small) is JobState.RUNNING


def test_a_job_without_gpus_uses_cpus_that_no_type_needs(bench):
    bench.slurm.table = [replace(node, cpus=6) for node in bench.slurm.table]
    first = submit(bench, "1g", 8, cpus=8)
    bench.cycle(3)
    without = bench.slurm.submit(1, cpus=2, tres_per_task="", required_nodes="n1")
    bench.cycle(3)
    assert bench.slurm.records[first].nodes == "n1,n2"
    assert bench.slurm.records[without].nodes == "n1"
    assert bench.slurm.used_cpus() == {"n1": 6, "n2": 4}


def test_a_job_that_names_no_type_uses_nodes_of_one_type_else_slurm_chooses(bench):
    plain, either = bench.slurm.submit(4), bench.slurm.submit(6)
    bench.cycle(2)
    assert bench.slurm.records[plain].nodes == "n3"
    assert bench.job(either).by_slurm == "mixed"
    bench.cycle(2)
    assert bench.audit("start", either)[0]["by_slurm"] == "mixed"
    assert pinned_to(bench, either) == []
    assert bench.slurm.records[either].state == "RUNNING"


def test_nothing_is_placed_on_any_type_of_a_reserved_node(bench):
    later = bench.slurm.now + 60
    bench.slurm.reserved = [Reservation("maintenance", later, later + 60, frozenset({"n1"}))]
    job_id, too_large = submit(bench, "1g", 4), submit(bench, "1g", 8)
    bench.cycle(3)
    assert bench.slurm.records[job_id].nodes == "n2"
    assert bench.job_state(too_large) is JobState.QUEUED


def test_a_pin_outlives_a_restart(bench):
    bench.slurm.starts_jobs = False
    job_id = submit(bench, "a100", 2, required_nodes="n2")
    bench.cycle(2)
    bench.restart()
    bench.cycle(2)
    assert bench.job(job_id).pin.gpus == {"n2:a100": 2}
    assert bench.job_state(job_id) is JobState.PINNED
    bench.slurm.node_state("n2", "DOWN*")
    bench.cycle(2)
    assert bench.audit("not-started", job_id)[0]["why"] == "NodeDown"


def test_a_rank_map_has_the_names_of_nodes(bench):
    job_id = submit(bench, "1g", 6, profile="tail")
    bench.cycle()
    bench.scheduler.between_cycles(1.0)
    bench.cycle(2)
    assert bench.job(job_id).mapped
    lines = (hosts_dir(bench.settings.paths.spool) / job_id).read_text().split()
    assert sorted(lines) == ["n1"] * 4 + ["n2"] * 2


def test_a_job_that_starts_while_asrptd_is_dead_ran_as_planned_for_the_release_too(bench):
    bench.slurm.starts_jobs = False
    job = submit(bench, "1g", 6)
    bench.cycle(2)
    assert bench.job_state(job) is JobState.PINNED
    bench.stop()
    bench.slurm.starts_jobs = True
    bench.slurm.tick(5.0)
    assert bench.state(job) == "RUNNING"
    assert bench.leader.take()
    release_instead(bench.settings, bench.slurm, bench.leader, bench.slurm.now)
    (told,) = bench.audit("running", job)
    assert (told["gpus"], told["as_planned"]) == ({"n1:1g": 4, "n2:1g": 2}, True)
