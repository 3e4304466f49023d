"""The plot of a cluster's day: jobs that wait and GPUs in use, under several schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from slurm_asrpt.reporting.plot_style import applied, check_path, clock_unit, figure, label, legend, line, save


def draw(
    title: str, sides: Mapping[str, tuple[Sequence[float], Sequence[float]]], capacity: int, span_s: float, path: Path
) -> None:
    """Write the plot. sides: jobs waiting and GPUs in use, as means over equal parts of ``span_s``.

    capacity: GPUs of the cluster. Raises InputError for an unsupported suffix or an unwritable file.
    """
    check_path(path)
    unit, name = clock_unit(span_s)
    with applied():
        picture = figure(5.2)
        picture.suptitle(label(title, 110), fontsize=11)
        waiting, used = picture.subplots(2, 1, sharex=True)
        for number, (side, (jobs, gpus)) in enumerate(sides.items()):
            _steps(waiting, jobs, span_s / unit, side, number)
            _steps(used, gpus, span_s / unit, side, number)
        used.axhline(capacity, color="#999999", linewidth=0.9, linestyle=":")
        waiting.set(ylabel="jobs waiting", ylim=(0, None))
        used.set(ylabel="GPUs in use", ylim=(0, capacity * 1.05), xlabel=f"{name} since the first submission")
        used.set_xlim(0, span_s / unit)
        used.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 3, 6, 10]))
        waiting.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        legend(picture, waiting, list(sides))
        save(picture, path)


def _steps(axes: Axes, values: Sequence[float], span: float, name: str, number: int) -> None:
    edges = np.linspace(0.0, span, len(values) + 1)
    axes.stairs(values, edges, baseline=None, label=label(name), **line(number), linewidth=1.5)
