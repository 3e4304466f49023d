"""What tests of reporting share: a clock that they turn, and what stands in a progress folder."""

from __future__ import annotations

from pathlib import Path


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def written(folder: Path) -> list[str]:
    """The words of the progress file."""
    return (folder / "iterations").read_text().split()
