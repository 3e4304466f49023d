"""Limits how often expensive work is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAUSE_FACTOR = 9.0
"""Such work takes a tenth of the time at most, unless a Throttle says otherwise."""


class Throttle:
    """``due`` once ``pause_factor`` times the duration of the last time has passed since, or ``most_s``.

    clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float], most_s: float = math.inf, pause_factor: float | None = None) -> None:
        self._clock, self._most_s, self._pause_factor = clock, most_s, pause_factor
        self.last = -math.inf
        self._next = -math.inf

    @property
    def due(self) -> bool:
        return self._clock() >= self._next

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Around the work; where it fails it stays due."""
        began = self._clock()
        yield
        self.last = self._clock()
        factor = PAUSE_FACTOR if self._pause_factor is None else self._pause_factor
        self._next = self.last + min(self._most_s, factor * (self.last - began))
