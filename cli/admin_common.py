"""What the commands of asrpt-admin share."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from slurm_asrpt_cli.tables import Column, print_table

from slurm_asrpt.errors import InputError

ConfigOption = Annotated[
    Path | None, typer.Option("--config", help="Settings file; else $ASRPT_CONFIG, else /etc/slurm/asrpt.toml.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


class Told(Protocol):
    """Called with what is done, and of how much where that is known by now."""

    def __call__(self, done: int, of: int | None = None, /) -> None: ...


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Told]:
    """A bar on stderr for people; nothing where stderr is no terminal. total: None where nobody knows it yet."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, of=None: bar.update(
            task, completed=done, total=of, description=what if of or total else f"{what} ({done:,})"
        )


def read_file(path: Path) -> bytes:
    """A job script. Raises InputError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); name the script to submit") from None


def find_user(user: str | None) -> tuple[int, str]:
    """User id and name. Raises InputError for a user that this machine does not know."""
    try:
        if user is None or (user.isascii() and user.isdigit()):
            uid = os.getuid() if user is None else int(user)
            return uid, _name_of(uid)
        return pwd.getpwnam(user).pw_uid, user
    except (KeyError, ValueError):
        raise InputError(f"--user {user}: no such user here; give a known name or a number") from None


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return str(uid)


def show_table(columns: Sequence[Column]) -> None:
    """A table with titles; the last column gives way on a narrow terminal."""
    console = Console(highlight=False)
    print_table(columns, True, console, console.width if sys.stdout.isatty() else None)
