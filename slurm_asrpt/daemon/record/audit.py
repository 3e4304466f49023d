"""Writes the audit trail: one JSON object per line, one line per decision or answer of Slurm."""

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
from slurm_asrpt.daemon.spare_file import SpareFile

MAX_UNWRITTEN = 100_000
SPARE_NAME = "audit.spare"
LOGGED = frozenset(
    {"start", "running", "not-started", "ended", "left", "vanished", "lease-refused", "fence-refused", "pin-failed"}
    | {"start-cpus", "interrupt", "signalled", "requeued", "requeued-again", "interrupt-refused"}
)
"""Events that are also logged."""
_AS_EXPECTED = frozenset({"running", "ended"})
"""Of these, events that follow a start and are logged at level debug, unless Slurm has chosen other nodes."""
NOT_LOGGED = frozenset(
    {"user", "name", "key", "runner_up", "submitted", "began", "predicted", "decided", "alpha_block", "weight"}
)
"""Facts of these events that are not logged."""

LOG = logging.getLogger("asrptd")
Listener = Callable[[str, Mapping[str, Any]], None]
"""Called with each event and its facts when it is recorded."""


class AuditWriter:
    """Appends to ``audit.jsonl`` in the state directory, with few writes per cycle: a crash tears the last line only.

    While it cannot be written (a full disk), lines wait in ``audit.spare``, those that do not fit there in memory, and
    scheduling continues. lines: number of lines recorded so far, including those not written yet.
    """

    def __init__(self, state: Path, settings: AuditSettings | None = None, listener: Listener | None = None) -> None:
        self.path, self._settings = state / FILE_NAME, settings or AuditSettings()
        self._listener = listener
        self._spare = SpareFile(state / SPARE_NAME)
        self._lines = _waiting(self._spare.path)
        self._full = False
        self.lines = 0

    def record(self, now: float, event: str, job_id: str = "", **facts: Any) -> None:
        entry = {"time": round(now, 3), "event": event, **({"job": job_id} if job_id else {}), **facts}
        self._lines.append(json.dumps(entry, default=str))
        self.lines += 1
        if self._listener is not None:
            self._listener(event, facts)
        if event in LOGGED:
            logged = {name: fact for name, fact in facts.items() if name not in NOT_LOGGED}
            quiet = event in _AS_EXPECTED and facts.get("as_planned", True)
            LOG.log(
                logging.DEBUG if quiet else logging.INFO, "%s job %s %s", event, job_id, json.dumps(logged, default=str)
            )

    def flush(self) -> bool:
        """Write the pending lines, all or none; if that fails, they are kept for the next call, which is logged once.

        Returns whether the lines are on disk, and so survive a kill.
        """
        if not self._lines:
            return True
        try:
            self._write()
            self._full = False
            self._spare.keep_for(1)
        except OSError as error:
            del self._lines[:-MAX_UNWRITTEN]
            trouble = f"{self.path}: {error.strerror}"
            if self._spare.write("\n".join(self._lines).encode(), trouble):
                return True
            if not self._full:
                LOG.error("%s; its lines are kept in memory until it can be written", trouble)
                self._full = True
            return False
        return True

    def _write(self) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab", buffering=0) as file:
            before = file.tell()
            torn = before > 0 and os.pread(descriptor, 1, before - 1) != b"\n"  # by a crash
            text = "\n" * torn + "\n".join(self._lines) + "\n"
            try:
                _write_all(file, text.encode())
            except OSError:
                file.truncate(before)
                raise
            full = file.tell() > self._settings.file_mb << 20
        self._lines.clear()
        if full:
            self._rotate()

    def _rotate(self) -> None:
        """Rename the file to audit.jsonl.1, that one to audit.jsonl.2, and so on; delete those over ``audit.files``."""
        for number, path in reversed(older_files(self.path.parent)):
            if number + 1 < self._settings.files:
                path.replace(self.path.with_name(f"{FILE_NAME}.{number + 1}"))
            else:
                path.unlink()
        if self._settings.files > 1:
            self.path.replace(self.path.with_name(f"{FILE_NAME}.1"))
        else:
            self.path.unlink()


def _waiting(spare: Path) -> list[str]:
    """The lines that asrptd could not write before it ended."""
    try:
        text = spare.read_text("utf-8", errors="replace").strip()
    except OSError:
        return []
    return text.split("\n") if text else []


def _write_all(file: RawIOBase, data: bytes) -> None:
    """Write all data; on a full disk, only a part may be written before the error. Raises OSError."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]
