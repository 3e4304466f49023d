"""The audit as one HTML file: a timeline to zoom into, nothing loaded from elsewhere, every text as text."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from importlib.resources import files
from itertools import groupby
from typing import Any

from slurm_asrpt.audit.timeline import Life, Lives, slots
from slurm_asrpt.audit.trail import Entry
from slurm_asrpt.errors import printable
from slurm_asrpt.reporting.html import duration, head, jobs, table, text
from slurm_asrpt.slurm.notation import fold_gpus
from slurm_asrpt.text import counted

MOST_RUNS = 10_000
"""Drawn: of more the latest. A browser can do no more, and nobody sees more."""
MOST_ROWS = 500
"""Of the table below."""
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#999999")


def page(entries: Iterable[Entry], since: float, until: float, what: str) -> str:
    """The whole file. since, until: seconds since the epoch; what: which jobs, in words."""
    found = Lives(entries)
    lives = [life for life in found.lives if life.start is not None or life.queued is not None]
    shown = lives[-MOST_RUNS:]
    begin, end = _span(shown, found, since, until)
    data = _data(found, shown, begin, end)
    script, style = (files("slurm_asrpt.audit").joinpath(name).read_text("utf-8") for name in ("page.js", "page.css"))
    parts = [
        head("What asrptd decided", script, style),
        "<h1>What asrptd decided</h1>\n",
        f"<p>{text(what[:1].upper() + what[1:])}, {_stamp(begin)} to {_stamp(end)}. {_summary(lives)}</p>\n",
    ]
    if len(lives) > len(shown):
        parts.append(f'<p class="warn">The latest {len(shown)} of {len(lives)} runs are shown.</p>\n')
    parts += _pictures(data, shown, script) if shown else ["<p>No job ran or waited in this time.</p>\n"]
    return "".join([*parts, "</body>\n</html>\n"])


def _pictures(data: Mapping[str, Any], shown: Sequence[Life], script: str) -> list[str]:
    return [
        *(_TOOLS, _legend(data["users"]), _CHARTS, _table(shown), _NOTE),
        f'<script type="application/json" id="data">{_json(data)}</script>\n<script>{script}</script>\n',
    ]


_TOOLS = (
    '<div id="tools"><button id="in" title="nearer (+)">+</button><button id="out" title="farther (-)">&minus;</button>'
    '<button id="back" title="earlier (Left)">&larr;</button><button id="on" title="later (Right)">&rarr;</button>'
    '<button id="all" title="the whole time (0)">All</button><span id="span"></span></div>\n'
    '<p class="note">Drag across a picture to zoom in; click a job to see what is known of it (Esc leaves it).</p>\n'
    '<div id="job" hidden></div>\n'
)
_CHARTS = (
    '<h2>GPUs</h2>\n<div id="servers"><svg id="gpus" class="chart" role="img" aria-label="Which job had which GPUs, '
    'by server"></svg></div>\n'
    '<h2>Jobs that waited</h2>\n<svg id="queue" class="chart" role="img" aria-label="Length of the queue"></svg>\n'
    '<h2>How long each job waited, by its start</h2>\n<svg id="waits" class="chart" role="img" '
    'aria-label="Waits"></svg>\n'
    '<h2>Run time over predicted run time, by its end</h2>\n<svg id="errors" class="chart" role="img" '
    'aria-label="Errors of the predictions"></svg>\n'
)
_NOTE = (
    '<p class="note">A row is a GPU of a server; which of its GPUs a job had nobody tells, so it is drawn on the '
    "lowest that are free. The queue is as long as the policy sees it: without jobs that are held, wait for others, or "
    "are left to Slurm. A run before the first that the trail tells of is missing. Made by asrpt-admin audit.</p>\n"
)


def _span(lives: Sequence[Life], found: Lives, since: float, until: float) -> tuple[float, float]:
    """The part of the time in which anything happened; a second at least."""
    times = [time for life in lives for time in (life.queued, life.start, life.end) if time is not None]
    times += [row.time for row in found.queue]
    begin = max(since, min(times, default=since))
    open_end = any(life.start is not None and life.end is None for life in lives)
    end = until if open_end else min(until, max(times, default=until))
    return begin, max(end, begin + 1.0)


def _data(found: Lives, lives: Sequence[Life], begin: float, end: float) -> dict[str, Any]:
    number = {id(life): at for at, life in enumerate(lives)}
    nodes, bars = list[dict[str, Any]](), list[list[int]]()
    for at, name in enumerate(sorted(found.nodes, key=_natural)):
        placed = slots(lives, name, end)
        for life, rows in placed:
            bars += [[number[id(life)], at, first, count] for first, count in _stretches(rows)]
        nodes.append({"name": printable(name), "rows": max((max(rows) + 1 for _, rows in placed), default=1)})
    return {
        "t0": begin,
        "t1": end,
        "offset": datetime.fromtimestamp(end).astimezone().utcoffset().total_seconds(),  # type: ignore[union-attr]
        "nodes": nodes,
        "users": _users(lives),
        "lives": [_life(life) for life in lives],
        "bars": bars,
        "queue": [[row.time, row.waiting] for row in found.queue],
    }


def _natural(name: str) -> tuple[str, int, str]:
    """n2 before n10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0), name


def _stretches(rows: Sequence[int]) -> list[tuple[int, int]]:
    """Rows next to each other as (first, how many)."""
    ordered = sorted(rows)
    found = []
    for _, group in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        stretch = [row for _, row in group]
        found.append((stretch[0], len(stretch)))
    return found


def _users(lives: Sequence[Life]) -> list[str]:
    """Who had the most GPU time comes first, and gets a colour."""
    spent = Counter[str]()
    for life in lives:
        spent[printable(life.user)] += round(life.size * (life.ran_s or 1.0)) or 1
    return [user for user, _ in spent.most_common()]


def _life(life: Life) -> dict[str, Any]:
    texts = {"job": life.job, "user": life.user, "name": life.name, "state": life.state, "where": fold_gpus(life.gpus)}
    return {
        **{name: printable(value) for name, value in texts.items()},
        "size": life.size,
        "start": life.start,
        "end": life.end,
        "wait": life.wait_s,
        "error": life.error,
        "ran": life.ran_s,
        "predicted": life.predicted_s,
        "why": [printable(kind) for kind in dict.fromkeys(life.why)],
        "ratio": life.alpha / life.best if life.alpha and life.best else None,
    }


def _json(data: Mapping[str, Any]) -> str:
    """As the text of a script element: nothing in it can end one."""
    return json.dumps(data, separators=(",", ":")).replace("<", r"\u003c").replace(">", r"\u003e")


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _summary(lives: Sequence[Life]) -> str:
    if not lives:
        return ""
    ended = [life for life in lives if life.ran_s is not None]
    waits = [life.wait_s for life in lives if life.wait_s is not None]
    errors = [life.error for life in ended if life.error is not None]
    said = [f"{jobs(len(lives))}, of which {len(ended)} ran and ended"]
    if ended:
        said.append(f"{sum(life.size * (life.ran_s or 0.0) for life in ended) / 3600:.1f} GPU hours")
    if waits:
        said.append(f"median wait {duration(statistics.median(waits))}, longest {duration(max(waits))}")
    if errors:
        near = sum(0.5 <= error <= 2 for error in errors) / len(errors)
        said.append(f"{near:.0%} of the predicted ones ran between half and twice as long as predicted")
    return "; ".join(said) + "."


def _legend(users: Sequence[str]) -> str:
    named = list(zip(users, _COLOURS, strict=False))
    if len(users) > len(_COLOURS):
        named[-1] = (f"{counted(len(users) - len(_COLOURS) + 1, 'other')}", _COLOURS[-1])
    spans = [f'<span><i style="background:{colour}"></i>{text(user) or "-"}</span>' for user, colour in named]
    return f'<p class="legend">{"".join(spans)}</p>\n'


def _table(lives: Sequence[Life]) -> str:
    titles = ("job", "user", "name", "GPUs", "where", "started", "waited", "ran", "predicted", "state")
    heads = "".join(f'<th class="text">{title}</th>' for title in titles)
    first = max(0, len(lives) - MOST_ROWS)
    rows = [_row(first + at, life) for at, life in enumerate(lives[first:])]
    more = f'<p class="note">The latest {MOST_ROWS} of {len(lives)}.</p>\n' if first else ""
    return f"<h2>Runs</h2>\n{more}{table(heads, ''.join(reversed(rows)))}"


def _row(number: int, life: Life) -> str:
    cells = (
        life.job,
        life.user,
        life.name[:40],
        life.size,
        fold_gpus(life.gpus),
        "-" if life.start is None else _stamp(life.start),
        *("-" if seconds is None else duration(seconds) for seconds in (life.wait_s, life.ran_s, life.predicted_s)),
        life.state or ("runs" if life.start is not None else "waits"),
    )
    return f'<tr data-life="{number}">' + "".join(f'<td class="text">{text(cell)}</td>' for cell in cells) + "</tr>\n"
