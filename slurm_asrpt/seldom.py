"""What costs much is done seldom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

REST = 9.0
"""So such work takes a tenth of the time at most."""


class Seldom:
    """``due`` unless the last time is less than REST times as long ago as it took. clock: in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.last = float("-inf")
        self._next = float("-inf")

    @property
    def due(self) -> bool:
        return self._clock() >= self._next

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Around the work; where it fails it stays due."""
        began = self._clock()
        yield
        self.last = self._clock()
        self._next = self.last + REST * (self.last - began)
