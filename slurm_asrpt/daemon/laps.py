"""Where the time of a cycle goes, and how long a pause must follow."""

from __future__ import annotations

import os
from collections.abc import Callable

MACHINE_SHARE, LONGEST_REST_S = 0.125, 15.0
"""Where Slurm has many jobs, pauses grow up to so long, so that the cycles' CPU time is that share of all cores'. A
machine that others keep busy makes no pause longer."""


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


def cpu_s() -> float:
    """CPU time of this process so far, and of the commands that it has waited for."""
    return sum(os.times()[:4])


def rest_s(cycle_s: float, cores: int) -> float:
    """The shortest pause after a cycle that took so much CPU time."""
    return min(LONGEST_REST_S, cycle_s * max(0.0, 1 / (MACHINE_SHARE * cores) - 1))
