"""``scontrol show topology`` of real Slurms, and of odd shapes: the switches above each node."""

from pathlib import Path

import pytest

from slurm_asrpt.config.settings import SlurmSettings
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.partitions import rows_of
from slurm_asrpt.slurm.topology import Topology, parse_topology, topologies_of

RECORDED = Path(__file__).parents[2] / "recorded"
RELEASES = ["22.05", "24.11", "26.05"]
BLOCKS = {
    name: (block,) for name, block in zip(("n1", "n2", "n3", "n4"), ("block1",) * 2 + ("block2",) * 2, strict=True)
}


def recorded(release: str, name: str) -> str:
    return (RECORDED / release / f"topology-{name}.txt").read_text()


def switches(text: str) -> dict[str, tuple[str, ...]]:
    return dict(parse_topology(text, expand).switches)


@pytest.mark.parametrize("release", RELEASES)
def test_a_leaf_of_an_uneven_tree_also_takes_the_place_of_the_missing_level(release: str) -> None:
    assert switches(recorded(release, "tree")) == {
        "n1": ("leaf1", "spine1", "core1"),
        "n2": ("leaf2", "spine1", "core1"),
        "n3": ("leaf3", "leaf3", "core1"),
        "n4": ("leaf3", "leaf3", "core1"),
    }


@pytest.mark.parametrize("release", RELEASES[1:])
def test_blocks_are_level_1_and_aggregated_ones_the_levels_above(release: str) -> None:
    found = switches(recorded(release, "block"))
    assert found == {name: (*block, "block[1-2]") for name, block in BLOCKS.items()}


@pytest.mark.parametrize("release", RELEASES)
def test_without_a_topology_nothing_is_known(release: str) -> None:
    assert switches(recorded(release, "none")) == {}


def test_the_topologies_of_topology_yaml_are_read_by_name() -> None:
    assert switches(recorded("26.05", "of-nvlink")) == BLOCKS
    assert switches(recorded("26.05", "of-plain")) == {}
    assert switches(recorded("26.05", "of-default"))["n1"] == ("leaf1", "spine1")


def test_partitions_name_their_topologies_from_25_05_on() -> None:
    rows = rows_of(recorded("26.05", "partitions"))
    assert topologies_of(rows, ["gpu"]) == [""]
    assert topologies_of(rows, ["other", "gpu", "unknown"]) == ["nvlink", ""]
    assert topologies_of({"gpu": {"Topology": "-h"}}, ["gpu"]) == [""]


def test_switches_that_share_nodes_and_trees_that_are_not_connected() -> None:
    text = """\
SwitchName=a Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=b Level=0 LinkSpeed=1 Nodes=n[2-3]
SwitchName=lonely Level=0 LinkSpeed=1 Nodes=n4
SwitchName=top Level=7 LinkSpeed=1 Nodes=n[1-3] Switches=a,b
"""
    assert switches(text) == {"n1": ("a", "top"), "n2": ("a", "top"), "n3": ("b", "top"), "n4": ("lonely", "lonely")}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No topology information available\n",
        "SwitchName=a Level=x Nodes=n1\nSwitchName=b Level=0\nSwitchName= Level=0 Nodes=n1\n",
        "SwitchName=a Level=99999999999999999999 Nodes=n1\nSwitchName=b Level=٣ Nodes=n1\n",
        "RingName=r1 Nodes=n[1-4]\n",
    ],
)
def test_lines_that_are_not_understood_are_ignored(text: str) -> None:
    assert switches(text) == {}


def test_a_damaged_node_list_is_an_error() -> None:
    with pytest.raises(SlurmError):
        switches("SwitchName=a Level=0 LinkSpeed=1 Nodes=n[1-\n")


def test_the_first_of_several_topologies_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        ("scontrol", "-o", "show", "partition"): recorded("26.05", "partitions"),
        ("scontrol", "show", "topology"): recorded("26.05", "of-default"),
        ("scontrol", "show", "topology", "nvlink"): recorded("26.05", "of-nvlink").replace("n[1-2]", "n1"),
    }
    client = CliClient(SlurmSettings())
    monkeypatch.setattr(client, "run", lambda *words: answers[words])
    assert client.topology(["gpu"]).switches["n1"] == ("leaf1", "spine1")
    assert client.topology(["other"]).switches["n1"] == ("block1",)
    both = client.topology(["other", "gpu"]).switches
    assert (both["n1"], both["n2"]) == (("block1",), ("leaf1", "spine1"))


def test_islands_are_blocks_or_trees_that_are_not_connected() -> None:
    names = ["n1", "n2", "n3", "n4"]
    halves = {frozenset({"n1", "n2"}), frozenset({"n3", "n4"})}
    block = parse_topology(recorded("24.11", "block"), expand)
    assert set(block.islands(names)) == halves
    assert parse_topology(recorded("24.11", "tree"), expand).islands(names) == ()
    assert Topology().islands(names) == ()
    trees = Topology({"n1": ("a",), "n2": ("a",), "n3": ("b",)})
    assert set(trees.islands(names)) == {frozenset({"n1", "n2"}), frozenset({"n3"}), frozenset({"n4"})}
