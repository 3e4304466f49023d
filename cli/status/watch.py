"""asrpt-status --watch: the screen on a real terminal. curses sends only what has changed, and puts everything back."""

from __future__ import annotations

import curses
import gc
import locale
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from slurm_asrpt_cli._app.tables import Line
from slurm_asrpt_cli.status.read import published
from slurm_asrpt_cli.status.screen import View, pressed, screen
from slurm_asrpt_cli.status.select import Selection

from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.status.document import FILE_NAME, Status

LOOK_MS = 500
"""How often the clock goes on and the status is looked for."""
ESCAPE_MS = 50
"""How long a lone Escape is waited for to be more; ncurses itself takes a second."""
_KEYS = {
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
_COLOURS = {"green": curses.COLOR_GREEN, "yellow": curses.COLOR_YELLOW, "red": curses.COLOR_RED}


def watch_command(folder: Path, chosen: Selection, keys: Sequence[tuple[str, bool]], me: str) -> None:
    """Show the queue until q is pressed. Raises InputError where there is no terminal, AsrptError without a status."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputError("--watch needs a terminal; in a pipe or script use asrpt-status --parsable or --json")
    gc.enable()
    source = Source(folder)
    source.look()
    locale.setlocale(locale.LC_ALL, "")
    os.environ.setdefault("ESCDELAY", str(ESCAPE_MS))
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        curses.setupterm()
        if not curses.tigetstr("cup"):
            raise curses.error("it cannot move its cursor")
        curses.wrapper(_loop, source, View(me, chosen, tuple(keys)))
    except curses.error as error:
        kind = os.environ.get("TERM") or "(none)"
        raise InputError(f"--watch: this terminal cannot be used ({error}); TERM is {kind}, set another") from None


def _leave(number: int, _: FrameType | None) -> NoReturn:
    """As an exception, so that the terminal is put back first."""
    sys.exit(128 + number)


class Source:
    """The status, read again when asrptd has written it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._seen = folder, (0, 0)
        self.found = Status(0.0, "", "", 0.0, 0, 0)

    def look(self) -> None:
        """Raises AsrptError where there is none."""
        path = self._folder / FILE_NAME
        try:
            stat = path.stat()
        except OSError:
            stat = None
        seen = (stat.st_mtime_ns, stat.st_ino) if stat else (0, 0)
        if seen != self._seen or not stat:
            self.found, self._seen = published(self._folder, time.time()), seen

    def keep_looking(self) -> None:
        """The same, but what cannot be read leaves the last one, which then grows old."""
        try:
            self.look()
        except AsrptError:
            self._seen = (0, 0)


def _loop(window: curses.window, source: Source, view: View) -> None:
    styles = _styles()
    window.timeout(LOOK_MS)
    while not view.quit:
        height, width = window.getmaxyx()
        lines, view = screen(source.found, view, width, height, time.time())
        _draw(window, lines, styles, width)
        key = _key(window)
        view = pressed(view, key) if key else view
        source.keep_looking()


def _styles() -> Callable[[str], int]:
    """Attributes by the names of styles; no colours where NO_COLOR says so."""
    if curses.tigetstr("civis"):
        curses.curs_set(0)
    plain = {"bold": curses.A_BOLD, "dim": curses.A_DIM}
    if os.environ.get("NO_COLOR") or not curses.has_colors():
        return lambda name: plain.get(name, curses.A_BOLD if name == "red" else curses.A_NORMAL)
    curses.use_default_colors()
    for number, colour in enumerate(_COLOURS.values(), start=1):
        curses.init_pair(number, colour, -1)
    pairs = {name: curses.color_pair(number) for number, name in enumerate(_COLOURS, start=1)}
    return lambda name: (plain | pairs).get(name, curses.A_NORMAL)


def _draw(window: curses.window, lines: Sequence[Line], styles: Callable[[str], int], width: int) -> None:
    window.erase()  # in memory: only what differs goes to the terminal
    for row, line in enumerate(lines):
        window.move(row, 0)
        for text, style in line:
            try:
                window.addstr(text, styles(style))
            except curses.error:  # the last cell of the screen: written, but the cursor has nowhere to go
                break
    window.refresh()


def _key(window: curses.window) -> str:
    """The key pressed, "" if none was, or the window has another size."""
    try:
        found = window.get_wch()
    except curses.error:
        return ""
    if found in _KEYS:
        return _KEYS[found]
    return found if isinstance(found, str) else ""
