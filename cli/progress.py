"""A bar for people who wait."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from slurm_asrpt_cli.tables import safe


class Told(Protocol):
    """Called with what is done, a word on where it stands, and the total where that has changed."""

    def __call__(self, done: float, note: str = "", of: float | None = None, /) -> None: ...


@contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Told]:
    """A bar on standard error, only on a terminal; total: None where it is not known yet."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(safe(text), total=total)
        yield lambda done, note="", of=None: bar.update(
            task, completed=done, total=of, description=safe(f"{text} {note}".strip())
        )
