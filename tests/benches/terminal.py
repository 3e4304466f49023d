"""A program on a terminal in memory: its screen, and the state in which it leaves the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyte

PATIENCE_S = 60.0
LEAVE_ALTERNATE_SCREEN = b"\x1b[?1049l"
"""rmcup of xterm: return to the previous screen."""


class Screen(pyte.Screen):
    """pyte's screen with more sequences that ncurses sends to an xterm: scroll, and repeat a character."""

    def draw(self, data: str) -> None:
        self._last = data[-1:]
        super().draw(data)

    def repeat(self, count: int = 1) -> None:
        super().draw(self._last * (count or 1))

    def scroll_up(self, count: int = 1) -> None:
        self._at_top(self.delete_lines, count)

    def scroll_down(self, count: int = 1) -> None:
        self._at_top(self.insert_lines, count)

    def _at_top(self, change: Callable[[int], None], count: int) -> None:
        """pyte inserts and deletes at the cursor; scrolling does so at the top and keeps the cursor."""
        x, y = self.cursor.x, self.cursor.y
        self.cursor.y = self.margins.top if self.margins else 0
        change(count)
        self.cursor.x, self.cursor.y = x, y


class _Stream(pyte.ByteStream):
    csi = {**pyte.ByteStream.csi, "S": "scroll_up", "T": "scroll_down", "b": "repeat"}  # noqa: RUF012 as pyte has it
    events = pyte.ByteStream.events | {"scroll_up", "scroll_down", "repeat"}


class Terminal:
    """A program on its own pty; ``screen`` is what a user would see."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], columns: int = 80, rows: int = 24
    ) -> None:
        self.screen = Screen(columns, rows)
        self.sent = b""
        self._stream = _Stream(self.screen)
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._slave, self._before = slave, self._state(slave)
        self._pid = self._start(command, {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **environment})

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> int:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            fcntl.ioctl(self._slave, termios.TIOCSCTTY, 0)
            for number in range(3):
                os.dup2(self._slave, number)
            os.execve(command[0], list(command), dict(environment))
        return pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._slave)
        os.close(self._master)  # a program that still runs gets SIGHUP

    @staticmethod
    def _state(descriptor: int) -> list[Any]:
        return termios.tcgetattr(descriptor)

    @property
    def restored(self) -> bool:
        """Whether the terminal has its original settings."""
        return self._state(self._slave) == self._before

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def signal(self, number: int) -> None:
        os.kill(self._pid, number)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def until(self, condition: Callable[[str], bool]) -> str:
        """Wait until the text satisfies the condition. Returns the text; AssertionError after a timeout."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.text):
            assert time.monotonic() < deadline, self.text
            self._read(0.2)
        return self.text

    def ended(self) -> int:
        """Wait for the program's end. Returns its exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._read(0.05)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._read(0.05)
                return os.waitstatus_to_exitcode(status)
            assert time.monotonic() < deadline, self.text

    def _read(self, seconds: float) -> None:
        if select.select([self._master], [], [], seconds)[0]:
            data = os.read(self._master, 65536)
            self.sent += data
            self._stream.feed(data)
