"""The audit trail: one JSON object a line, one line a decision or an answer of Slurm to it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Collection
from contextlib import suppress
from io import RawIOBase
from pathlib import Path
from typing import Any

FILE_NAME = "audit.jsonl"
MAX_BYTES = 64 << 20
"""At this size the file becomes audit.jsonl.1, and so on; the last of KEEP goes."""
KEEP = 5
MOST_UNWRITTEN = 100_000
SPOKEN = frozenset({"start", "running", "not-started", "ended", "left", "vanished", "lease-refused", "fence-refused"})
"""Events that the log tells, too."""

LOG = logging.getLogger("asrptd")


def jobs_of(state: Path, events: Collection[str], since: float) -> dict[str, set[str]]:
    """The jobs of each of these events since then, as far as the trail reaches back. Raises OSError."""
    found: dict[str, set[str]] = {event: set() for event in events}
    for path in (state / FILE_NAME, *(state / f"{FILE_NAME}.{number}" for number in range(1, KEEP + 1))):
        if not path.exists() or path.stat().st_mtime < since:
            continue
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if any(f'"event": "{event}"' in line for event in events):
                    _note(line, since, found)
    return found


def _note(line: str, since: float, found: dict[str, set[str]]) -> None:
    """A line torn by a crash is none."""
    with suppress(ValueError, KeyError, TypeError):
        entry = json.loads(line)
        if entry["time"] >= since and entry["event"] in found:
            found[entry["event"]].add(entry["job"])


class Audit:
    """Appends to ``audit.jsonl`` in the state folder; one write a cycle, so a crash tears no line but the last."""

    def __init__(self, state: Path) -> None:
        self.path = state / FILE_NAME
        self._lines: list[str] = []

    def record(self, now: float, event: str, job_id: str = "", **facts: Any) -> None:
        entry = {"time": round(now, 3), "event": event, **({"job": job_id} if job_id else {}), **facts}
        self._lines.append(json.dumps(entry, default=str))
        if event in SPOKEN:
            LOG.info("%s job %s %s", event, job_id, json.dumps(facts, default=str))

    def flush(self) -> None:
        """Write what is unwritten, all of it or nothing: what a full disk refuses stays for the next time.

        Raises OSError.
        """
        if not self._lines:
            return
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            before = file.tell()
            torn = before > 0 and os.pread(descriptor, 1, before - 1) != b"\n"  # by a crash
            text = "\n" * torn + "\n".join(self._lines) + "\n"
            try:
                _write_all(file, text.encode())
            except OSError as error:
                error.filename = self.path  # a full disk does not say which
                file.truncate(before)
                del self._lines[:-MOST_UNWRITTEN]
                raise
            full = file.tell() > MAX_BYTES
        self._lines.clear()
        if full:
            self._rotate()

    def _rotate(self) -> None:
        for number in range(KEEP - 1, 0, -1):
            older = self.path.with_name(f"{FILE_NAME}.{number}")
            if older.exists():
                older.replace(self.path.with_name(f"{FILE_NAME}.{number + 1}"))
        self.path.replace(self.path.with_name(f"{FILE_NAME}.1"))


def _write_all(file: RawIOBase, data: bytes) -> None:
    """A full disk may take a part first, and refuse the rest only then. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]
