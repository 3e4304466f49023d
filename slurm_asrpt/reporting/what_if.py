"""The what-if comparison as one HTML file: nothing is loaded from elsewhere, every text from outside is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slurm_asrpt.reporting.html import duration, head, table, text
from slurm_asrpt.sim.what_if import LIMITS, Outcome, Past, remarks

COLUMNS: Mapping[str, str] = {
    "mean_wait_s": "mean wait",
    "p50_wait_s": "median wait",
    "p90_wait_s": "90% wait",
    "p99_wait_s": "99% wait",
    "max_wait_s": "longest wait",
    "mean_jct_s": "mean completion",
    "jct_over_real": "ratio to Slurm",
    "mean_slowdown": "mean slowdown",
    "later_than_real": "later than really",
    "never_started": "never started",
}
REAL = ' class="real"'
_COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#B8A900")
_WIDTH, _HEIGHT, _LEFT, _TOP = 760, 320, 50, 10
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_TICKS = (
    *("1 s", "1 min", "1 h", "1 d", "1 w", "10 w", "10 s", "10 min", "10 h"),
    *("3 s", "30 s", "3 min", "30 min", "3 h", "2 s", "5 s", "20 s"),
)
"""The most welcome first."""
_APART = 45
"""Units of the picture between two of them, at least."""


def cell(name: str, value: Any) -> str:
    """A figure as people read it."""
    if value is None:
        return "-"
    if name.endswith("_s"):
        return duration(value)
    if name == "later_than_real":
        return f"{100 * value:.0f}%"
    return str(value) if isinstance(value, int) else f"{value:.3g}" if value >= 10 else f"{value:.2f}"


def page(past: Past, outcomes: Sequence[Outcome], interrupted: bool) -> str:
    """The whole file."""
    parts = [head("What if: the same jobs under other policies"), "<h1>The same jobs under other policies</h1>\n"]
    if interrupted:
        parts.append("<p><strong>Interrupted: policies are missing.</strong></p>\n")
    parts += [f"<p>{text(line)}</p>\n" for line in remarks(past)]
    parts += [outcome_table(outcomes), "<h2>How many jobs waited at most so long</h2>\n", curves(outcomes)]
    parts.append("<h2>What this does not show</h2>\n<ul>")
    parts += [f"<li>{text(line)}</li>\n" for line in LIMITS]
    parts.append(
        '</ul>\n<p class="note">Completion runs from submission to end; slowdown is completion over run time. '
        "<em>Later than really</em>: jobs that would have started over a minute later than they did. Made by asrpt-sim "
        "what-if.</p>\n</body></html>\n"
    )
    return "".join(parts)


def outcome_table(outcomes: Sequence[Outcome]) -> str:
    """A row for each, the first one marked as real."""
    titles = '<th class="text"></th>' + "".join(f"<th>{text(title)}</th>" for title in COLUMNS.values())
    rows = [
        f"<tr{'' if number else REAL}>{_name(each.name)}"
        + "".join(f"<td>{text(cell(name, each.figures[name]))}</td>" for name in COLUMNS)
        + "</tr>\n"
        for number, each in enumerate(outcomes)
    ]
    return table(titles, "".join(rows))


def _name(name: str) -> str:
    return f'<td class="text">{text(name)}</td>'


def curves(outcomes: Sequence[Outcome]) -> str:
    """Cumulative distributions of the waits; the axis is logarithmic, from one second."""
    most = max([10.0, *(float(each.wait.max()) for each in outcomes if len(each.wait))])
    shapes = [_axes(most)]
    for number, each in enumerate(outcomes):
        colour = _COLOURS[number % len(_COLOURS)]
        if len(each.wait):
            shapes.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{_points(each, most)}"/>')
        y = _TOP + 20 + 18 * number
        shapes.append(f'<rect x="{_WIDTH + 12}" y="{y - 9}" width="14" height="4" fill="{colour}"/>')
        shapes.append(f'<text x="{_WIDTH + 32}" y="{y - 3}" font-size="13">{text(each.name)}</text>')
    size = f'viewBox="0 0 {_WIDTH + 200} {_HEIGHT + 40}" width="{_WIDTH + 200}"'
    label = "Share of the jobs that waited at most so long, for each policy"
    return f'<svg {size} role="img" aria-label="{label}">{"".join(shapes)}</svg>\n'


def _points(each: Outcome, most: float) -> str:
    share = np.linspace(0, 100, 201)
    waits = np.percentile(each.wait, share)
    return " ".join(f"{_x(wait, most):.1f},{_y(part / 100):.1f}" for wait, part in zip(waits, share, strict=True))


def _x(seconds: float, most: float) -> float:
    return float(_LEFT + (_WIDTH - _LEFT) * np.log(max(seconds, 1.0)) / np.log(most))


def _y(share: float) -> float:
    return _TOP + (_HEIGHT - _TOP) * (1 - share)


def _axes(most: float) -> str:
    lines = [
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{_y(share):.0f}" y2="{_y(share):.0f}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 6}" y="{_y(share) + 4:.0f}" font-size="12" text-anchor="end">{100 * share:.0f}%</text>'
        for share in (0, 0.25, 0.5, 0.75, 1)
    ]
    lines += [
        f'<text x="{_x(at, most):.0f}" y="{_HEIGHT + 20}" font-size="12" text-anchor="middle">{name}</text>'
        for at, name in _ticks(most)
    ]
    return "".join(lines)


def _ticks(most: float) -> list[tuple[int, str]]:
    """Seconds and their names: as many as there is room for."""
    shown: list[tuple[int, str]] = []
    for name in _TICKS:
        count, unit = name.split()
        at = int(count) * _UNITS[unit]
        if at <= most and all(abs(_x(at, most) - _x(other, most)) >= _APART for other, _ in shown):
            shown.append((at, name))
    return shown
