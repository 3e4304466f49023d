"""Helpers for tests of progress reports: a clock that tests set, and the contents of the progress file."""

from __future__ import annotations

from pathlib import Path

from slurm_asrpt import progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def new_process() -> None:
    """From now on, reports are those of a new process, and what is not written yet is lost.

    The module keeps one reporter for each process. Users' programs need no way to drop it, so this is not public.
    """
    progress._forget()


def written(folder: Path) -> list[str]:
    """The words of the progress file."""
    return (folder / "iterations").read_text().split()
