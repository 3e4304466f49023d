"""The plots of a simulation report: each is a function from digests to a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter, PercentFormatter

from slurm_asrpt.reporting import plot_style
from slurm_asrpt.reporting.simulation.result_digest import Digest, Floats
from slurm_asrpt.sim.sweep import value_of, varying

Digests = Sequence[Digest]


@dataclass(frozen=True)
class Picture:
    """name: part of its file name. text: what it shows, for readers and as alternative text."""

    name: str
    title: str
    text: str
    draw: Callable[[Digests], Figure]


def plain(value: float, place: object = None) -> str:
    """A factor without an exponent: ``1,130``, not ``1.13e+03``."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.4g}"


def over_bounds(found: Digests) -> Figure:
    """Mean completion time over the lower bounds: a bar for the sound bound, a marker for the design bound."""
    shown = [digest for digest in found if digest.summary["over_sound"]]
    figure = plot_style.figure(1.5 + 0.38 * max(1, len(shown)))
    axes = figure.subplots()
    for place, digest in enumerate(shown):
        value, other = digest.summary["over_sound"], digest.summary["over_design"]
        axes.barh(
            place, value - 1, left=1, color=plot_style.COLORS[found.index(digest) % plot_style.MAX_CURVES], height=0.62
        )
        axes.plot([other], [place], marker="D", color="white", markeredgecolor="black", markersize=6, linestyle="")
        axes.annotate(plain(value), (max(value, other), place), xytext=(8, 0), textcoords="offset points", va="center")
    most = max((digest.summary["over_sound"] for digest in shown), default=1.0)
    axes.set_yticks(range(len(shown)), [plot_style.label(digest.label) for digest in shown])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    if most > 10:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(plain))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(1, most**1.15)
    else:
        axes.set_xlim(min(1.0, *(digest.summary["over_design"] for digest in shown), 1.0), 1 + (most - 1) * 1.12 + 0.02)
    axes.set_xlabel("mean job completion time over its lower bound (no schedule is below 1)")
    marks = [
        Patch(color="#888888", label="over the sound bound"),
        Line2D([], [], marker="D", linestyle="", color="white", markeredgecolor="black", label="over the design bound"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=2)
    return figure


def completion(found: Digests) -> Figure:
    """Running mean of completion times, and jobs in the system."""
    figure = plot_style.figure(6.6)
    top, bottom = figure.subplots(2, 1)
    low, high = math.inf, 0.0
    for number, digest in enumerate(found):
        jobs, mean = digest.curve
        top.plot(jobs, mean, **plot_style.line(number))
        if len(mean):
            low, high = min(low, mean[len(mean) // 20 :].min()), max(high, mean.max())
    if high > 0:
        plot_style.seconds_axis(top, "y", low, high)
    top.set(xlabel="jobs in submission order", ylabel="mean completion time so far")
    unit, name = plot_style.clock_unit(max(digest.edges[-1] for digest in found))
    for number, digest in enumerate(found):
        bottom.plot(
            _middles(digest) / unit,
            digest.jobs_in_system,
            label=plot_style.label(digest.label),
            **plot_style.line(number),
        )
    bottom.set(xlabel=f"time, {name}", ylabel="pending and running jobs")
    bottom.set_ylim(bottom=0)
    plot_style.legend(figure, bottom, [digest.label for digest in found])
    return figure


def distribution(found: Digests) -> Figure:
    """The distribution of completion times, and its tail."""
    figure = plot_style.figure(4.6)
    left, right = figure.subplots(1, 2)
    drawn = [digest for digest in found if len(digest.jct[0])]
    for digest in drawn:
        seconds, share = digest.jct
        looks = plot_style.line(found.index(digest))
        left.step([seconds[0], *seconds], [0.0, *share], where="post", label=plot_style.label(digest.label), **looks)
        right.plot(seconds[share < 1], 1 - share[share < 1], **looks)
    if drawn:
        low = min(float(np.interp(0.01, digest.jct[1], digest.jct[0])) for digest in drawn)
        high = max(digest.jct[0][-1] for digest in drawn)
        plot_style.seconds_axis(left, "x", low, high)
        plot_style.seconds_axis(right, "x", min(float(np.interp(0.5, d.jct[1], d.jct[0])) for d in drawn), high)
    if any((digest.jct[1] < 1).any() for digest in drawn):  # a single job has no tail
        right.set_yscale("log")
        right.set_ylim(top=0.6)
    left.set(xlabel="completion time", ylabel="share of jobs completed", ylim=(0, 1))
    right.set(xlabel="completion time", ylabel="share of jobs that take longer")
    right.yaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{100 * at:g}%"))
    left.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axes in (left, right):
        axes.tick_params(axis="x", rotation=35)
    plot_style.legend(figure, left, [digest.label for digest in drawn])
    return figure


def utilisation(found: Digests) -> Figure:
    """GPUs over time, one panel per policy: used, free on partly used servers, free on idle servers."""
    figure, panels = _panels(found)
    for digest, axes in zip(found, panels, strict=False):
        total = digest.gpus["used"] + digest.gpus["part"] + digest.gpus["whole"]
        unit, _ = plot_style.clock_unit(max(d.edges[-1] for d in found))
        shares = [digest.gpus[name] / total for name in ("used", "part", "whole")]
        axes.stackplot(
            _middles(digest) / unit, shares, colors=(plot_style.USED, plot_style.PART, plot_style.WHOLE), linewidth=0
        )
        axes.set_ylim(0, 1)
    figure.legend(
        handles=[
            Patch(color=plot_style.USED, label="used"),
            Patch(color=plot_style.PART, label="free on partly used servers"),
            Patch(color=plot_style.WHOLE, label="free on idle servers"),
        ],
        loc="outside lower center",
        ncols=3,
    )
    figure.supylabel("share of all GPUs", fontsize=10)
    return figure


def fragmentation(found: Digests) -> Figure:
    """Fragmentation of the free GPUs over time, one panel per policy."""
    figure, panels = _panels(found)
    for digest, axes in zip(found, panels, strict=False):
        unit, _ = plot_style.clock_unit(max(d.edges[-1] for d in found))
        axes.plot(_middles(digest) / unit, digest.fragmentation, color=plot_style.PART, linewidth=1.3)
        largest = digest.gpus["largest"] / digest.scenario.cluster.gpus
        axes.plot(_middles(digest) / unit, largest, color="black", linewidth=1.0)
        axes.set_ylim(0, 1.03)
    figure.legend(
        handles=[
            Line2D([], [], color=plot_style.PART, label="share of free GPUs on partly used servers"),
            Line2D([], [], color="black", label="largest free block on one server, as a share of a server"),
        ],
        loc="outside lower center",
        ncols=2,
    )
    figure.supylabel("share", fontsize=10)
    return figure


def _panels(found: Digests) -> tuple[Figure, list[Axes]]:
    """One panel per policy, all with the same axes; only the lowest row labels the time."""
    columns = 1 if len(found) == 1 else 2 if len(found) in (2, 4) else 3
    rows = math.ceil(len(found) / columns)
    figure = plot_style.figure(1.0 + 2.0 * rows)
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    unit, name = plot_style.clock_unit(max(digest.edges[-1] for digest in found))
    for number, axes in enumerate(panels):
        axes.grid(visible=False)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if number >= len(found):
            axes.set_visible(False)
            continue
        axes.set_title(plot_style.label(found[number].label, 84 // columns), loc="left", fontsize=10)
        axes.set_xlim(0, max(digest.edges[-1] for digest in found) / unit)
        if number + columns >= len(found):
            axes.set_xlabel(f"time, {name}")
            axes.tick_params(labelbottom=True)
    return figure, panels


def slowdown(found: Digests) -> Figure:
    """Slowdown by job size: median, quartiles and 99th percentile."""
    figure = plot_style.figure(4.8)
    axes = figure.subplots()
    sizes = {size.most: size.label for digest in found for size in digest.sizes}
    places = {most: place for place, most in enumerate(sorted(sizes))}
    step = 0.8 / max(1, len(found))
    for number, digest in enumerate(found):
        color = plot_style.COLORS[number % plot_style.MAX_CURVES]
        at = np.array([places[size.most] for size in digest.sizes]) + (number - (len(found) - 1) / 2) * step
        axes.bar(
            at,
            [size.three_quarters - size.quarter for size in digest.sizes],
            bottom=[size.quarter for size in digest.sizes],
            width=step * 0.8,
            color=color,
            label=plot_style.label(digest.label),
        )
        axes.vlines(at, [s.half for s in digest.sizes], [s.p99 for s in digest.sizes], color=color, linewidth=1.2)
        axes.plot(at, [s.p99 for s in digest.sizes], linestyle="", marker="_", color=color, markersize=6)
        axes.plot(
            at, [s.half for s in digest.sizes], linestyle="", marker="o", color="white", markersize=3.2, mec="black"
        )
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.9)
    axes.yaxis.set_major_formatter(FuncFormatter(plain))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(list(places.values()), [sizes[most] for most in places])
    axes.grid(visible=False, axis="x")
    axes.set(xlabel="GPUs of the job", ylabel="slowdown (1: no wait, best placement)")
    plot_style.legend(figure, axes, [digest.label for digest in found])
    return figure


def _middles(digest: Digest) -> Floats:
    return np.asarray((digest.edges[1:] + digest.edges[:-1]) / 2)


PICTURES = (
    Picture(
        "bounds",
        "Against the lower bounds",
        "Mean job completion time of each policy over the sound bound, which no schedule can beat (bar), and over the "
        "design bound, which is tighter but which a schedule may beat (diamond).",
        over_bounds,
    ),
    Picture(
        "completion",
        "Completion times in submission order",
        "Top: mean completion time of the jobs submitted so far. Bottom: jobs submitted and not yet ended; the area "
        "under a curve is the sum of all completion times.",
        completion,
    ),
    Picture(
        "distribution",
        "Distribution of completion times",
        "Left: the share of jobs that complete within a given time. Right: the tail, the share that takes longer.",
        distribution,
    ),
    Picture(
        "utilisation",
        "GPUs over time",
        "The shares of GPUs that are used, free on partly used servers, and free on idle servers. Each point is the "
        "exact mean over its interval.",
        utilisation,
    ),
    Picture(
        "fragmentation",
        "Fragmentation over time",
        "The share of free GPUs on partly used servers, and the largest block of free GPUs on one server. In a gap no "
        "GPU was free.",
        fragmentation,
    ),
    Picture(
        "slowdown",
        "Slowdown by job size",
        "Completion time over the runtime in the best placement. Dot: median; box: quartiles; line: up to the 99th "
        "percentile.",
        slowdown,
    ),
)


_REPEATS = "seed"  # seeds repeat a cell: not a quantity
_MOST_PANELS = 3
_UNITS = {"nic": "NIC, Gbit/s", "intra": "GPU to GPU in a server, GB/s", "single-gpu": "share of single-GPU jobs"}


def grid_keys(found: Sequence[Digest]) -> list[str]:
    """The numeric quantities that vary over these results: each can be an axis."""
    scenarios = [digest.scenario for digest in found]
    numeric = [
        key
        for key in varying(scenarios)
        if key != _REPEATS and all(isinstance(value_of(scenario, key), int | float) for scenario in scenarios)
    ]
    return numeric[:_MOST_PANELS]


def over_grid(found: Sequence[Digest]) -> Figure:
    """Mean completion time over the sound bound against each quantity, averaged over all other cells.

    With a single quantity the other cells are seeds, and a band shows their range.
    """
    keys = grid_keys(found)
    most = max((digest.summary["over_sound"] or 1.0 for digest in found), default=1.0)
    policies = list(dict.fromkeys(digest.scenario.policy for digest in found))[: plot_style.MAX_CURVES]
    figure = plot_style.figure(4.6)
    panels = figure.subplots(1, len(keys), sharey=True, squeeze=False)[0]
    for key, axes in zip(keys, panels, strict=True):
        for number, policy in enumerate(policies):
            at, mean, low, high = _curve([d for d in found if d.scenario.policy == policy], key)
            axes.plot(at, mean, marker="o", markersize=4, label=plot_style.label(policy), **plot_style.line(number))
            if len(keys) == 1:
                axes.fill_between(at, low, high, color=plot_style.COLORS[number], alpha=0.15, linewidth=0)
        axes.set_xlabel(_UNITS.get(key, key))
        if most > 10:
            axes.set_yscale("log")
            axes.yaxis.set_minor_formatter(NullFormatter())
        axes.yaxis.set_major_formatter(FuncFormatter(plain))
    panels[0].set_ylabel("mean completion time over the sound bound")
    plot_style.legend(figure, panels[0], policies)
    return figure


def _curve(found: Sequence[Digest], key: str) -> tuple[list[float], list[float], list[float], list[float]]:
    """Values of the key, with the mean, least and largest ratio at each. Interrupted results have no ratio."""
    ratios: dict[float, list[float]] = {}
    for digest in found:
        if digest.summary["over_sound"]:
            ratios.setdefault(float(value_of(digest.scenario, key)), []).append(digest.summary["over_sound"])
    at = sorted(ratios)
    return (
        at,
        [float(np.mean(ratios[value])) for value in at],
        [min(ratios[value]) for value in at],
        [max(ratios[value]) for value in at],
    )


GRID = Picture(
    "grid",
    "Over the sweep",
    "Mean completion time over the sound bound, against each quantity that the sweep varied, averaged over all other "
    "cells and seeds. A band is the range over seeds. At most nine policies are shown, those of the other plots first.",
    over_grid,
)
