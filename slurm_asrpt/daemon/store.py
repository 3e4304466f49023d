"""state.json: what the daemon must not forget; written before Slurm is touched, replaced by rename."""

from __future__ import annotations

import json
import os
from typing import Any

from slurm_asrpt.daemon.lead import Lead

FILE_NAME = "state.json"
SCHEMA = 1


class Store:
    """The state of the daemon that leads."""

    def __init__(self, lead: Lead) -> None:
        self.lead, self.path = lead, lead.folder / FILE_NAME
        self._last = ""
        self.saved_at = 0.0
        """When the state that was loaded was written; 0: unknown."""

    def save(self, state: dict[str, Any], now: float) -> None:
        """Durable before it returns; nothing is written where nothing changed. Raises LeadLostError, OSError."""
        self.lead.check()
        text = json.dumps(state)
        if text == self._last:
            return
        temporary = self.path.with_suffix(".new")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(f'{{"schema": {SCHEMA}, "time": {now!r}, {text[1:]}')
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
                self.saved_at = float(state.get("time", 0.0))
                return state
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):
            pass
        self.path.replace(self.path.with_suffix(".damaged"))
        return None
