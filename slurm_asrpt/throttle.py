"""What costs much is done seldom."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

REST = 9.0
"""So such work takes a tenth of the time at most."""


class Seldom:
    """``due`` unless the last time is less than REST times as long ago as it took, and than ``most_s``.

    clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float], most_s: float = math.inf) -> None:
        self._clock, self._most_s = clock, most_s
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
        self._next = self.last + min(self._most_s, REST * (self.last - began))
