"""asrptd follows Slurm's topology, rarely, and keeps the last one while Slurm does not answer."""

import logging
from pathlib import Path

import pytest

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.topology import REREAD_S, TopologyWatch
from slurm_asrpt.errors import SlurmError
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

    def fails(partitions: object) -> dict[str, tuple[str, ...]]:
        raise SlurmError("scontrol failed: away")

    slurm.topology = fails  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        for read in range(1, 4):
            watch.follow(read * REREAD_S)
    assert cluster.switches == TREE
    assert [record.message for record in caplog.records] == [
        "scontrol failed: away; the previous topology stays in force"
    ]


def test_the_fabric_has_the_bandwidths_of_the_settings(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, tables={"fabric": {"inter_bytes_per_s": 4e9, "beyond_bytes_per_s": [1e9, 5e8]}})
    cluster = ClusterState(settings, memory_consumed=False)
    assert cluster.fabric == Fabric(4e9, 300e9, (1e9, 5e8))
    assert [cluster.fabric.through(level) for level in (1, 2, 3, 4)] == [4e9, 1e9, 5e8, 5e8]
