"""Where the time of a cycle goes."""

from __future__ import annotations

from collections.abc import Callable


class Laps:
    """Seconds of the present cycle by part (read, decide, write, show); a part may be done in several laps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.start()

    def start(self) -> None:
        """A new cycle begins."""
        self.seconds: dict[str, float] = {}
        self._since = self._clock()

    def done(self, part: str) -> None:
        """All since the last call was spent on this part."""
        now = self._clock()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._since
        self._since = now

    def __str__(self) -> str:
        return ", ".join(f"{part} {seconds:.3f}" for part, seconds in self.seconds.items())
