"""What asrpt-status --watch shows and what its keys do; no terminal is touched here."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurm_asrpt_cli._app.tables import Line, clip, safe, table_lines
from slurm_asrpt_cli.status.columns import SHORT, columns, fit
from slurm_asrpt_cli.status.overview import by_state
from slurm_asrpt_cli.status.read import staleness
from slurm_asrpt_cli.status.select import Selection, ordered

from slurm_asrpt.status.document import JobStatus, Status
from slurm_asrpt.text import counted

SORTS = ("", "gpus", "user", "name", "submitted", "start", "time_left")
"""What key s goes through; "": asrptd's order."""
KEYS = (
    ("q", "quit"),
    ("s", "sort by the next column"),
    ("r", "turn the order round"),
    ("m", "only my jobs, or all"),
    ("/", "show what contains a text: name, user, job, state, partition"),
    ("", "(Enter ends, Esc drops it)"),
    ("arrows", "up and down; also j and k, PgUp and PgDn, Home"),
    ("h", "this help; any key leaves it"),
)
MOVES = {"up": -1, "k": -1, "down": 1, "j": 1}
FIXED = 5
"""Lines that are no jobs: three above, with the titles, and one of keys below; and one for air."""


@dataclass(frozen=True)
class View:
    """What is looked at. chosen, keys: from the command line. typing: a filter is being typed."""

    me: str
    chosen: Selection = field(default_factory=Selection)
    keys: tuple[tuple[str, bool], ...] = ()
    sort: str = ""
    turned: bool = False
    mine: bool = False
    text: str = ""
    typing: bool = False
    offset: int = 0
    help: bool = False
    page: int = 10
    quit: bool = False


def pressed(view: View, key: str) -> View:
    """What a key does: a character, or up, down, page up, page down, home, enter, escape, backspace."""
    if view.help:
        return replace(view, help=False)
    if view.typing:
        return _typed(view, key)
    if key in MOVES:
        return _moved(view, MOVES[key])
    if key in ("page up", "page down"):
        return _moved(view, view.page if key == "page down" else -view.page)
    changes: dict[str, dict[str, object]] = {
        "q": {"quit": True},
        "s": {"sort": SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)], "turned": False, "offset": 0},
        "r": {"turned": not view.turned, "offset": 0},
        "m": {"mine": not view.mine, "offset": 0},
        "/": {"typing": True, "offset": 0},
        "home": {"offset": 0},
        "escape": {"text": "", "offset": 0},
        "h": {"help": True},
        "?": {"help": True},
    }
    return replace(view, **changes.get(key, {}))  # type: ignore[arg-type]


def _typed(view: View, key: str) -> View:
    if key == "enter":
        return replace(view, typing=False)
    if key == "escape":
        return replace(view, typing=False, text="")
    if key == "backspace":
        return replace(view, text=view.text[:-1])
    return replace(view, text=view.text + key) if len(key) == 1 and key.isprintable() else view


def _moved(view: View, lines: int) -> View:
    return replace(view, offset=max(0, view.offset + lines))


def shown_jobs(jobs: Sequence[JobStatus], view: View) -> list[JobStatus]:
    """Those that pass, in order."""
    rows = [job for job in jobs if view.chosen.takes(job) and (not view.mine or job.user == view.me)]
    if view.text:
        wanted = view.text.lower()
        rows = [job for job in rows if any(wanted in text.lower() for text in _texts(job))]
    if view.sort:
        return ordered(rows, [(view.sort, view.turned)])
    rows = ordered(rows, view.keys)
    return rows[::-1] if view.turned else rows


def _texts(job: JobStatus) -> tuple[str, ...]:
    return job.job_id, job.name, job.user, job.state, job.partition


def screen(found: Status, view: View, width: int, height: int, now: float) -> tuple[list[Line], View]:
    """The lines, at most ``height``, and the view with what there is to see: it never scrolls beyond the last job."""
    if view.help:
        return [(("Keys", "bold"),), *(_key(key, text, width) for key, text in KEYS)][:height], view
    rows, room = shown_jobs(found.jobs, view), max(1, height - FIXED)
    view = replace(view, page=room, offset=max(0, min(view.offset, len(rows) - room)))
    part = rows[view.offset : view.offset + room]
    table = table_lines(fit(columns(SHORT, part), width), True, width)
    lines = [*_head(found, rows, width, now), *table]
    lines += [()] * (height - 1 - len(lines))
    return [*lines[: height - 1], _foot(view, len(rows), width)], view


def _key(key: str, text: str, width: int) -> Line:
    return ((f"  {key:<8}", "bold"), (clip(text, max(1, width - 10)), ""))


def _head(found: Status, rows: Sequence[JobStatus], width: int, now: float) -> list[Line]:
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    free = f"{clock}  {found.gpus_free} of {counted(found.gpus_total, 'GPU')} free"
    mode = f", mode {safe(found.mode)}, policy {safe(found.policy)}"
    old = staleness(found, now)
    second = (clip(old, width), "red") if old else (clip(by_state(rows), width), "")
    return [((clip(free + mode, width), "bold"),), (second,), ()]


def _foot(view: View, total: int, width: int) -> Line:
    if view.typing:
        return ((clip(f"/{safe(view.text) if view.text else ''}_   Enter ends, Esc drops it", width), "bold"),)
    order = view.sort or (",".join(key for key, _ in view.keys) or "rank")
    parts = [
        "q quit",
        f"s sort: {order}{' turned' if view.turned else ''}",
        f"m {'mine' if view.mine else 'all'}",
        f"/ {safe(view.text)}" if view.text else "/ filter",
        "h help",
        f"{view.offset + 1 if total else 0}-{min(total, view.offset + view.page)} of {total}",
    ]
    return ((clip("  ".join(parts), width), "dim"),)
