"""A partition that is no longer in slurm.partitions: its waiting jobs are given back to Slurm."""

from collections.abc import Callable

import pytest

from slurm_asrpt.daemon.disable import release_instead
from tests.benches.daemon import Bench


@pytest.fixture
def site(make_bench: Callable[..., Bench]) -> tuple[Bench, dict[str, str]]:
    """Jobs in every state in which asrptd writes to them, by state; after that, the partition is removed."""
    bench = make_bench((2, 2), policy="asrpt-gated", release_ahead=1)
    bench.slurm.multifactor = True
    bench.restart()
    jobs = {"running": bench.slurm.submit(2, 1000)}
    full = [bench.slurm.submit(1, 1000) for _ in range(2)]
    bench.cycle(2)
    jobs["ahead"], jobs["leased"] = bench.slurm.submit(1, 100), bench.slurm.submit(1, 900)
    jobs["array"] = bench.slurm.submit(1, 900, array_tasks="0-3")
    bench.cycle(2)
    assert [event["job"] for event in bench.audit("released-ahead")] == [jobs["ahead"]]
    bench.slurm.starts_jobs = False
    bench.slurm.end(full[0])
    jobs["pinned"] = bench.slurm.submit(1, 1)
    bench.cycle(2)
    assert bench.slurm.records[jobs["pinned"]].required_nodes
    assert set(with_traces(bench)) >= {jobs["leased"], jobs["pinned"]}
    bench.settings = bench.settings.model_copy(
        update={"slurm": bench.settings.slurm.model_copy(update={"partitions": ["other"]})}
    )
    return bench, jobs


def with_traces(bench: Bench) -> list[str]:
    """The pending jobs to which something is written still."""
    return [
        job_id
        for job_id, record in bench.slurm.records.items()
        if record.state == "PENDING"
        and (record.required_nodes or bench.slurm.site_factors.get(job_id, 0) or record.eligible_time > bench.slurm.now)
    ]


def test_asrptd_gives_them_back_in_its_first_cycles(site: tuple[Bench, dict[str, str]]) -> None:
    bench, jobs = site
    bench.restart()
    bench.cycle(3)
    assert with_traces(bench) == []
    assert bench.state(jobs["running"]) == "RUNNING"


def test_release_without_asrptd_gives_them_back(site: tuple[Bench, dict[str, str]]) -> None:
    bench, _ = site
    bench.stop()
    assert bench.leader.take()
    release_instead(bench.settings, bench.slurm, bench.leader, bench.slurm.now)
    assert with_traces(bench) == []


def test_a_partition_without_nodes_is_logged_once(
    make_bench: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make_bench()
    bench.settings = bench.settings.model_copy(
        update={"slurm": bench.settings.slurm.model_copy(update={"partitions": ["gpu", "gpuu"]})}
    )
    bench.restart()
    bench.cycle(3)
    assert [record.getMessage() for record in caplog.records if "slurm.partitions" in record.message] == [
        "slurm.partitions: no node is in gpuu; partitions with nodes: gpu"
    ]
