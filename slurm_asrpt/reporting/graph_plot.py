"""A picture of a job graph: which GPUs of a job communicate, how much, and on which node each one is."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.collections import LineCollection
from matplotlib.lines import Line2D

from slurm_asrpt.reporting.plot_style import COLORS, applied, figure, label, save

if TYPE_CHECKING:
    import networkx as nx

HEIGHT = 6.5
WIDEST = 4.0
"""Width of the heaviest edge, points; others in proportion to their bytes."""
THINNEST = 0.3
MAX_NUMBERS = 128
"""The GPUs of larger jobs have no numbers in the picture."""
BETWEEN, WITHIN = "#222222", "#b8b8b8"

Point = tuple[float, float]


def draw(graph: nx.Graph[int], nodes: Sequence[int], titles: Sequence[str], path: Path) -> None:
    """Write the picture. titles: lines above it. nodes: of each GPU, its node's number.

    Raises InputError for an unwritable file.
    """
    places = _places(nodes)
    every: list[tuple[int, int, float]] = list(graph.edges(data="weight"))
    edges = [edge for edge in every if edge[-1] > 0]
    heaviest = max((weight for _, _, weight in edges), default=1.0)
    edges.sort(key=lambda edge: nodes[edge[0]] != nodes[edge[1]])  # those between nodes on top
    with applied():
        shown = figure(HEIGHT)
        axes = shown.subplots()
        axes.add_collection(
            LineCollection(
                [(places[a], places[b]) for a, b, _ in edges],
                colors=[WITHIN if nodes[a] == nodes[b] else BETWEEN for a, b, _ in edges],
                linewidths=[max(THINNEST, WIDEST * weight / heaviest) for _, _, weight in edges],
                zorder=1,
            )
        )
        colors = [COLORS[node % len(COLORS)] for node in nodes]
        x, y = zip(*places, strict=True)
        axes.scatter(x, y, s=max(12.0, min(320.0, 9000.0 / len(nodes))), c=colors, zorder=2)
        if len(nodes) <= MAX_NUMBERS:
            for gpu, place in enumerate(places):
                axes.annotate(
                    str(gpu), place, color="white", ha="center", va="center", fontsize=max(4, 10 - len(nodes) // 16)
                )
        axes.set(aspect="equal", title="\n".join(label(line, 100) for line in titles))
        axes.axis("off")
        axes.margins(0.08)  # for the circles, whose size the limits of the axes do not know
        axes.autoscale_view()
        kinds = [
            Line2D([], [], color=color, linewidth=2, label=text)
            for color, text in ((WITHIN, "within a node"), (BETWEEN, "between nodes"))
        ]
        if len(set(nodes)) > 1:
            shown.legend(handles=kinds, loc="outside lower center", ncols=2)
        save(shown, path)


def _places(nodes: Sequence[int]) -> list[Point]:
    """The GPUs of each node on a circle, the nodes on a larger one."""
    members: dict[int, list[int]] = {}
    for gpu, node in enumerate(nodes):
        members.setdefault(node, []).append(gpu)
    count = len(members)
    inner = 1.0 if count == 1 else min(1.0, 2.4 / count)
    places: list[Point] = [(0.0, 0.0)] * len(nodes)
    for at, node in enumerate(sorted(members)):
        center = (0.0, 0.0) if count == 1 else _on_circle(at, count, 1.6)
        for place, gpu in enumerate(members[node]):
            around = _on_circle(place, len(members[node]), inner if len(members[node]) > 1 else 0.0)
            places[gpu] = (center[0] + around[0], center[1] + around[1])
    return places


def _on_circle(at: int, count: int, radius: float) -> Point:
    angle = pi / 2 - 2 * pi * at / count  # clockwise from the top
    return radius * cos(angle), radius * sin(angle)
