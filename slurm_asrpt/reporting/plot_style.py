"""The look of all plots: colors that color-blind readers can tell apart, time axes, and labels that are only text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from slurm_asrpt.errors import InputError, printable

MAX_CURVES = 9
"""Readers cannot tell more curves apart."""

# Okabe and Ito's palette without yellow, which is faint on white, plus two greys of different lightness
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999", "#7A5195")
LINES: tuple[Any, ...] = (
    "-",
    (0, (6, 2)),
    (0, (1.5, 1.5)),
    (0, (6, 2, 1.5, 2)),
    "-",
    (0, (3, 1)),
    "-",
    "-",
    (0, (4, 2)),
)
USED, PART, WHOLE = "#0072B2", "#E69F00", "#EDEDED"
WIDTH = 9.0
SUFFIXES = (".png", ".svg", ".pdf")

_STYLE: dict[str, Any] = {
    "text.parse_math": False,  # a "$" in a label is a dollar sign
    "svg.hashsalt": "asrpt",  # the same data gives the same file
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e3e3",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.7,
    "figure.constrained_layout.use": True,
}

_TIMES = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 21600: "6 h"}
_TIMES.update({86400 * days: f"{days} d" for days in (1, 10, 100, 1000, 10_000)})
_FINE = {at * size: f"{at} {unit}" for unit, size in (("s", 1), ("min", 60)) for at in (1, 2, 5, 10, 20, 30)}
_FINE.update({3600 * hours: f"{hours} h" for hours in (1, 2, 3, 4, 6, 8, 12, 18)})
_FINE.update({86400 * days: f"{days} d" for days in (1, 2, 3, 5, 7, 10, 14, 20, 30, 50, 70, 100, 200, 300, 500, 1000)})


@contextmanager
def applied() -> Iterator[None]:
    """Within the context matplotlib uses this style, whatever the machine's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        for name, value in _STYLE.items():
            mpl.rcParams[name] = value  # type: ignore[index,unused-ignore]
        yield


def figure(height: float) -> Figure:
    """An empty figure, ``height`` inches high. Made without pyplot, so that no display is needed."""
    return Figure(figsize=(WIDTH, height))


def check_path(path: Path) -> None:
    """Raises InputError for an unsupported file suffix."""
    if path.suffix.lower() not in SUFFIXES:
        raise InputError(f"{path}: the file name must end in {', '.join(SUFFIXES)}")


def save(figure: Figure, path: Path) -> None:
    """Write the figure. Raises InputError if the file cannot be written."""
    try:
        figure.savefig(path, dpi=130)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); name another file") from None


def line(number: int) -> dict[str, Any]:
    """Color and line style of a curve."""
    return {"color": COLORS[number % MAX_CURVES], "linestyle": LINES[number % MAX_CURVES]}


def label(text: str, most: int = 44) -> str:
    """``text`` on one printable line, at most ``most`` characters long."""
    shown = printable(text)
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def legend(figure: Figure, axes: Axes, names: Sequence[str]) -> None:
    """A legend below the figure, in as many columns as fit."""
    longest = max((len(name) for name in names), default=1)
    columns = max(1, min(len(names), 4, int(110 / (longest + 8))))
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)


def seconds_axis(axes: Axes, which: str, low: float, high: float) -> None:
    """Make axis ``which`` ("x" or "y") logarithmic in seconds, with ticks at 1 s, 1 min, 1 h ..."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    low, high = max(low, 1e-3) / 1.3, max(high, 1e-3) * 1.3
    (axes.set_xlim if which == "x" else axes.set_ylim)(low, high)
    ticks: dict[float, str] = {at: name for at, name in _TIMES.items() if low <= at <= high}
    if len(ticks) < 4:
        ticks = {at: name for at, name in _FINE.items() if low <= at <= high}
    if len(ticks) < 2:
        ticks = {at: duration(at) for at in (low * (high / low) ** (step / 4) for step in range(5))}
    axis.set_major_locator(FixedLocator(list(ticks)))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda at, _: ticks.get(at, duration(at))))


def duration(seconds: float) -> str:
    """Three digits and a unit: ``90 s``, ``1.5 h``."""
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def clock_unit(longest: float) -> tuple[float, str]:
    """Seconds per unit and the unit's name, for a linear time axis up to ``longest`` seconds."""
    return (86400.0, "days") if longest > 3 * 86400 else (3600.0, "hours") if longest > 3 * 3600 else (60.0, "minutes")
