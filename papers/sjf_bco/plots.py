"""Plots of the SJF-BCO paper's figures: means over the seeds, with standard deviations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from papers.sjf_bco.simulations import FIGURES, KAPPAS, LAMBDAS, MORE, OURS, PLANNERS, SERVERS, Points, Setting
from papers.sjf_bco.workload import EXTRA
from slurm_asrpt.errors import InputError
from slurm_asrpt.reporting import plot_style

DPI, HEIGHT, BAR = 100, 3.4, 0.38


def write_pictures(figures: Sequence[str], points: Points, page: Path) -> dict[str, str]:
    """Write a PNG beside the page for each figure; returns their names. Raises InputError if one cannot be written."""
    names = {figure: f"{page.stem}-{figure}.png" for figure in FIGURES if figure in figures}
    with plot_style.applied():
        for figure, name in names.items():
            drawing = plot_style.figure(HEIGHT)
            DRAWN[figure](drawing, points)
            try:
                drawing.savefig(page.with_name(name), dpi=DPI, metadata={"Software": None})
            except OSError as error:
                raise InputError(f"{page.with_name(name)}: cannot be written ({error.strerror})") from None
    return names


def _planners(drawing: Figure, points: Points) -> None:
    """Makespan and average completion side by side, for both shares of contention and overhead."""
    both = drawing.subplots(1, 2, sharey=True)
    for axes, extra in zip(both, (EXTRA, MORE), strict=True):
        found = [points[Setting(name, extra=extra)] for name in PLANNERS]
        _bars(axes, -BAR / 2, [point.makespan for point in found], "makespan", 0)
        _bars(axes, BAR / 2, [point.mean for point in found], "average completion", 1)
        axes.set(title=f"{extra:.0%} contention and overhead", xticks=range(len(PLANNERS)), ylabel="slots")
        axes.set_xticklabels(list(PLANNERS))
        axes.grid(visible=False, axis="x")
        axes.label_outer()
    both[0].legend(loc="upper left")


def _bars(axes: Axes, shift: float, rows: Sequence[Sequence[float]], label: str, number: int) -> None:
    places = [place + shift for place in range(len(rows))]
    heights, deviations = list(map(fmean, rows)), list(map(_deviation, rows))
    axes.bar(places, heights, BAR, yerr=deviations, label=label, color=plot_style.COLORS[number], capsize=2.0)


def _deviation(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0


def _curves(drawing: Figure, points: Points, xlabel: str, rows: Mapping[str, Mapping[float, Setting]]) -> None:
    """Makespans along an axis. rows: for each curve, its settings by their value on the axis, which is logarithmic if
    the values double."""
    axes = drawing.subplots()
    for number, (name, row) in enumerate(rows.items()):
        found = [points[setting].makespan for setting in row.values()]
        deviations = list(map(_deviation, found))
        axes.errorbar(
            list(row),
            list(map(fmean, found)),
            deviations,
            marker="o",
            capsize=3.0,
            label=name,
            **plot_style.line(number),
        )
    ticks = list(next(iter(rows.values())))
    if ticks[1] == 2 * ticks[0]:
        axes.set_xscale("log", base=2)
    axes.set(xlabel=xlabel, ylabel="makespan, slots", xticks=ticks)
    axes.set_xticklabels([f"{tick:g}" for tick in ticks])
    axes.set_ylim(bottom=0)
    axes.legend()


def _kappas(drawing: Figure, points: Points) -> None:
    _curves(
        drawing, points, "kappa", {_share(e): {k: Setting(kappa=k, extra=e) for k in KAPPAS} for e in (EXTRA, MORE)}
    )


def _lambdas(drawing: Figure, points: Points) -> None:
    shares = {_share(e): {f: Setting(kappa=1, factor=f, extra=e) for f in LAMBDAS} for e in (EXTRA, MORE)}
    _curves(drawing, points, "lambda", shares)


def _servers(drawing: Figure, points: Points) -> None:
    rows = {name: {float(number): Setting(name, number, 1500.0) for number in SERVERS} for name in (OURS, "ff", "ls")}
    _curves(drawing, points, "servers", rows)


def _share(extra: float) -> str:
    return f"{extra:.0%} contention and overhead"


DRAWN: Mapping[str, Callable[[Figure, Points], None]] = {
    "bco-fig4": _planners,
    "bco-fig5": _kappas,
    "bco-fig6": _servers,
    "bco-fig7": _lambdas,
}
