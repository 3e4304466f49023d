"""The page of asrpt-sim what-if, and the comparison of policies that it shares with the shadow report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from slurm_asrpt.reporting.html import duration, render
from slurm_asrpt.reporting.shares import tables
from slurm_asrpt.sim.what_if import AS_IT_WAS, Outcome, Past, by_group, ours
from slurm_asrpt.sim.what_if_remarks import remarks, unlike_slurm
from slurm_asrpt.slurm.notation import UNITS

COLUMNS: Mapping[str, str] = {
    "mean_wait_s": "mean wait",
    "p50_wait_s": "median wait",
    "p90_wait_s": "90% wait",
    "p99_wait_s": "99% wait",
    "max_wait_s": "longest wait",
    "mean_jct_s": "mean completion",
    "jct_over_real": "ratio to Slurm",
    "jct_over_simulated": "ratio to simulated",
    "mean_slowdown": "mean slowdown",
    "later_than_real": "started later",
    "never_started": "never started",
}
_REAL, _OURS = "var(--front)", "var(--used)"
_OTHERS = ("#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A900")
_WIDTH, _HEIGHT, _LEFT, _TOP = 760, 320, 70, 10
_TICKS = (
    *("1 s", "1 min", "1 h", "1 d", "1 w", "10 w", "10 s", "10 min", "10 h"),
    *("3 s", "30 s", "3 min", "30 min", "3 h", "2 s", "5 s", "20 s"),
)
"""Ticks of the time axis, the preferred ones first."""
LEAST_GAP = 45
"""Minimum distance between ticks, in units of the picture."""


def cell(name: str, value: Any) -> str:
    """A figure of an outcome for display."""
    if value is None:
        return "-"
    if name.endswith("_s"):
        return duration(value)
    if name == "later_than_real":
        return f"{100 * value:.0f}%"
    return str(value) if isinstance(value, int) else f"{value:.3g}" if value >= 10 else f"{value:.2f}"


def page(past: Past, outcomes: Sequence[Outcome], interrupted: bool) -> str:
    """The HTML page."""
    shown = ours(outcomes)
    shares, said = by_group(past, shown, outcomes) if shown else ({}, "")
    return render(
        "what_if.html.j2",
        headline=said,
        groups=tables(shares),
        interrupted=interrupted,
        remarks=[*unlike_slurm(outcomes), *remarks(past)],
        outcomes=comparison(outcomes),
        limits=past.notes["limits"],
    )


def comparison(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Values for ``outcomes.html.j2``: a row for each outcome, and a curve, the cumulative distribution of its waits.

    A column for jobs that never started is only there if there are any.
    The curves' axis is logarithmic, from one second. Coordinates are units of the picture.
    """
    names = [name for name in COLUMNS if name != "never_started" or any(each.figures[name] for each in outcomes)]
    most = max([10.0, *(float(each.wait.max()) for each in outcomes if len(each.wait))])
    return {
        "heads": ["", *(COLUMNS[name] for name in names)],
        "rows": [[each.words, *(cell(name, each.figures[name]) for name in names)] for each in outcomes],
        "width": _WIDTH,
        "height": _HEIGHT,
        "left": _LEFT,
        "levels": [(round(_y(share)), f"{100 * share:.0f}%") for share in (0, 0.25, 0.5, 0.75, 1)],
        "ticks": [(round(place), name) for place, name in ticks(most)],
        "curves": [
            {"name": each.words, "color": color, "points": _points(each, most)}
            for each, color in zip(outcomes, _colors(outcomes), strict=True)
        ],
    }


def _colors(outcomes: Sequence[Outcome]) -> list[str]:
    """Slurm as it was has the color of text, asrptd's default is blue, on every page; the others get what remains."""
    rest = cycle(_OTHERS)
    shown = ours(outcomes)
    return [_REAL if each.name == AS_IT_WAS else _OURS if each is shown else next(rest) for each in outcomes]


def _points(each: Outcome, most: float) -> str:
    """The points of a polyline; empty if there are no waits."""
    if not len(each.wait):
        return ""
    share = np.linspace(0, 100, 201)
    waits = np.percentile(each.wait, share)
    return " ".join(f"{_x(wait, most):.1f},{_y(part / 100):.1f}" for wait, part in zip(waits, share, strict=True))


def _x(seconds: float, most: float) -> float:
    return float(_LEFT + (_WIDTH - _LEFT) * np.log(max(seconds, 1.0)) / np.log(most))


def _y(share: float) -> float:
    return _TOP + (_HEIGHT - _TOP) * (1 - share)


def ticks(most: float) -> list[tuple[float, str]]:
    """Places and names of the ticks on an axis up to ``most`` seconds, as many as fit."""
    shown: dict[str, float] = {}
    for name in _TICKS:
        count, unit = name.split()
        seconds = int(count) * UNITS[unit]
        place = _x(seconds, most)
        if seconds <= most and all(abs(place - other) >= LEAST_GAP for other in shown.values()):
            shown[name] = place
    return [(place, name) for name, place in shown.items()]
