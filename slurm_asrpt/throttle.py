"""Limits how often expensive work is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PAUSE_FACTOR = 9.0
"""The work takes at most a tenth of the time."""
_MOST_DOUBLINGS = 60


def backoff_s(first_s: float, most_s: float, retries: int) -> float:
    """The pause before another attempt: ``first_s``, doubled with each retry so far, ``most_s`` at most."""
    return min(most_s, first_s * 2.0 ** min(retries, _MOST_DOUBLINGS))  # months of retries must not overflow


class Throttle:
    """``due`` when ``pause_factor`` times the duration of the last work has passed; after ``least_s`` to ``most_s``.

    clock: in seconds. pause_factor: PAUSE_FACTOR by default.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        most_s: float = math.inf,
        pause_factor: float | None = None,
        least_s: float = 0.0,
    ) -> None:
        self._clock, self._most_s, self._least_s = clock, most_s, least_s
        self._pause_factor = pause_factor
        self.pause_s = least_s
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
        factor = PAUSE_FACTOR if self._pause_factor is None else self._pause_factor
        self.pause_s = min(self._most_s, max(self._least_s, factor * (self.last - began)))
        self._next = self.last + self.pause_s
