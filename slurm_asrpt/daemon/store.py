"""state.json: what the daemon must not forget; written before Slurm is touched, replaced by rename."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import AsrptError

FILE_NAME = "state.json"
LOCK_NAME = "lock"
SCHEMA = 1


class Store:
    """The state folder of one daemon. Raises AsrptError if another daemon holds it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._last = ""
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AsrptError(f"another asrptd holds {folder}; one daemon per state folder") from None
        except OSError as error:
            raise AsrptError(f"the state folder {folder} cannot be used ({error.strerror})") from error

    def close(self) -> None:
        os.close(self._lock)

    def save(self, state: Mapping[str, Any], jobs: Mapping[str, str]) -> None:
        """Durable before it returns; nothing is written where nothing changed. jobs: each as JSON text."""
        rows = ", ".join(f"{json.dumps(job_id)}: {text}" for job_id, text in jobs.items())
        text = json.dumps({"schema": SCHEMA, **state}).removesuffix("}") + f', "jobs": {{{rows}}}}}'
        if text == self._last:
            return
        temporary = self.path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # the new name, too
        finally:
            os.close(folder)
        self._last = text

    def load(self) -> dict[str, Any] | None:
        """The last state, or None where there is none or it is unreadable (then it is kept aside)."""
        try:
            state = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(state, dict) and state.get("schema") == SCHEMA:
                return state
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            pass
        self.path.replace(self.path.with_suffix(".damaged"))
        return None
