"""state.json: what the daemon must not forget; written before Slurm is touched, replaced by rename."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import AsrptError
from slurm_asrpt.files import replace_file

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
        replace_file(self.path, text.encode("utf-8"), 0o600)
        self._last = text

    def load(self) -> dict[str, Any] | None:
        """The last state, or None where there is none or it is unreadable (then it is kept aside)."""
        try:
            state = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(state, dict) and state.get("schema") == SCHEMA:
                return state
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError):
            pass
        self.path.replace(self.path.with_suffix(".damaged"))
        return None
