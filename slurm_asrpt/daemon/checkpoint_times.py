"""How long jobs take to write a checkpoint after the signal, learned for each group."""

from __future__ import annotations

import math
from typing import Any

MARGIN = 1.5
"""A job has so many times what its group has needed."""
KNOWN_TO_REPORT = 3.0
"""A job that reports checkpoints has so many times ``interrupt.grace_s``: it is likely that it is still writing."""
FORGOTTEN = 0.9
"""With each checkpoint, a longer one before counts so much of what it did."""
MOST = 1000
"""Groups that are remembered."""


class CheckpointTimes:
    """default_s: ``interrupt.grace_s``."""

    def __init__(self, default_s: float) -> None:
        self.default_s = default_s
        self._needed: dict[str, float] = {}  # the group that was last seen is the last one

    def grace_s(self, group: str, reports: bool) -> float:
        """How long a job has for its checkpoint. reports: it has reported one before."""
        needed = self._needed.get(group)
        least = self.default_s if needed is None and not reports else KNOWN_TO_REPORT * self.default_s
        return max(least, MARGIN * (needed or 0.0))

    def observed(self, group: str, seconds: float) -> None:
        before = self._needed.pop(group, 0.0)
        self._needed[group] = max(0.0, seconds, FORGOTTEN * before)
        while len(self._needed) > MOST:
            self._needed.pop(next(iter(self._needed)))

    def dump(self) -> dict[str, float]:
        return dict(self._needed)

    def load(self, saved: Any) -> None:
        """Continue from what ``dump`` returned; without what is damaged."""
        pairs = list(saved.items())[-MOST:] if isinstance(saved, dict) else []
        self._needed = {str(group): float(each) for group, each in pairs if _is_seconds(each)}


def _is_seconds(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0
