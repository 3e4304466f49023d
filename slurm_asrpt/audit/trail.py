"""Reads the audit trail: ``audit.jsonl`` and its rotated files, one JSON object per line."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO

from slurm_asrpt.errors import AsrptError

FILE_NAME = "audit.jsonl"
Entry = dict[str, Any]
"""``time`` (seconds since the epoch), ``event``, usually ``job``, and the facts of the event."""
OnProgress = Callable[[int, int], object]
"""Called with the number of bytes read so far and the total."""

_HEAD = re.compile(rb'\{"time": ([0-9.]{1,20}),(?: "event": "[^"\\]*", "job": "([0-9]+)[_"])?')
_REPORT_EVERY = 1 << 20


def older_files(state: Path) -> list[tuple[int, Path]]:
    """The rotated files with their numbers, the latest first. Raises OSError."""
    found = [(path.suffix[1:], path) for path in state.glob(f"{FILE_NAME}.*")]
    return sorted((int(number), path) for number, path in found if number.isascii() and number.isdigit())


def entries(
    state: Path,
    since: float = 0.0,
    until: float = math.inf,
    on_progress: OnProgress | None = None,
    jobs: Collection[str] = (),
) -> Iterator[Entry]:
    """Entries from ``since`` to ``until``, oldest first. Lines torn by a crash are skipped.

    jobs: job numbers without ``_TASK``; entries of other jobs may be skipped. Raises AsrptError if the trail does not
    exist or cannot be read.
    """
    numbers = frozenset(job.encode() for job in jobs)
    with ExitStack() as stack:
        files = [stack.enter_context(file) for file in _open(state, since)]
        sizes = [os.fstat(file.fileno()).st_size for file in files]
        read = unreported = 0
        for file in files:
            for line in file:
                read, unreported = read + len(line), unreported + len(line)
                if on_progress is not None and unreported >= _REPORT_EVERY:
                    on_progress(read, sum(sizes))
                    unreported = 0
                entry = entry_of(line, since, until, numbers)
                if entry is not None:
                    yield entry


def size(state: Path) -> int:
    """Total size of the files in bytes; 0 if there are none or they cannot be read."""
    with suppress(OSError):
        paths = (state / FILE_NAME, *(path for _, path in older_files(state)))
        return sum(path.stat().st_size for path in paths if path.exists())
    return 0


def jobs_and_modes(state: Path, events: Collection[str], since: float) -> tuple[dict[str, set[str]], set[str]]:
    """Jobs with each of these events since then, and the modes that asrptd was in, as far as the trail goes back.

    Raises AsrptError.
    """
    found: dict[str, set[str]] = {event: set() for event in events}
    modes = set[str]()
    if (state / FILE_NAME).exists() or older_files(state):
        for entry in entries(state, since):
            if entry["event"] in found and entry.get("why") != "component":  # managed with the first component
                found[entry["event"]].add(str(entry.get("job", "")))
            elif entry["event"] == "cycle":
                modes.add(str(entry.get("mode", "")))
    return found, modes - {""}


def _open(state: Path, since: float) -> list[BinaryIO]:
    """The open files, oldest first. asrptd may rotate meanwhile, so the newest is opened first and each file once."""
    files: dict[tuple[int, int], BinaryIO] = {}
    try:
        for path in (state / FILE_NAME, *(path for _, path in older_files(state))):
            if path.exists() and path.stat().st_mtime >= since:
                file = path.open("rb")
                status = os.fstat(file.fileno())
                files.setdefault((status.st_dev, status.st_ino), file)
        if not files and not (state / FILE_NAME).exists() and not older_files(state):
            path = state / FILE_NAME
            raise AsrptError(f"{path} does not exist: asrptd has decided nothing yet (systemctl status asrptd)")
    except PermissionError as error:
        raise AsrptError(f"{error.filename} is readable only by root and asrptd's user; use sudo") from None
    except OSError as error:
        raise AsrptError(f"{error.filename} cannot be read ({error.strerror})") from error
    return list(reversed(files.values()))


def entry_of(
    line: bytes, since: float = -math.inf, until: float = math.inf, jobs: Collection[bytes] = ()
) -> Entry | None:
    """The entry in a line, if it is of this time and not of another job; None for a line that a crash has torn."""
    head = _HEAD.match(line)
    try:
        if head is not None and (not since <= float(head[1]) <= until or (jobs and head[2] and head[2] not in jobs)):
            return None  # without parsing: most lines end here
        entry = json.loads(line)
        in_time = since <= float(entry["time"]) <= until and isinstance(entry["event"], str)
        return {**entry, "time": float(entry["time"])} if in_time else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
