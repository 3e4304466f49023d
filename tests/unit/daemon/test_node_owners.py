"""Jobs that share their nodes with jobs of the same user only: --exclusive=user, partitions with ExclusiveUser=YES."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.hook.tag import Tag
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import GROUP

OTHER = {"user": "asrpt2", "uid": 1002}


@pytest.fixture
def gated(make_bench: Callable[..., Bench]) -> Bench:
    """Three nodes of four GPUs under asrpt-gated."""
    return make_bench(policy="asrpt-gated", release_ahead=0)


def placed(bench: Bench, job_id: str) -> dict[str, int]:
    return dict(bench.slurm.records[job_id].gpus_by_node)


def test_a_job_starts_on_the_node_of_its_user_where_it_has_room(gated: Bench) -> None:
    first = gated.slurm.submit(2, 100, exclusive="user")
    gated.cycle(3)
    (home,) = placed(gated, first)
    assert [row.gpus for row in gated.status(gated.slurm.now).jobs] == [2], "not all of the node, as it was planned"
    marked = Tag(GROUP, 0, left="exclusive").format()
    job_id = gated.slurm.submit(2, 100, exclusive="user", admin_comment=marked)
    gated.cycle(3)
    assert placed(gated, job_id) == {home: 2}
    assert gated.job(job_id).by_slurm == ""  # asrptd has chosen the node


def test_it_is_planned_with_a_whole_node_where_its_user_has_no_room(gated: Bench) -> None:
    first = gated.slurm.submit(3, 100, exclusive="user")
    gated.cycle(3)
    others = [gated.slurm.submit(4, 100, **OTHER) for _ in range(2)]
    gated.cycle(3)
    assert all(placed(gated, job_id) for job_id in others)
    job_id = gated.slurm.submit(2, 100, exclusive="user")
    gated.cycle(3)
    job = gated.job(job_id)
    assert job.state is JobState.QUEUED
    assert job.job is not None
    assert job.job.gpus == 4
    gated.slurm.end(first)
    gated.cycle(3)
    assert sum(placed(gated, job_id).values()) > 0


def test_its_node_is_not_free_for_another_users_jobs(gated: Bench) -> None:
    first = gated.slurm.submit(1, 100, exclusive="user")
    gated.cycle(3)
    (home,) = placed(gated, first)
    job_ids = [gated.slurm.submit(1, 100, **OTHER) for _ in range(3)]
    gated.cycle(3)
    assert all(placed(gated, job_id) and home not in placed(gated, job_id) for job_id in job_ids)


def test_a_node_with_a_job_of_another_user_is_not_its_users_own(gated: Bench) -> None:
    running = [gated.slurm.submit(4, 100, **OTHER) for _ in range(2)]
    gated.cycle(3)
    mixed = [gated.slurm.submit(1, 100), gated.slurm.submit(1, 100, **OTHER)]
    gated.cycle(3)
    assert all(placed(gated, job_id) for job_id in (*running, *mixed))
    job_id = gated.slurm.submit(1, 100, exclusive="user")
    gated.cycle(3)
    assert gated.job(job_id).state is JobState.QUEUED


def test_a_node_where_its_user_has_left_no_cpus_is_no_room(gated: Bench) -> None:
    first = gated.slurm.submit(1, 100, exclusive="user", cpus=64)
    gated.cycle(3)
    (home,) = placed(gated, first)
    job_id = gated.slurm.submit(1, 100, exclusive="user", cpus=8)
    gated.cycle(3)
    assert placed(gated, job_id)
    assert home not in placed(gated, job_id)


def test_its_node_list_goes_although_slurm_chooses_its_nodes_by_then(gated: Bench) -> None:
    """Slurm refuses to remove it at first; meanwhile its user's other job has ended."""
    first = gated.slurm.submit(2, 100, exclusive="user")
    gated.cycle(3)
    (home,) = placed(gated, first)
    marked = Tag(GROUP, 0, left="exclusive").format()
    job_id = gated.slurm.submit(2, 100, exclusive="user", requeue=True, admin_comment=marked)
    gated.cycle(3)
    assert placed(gated, job_id) == {home: 2}
    gated.slurm.requeued(job_id)
    gated.slurm.errors[job_id] = "Slurm temporarily unable to accept job"
    gated.slurm.end(first)
    gated.cycle(2)
    assert gated.job(job_id).by_slurm == "exclusive"
    assert gated.slurm.records[job_id].required_nodes == home
    gated.slurm.errors.clear()
    gated.cycle(2)
    assert gated.slurm.records[job_id].required_nodes == ""
