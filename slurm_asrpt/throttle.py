"""Limits how often expensive work is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAUSE_FACTOR = 9.0
"""The work takes at most a tenth of the time."""


class Throttle:
    """``due`` when PAUSE_FACTOR times the duration of the last work has passed, or ``most_s``. clock: in seconds."""

    def __init__(self, clock: Callable[[], float], most_s: float = math.inf) -> None:
        self._clock, self._most_s = clock, most_s
        self.last = -math.inf
        self._next = -math.inf

    @property
    def due(self) -> bool:
        return self._clock() >= self._next

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Run the block, which does the work; if it fails, the work is still due."""
        began = self._clock()
        yield
        self.last = self._clock()
        self._next = self.last + min(self._most_s, PAUSE_FACTOR * (self.last - began))
