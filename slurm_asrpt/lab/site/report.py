"""What a comparison of sides found: a picture for the terminal, a plot, a table, and sentences.

The first side is what the others are compared with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from slurm_asrpt.lab.site.jobs import GPUS, Window
from slurm_asrpt.lab.site.sides import Record
from slurm_asrpt.lab.site.usage import ASCII, BLOCKS, columns, picture, span_of, usage
from slurm_asrpt.text import can_show, counted

PARTS = 288
"""Parts of the time in the plot."""
WIDEST = 100
LEAST_ROWS, MOST_ROWS = 2, 4
"""Of the terminal, for the bars of one side."""
OTHER_LINES = 14
"""Lines of the terminal for titles, the table and the sentences."""
COLORS = ("cyan", "yellow", "green", "magenta", "blue")
MEAN = ("completion_s", "mean")
ROWS: Mapping[str, tuple[tuple[str, ...], float, str]] = {
    "mean completion, min": (("completion_s", "mean"), 60.0, ".1f"),
    "median completion, min": (("completion_s", "p50"), 60.0, ".1f"),
    "mean wait, min": (("wait_s", "mean"), 60.0, ".1f"),
    "p99 wait, min": (("wait_s", "p99"), 60.0, ".1f"),
    "mean bounded slowdown": (("slowdown", "mean"), 1.0, ".2f"),
    "makespan, h": (("makespan_s",), 3600.0, ".2f"),
    "GPUs in use, %": (("utilisation",), 0.01, ".1f"),
}
"""Titles, keys in the figures, the unit that they are shown in, and the format. Less is better, except for the last."""


def value(found: Mapping[str, Any], keys: Sequence[str]) -> float:
    for key in keys:
        found = found[key]
    return float(found)  # type: ignore[arg-type]


def table(sides: Mapping[str, Mapping[str, Any]]) -> Table:
    """The figures side by side, with ratios to those of the first side. Readable from 40 columns."""
    first = next(iter(sides.values()))
    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown.add_column("", overflow="fold")
    for name in sides:
        shown.add_column(name, justify="right", overflow="fold")
    for title, (keys, unit, form) in ROWS.items():
        cells = [
            _cell(value(found, keys), None if found is first else value(first, keys), unit, form)
            for found in sides.values()
        ]
        shown.add_row(title, *cells)
    return shown


def _cell(found: float, before: float | None, unit: float, form: str) -> str:
    over = f" ({found / before:.2f})" if before else ""
    return format(found / unit, form) + over


def verdict(sides: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """The ratio of mean completion times as a sentence, and what became worse."""
    change = ratios(sides)[name] - 1
    first = next(iter(sides))
    if abs(change) < 0.005:
        what = f"that under {first}"
    else:
        what = f"{abs(change):.0%} {'shorter' if change < 0 else 'longer'} than under {first}"
    worse = [title.partition(",")[0] for title, (keys, _, _) in ROWS.items() if _worse(sides[first], sides[name], keys)]
    return f"{name}: mean completion is {what}" + (f"; worse: {', '.join(worse)}" if worse else "")


def ratios(sides: Mapping[str, Any]) -> dict[str, float]:
    """Mean completion time of the other sides over that of the first; below 1, the first is slower."""
    first, *others = sides
    return {name: value(sides[name], MEAN) / value(sides[first], MEAN) for name in others}


def _worse(plain: Mapping[str, Any], ours: Mapping[str, Any], keys: Sequence[str]) -> bool:
    before, after = value(plain, keys), value(ours, keys)
    if keys == ("utilisation",):
        before, after = after, before
    return after > 1.005 * before


def show_picture(out: Console, window: Window, records: Mapping[str, Sequence[Record]]) -> None:
    """Print queue and GPUs in use over time, in colors on a terminal."""
    span_s, width = span_of(records), min(WIDEST, out.width)
    bars = {name: usage(window.jobs, side, span_s, columns(width)) for name, side in records.items()}
    rows = min(MOST_ROWS, max(LEAST_ROWS, (out.height - OTHER_LINES) // (2 * len(records))))
    signs = BLOCKS if can_show(BLOCKS, out.encoding) else ASCII
    for each in picture(bars, window.servers * GPUS, span_s, width, rows, signs):
        style = "" if each.side is None else COLORS[each.side % len(COLORS)]
        out.print(each.text, style=style, markup=False, no_wrap=True, crop=False)


def write_plot(window: Window, records: Mapping[str, Sequence[Record]], path: Path) -> None:
    """The same as a plot. Raises InputError if it cannot be written."""
    from slurm_asrpt.reporting.usage_plot import draw  # matplotlib takes a second

    span_s = span_of(records)
    lines = {name: usage(window.jobs, side, span_s, PARTS) for name, side in records.items()}
    cluster = f"{window.servers} x {GPUS} GPUs, load {window.load:.2f}"
    title = f"{counted(len(window.jobs), 'job')} of {window.trace.name} on {cluster}"
    values = {name: (each.waiting.tolist(), each.gpus.tolist()) for name, each in lines.items()}
    draw(title, values, window.servers * GPUS, span_s, path)
