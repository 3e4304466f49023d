"""Jobs that Slurm did not start where asrptd had put them are as before: Slurm cannot restore "no maximum of nodes"."""

from collections.abc import Callable

import pytest

from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.slurm.partitions import Partition
from tests.benches.daemon import Bench

PER_NODE = {"tres_per_task": "", "tres_per_node": "gres:gpu:1", "tasks": 1, "cpus": 1}


@pytest.fixture
def refused(make_bench: Callable[..., Bench]) -> Callable[[dict[str, int]], tuple[Bench, str]]:
    """Makes a bench with three nodes, and a job of one GPU per node that Slurm did not start.

    most: MaxNodes of partitions.
    """

    def make(most: dict[str, int]) -> tuple[Bench, str]:
        bench = make_bench(policy="asrpt-gated")
        bench.slurm.partition_rules = {name: Partition(max_nodes=count) for name, count in most.items()}
        bench.restart()
        bench.slurm.starts_jobs = False
        job_id = bench.slurm.submit(1, 100, **PER_NODE)
        bench.cycle(25)
        assert bench.audit("not-started", job_id)
        return bench, job_id

    return make


@pytest.mark.parametrize(
    ("most", "written"), [({}, 3), ({"gpu": 2}, 2), ({"gpu": 1}, 1), ({"gpu": 7}, 7), ({"cpu": 1}, 3)]
)
def test_the_maximum_in_place_of_none_is_one_that_the_partition_allows(refused, most, written):
    bench, job_id = refused(most)
    record = bench.slurm.records[job_id]
    assert (record.min_nodes, record.max_nodes) == (1, written)


@pytest.mark.parametrize("restart", [False, True])
def test_a_job_that_was_refused_is_still_one_that_asrptd_places(refused, restart):
    bench, job_id = refused({})
    assert bench.slurm.records[job_id].max_nodes == 3
    if restart:
        bench.restart()
    bench.slurm.starts_jobs = True
    bench.cycle(1)
    assert (bench.job(job_id).unbounded, bench.job(job_id).by_slurm) == (3, "")
    bench.cycle(400)
    assert bench.job_state(job_id) is JobState.RUNNING


def test_a_maximum_that_the_owner_sets_later_counts(refused):
    bench, job_id = refused({})
    bench.slurm.change(job_id, max_nodes=2)
    bench.cycle(1)
    assert bench.job(job_id).by_slurm
