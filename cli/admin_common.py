"""What the commands of asrpt-admin share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

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
