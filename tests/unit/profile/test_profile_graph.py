"""asrpt-profile graph: pictures and GraphML of the job graph, with the nodes that Heavy-Edge chooses."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pytest
from slurm_asrpt_cli.profile import app
from typer.testing import CliRunner

from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.profile.schema import load_profile


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["graph", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["graph", *arguments])
    assert result.exit_code != 0
    return str(result.exception)


def test_graphml_has_each_gpu_with_the_node_that_heavy_edge_chooses(tmp_path: Path) -> None:
    path = tmp_path / "graph.graphml"
    values = json.loads(run("gpt-13b-pp4dp4", "--on", "8,4,4", "-o", str(path), "--json"))
    read = nx.read_graphml(path, node_type=int)
    nodes = heavy_edge(load_profile("gpt-13b-pp4dp4", ()), (8, 4, 4))
    assert [read.nodes[gpu]["node"] for gpu in range(16)] == list(nodes) == values["node"]
    between = sum(weight for a, b, weight in read.edges(data="weight") if nodes[a] != nodes[b])
    assert values["between_bytes"] == pytest.approx(between) != 0
    assert values["bytes"] == pytest.approx(read.size("weight"))
    assert values["iteration_s"] > values["one_node_s"]


@pytest.mark.parametrize(("on", "words"), [("4,4", "of 8.05 GB between nodes"), ("", "on one node")])
def test_a_picture_and_its_figures(on: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "graph.png"
    assert words in " ".join(run("vgg19-dp8", *(("--on", on) if on else ()), "-o", str(path)).split())
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("vgg19-dp8", "--on", "4,5"), "8 together"),
        (("vgg19-dp8", "--on", "9,-1"), "8 together"),
        (("vgg19-dp8", "--on", "x"), "8 together"),
        (("vgg19",), "asrpt-profile plan vgg19"),
        (("nothing",), "unknown profile"),
    ],
)
def test_what_cannot_be_drawn_is_an_error(arguments: tuple[str, ...], words: str, tmp_path: Path) -> None:
    assert words in refused(*arguments, "-o", str(tmp_path / "graph.png"))
    assert not list(tmp_path.iterdir())


def test_an_unknown_suffix_is_an_error(tmp_path: Path) -> None:
    assert ".graphml" in refused("vgg19-dp8", "-o", str(tmp_path / "graph.txt"))
