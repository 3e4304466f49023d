"""Progress bars on standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Timer
from typing import Protocol

from slurm_asrpt_cli._app.tables import safe

PATIENCE_S = 2.0
"""Seconds until ``patience`` shows a bar."""


class Told(Protocol):
    """Called with the amount done, a note for the bar, and the total if it has changed."""

    def __call__(self, done: float, note: str = "", of: float | None = None, /) -> None: ...


@contextmanager
def progress(text: str, total: int | None = None) -> Iterator[Told]:
    """A progress bar, shown on terminals only; total: None if unknown."""
    from rich.console import Console  # rich takes a while to import; few commands need a bar
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
    """A bar for work that is mostly quick: shown only after ``PATIENCE_S``. Do not nest with ``progress``."""
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
