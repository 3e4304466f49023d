"""Wake-ups: the submit hook and EpilogSlurmctld truncate a file, and asrptd, which watches its time, begins a cycle.

Ten looks a second at one local file take a thousandth of a core (docs/decisions/0030).
"""

from __future__ import annotations

import logging
import math
import time
from pathlib import Path
from threading import Event
from typing import Any

from slurm_asrpt.files import give_to_folder_owner, replace_file

LOG = logging.getLogger("asrptd")
POLL_S = 0.1
SOON_S, SETTLED_S = 0.15, 1.0
"""Seconds after an event at which Slurm is read: when no other event follows, and again when slurmctld surely shows it.
The hook runs before the job exists, and EpilogSlurmctld before the nodes have cleaned up. A series of events is looked
at once a second."""
SHORTEST_PAUSE_S, PAUSE_FACTOR = 0.5, 4.0


class Wakeups:
    """Sleeps between cycles, until an event."""

    def __init__(self, path: Path, clock: Any = time) -> None:
        """path: the file that events truncate; created if missing."""
        self._path, self._clock = path, clock
        self._first = self._soon = self._settled = math.inf
        self._changed_at: int | None = None
        self._trouble = ""
        self._create()
        self._has_changed()

    def sleep(self, pause_s: float, least_s: float, stopping: Event) -> None:
        """Sleep for ``pause_s``, or for ``least_s`` if an event is to be looked at, or until ``stopping`` is set.

        In short steps: under libfaketime, Event.wait with a timeout never returns.
        """
        began = self._clock.monotonic()
        while not stopping.is_set():
            now = self._clock.monotonic()
            if self._has_changed():
                self._first, self._settled = min(self._first, now), now + SETTLED_S
                self._soon = min(now + SOON_S, self._first + SETTLED_S)
            due = min(began + pause_s, max(began + least_s, min(self._soon, self._settled)))
            if now >= due:
                break
            self._clock.sleep(min(POLL_S, due - now))
        self._looked(self._clock.monotonic())

    def _looked(self, now: float) -> None:
        """A cycle begins."""
        if self._soon <= now:
            self._first = self._soon = math.inf
        if self._settled <= now:
            self._settled = math.inf

    def _create(self) -> None:
        try:
            if not self._path.exists():
                replace_file(self._path, b"")
                give_to_folder_owner(self._path)
        except OSError as error:
            self._log(error)

    def _has_changed(self) -> bool:
        """Whether the file's time has changed since the last call."""
        before = self._changed_at
        try:
            self._changed_at = self._path.stat().st_mtime_ns
            self._trouble = ""
        except OSError as error:
            self._changed_at = None
            self._log(error)
        return self._changed_at is not None and self._changed_at != before

    def _log(self, error: OSError) -> None:
        trouble = error.strerror or str(error)
        if trouble != self._trouble:
            LOG.warning("%s: %s: submitted jobs wait for the next cycle", self._path, trouble)
        self._trouble = trouble


def least_pause(cycle_s: float) -> float:
    """The shortest pause before an early cycle: cycles that events cause take a fifth of the time at most."""
    return max(SHORTEST_PAUSE_S, PAUSE_FACTOR * cycle_s)
