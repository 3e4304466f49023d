"""state.json: what the daemon must not forget; written before Slurm is touched, replaced by rename."""

from __future__ import annotations

import json
import logging
from typing import Any

from slurm_asrpt.daemon.lead import Lead
from slurm_asrpt.files import replace_file

FILE_NAME = "state.json"
SCHEMA = 1

LOG = logging.getLogger("asrptd")


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
        state_text = json.dumps(state)
        if state_text == self._last:
            return
        text = f'{{"schema": {SCHEMA}, "time": {now!r}, {state_text[1:]}'
        try:
            replace_file(self.path, text.encode("utf-8"), 0o600)
        except OSError as error:
            error.filename = error.filename or self.path  # a full disk does not say which
            raise
        self._last = state_text

    def load(self) -> dict[str, Any] | None:
        """The last state, or None where there is none or it is unreadable (then it is kept aside)."""
        try:
            state = json.loads(self.path.read_text(encoding="utf-8"))
            if isinstance(state, dict) and state.get("schema") == SCHEMA:
                self.saved_at = float(state.get("time", 0.0))
                return state
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, RecursionError):
            pass
        aside = self.path.with_suffix(".damaged")
        self.path.replace(aside)
        LOG.error("%s is damaged: kept as %s; the queue's order is made anew from what Slurm says", self.path, aside)
        return None
