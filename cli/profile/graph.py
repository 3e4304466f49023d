"""asrpt-profile graph: which GPUs of a job communicate, and where Heavy-Edge puts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from slurm_asrpt_cli._app.options import ConfigOption, JsonOption
from slurm_asrpt_cli._app.tables import print_prose
from slurm_asrpt_cli.profile.output import ProfileArgument, amount, folders, seconds, write_text

from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.errors import InputError
from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.documents import load_document
from slurm_asrpt.text import counted

if TYPE_CHECKING:
    import networkx as nx

GRAPHML = ".graphml"
MAX_DRAWN = 1024
"""GPUs of a job in a picture."""


def graph_command(
    profile: ProfileArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="A picture (.png, .svg, .pdf), or .graphml.")
    ],
    on: Annotated[str, typer.Option(metavar="N,N,...", help="GPUs on each node; default: all on one.")] = "",
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Draw which GPUs of a job communicate, and on which node each is.

    Heavy-Edge chooses the nodes of the ranks. The width of a line is the
    bytes of an iteration.

    \b
    Examples:
      asrpt-profile graph vgg19-dp8 -o vgg19.svg
      asrpt-profile graph gpt-13b-pp4dp4 --on 8,4,4 -o gpt.png
    """
    from slurm_asrpt.core.placement.graph import job_graph
    from slurm_asrpt.core.placement.heavy_edge import heavy_edge

    found = _cut(profile, folders(config))
    counts = _counts(on, found)
    try:
        nodes = heavy_edge(found, counts)
    except ValueError as error:
        raise InputError(f"--on {on}: {error}") from None
    graph = job_graph(found)
    for gpu, node in enumerate(nodes):
        graph.nodes[gpu]["node"] = node
    values = _values(found, graph, nodes, counts, config)
    _write(graph, nodes, values, output)
    if as_json:
        print(json.dumps(values))
    else:
        print_prose(f"{': '.join(_titles(values))}; wrote {output}")


def _cut(name: str, where: list[Path]) -> JobProfile:
    document = load_document(name, where)
    if isinstance(document, UncutFile):
        raise InputError(
            f"{name}: a model that is cut for each job has no ranks yet; write a profile of it, for example with "
            f"asrpt-profile plan {name} -g 8 -w FILE"
        )
    return document.profile


def _counts(on: str, profile: JobProfile) -> tuple[int, ...]:
    if not on:
        return (profile.gpus,)
    try:
        counts = tuple(int(part) for part in on.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1 or sum(counts) != profile.gpus:
        raise InputError(f"--on {on}: positive numbers of GPUs that are {profile.gpus} together, such as 4,4")
    return counts


def _values(
    profile: JobProfile, graph: nx.Graph[int], nodes: tuple[int, ...], counts: tuple[int, ...], config: Path | None
) -> dict[str, Any]:
    """The figures of the placement. between_bytes: of an iteration, between nodes. node: of each rank."""
    from slurm_asrpt.config.settings import load_settings
    from slurm_asrpt.core.timing.pipeline import iteration_time

    fabric = load_settings(config).fabric.to_core()
    edges: list[tuple[int, int, float]] = list(graph.edges(data="weight"))
    weights = [(nodes[a] != nodes[b], weight) for a, b, weight in edges]
    return {
        "profile": profile.name,
        "gpus": profile.gpus,
        "on": list(counts),
        "bytes": sum(weight for _, weight in weights),
        "between_bytes": sum(weight for between, weight in weights if between),
        "iteration_s": iteration_time(profile, nodes, counts, fabric),
        "one_node_s": iteration_time(profile, (0,) * profile.gpus, (profile.gpus,), fabric),
        "node": list(nodes),
    }


def _titles(values: dict[str, Any]) -> tuple[str, str]:
    head, whole = f"{values['profile']}, {counted(values['gpus'], 'GPU')}", amount(values["bytes"])
    if len(values["on"]) == 1:
        return f"{head} on one node", f"{whole} in an iteration of {seconds(values['iteration_s'])}"
    between = f"{amount(values['between_bytes'])} of {whole} between nodes"
    times = f"{seconds(values['iteration_s'])} (on one node: {seconds(values['one_node_s'])})"
    return f"{head} on {'+'.join(map(str, values['on']))}", f"{between} in an iteration of {times}"


def _write(graph: nx.Graph[int], nodes: tuple[int, ...], values: dict[str, Any], path: Path) -> None:
    if path.suffix.lower() == GRAPHML:
        import networkx as nx

        write_text(path, "\n".join(nx.generate_graphml(graph)) + "\n")
        return
    from slurm_asrpt.reporting import graph_plot, plot_style  # matplotlib takes a second to import

    if path.suffix.lower() not in plot_style.SUFFIXES:
        raise InputError(f"{path}: the file name must end in {', '.join((*plot_style.SUFFIXES, GRAPHML))}")
    if len(nodes) > MAX_DRAWN:
        raise InputError(f"a picture has {MAX_DRAWN} GPUs at most; write {GRAPHML} instead")
    graph_plot.draw(graph, nodes, _titles(values), path)
