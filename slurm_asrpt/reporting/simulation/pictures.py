"""The pictures, each a function from digests to a figure."""

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

from slurm_asrpt.reporting import style
from slurm_asrpt.reporting.simulation.digest import Digest
from slurm_asrpt.reporting.simulation.series import Floats

Digests = Sequence[Digest]


@dataclass(frozen=True)
class Picture:
    """name: of its file. text: what one sees, for readers and as alternative text."""

    name: str
    title: str
    text: str
    draw: Callable[[Digests], Figure]


def plain(value: float, place: object = None) -> str:
    """A factor without an exponent: 1,130 and not 1.13e+03."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.4g}"


def over_bounds(found: Digests) -> Figure:
    """Mean completion time over the lower bounds: a bar to the sound bound, a mark for the other."""
    shown = [digest for digest in found if digest.summary["over_sound"]]
    figure = style.figure(1.5 + 0.38 * max(1, len(shown)))
    axes = figure.subplots()
    for place, digest in enumerate(shown):
        value, other = digest.summary["over_sound"], digest.summary["over_design"]
        axes.barh(place, value - 1, left=1, color=style.COLOURS[found.index(digest) % style.MOST], height=0.62)
        axes.plot([other], [place], marker="D", color="white", markeredgecolor="black", markersize=6, linestyle="")
        axes.annotate(plain(value), (max(value, other), place), xytext=(8, 0), textcoords="offset points", va="center")
    most = max((digest.summary["over_sound"] for digest in shown), default=1.0)
    axes.set_yticks(range(len(shown)), [style.label(digest.label) for digest in shown])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    if most > 10:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(plain))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(1, most**1.15)
    else:
        axes.set_xlim(min(1.0, *(digest.summary["over_design"] for digest in shown), 1.0), 1 + (most - 1) * 1.12 + 0.02)
    axes.set_xlabel("mean job completion time over its lower bound (1 cannot be beaten)")
    marks = [
        Patch(color="#888888", label="over the sound bound"),
        Line2D([], [], marker="D", linestyle="", color="white", markeredgecolor="black", label="over the design bound"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=2)
    return figure


def completion(found: Digests) -> Figure:
    """Running mean of completion times, and jobs in the system."""
    figure = style.figure(6.6)
    top, bottom = figure.subplots(2, 1)
    low, high = math.inf, 0.0
    for number, digest in enumerate(found):
        jobs, mean = digest.curve
        top.plot(jobs, mean, **style.line(number))
        if len(mean):
            low, high = min(low, mean[len(mean) // 20 :].min()), max(high, mean.max())
    if high > 0:
        style.seconds_axis(top, "y", low, high)
    top.set(xlabel="jobs, in the order of submission", ylabel="mean completion time so far")
    unit, name = style.clock_unit(max(digest.edges[-1] for digest in found))
    for number, digest in enumerate(found):
        bottom.plot(
            _middles(digest) / unit, digest.jobs_in_system, label=style.label(digest.label), **style.line(number)
        )
    bottom.set(xlabel=f"time, {name}", ylabel="jobs in the system")
    bottom.set_ylim(bottom=0)
    style.legend(figure, bottom, [digest.label for digest in found])
    return figure


def distribution(found: Digests) -> Figure:
    """The distribution of completion times, and its tail."""
    figure = style.figure(4.6)
    left, right = figure.subplots(1, 2)
    drawn = [digest for digest in found if len(digest.jct[0])]
    for digest in drawn:
        seconds, share = digest.jct
        looks = style.line(found.index(digest))
        left.step([seconds[0], *seconds], [0.0, *share], where="post", label=style.label(digest.label), **looks)
        right.plot(seconds[share < 1], 1 - share[share < 1], **looks)
    if drawn:
        low = min(float(np.interp(0.01, digest.jct[1], digest.jct[0])) for digest in drawn)
        high = max(digest.jct[0][-1] for digest in drawn)
        style.seconds_axis(left, "x", low, high)
        style.seconds_axis(right, "x", min(float(np.interp(0.5, d.jct[1], d.jct[0])) for d in drawn), high)
    if any((digest.jct[1] < 1).any() for digest in drawn):  # one job has no tail, and no share that has a logarithm
        right.set_yscale("log")
        right.set_ylim(top=0.6)
    left.set(xlabel="completion time", ylabel="share of jobs that take at most this", ylim=(0, 1))
    right.set(xlabel="completion time", ylabel="share of jobs that take longer")
    right.yaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{100 * at:g}%"))
    left.yaxis.set_major_formatter(PercentFormatter(1.0))
    for axes in (left, right):
        axes.tick_params(axis="x", rotation=35)
    style.legend(figure, left, [digest.label for digest in drawn])
    return figure


def utilisation(found: Digests) -> Figure:
    """GPUs over time, a panel per policy: used, free beside used ones, free on wholly free servers."""
    figure, panels = _panels(found)
    for digest, axes in zip(found, panels, strict=False):
        total = digest.gpus["used"] + digest.gpus["part"] + digest.gpus["whole"]
        unit, _ = style.clock_unit(max(d.edges[-1] for d in found))
        shares = [digest.gpus[name] / total for name in ("used", "part", "whole")]
        axes.stackplot(_middles(digest) / unit, shares, colors=(style.USED, style.PART, style.WHOLE), linewidth=0)
        axes.set_ylim(0, 1)
    figure.legend(
        handles=[
            Patch(color=style.USED, label="used"),
            Patch(color=style.PART, label="free, on servers partly used"),
            Patch(color=style.WHOLE, label="free, on wholly free servers"),
        ],
        loc="outside lower center",
        ncols=3,
    )
    figure.supylabel("share of all GPUs", fontsize=10)
    return figure


def fragmentation(found: Digests) -> Figure:
    """How scattered the free GPUs are over time, a panel per policy."""
    figure, panels = _panels(found)
    for digest, axes in zip(found, panels, strict=False):
        unit, _ = style.clock_unit(max(d.edges[-1] for d in found))
        axes.plot(_middles(digest) / unit, digest.fragmentation, color=style.PART, linewidth=1.3)
        largest = digest.gpus["largest"] / digest.scenario.cluster.gpus
        axes.plot(_middles(digest) / unit, largest, color="black", linewidth=1.0)
        axes.set_ylim(0, 1.03)
    figure.legend(
        handles=[
            Line2D([], [], color=style.PART, label="share of the free GPUs that are on servers partly used"),
            Line2D([], [], color="black", label="largest free block on one server, as a share of a server"),
        ],
        loc="outside lower center",
        ncols=2,
    )
    figure.supylabel("share", fontsize=10)
    return figure


def _panels(found: Digests) -> tuple[Figure, list[Axes]]:
    """A small panel per policy, all on the same axes; the time is named below the lowest."""
    columns = 1 if len(found) == 1 else 2 if len(found) in (2, 4) else 3
    rows = math.ceil(len(found) / columns)
    figure = style.figure(1.0 + 2.0 * rows)
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    unit, name = style.clock_unit(max(digest.edges[-1] for digest in found))
    for number, axes in enumerate(panels):
        axes.grid(visible=False)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if number >= len(found):
            axes.set_visible(False)
            continue
        axes.set_title(style.label(found[number].label, 84 // columns), loc="left", fontsize=10)
        axes.set_xlim(0, max(digest.edges[-1] for digest in found) / unit)
        if number + columns >= len(found):
            axes.set_xlabel(f"time, {name}")
            axes.tick_params(labelbottom=True)
    return figure, panels


def slowdown(found: Digests) -> Figure:
    """Slowdown by size: median, middle half and 99th percentile."""
    figure = style.figure(4.8)
    axes = figure.subplots()
    sizes = {size.most: size.label for digest in found for size in digest.sizes}
    places = {most: place for place, most in enumerate(sorted(sizes))}
    step = 0.8 / max(1, len(found))
    for number, digest in enumerate(found):
        colour = style.COLOURS[number % style.MOST]
        at = np.array([places[size.most] for size in digest.sizes]) + (number - (len(found) - 1) / 2) * step
        axes.bar(
            at,
            [size.three_quarters - size.quarter for size in digest.sizes],
            bottom=[size.quarter for size in digest.sizes],
            width=step * 0.8,
            color=colour,
            label=style.label(digest.label),
        )
        axes.vlines(at, [s.half for s in digest.sizes], [s.p99 for s in digest.sizes], color=colour, linewidth=1.2)
        axes.plot(at, [s.p99 for s in digest.sizes], linestyle="", marker="_", color=colour, markersize=6)
        axes.plot(
            at, [s.half for s in digest.sizes], linestyle="", marker="o", color="white", markersize=3.2, mec="black"
        )
    axes.set_yscale("log")
    axes.set_ylim(bottom=0.9)
    axes.yaxis.set_major_formatter(FuncFormatter(plain))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xticks(list(places.values()), [sizes[most] for most in places])
    axes.grid(visible=False, axis="x")
    axes.set(xlabel="GPUs of the job", ylabel="slowdown (1: at once, in the best placement)")
    style.legend(figure, axes, [digest.label for digest in found])
    return figure


def _middles(digest: Digest) -> Floats:
    return np.asarray((digest.edges[1:] + digest.edges[:-1]) / 2)


PICTURES = (
    Picture(
        "bounds",
        "Against the lower bounds",
        "Mean job completion time of each policy over the sound bound, which no schedule can beat, and (diamond) over "
        "the design bound, a sharper figure that a schedule may beat.",
        over_bounds,
    ),
    Picture(
        "completion",
        "Completion times as jobs come",
        "Above: the mean completion time of the jobs submitted so far. Below: jobs submitted and not yet ended; "
        "the area under a curve is the sum of all completion times.",
        completion,
    ),
    Picture(
        "distribution",
        "Distribution of completion times",
        "Left: the share of jobs that complete within a time. Right: the tail, the share that takes longer.",
        distribution,
    ),
    Picture(
        "utilisation",
        "GPUs over time",
        "What share of the GPUs is used, is free on servers of which others are used, and is free on whole servers. "
        "Each point is the exact mean of its stretch of time.",
        utilisation,
    ),
    Picture(
        "fragmentation",
        "Fragmentation over time",
        "The share of the free GPUs that are on servers not wholly free, and the largest block of free GPUs on one "
        "server. A gap: no GPU was free.",
        fragmentation,
    ),
    Picture(
        "slowdown",
        "Slowdown by job size",
        "Completion time over the time in the best placement without a wait. Dot: median; box: the middle half; "
        "line: up to the 99th percentile.",
        slowdown,
    ),
)
