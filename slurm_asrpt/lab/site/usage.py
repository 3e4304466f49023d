"""Jobs that wait and GPUs in use over a window, from what Slurm recorded; and both as text for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.lab.site.jobs import SiteJob
from slurm_asrpt.lab.site.sides import Record

Floats = NDArray[np.float64]
BLOCKS = " ▁▂▃▄▅▆▇█"
ASCII = " .:|"
MARKS_H = (1, 2, 3, 4, 6, 12, 24)
_MOST_MARKS = 7


class Usage(NamedTuple):
    """Means over equal parts of the time. waiting: jobs. gpus: in use."""

    waiting: Floats
    gpus: Floats


def usage(jobs: Sequence[SiteJob], records: Sequence[Record], span_s: float, parts: int) -> Usage:
    """The usage in each of so many equal parts of ``span_s``. Jobs wait from the time when they were due."""
    edges = np.linspace(0.0, span_s, parts + 1)
    due, start, end = (np.array([getattr(each, key) for each in records]) for key in ("due", "start", "end"))
    gpus = np.array([job.gpus for job in jobs])
    return Usage(_mean(edges, due, start, np.ones(len(due))), _mean(edges, start, end, gpus))


def _mean(edges: Floats, begin: Floats, end: Floats, weight: Floats) -> Floats:
    """Mean weight of the intervals that are open, in each part."""
    passed = np.clip(edges[:, None], begin, np.maximum(begin, end)) - begin
    found: Floats = np.diff((passed * weight).sum(axis=1)) / np.diff(edges)
    return found


def span_of(sides: Mapping[str, Sequence[Record]]) -> float:
    """Seconds, in whole hours, until the last job of all sides has been submitted and has started."""
    return math.ceil(max(max(each.due, each.start) for side in sides.values() for each in side) / 3600) * 3600.0


class Line(NamedTuple):
    """A line of text. side: the number of the side that it shows; None for titles and the axis."""

    text: str
    side: int | None = None


def picture(
    sides: Mapping[str, Usage], capacity: int, span_s: float, width: int, rows: int, signs: str = BLOCKS
) -> Iterator[Line]:
    """Bars over time, those of one kind on one scale. sides: ``usage`` with as many parts as ``columns`` says.

    capacity: GPUs of the cluster. width: of the lines, characters. rows: of the bars of one side.
    """
    gutter = width - columns(width)
    most = max(1.0, *(float(each.waiting.max()) for each in sides.values()))
    yield Line("Jobs waiting")
    for number, (name, each) in enumerate(sides.items()):
        yield from _bars(name, each.waiting, most, rows, gutter, number, signs)
    yield Line("GPUs in use")
    for number, (name, each) in enumerate(sides.items()):
        yield from _bars(name, each.gpus, float(capacity), rows, gutter, number, signs)
    yield Line(_axis(span_s, gutter, width))


def columns(width: int) -> int:
    """How many parts of the time a picture of this width shows."""
    return max(10, width - 19)


def _bars(name: str, values: Floats, most: float, rows: int, gutter: int, side: int, signs: str) -> Iterator[Line]:
    steps = len(signs) - 1
    filled = np.ceil(np.clip(values / most, 0.0, 1.0) * rows * steps - 1e-9).astype(int)
    for row in reversed(range(rows)):
        bars = "".join(signs[min(steps, max(0, level - row * steps))] for level in filled)
        scale = f"{math.ceil(most):>4}" if row == rows - 1 else "   0" if not row else "    "
        label = name[: gutter - 6] if row == rows - 1 else ""
        yield Line(f"{label:<{gutter - 6}} {scale}|{bars}".rstrip(), side)


def _axis(span_s: float, gutter: int, width: int) -> str:
    """Marks in hours since the first submission."""
    hours = span_s / 3600
    every = next((mark for mark in MARKS_H if hours / mark <= _MOST_MARKS), MARKS_H[-1])
    line = [" "] * (width + 6)
    for mark in range(0, math.floor(hours) + 1, every):
        at = gutter + min(width - gutter - 1, round(mark / hours * (width - gutter)))
        text = f"{mark} h"
        line[at : at + len(text)] = text
    return "".join(line[:width]).rstrip()
