"""Plots of the SJF-BCO paper's figures: means over the seeds, with standard deviations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from papers.seeded import deviation
from papers.sjf_bco.simulations import FIGURES, KAPPAS, LAMBDAS, SERVERS, Points, Setting, rows
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
    """Makespan and average completion side by side, for both readings and shares of contention and overhead."""
    each = drawing.subplots(2, 2, sharex=True, sharey=True).flat
    for axes, (name, settings) in zip(each, rows("bco-fig4").items(), strict=True):
        found = [points[one] for one in settings]
        _bars(axes, -BAR / 2, [point.makespan for point in found], "makespan", 0)
        _bars(axes, BAR / 2, [point.mean for point in found], "average completion", 1)
        axes.set(title=name, xticks=range(len(settings)), ylabel="slots")
        axes.set_xticklabels([one.planner + ("\nby size" if one.by_size else "") for one in settings], fontsize=7)
        axes.grid(visible=False, axis="x")
        axes.label_outer()
    each[0].legend(loc="upper left")


def _bars(axes: Axes, shift: float, rows: Sequence[Sequence[float]], label: str, number: int) -> None:
    places = [place + shift for place in range(len(rows))]
    heights, deviations = list(map(fmean, rows)), list(map(deviation, rows))
    axes.bar(places, heights, BAR, yerr=deviations, label=label, color=plot_style.COLORS[number], capsize=2.0)


def _curves(drawing: Figure, points: Points, xlabel: str, rows: Mapping[str, Mapping[float, Setting]]) -> None:
    """Makespans along an axis. rows: for each curve, its settings by their value on the axis, which is logarithmic if
    the values double."""
    axes = drawing.subplots()
    for number, (name, row) in enumerate(rows.items()):
        found = [points[setting].makespan for setting in row.values()]
        deviations = list(map(deviation, found))
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


def _along(figure: str, axis: Sequence[float]) -> dict[str, dict[float, Setting]]:
    return {name: dict(zip(axis, settings, strict=True)) for name, settings in rows(figure).items()}


def _kappas(drawing: Figure, points: Points) -> None:
    _curves(drawing, points, "kappa", _along("bco-fig5", KAPPAS))


def _lambdas(drawing: Figure, points: Points) -> None:
    _curves(drawing, points, "lambda", _along("bco-fig7", LAMBDAS))


def _servers(drawing: Figure, points: Points) -> None:
    _curves(drawing, points, "servers", _along("bco-fig6", SERVERS))


DRAWN: Mapping[str, Callable[[Figure, Points], None]] = {
    "bco-fig4": _planners,
    "bco-fig5": _kappas,
    "bco-fig6": _servers,
    "bco-fig7": _lambdas,
}
