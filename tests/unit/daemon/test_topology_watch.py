"""asrptd follows Slurm's topology, rarely, and keeps the last one while Slurm does not answer."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.topology import REREAD_S, TopologyWatch
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.topology import Topology
from tests.benches.daemon import Bench, make_settings
from tests.benches.fake_slurm import FakeSlurm

TREE = {"n1": ("leaf1", "top"), "n2": ("leaf1", "top"), "n3": ("leaf2", "top")}


def test_policies_see_the_switches_above_each_node(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakeSlurm(switches=dict(TREE)))
    bench.cycle()
    cluster = bench.scheduler.decider.cluster
    assert {node.name: node.switches for node in cluster.view.nodes} == TREE
    bench.slurm.switches["n3"] = ("leaf1", "top")
    bench.cycle()
    assert cluster.view.by_name["n3"].switches == TREE["n3"]  # not read again yet
    bench.slurm.tick(REREAD_S)
    bench.cycle()
    assert cluster.view.by_name["n3"].switches == ("leaf1", "top")


def test_without_a_topology_no_switch_is_known(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakeSlurm())
    bench.cycle()
    assert {node.switches for node in bench.scheduler.decider.cluster.view.nodes} == {()}


def test_a_read_that_fails_keeps_the_last_topology_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, slurm = ClusterState(make_settings(tmp_path), memory_consumed=False), FakeSlurm(switches=dict(TREE))
    watch = TopologyWatch(slurm, cluster, ["gpu"])
    watch.follow(0.0)

    def fails(partitions: object) -> Topology:
        raise SlurmError("scontrol failed: away")

    slurm.topology = fails  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        for read in range(1, 4):
            watch.follow(read * REREAD_S)
    assert cluster.topology.switches == TREE
    assert [record.message for record in caplog.records] == [
        "scontrol failed: away; the previous topology stays in force"
    ]


def test_the_fabric_has_the_bandwidths_of_the_settings(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, tables={"fabric": {"inter_bytes_per_s": 4e9, "beyond_bytes_per_s": [1e9, 5e8]}})
    cluster = ClusterState(settings, memory_consumed=False)
    assert cluster.fabric == Fabric(4e9, 300e9, (1e9, 5e8))
    assert [cluster.fabric.through(level) for level in (1, 2, 3, 4)] == [4e9, 1e9, 5e8, 5e8]


@pytest.fixture
def blocks(tmp_path: Path) -> Iterator[Bench]:
    """Two blocks of two nodes with four GPUs each, their nodes interleaved in the table."""
    switches = {name: (f"block{i % 2}",) for i, name in enumerate(("n1", "n2", "n3", "n4"))}
    bench = Bench(tmp_path, FakeSlurm((4, 4, 4, 4), switches=switches, blocks=True), policy="asrpt-gated")
    yield bench
    bench.close()


def test_a_job_is_pinned_within_one_block(blocks: Bench) -> None:
    """Slurm refuses node lists across blocks."""
    first = blocks.slurm.submit(2, 100)
    blocks.cycle(2)
    jobs = [blocks.slurm.submit(6, 100) for _ in range(2)]
    blocks.cycle(3)
    assert [blocks.state(job_id) for job_id in (first, *jobs)] == ["RUNNING"] * 3
    used = [frozenset(blocks.slurm.records[job_id].gpus_by_node) for job_id in jobs]
    assert set(used) == {frozenset({"n1", "n3"}), frozenset({"n2", "n4"})}


def test_a_job_waits_for_room_in_one_block_although_two_have_it_together(blocks: Bench) -> None:
    for name in ("n1", "n2", "n3", "n4"):
        blocks.slurm.submit(2, 100, required_nodes=name)
    blocks.cycle(3)
    job_id = blocks.slurm.submit(6, 100)
    blocks.cycle(3)
    assert blocks.job_state(job_id) is JobState.QUEUED
    assert not blocks.job(job_id).by_slurm


@pytest.mark.parametrize(
    ("gpus", "fields", "why"),
    [
        (12, {"segment": 0}, "block"),
        (8, {"segment": 1, "min_nodes": 2}, "segment"),
        (8, {"segment": None, "min_nodes": 2}, "segment"),  # before Slurm 25.05, nothing shows segments
    ],
)
def test_slurm_chooses_the_nodes_of_jobs_on_several_blocks(
    blocks: Bench, gpus: int, fields: dict[str, Any], why: str
) -> None:
    job_id = blocks.slurm.submit(gpus, 100, **fields)
    blocks.slurm.starts_jobs = False
    blocks.cycle(2)
    assert blocks.job(job_id).by_slurm == why
    assert not [fields for fields in blocks.writes(job_id) if "ReqNodeList" in fields]


def test_without_blocks_a_job_may_be_pinned_anywhere(tmp_path: Path) -> None:
    bench = Bench(tmp_path, FakeSlurm((4, 4, 4), switches=dict(TREE)), policy="asrpt-gated")
    job_id = bench.slurm.submit(12, 100, min_nodes=3, segment=None)
    bench.cycle(2)
    assert bench.state(job_id) == "RUNNING"
    assert not bench.job(job_id).by_slurm
    bench.close()


def test_a_job_is_pinned_within_one_of_several_trees(tmp_path: Path) -> None:
    """No switch connects them, so Slurm refuses node lists across them."""
    trees = {"n1": ("leaf1", "a"), "n2": ("leaf2", "b"), "n3": ("leaf3", "a"), "n4": ("leaf2", "b")}
    bench = Bench(tmp_path, FakeSlurm((4, 4, 4, 4), switches=trees), policy="asrpt-gated")
    job_id = bench.slurm.submit(6, 100, min_nodes=2, segment=None)
    bench.cycle(2)
    assert set(bench.slurm.records[job_id].gpus_by_node) in ({"n1", "n3"}, {"n2", "n4"})
    assert not bench.job(job_id).by_slurm
    bench.close()
