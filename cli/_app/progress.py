"""A bar for people who wait."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Timer
from typing import Protocol

from slurm_asrpt_cli._app.tables import safe

PATIENCE_S = 2.0
"""Seconds for which nobody wonders."""


class Told(Protocol):
    """Called with what is done, a word on where it stands, and the total where that has changed."""

    def __call__(self, done: float, note: str = "", of: float | None = None, /) -> None: ...


@contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Told]:
    """A bar on standard error, only on a terminal; total: None where it is not known yet."""
    from rich.console import Console  # rich takes a while, and few commands are slow enough for a bar
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(safe(text), total=total)
        yield lambda done, note="", of=None: bar.update(
            task, completed=done, total=of, description=safe(f"{text} {note}".strip())
        )


@contextmanager
def patience(text: str) -> Iterator[None]:
    """A bar for what is mostly done at once: it comes only after ``PATIENCE_S``. No other beside it."""
    bar = ExitStack()

    def show() -> None:
        bar.enter_context(progress(text))

    timer = Timer(PATIENCE_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        bar.close()
