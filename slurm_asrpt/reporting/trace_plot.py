"""Plots of a trace: arrivals, job sizes, recurrence and tails."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from slurm_asrpt.reporting.plot_style import check_path, save
from slurm_asrpt.traces.statistics import RECURRENT_RUNS, runs_per_job, size_label
from slurm_asrpt.traces.trace import Trace

BLUE, ORANGE, GREY = "#3b6ea5", "#d98032", "#777777"
PLAIN = FuncFormatter(lambda value, _: f"{value:,.10g}")
_TICKS_S = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 86400: "1 d", 864000: "10 d"}


def draw(trace: Trace, found: Mapping[str, Any], path: Path) -> None:
    """Write the plots to one file. found: ``statistics(trace)``. Raises InputError for an unsupported suffix or an
    unwritable file."""
    check_path(path)
    figure = Figure(figsize=(9, 6.2), layout="constrained")
    axes = figure.subplots(2, 2)
    days = found["span_days"]
    span = f"{days:.3g} days" if days >= 1 else f"{24 * days:.3g} hours"
    title = f"{found['name']}: {found['jobs']:,} jobs in {span}"
    figure.suptitle(title, fontsize=11, parse_math=False)  # names may contain a "$"
    _arrivals(axes[0, 0], found["arrivals"])
    _sizes(axes[0, 1], found)
    _recurrence(axes[1, 0], trace, found["recurrence"])
    _tail(axes[1, 1], trace, found["tail"])
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        axis.title.set_fontsize(9.5)
        axis.xaxis.label.set_fontsize(8.5)
        axis.yaxis.label.set_fontsize(8.5)
    save(figure, path)


def _arrivals(axis: Axes, found: Mapping[str, Any]) -> None:
    axis.bar(np.arange(24) + 0.5, 100 * np.array(found["by_hour"]), width=0.85, color=BLUE)
    axis.set(title="Arrivals", xlabel=f"hour {found['hour']}", ylabel="% of jobs", xlim=(0, 24))
    axis.set_xticks(range(0, 25, 4))


def _sizes(axis: Axes, found: Mapping[str, Any]) -> None:
    sizes = found["sizes"]
    place = np.arange(len(sizes))
    for shift, key, color, label in ((-0.2, "job_share", BLUE, "jobs"), (0.2, "gpu_time_share", ORANGE, "GPU time")):
        axis.bar(place + shift, [100 * size[key] for size in sizes], width=0.4, color=color, label=label)
    axis.set_xticks(place, [size_label(size) for size in sizes], rotation=45 if len(sizes) > 7 else 0)
    axis.set(title=f"Sizes: {found['single_gpu_share']:.0%} of jobs use one GPU", xlabel="GPUs", ylabel="%")
    axis.legend(frameon=False, fontsize=8)


def _recurrence(axis: Axes, trace: Trace, found: Mapping[str, Any]) -> None:
    runs = np.sort(runs_per_job(trace.jobs))
    steps, first = np.unique(runs, return_index=True)
    axis.step([*steps, steps[-1]], 100 * np.append(1 - first / len(runs), 0), where="pre", color=BLUE)
    axis.axvline(RECURRENT_RUNS, color=GREY, linewidth=0.8, linestyle=":")
    axis.set(
        title=f"Recurrence: {found['recurrent_share']:.0%} of jobs in groups of at least {RECURRENT_RUNS} runs",
        xlabel=f"runs in the job's group (by {found['key']})",
        ylabel="% of jobs with at least as many",
        xscale="log",
        ylim=(0, 102),
    )
    axis.xaxis.set_major_formatter(PLAIN)


def _tail(axis: Axes, trace: Trace, found: Mapping[str, Any]) -> None:
    duration = np.sort(trace.jobs["duration_s"].to_numpy())
    work = np.sort((trace.jobs["gpus"] * trace.jobs["duration_s"]).to_numpy())
    beyond = 100 * (1 - np.arange(len(duration)) / len(duration))
    # evenly spaced on the logarithmic axis: the few largest jobs matter most
    kept = np.unique(len(duration) - np.geomspace(1, len(duration), 1000).astype(int))
    axis.plot(duration[kept], beyond[kept], color=BLUE, label="runtime")
    axis.plot(work[kept], beyond[kept], color=ORANGE, label="GPU time")
    axis.set(
        title=f"Tails: the largest 10% of jobs use {found['top_10_percent']:.0%} of the GPU time",
        xlabel="runtime, GPU time",
        ylabel="% of jobs that take longer",
        xscale="log",
        yscale="log",
    )
    low, high = max(duration[0], 0.1), work[-1]
    ticks = {s: label for s, label in _TICKS_S.items() if low <= s <= high}
    if high > 8640000:
        ticks |= {86400 * 10**n: f"{10**n:,} d" for n in range(2, 8) if 86400 * 10**n <= high}
    axis.set_xticks(list(ticks), list(ticks.values()), rotation=45)
    axis.minorticks_off()
    axis.yaxis.set_major_formatter(PLAIN)
    axis.legend(frameon=False, fontsize=8)
