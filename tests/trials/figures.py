"""Draw the figures of docs/how-it-decides.md with the scheduler's own policies and formulas (make figures)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib import pyplot as plt

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.profile.schema import load_profile
from tests.benches.gated import Bench, job

FOLDER = Path(__file__).parents[2] / "docs" / "img"
NODES = (4, 4)
JOBS = (("long", 4, 90), ("wide", 8, 30), ("mid", 4, 80), ("short", 2, 10), ("tiny", 1, 5), ("again", 2, 15))
"""Name, GPUs and minutes, in the order of their submission."""
ORDERS = {"easy-backfill": "backfill, with exact time limits", "asrpt-gated": "asrpt-gated, the default"}
COLOURS = dict(zip((name for name, _, _ in JOBS), plt.get_cmap("Set2").colors, strict=False))  # type: ignore[attr-defined]
MODELS = ("vgg19-dp8", "vgg19-pp2dp4", "gpt-6.7b-pp4dp2", "gpt-13b-pp8")
PLACEMENTS = ("8 GPUs of one node", "4 + 4, ranks by Heavy-Edge", "4 + 4, ranks round robin")
FABRIC = Fabric(inter=12.5e9, intra=300e9)
"""100 Gbit/s between nodes."""


@dataclass(frozen=True)
class Bar:
    """A job on one GPU; times in minutes."""

    job: str
    gpu: int
    start: float
    end: float


def played(policy: str) -> list[Bar]:
    """Run all jobs under a policy on NODES; predictions and time limits are exact."""
    bench = Bench(*NODES, policy=policy)
    for number, (name, gpus, length) in enumerate(JOBS):
        bench.submit(replace(job(name, gpus, float(length), submit=number * 1e-3), time_limit=float(length)))
    minutes = {name: float(length) for name, _, length in JOBS}
    free = {f"n{node}": list(range(4 * node, 4 * node + size)) for node, size in enumerate(NODES)}
    now, ends, bars = 0.0, dict[str, float](), list[Bar]()
    while True:
        for name, nodes in bench.decide(now).items():
            taken = [free[node].pop(0) for node, gpus in nodes.items() for _ in range(gpus)]
            ends[name] = now + minutes[name]
            bars += [Bar(name, gpu, now, ends[name]) for gpu in taken]
        if not ends:
            return bars
        done = min(ends, key=lambda name: ends[name])
        now = ends.pop(done)
        bench.end(done, now)
        for bar in bars:
            if bar.job == done:
                free[f"n{bar.gpu // 4}"].append(bar.gpu)


def mean_completion(bars: Sequence[Bar]) -> float:
    """The mean completion time in minutes; all jobs arrive at 0."""
    ends = {bar.job: bar.end for bar in bars}
    return sum(ends.values()) / len(ends)


def draw_order() -> None:
    figure, axes = plt.subplots(2, 1, figsize=(7, 4.4), sharex=True, layout="constrained")
    for axis, (policy, words) in zip(axes, ORDERS.items(), strict=True):
        bars = played(policy)
        for bar in bars:
            axis.barh(bar.gpu, bar.end - bar.start, left=bar.start, height=1, color=COLOURS[bar.job], edgecolor="white")
        for name in COLOURS:
            mine = [bar for bar in bars if bar.job == name]
            middle = sum(bar.gpu for bar in mine) / len(mine)
            axis.text((mine[0].start + mine[0].end) / 2, middle, name, ha="center", va="center", fontsize=8)
        axis.axhline(3.5, color="black", linewidth=0.8)
        axis.set(yticks=[1.5, 5.5], yticklabels=["node n0", "node n1"], ylim=(7.5, -0.5))
        axis.set_title(f"{words}: completed after {mean_completion(bars):.0f} minutes on average", fontsize=9)
    axes[1].set_xlabel("minutes")
    save(figure, "order")


def alphas(model: str) -> Iterator[float]:
    """Seconds per iteration for each of PLACEMENTS."""
    profile, two = load_profile(model, []), (4, 4)
    yield iteration_time(profile, (0,) * 8, (8,), FABRIC)
    yield iteration_time(profile, heavy_edge(profile, two), two, FABRIC)
    yield iteration_time(profile, (0, 1) * 4, two, FABRIC)


def draw_placement() -> None:
    figure, axis = plt.subplots(figsize=(7, 2.8), layout="constrained")
    found = {model: list(alphas(model)) for model in MODELS}
    for number, words in enumerate(PLACEMENTS):
        factors = [times[number] / min(times) for times in found.values()]
        places = [place + (number - 1) * 0.27 for place in range(len(MODELS))]
        drawn = axis.bar(places, factors, 0.25, label=words, color=plt.get_cmap("Set2")(number))
        axis.bar_label(drawn, fmt="%.2f", fontsize=8)
    axis.set(xticks=range(len(MODELS)), xticklabels=MODELS, ylabel="alpha / alpha~min")
    axis.margins(y=0.15)
    axis.legend(fontsize=8)
    save(figure, "placement")


def save(figure: Any, name: str) -> None:
    """Write a reproducible SVG: no date, no random names."""
    with mpl.rc_context({"svg.hashsalt": "slurm-asrpt", "svg.fonttype": "none"}):
        figure.savefig(FOLDER / f"{name}.svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)


def main() -> None:
    draw_order()
    draw_placement()


if __name__ == "__main__":
    main()
