"""The page of asrpt-admin audit: a timeline that zooms."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from slurm_asrpt.audit.timeline import Life, Lives, slots
from slurm_asrpt.audit.trail import Entry
from slurm_asrpt.errors import printable
from slurm_asrpt.reporting.html import duration, jobs, render
from slurm_asrpt.slurm.notation import fold_gpus
from slurm_asrpt.text import counted

MOST_RUNS = 10_000
"""The latest runs, drawn in the charts: a browser cannot draw many more."""
MOST_ROWS = 500
"""The latest runs, listed in the table."""
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#999999")


def page(entries: Iterable[Entry], since: float, until: float, what: str) -> str:
    """The whole file. since, until: seconds since the epoch; what: which jobs, in words."""
    found = Lives(entries)
    lives = [life for life in found.lives if life.start is not None or life.queued is not None]
    shown = lives[-MOST_RUNS:]
    begin, end = _span(shown, found, since, until)
    data = _data(found, shown, begin, end)
    first = max(0, len(shown) - MOST_ROWS)
    return render(
        "audit.html.j2",
        what=what[:1].upper() + what[1:],
        begin=_stamp(begin),
        end=_stamp(end),
        summary=_summary(lives),
        found=len(lives),
        shown=len(shown),
        legend=_legend(data["users"]),
        rows=[(first + at, _cells(life)) for at, life in enumerate(shown[first:])][::-1],
        data=data,
    )


def _span(lives: Sequence[Life], found: Lives, since: float, until: float) -> tuple[float, float]:
    """The part of the period in which anything happened; at least a second."""
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
    """Runs of adjacent rows as (first, count)."""
    ordered = sorted(rows)
    found = []
    for _, group in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        stretch = [row for _, row in group]
        found.append((stretch[0], len(stretch)))
    return found


def _users(lives: Sequence[Life]) -> list[str]:
    """Users by GPU time, most first: the first ones get a color of their own."""
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


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _summary(lives: Sequence[Life]) -> str:
    if not lives:
        return ""
    ended = [life for life in lives if life.ran_s is not None]
    waits = [life.wait_s for life in lives if life.wait_s is not None]
    errors = [life.error for life in ended if life.error is not None]
    said = [f"{jobs(len(lives))}, {len(ended)} of them ended"]
    if ended:
        said.append(f"{sum(life.size * (life.ran_s or 0.0) for life in ended) / 3600:.1f} GPU hours")
    if waits:
        said.append(f"median wait {duration(statistics.median(waits))}, longest {duration(max(waits))}")
    if errors:
        near = sum(0.5 <= error <= 2 for error in errors) / len(errors)
        said.append(f"{near:.0%} of the predicted jobs ran between half and twice as long as predicted")
    return "; ".join(said) + "."


def _legend(users: Sequence[str]) -> list[tuple[str, str]]:
    """Users and their colors; those who share the last color are one entry."""
    named = list(zip(users, _COLORS, strict=False))
    if len(users) > len(_COLORS):
        named[-1] = (counted(len(users) - len(_COLORS) + 1, "other"), _COLORS[-1])
    return named


def _cells(life: Life) -> tuple[str | int, ...]:
    return (
        life.job,
        life.user,
        life.name[:40],
        life.size,
        fold_gpus(life.gpus),
        "-" if life.start is None else _stamp(life.start),
        *map(duration, (life.wait_s, life.ran_s, life.predicted_s)),
        life.state or ("runs" if life.start is not None else "waits"),
    )
