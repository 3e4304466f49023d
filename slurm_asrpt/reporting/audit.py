"""The page of asrpt-admin audit: a zoomable timeline."""

from __future__ import annotations

import statistics
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from slurm_asrpt.audit.timeline import JobRun, QueueLength, Timeline, gpu_rows, stretches
from slurm_asrpt.audit.trail import Entry
from slurm_asrpt.errors import printable
from slurm_asrpt.reporting.html import duration, jobs, render, utc_offsets
from slurm_asrpt.slurm.notation import fold_gpus
from slurm_asrpt.text import counted

MAX_RUNS = 10_000
"""Number of latest runs in the charts; a browser cannot draw many more."""
MAX_ROWS = 500
"""Number of latest runs in the table."""
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195", "#999999")


def page(entries: Iterable[Entry], since: float, until: float, what: str, some: bool = False) -> str:
    """The HTML page. since, until: seconds since the epoch; what: which jobs, in words.

    some: the entries are of some jobs only, so the charts show the time of these jobs.
    """
    found = Timeline(entries)
    runs = [run for run in found.runs if run.start is not None or run.queued is not None]
    shown = runs[-MAX_RUNS:]
    begin, end = _span(shown, [] if some else found.queue, since, until)
    data = _data(found, shown, begin, end)
    first = max(0, len(shown) - MAX_ROWS)
    return render(
        "audit.html.j2",
        what=what[:1].upper() + what[1:],
        begin=_stamp(begin),
        end=_stamp(end),
        summary=_summary(runs),
        found=len(runs),
        some=some,
        shown=len(shown),
        legend=_legend(data["users"]),
        rows=[(first + at, _cells(run)) for at, run in enumerate(shown[first:])][::-1],
        data=data,
    )


def _span(runs: Sequence[JobRun], queue: Sequence[QueueLength], since: float, until: float) -> tuple[float, float]:
    """The part of the period in which the jobs waited and ran, or the queue is known; at least a second."""
    times = [time for run in runs for time in (run.queued, run.start, run.end) if time is not None]
    times += [row.time for row in queue]
    begin = max(since, min(times, default=since))
    open_end = any(run.end is None for run in runs)
    end = until if open_end else min(until, max(times, default=until))
    return begin, max(end, begin + 1.0)


def _data(found: Timeline, runs: Sequence[JobRun], begin: float, end: float) -> dict[str, Any]:
    number = {id(run): at for at, run in enumerate(runs)}
    nodes, bars = list[dict[str, Any]](), list[list[int]]()
    for at, name in enumerate(sorted(found.nodes, key=_natural)):
        placed = gpu_rows(runs, name, end)
        for run, rows in placed:
            bars += [[number[id(run)], at, first, count] for first, count in stretches(sorted(rows))]
        nodes.append({"name": printable(name), "rows": max((max(rows) + 1 for _, rows in placed), default=1)})
    return {
        "t0": begin,
        "t1": end,
        "offsets": utc_offsets(begin, end),
        "nodes": nodes,
        "users": _users(runs),
        "runs": [_run(run) for run in runs],
        "bars": bars,
        "queue": [[row.time, row.waiting] for row in _within(found.queue, begin, end)],
    }


def _within(queue: Sequence[QueueLength], begin: float, end: float) -> Sequence[QueueLength]:
    """The lengths from ``begin`` to ``end``, the one in force at ``begin`` included."""
    first = bisect_right(queue, begin, key=lambda row: row.time)
    return queue[max(0, first - 1) : bisect_right(queue, end, key=lambda row: row.time)]


def _natural(name: str) -> tuple[str, int, str]:
    """n2 before n10."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0), name


def _users(runs: Sequence[JobRun]) -> list[str]:
    """Users by GPU time, most first; the first ones get their own color."""
    spent = Counter[str]()
    for run in runs:
        spent[printable(run.user)] += round(run.size * (run.ran_s or 1.0)) or 1
    return [user for user, _ in spent.most_common()]


def _run(run: JobRun) -> dict[str, Any]:
    texts = {"job": run.job, "user": run.user, "name": run.name, "state": run.state, "where": fold_gpus(run.gpus)}
    return {
        **{name: printable(value) for name, value in texts.items()},
        "size": run.size,
        "start": run.start,
        "end": run.end,
        "wait": run.wait_s,
        "error": run.error,
        "ran": run.ran_s,
        "predicted": run.predicted_s,
        "why": [printable(kind) for kind in dict.fromkeys(run.why)],
        "ratio": run.alpha / run.best if run.alpha and run.best else None,
    }


def _stamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M:%S")


def _summary(runs: Sequence[JobRun]) -> str:
    if not runs:
        return ""
    ended = [run for run in runs if run.ran_s is not None]
    waits = [run.wait_s for run in runs if run.wait_s is not None]
    errors = [run.error for run in ended if run.error is not None]
    parts = [f"{jobs(len(runs))}, {len(ended)} of them ended"]
    if ended:
        parts.append(f"{sum(run.size * (run.ran_s or 0.0) for run in ended) / 3600:.1f} GPU hours")
    if waits:
        parts.append(f"median wait {duration(statistics.median(waits))}, longest {duration(max(waits))}")
    if errors:
        near = sum(0.5 <= error <= 2 for error in errors) / len(errors)
        parts.append(f"{near:.0%} of the predicted jobs ran between half and twice as long as predicted")
    return "; ".join(parts) + "."


def _legend(users: Sequence[str]) -> list[tuple[str, str]]:
    """Users and their colors; the last entry may stand for several users."""
    named = list(zip(users, _COLORS, strict=False))
    if len(users) > len(_COLORS):
        named[-1] = (counted(len(users) - len(_COLORS) + 1, "other"), _COLORS[-1])
    return named


def _cells(run: JobRun) -> tuple[str | int, ...]:
    return (
        run.job,
        run.user,
        run.name[:40],
        run.size,
        fold_gpus(run.gpus),
        "-" if run.start is None else _stamp(run.start),
        *map(duration, (run.wait_s, run.ran_s, run.predicted_s)),
        run.state or ("runs" if run.start is not None else "waits"),
    )
