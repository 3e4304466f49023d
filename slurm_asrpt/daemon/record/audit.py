"""The audit trail: one JSON object a line, one line a decision or an answer of Slurm to it."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from io import RawIOBase
from pathlib import Path
from typing import Any

from slurm_asrpt.audit.trail import FILE_NAME, older_files
from slurm_asrpt.config.settings import AuditSettings

MAX_UNWRITTEN = 100_000
LOGGED = frozenset(
    {"start", "running", "not-started", "ended", "left", "vanished", "lease-refused", "fence-refused", "pin-failed"}
    | {"interrupt", "signalled", "requeued", "requeued-again", "interrupt-refused"}
)
"""Events that are logged, too."""
NOT_LOGGED = frozenset(
    {"user", "name", "key", "runner_up", "submitted", "began", "predicted", "decided", "alpha_block"}
)
"""Facts of theirs that only the trail has."""

LOG = logging.getLogger("asrptd")
Listener = Callable[[str, Mapping[str, Any]], None]
"""Hears of each event, with its facts, as it is recorded."""


class AuditWriter:
    """Appends to ``audit.jsonl`` in the state folder, a few writes a cycle: a crash tears no line but the last.

    lines: recorded so far, those not yet written included.
    """

    def __init__(self, state: Path, settings: AuditSettings | None = None, listener: Listener | None = None) -> None:
        self.path, self._settings = state / FILE_NAME, settings or AuditSettings()
        self._listener = listener
        self._lines: list[str] = []
        self.lines = 0

    def record(self, now: float, event: str, job_id: str = "", **facts: Any) -> None:
        entry = {"time": round(now, 3), "event": event, **({"job": job_id} if job_id else {}), **facts}
        self._lines.append(json.dumps(entry, default=str))
        self.lines += 1
        if self._listener is not None:
            self._listener(event, facts)
        if event in LOGGED:
            logged = {name: fact for name, fact in facts.items() if name not in NOT_LOGGED}
            LOG.info("%s job %s %s", event, job_id, json.dumps(logged, default=str))

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
                del self._lines[:-MAX_UNWRITTEN]
                raise
            full = file.tell() > self._settings.file_mb << 20
        self._lines.clear()
        if full:
            self._rotate()

    def _rotate(self) -> None:
        """The file becomes audit.jsonl.1, that one audit.jsonl.2, and so on; those beyond ``audit.files`` go."""
        for number, path in reversed(older_files(self.path.parent)):
            if number + 1 < self._settings.files:
                path.replace(self.path.with_name(f"{FILE_NAME}.{number + 1}"))
            else:
                path.unlink()
        if self._settings.files > 1:
            self.path.replace(self.path.with_name(f"{FILE_NAME}.1"))
        else:
            self.path.unlink()


def _write_all(file: RawIOBase, data: bytes) -> None:
    """A full disk may take a part first, and refuse the rest only then. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]
