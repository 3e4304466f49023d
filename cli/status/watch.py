"""asrpt-status --watch: what the screen shows, what the keys do, and the terminal that it runs on.

The first part is pure: ``screen`` gives the lines, ``pressed`` the view after a key. The second part runs it in curses,
which sends only what has changed and restores the terminal.
"""

from __future__ import annotations

import curses
import gc
import locale
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from slurm_asrpt_cli._app.tables import Line, clip, safe, table_lines
from slurm_asrpt_cli.status.overview import by_state, free_gpus
from slurm_asrpt_cli.status.selection import Selection, check_users, missing_jobs, ordered, unknown_names
from slurm_asrpt_cli.status.status_file import published, staleness
from slurm_asrpt_cli.status.table import SHORT, columns, fit, start_note

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.status.document import FILE_NAME, JobStatus, Status

SORTS = ("", "gpus", "user", "name", "submitted", "start", "time_left")
"""The columns that key s cycles through; "": asrptd's order."""
KEYS = (
    ("q", "quit"),
    ("s", "sort by the next column"),
    ("r", "reverse the order"),
    ("m", "show only your jobs, or all"),
    ("/", "filter by name, user, job ID, state or partition"),
    ("", "(Enter applies it, Esc clears it)"),
    ("arrows", "scroll; also j and k, PgUp, PgDn and Home"),
    ("h", "show this help; any key closes it"),
)
MOVES = {"up": -1, "k": -1, "down": 1, "j": 1}
FIXED = 5
"""Lines without jobs: two of summary, an empty one, the column titles, and the keys at the bottom."""


@dataclass(frozen=True)
class View:
    """What the screen shows. chosen, keys: from the command line. typing: whether a filter is being typed."""

    me: str
    chosen: Selection = field(default_factory=Selection)
    keys: tuple[tuple[str, bool], ...] = ()
    sort: str = ""
    descending: bool = False
    mine: bool = False
    text: str = ""
    typing: bool = False
    offset: int = 0
    help: bool = False
    page: int = 10
    quit: bool = False


def pressed(view: View, key: str) -> View:
    """The view after a key: a character, or up, down, page up, page down, home, enter, escape, backspace."""
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
        "s": {"sort": SORTS[(SORTS.index(view.sort) + 1) % len(SORTS)], "descending": False, "offset": 0},
        "r": {"descending": not view.descending, "offset": 0},
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
    """The jobs that pass the filters, sorted."""
    rows = [job for job in jobs if view.chosen.takes(job) and (not view.mine or job.user == view.me)]
    if view.text:
        wanted = view.text.lower()
        rows = [job for job in rows if any(wanted in text.lower() for text in _texts(job))]
    if view.sort:
        return ordered(rows, [(view.sort, view.descending)])
    rows = ordered(rows, view.keys)
    return rows[::-1] if view.descending else rows


def _texts(job: JobStatus) -> tuple[str, ...]:
    return job.job_id, job.name, job.user, job.state, job.partition


def screen(found: Status, view: View, width: int, height: int, now: float) -> tuple[list[Line], View]:
    """At most ``height`` lines, and the view with its offset limited so that it never scrolls past the last job."""
    if view.help:
        return [(("Keys", "bold"),), *(_help_line(key, text, width) for key, text in KEYS)][:height], view
    rows, room = shown_jobs(found.jobs, view), max(1, height - FIXED)
    view = replace(view, page=room, offset=max(0, min(view.offset, len(rows) - room)))
    part = rows[view.offset : view.offset + room]
    fitted = fit(columns(SHORT, part), width)
    lines = [*_head(found, rows, width, now), *table_lines(fitted, True, width)]
    lines[2] = _note(found, view.chosen, start_note(part, fitted), width)
    lines += [()] * (height - 1 - len(lines))
    return [*lines[: height - 1], _foot(view, len(rows), width)], view


def _help_line(key: str, text: str, width: int) -> Line:
    return ((f"  {key:<8}", "bold"), (clip(text, max(1, width - 10)), ""))


def _head(found: Status, rows: Sequence[JobStatus], width: int, now: float) -> list[Line]:
    clock = time.strftime("%H:%M:%S", time.localtime(now))
    free = f"{clock}  {free_gpus(found)}"
    mode = f", mode {safe(found.mode)}, policy {safe(found.policy)}"
    old = staleness(found, now)
    second = (clip(old, width), "red") if old else (clip(by_state(rows, width), width), "")
    return [((clip(free + mode, width), "bold"),), (second,), ()]


def _note(found: Status, chosen: Selection, other: str, width: int) -> Line:
    """What the selection names and nobody knows, so that an empty screen does not look like an empty queue."""
    unknown = [*unknown_names(chosen, found), *missing_jobs(found.jobs, chosen)]
    return ((clip("; ".join(unknown), width), "yellow") if unknown else (clip(other, width), "dim"),)


def _foot(view: View, total: int, width: int) -> Line:
    if view.typing:
        return ((clip(f"/{safe(view.text) if view.text else ''}_   Enter applies it, Esc clears it", width), "bold"),)
    order = view.sort or (",".join(key for key, _ in view.keys) or "rank")
    parts = [
        "q quit",
        f"s sort: {order}{' reversed' if view.descending else ''}",
        f"m {'mine' if view.mine else 'all'}",
        f"/ {safe(view.text)}" if view.text else "/ filter",
        "h help",
        f"{view.offset + 1 if total else 0}-{min(total, view.offset + view.page)} of {total}",
    ]
    return ((clip("  ".join(parts), width), "dim"),)


# The terminal

LOOK_MS = 500
"""How often the clock is updated and the status file is checked."""
ESCAPE_MS = 50
"""How long to wait for the rest of an escape sequence; the default of ncurses is a second."""
_KEY_NAMES = {
    curses.KEY_UP: "up",
    curses.KEY_DOWN: "down",
    curses.KEY_PPAGE: "page up",
    curses.KEY_NPAGE: "page down",
    curses.KEY_HOME: "home",
    curses.KEY_ENTER: "enter",
    curses.KEY_BACKSPACE: "backspace",
    "\n": "enter",
    "\r": "enter",
    "\x1b": "escape",
    "\x7f": "backspace",
    "\b": "backspace",
}
_COLORS = {"green": curses.COLOR_GREEN, "yellow": curses.COLOR_YELLOW, "red": curses.COLOR_RED}


def watch_command(folder: Path, chosen: Selection, keys: Sequence[tuple[str, bool]], me: str) -> None:
    """Show the queue until q is pressed.

    Raises InputError without a terminal or if nobody knows the chosen users, AsrptError without a status.
    """
    if Phase.ENDED in chosen.states:
        raise InputError("--watch does not show ended jobs; leave out --watch, or --state all and ended")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("--watch needs a terminal; in a pipe or script use asrpt-status --parsable or --json")
    gc.enable()
    source = Source(folder)
    source.refresh()
    check_users(chosen, source.found)
    locale.setlocale(locale.LC_ALL, "")
    os.environ.setdefault("ESCDELAY", str(ESCAPE_MS))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        curses.setupterm()
        if not curses.tigetstr("cup"):
            raise curses.error("it cannot move the cursor")
        curses.wrapper(_loop, source, View(me, chosen, tuple(keys)))
    except curses.error as error:
        kind = os.environ.get("TERM") or "(none)"
        raise InputError(f"--watch: cannot use this terminal ({error}); TERM is {kind}, set another") from None


def _leave(number: int, _: FrameType | None) -> NoReturn:
    """Exit by an exception, so that the terminal is restored first."""
    sys.exit(128 + number)


class Source:
    """The status, read again whenever asrptd has written it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._seen = folder, (0, 0)
        self.found = Status(0.0, "", "", 0.0, 0, 0)

    def refresh(self) -> None:
        """Read the status if it has changed. Raises AsrptError if there is none."""
        path = self._folder / FILE_NAME
        try:
            stat = path.stat()
        except OSError:
            stat = None
        seen = (stat.st_mtime_ns, stat.st_ino) if stat else (0, 0)
        if seen != self._seen or not stat:
            self.found, self._seen = published(self._folder, time.time()), seen

    def keep_refreshing(self) -> None:
        """The same, but an unreadable status leaves the last one, which is then reported as old."""
        try:
            self.refresh()
        except AsrptError:
            self._seen = (0, 0)


def _loop(window: curses.window, source: Source, view: View) -> None:
    styles = _styles()
    window.timeout(LOOK_MS)
    while not view.quit:
        height, width = window.getmaxyx()
        lines, view = screen(source.found, view, width, height, time.time())
        _draw(window, lines, styles, width)
        key = _read_key(window)
        view = pressed(view, key) if key else view
        source.keep_refreshing()


def _styles() -> Callable[[str], int]:
    """Attributes by the names of styles; without colors if NO_COLOR is set."""
    if curses.tigetstr("civis"):
        curses.curs_set(0)
    plain = {"bold": curses.A_BOLD, "dim": curses.A_DIM}
    if os.environ.get("NO_COLOR") or not curses.has_colors():
        return lambda name: plain.get(name, curses.A_BOLD if name == "red" else curses.A_NORMAL)
    curses.use_default_colors()
    for number, color in enumerate(_COLORS.values(), start=1):
        curses.init_pair(number, color, -1)
    pairs = {name: curses.color_pair(number) for number, name in enumerate(_COLORS, start=1)}
    return lambda name: (plain | pairs).get(name, curses.A_NORMAL)


def _draw(window: curses.window, lines: Sequence[Line], styles: Callable[[str], int], width: int) -> None:
    window.erase()  # in memory only; refresh sends the differences
    for row, line in enumerate(lines):
        window.move(row, 0)
        for text, style in line:
            try:
                window.addstr(text, styles(style))
            except curses.error:  # the last cell of the screen: it is written, but the cursor cannot move on
                break
    window.refresh()


def _read_key(window: curses.window) -> str:
    """The key pressed; "" for none, or after a resize."""
    try:
        found = window.get_wch()
    except curses.error:
        return ""
    if found in _KEY_NAMES:
        return _KEY_NAMES[found]
    return found if isinstance(found, str) else ""
