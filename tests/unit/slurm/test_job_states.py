"""States that squeue shows between two runs of a job, and records without their pin."""

import json

import pytest

from slurm_asrpt.daemon.jobs.job_record import unpinned
from slurm_asrpt.slurm.parse import parse_jobs
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, JobRecord
from slurm_asrpt.slurm.writeback import Original


def parsed(**fields: object) -> JobRecord:
    (job,) = parse_jobs(json.dumps({"jobs": [{"job_id": 1, **fields}]}))
    return job


@pytest.mark.parametrize("state", ["PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"])
def test_a_requeued_job_is_pending(state: str) -> None:
    assert parsed(job_state=state).state == PENDING
    assert parsed(job_state=[state]).state == PENDING


@pytest.mark.parametrize("state", ["COMPLETING", "RESIZING", "STOPPED"])
def test_a_job_that_still_has_nodes_is_running(state: str) -> None:
    assert parsed(job_state=state).state in RUNNING_STATES


def test_a_dependency_is_parsed() -> None:
    assert parsed(dependency="afterok:5(unfulfilled)").dependency == "afterok:5(unfulfilled)"
    assert parsed(dependency="").dependency == parsed().dependency == ""


@pytest.mark.parametrize(("shown", "expected"), [(4_294_000_000, 17), (0, 0)])
def test_unpinning_a_record_drops_the_pins_priority_and_keeps_a_hold(shown: int, expected: int) -> None:
    record = parsed(priority=shown, required_nodes="n1", tasks=2, node_count=1, max_nodes=1)
    before = unpinned(record, Original(min_nodes=1, max_nodes=0, tasks=1, priority=17))
    assert (before.priority, before.required_nodes, before.tasks, before.max_nodes) == (expected, "", 1, 0)
