"""The tasks of a job array as Slurm writes them; apart from all else, so that asrpt-status starts in less time."""

from __future__ import annotations

import re

_SOME = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([1-9][0-9]{0,8}))?)?")


def read_tasks(text: str) -> tuple[range, ...]:
    """``0-3,7`` or ``1-19:3`` as numbers; none where any part of it is none."""
    parts = [_SOME.fullmatch(part) for part in text.split(",")]
    found = [match.groups() for match in parts if match]
    tasks = tuple(range(int(low), int(high or low) + 1, int(step or 1)) for low, high, step in found)
    return tasks if len(tasks) == len(parts) else ()
