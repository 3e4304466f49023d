"""asrptd on nodes with several NVLink domains: it foresees the GPUs that Slurm gives, and reads back which they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Stage
from tests.benches import daemon
from tests.benches.daemon import Bench
from tests.benches.fake_slurm import FakeSlurm

RING = JobProfile("ring", (Stage(2, 0.5, 0.5, param_bytes=1e9),))
"""Two GPUs that all-reduce: 1 s more if they are in two domains."""
FAST, SLOW = 1.0 + 1 / 300, 2.0
Make = Callable[..., Bench]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setitem(daemon.KNOWN, "ring", RING)
    made = list[Bench]()

    def start(domain: int = 2, **more: Any) -> Bench:
        tables = {"fabric": {"nvlink_domain": domain, "across_bytes_per_s": 1e9}}
        made.append(Bench(tmp_path, FakeSlurm((4, 4)), policy="asrpt-gated", tables=tables, **more))
        return made[-1]

    yield start
    for bench in made:
        bench.close()


def fragmented(bench: Bench) -> str:
    """On n1, GPUs 0 and 2 are free; n2 is idle. Returns a job on n1 that holds GPU 1."""
    jobs = []
    for _ in range(4):
        jobs.append(bench.slurm.submit(1, 1000, required_nodes="n1"))
        bench.cycle(2)
    assert [bench.slurm.records[job].gpu_indexes for job in jobs] == [{"n1": 1 << at} for at in range(4)]
    bench.slurm.end(jobs[0])
    bench.slurm.end(jobs[2])
    bench.cycle(2)
    return jobs[1]


def test_the_free_gpus_of_each_node_are_known(make: Make) -> None:
    bench = make()
    fragmented(bench)
    cluster = bench.scheduler.decider.cluster
    assert cluster.fabric == Fabric(1.25e9, 300e9, domain=2, across=1e9)
    assert cluster.view.indexes == {"n1": 0b101, "n2": 0b1111}


def test_without_the_setting_they_do_not_count(make: Make) -> None:
    bench = make(domain=0)
    fragmented(bench)
    assert bench.scheduler.decider.cluster.view.indexes is None


def test_a_job_that_communicates_goes_where_a_domain_is_free(make: Make) -> None:
    bench = make()
    fragmented(bench)
    job = bench.slurm.submit(2, 1000, "ring")
    bench.cycle(3)
    assert bench.slurm.records[job].gpus_by_node == {"n2": 2}
    placement = bench.job(job).placement
    assert placement is not None
    assert placement.alpha == pytest.approx(FAST)


def test_the_speed_of_a_running_job_is_that_of_the_gpus_it_got(make: Make) -> None:
    """Its owner names the node, where GPUs of two domains are the only free ones."""
    bench = make(mode="shadow")
    for _ in range(4):
        bench.slurm.submit(1, 1000, required_nodes="n1", leased=False)
    bench.slurm.end("1")
    bench.slurm.end("3")
    job = bench.slurm.submit(2, 1000, "ring", required_nodes="n1", leased=False)
    bench.cycle(2)
    placement = bench.job(job).placement
    assert bench.slurm.records[job].gpu_indexes == {"n1": 0b101}
    assert placement is not None
    assert (placement.alpha, placement.layouts) == (pytest.approx(SLOW), ((1, 1),))
    assert {row.job_id: row.domains for row in bench.status(bench.slurm.now).jobs} == {
        "2": None,
        "4": None,
        job: {"n1": [1, 1]},
    }
    bench.restart()
    bench.cycle()
    assert bench.job(job).placement == placement
    bench.slurm.tick(1000)
    bench.slurm.end(job)
    bench.cycle()
    run = bench.runs()[job]
    elapsed = run.end_time - run.start_time
    assert run.iterations == pytest.approx(elapsed / SLOW, rel=0.01)
    assert run.link_s == pytest.approx(1.0)


def test_a_job_waits_for_a_domain_if_it_would_be_too_slow_on_two(make: Make) -> None:
    bench = make()
    holder = fragmented(bench)
    blocker = bench.slurm.submit(4, 1000, required_nodes="n2")
    bench.cycle(2)
    job = bench.slurm.submit(2, 1000, "ring")
    bench.cycle(3)
    assert bench.state(blocker) == "RUNNING"
    assert bench.state(job) == "PENDING"
    bench.slurm.end(holder)
    bench.cycle(3)
    assert bench.slurm.records[job].gpu_indexes == {"n1": 0b11}


def test_forecasts_know_which_gpus_become_free(make: Make) -> None:
    bench = make()
    fragmented(bench)
    snapshot = bench.scheduling.snapshots.make(bench.slurm.now)
    assert snapshot.indexes == {"n1": 0b101, "n2": 0b1111}
    assert snapshot.view().indexes == snapshot.indexes
    assert {each.job_id: each.indexes for each in snapshot.running} == {"2": {"n1": 0b10}, "4": {"n1": 0b1000}}


def test_forecasts_know_of_the_gpus_of_other_partitions_and_of_jobs_about_to_start(make: Make) -> None:
    bench = make()
    bench.slurm.submit(1, 1000, required_nodes="n1", partition="other", leased=False)
    bench.slurm.starts_jobs = False
    bench.slurm.submit(2, 1000, "ring", required_nodes="n2")
    bench.cycle()
    assert bench.scheduling.snapshots.make(bench.slurm.now).indexes == {"n1": 0b1110, "n2": 0b1100}


def test_where_nodes_do_not_show_their_gpus_jobs_do(make: Make) -> None:
    """As for GPUs without a type."""
    bench = make()
    shown = bench.slurm.nodes
    bench.slurm.nodes = lambda: [replace(node, indexes_used=0) for node in shown()]  # type: ignore[method-assign]
    fragmented(bench)
    assert bench.scheduler.decider.cluster.view.indexes == {"n1": 0b101, "n2": 0b1111}


def test_gpus_that_slurm_does_not_show_count_as_the_lowest(make: Make) -> None:
    bench = make()
    bench.slurm.used_indexes = lambda name: 0  # type: ignore[method-assign]
    job = bench.slurm.submit(3, 1000, required_nodes="n1")
    bench.cycle(2)
    bench.slurm.change(job, gpu_indexes={})
    bench.cycle(2)
    assert bench.scheduler.decider.cluster.view.indexes == {"n1": 0b1000, "n2": 0b1111}
