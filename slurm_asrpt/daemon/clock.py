"""Steps of the clock, the time that cycles take, and the pause that must follow one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.client import SlurmConfig

STEP_S = 2.0
"""The least step that counts; NTP slews smaller ones."""
APART_S = 5.0
"""slurmctld's clock may differ from ours by so much: it shows whole seconds, and late."""


class ClockStepDetector:
    """Compares the clock with one that cannot step."""

    def __init__(self, clock: Any = time) -> None:
        self._clock = clock
        self._apart = clock.time() - clock.monotonic()

    def step(self) -> float:
        """Seconds by which the clock has stepped since the last call; 0 for less than counts."""
        apart = self._clock.time() - self._clock.monotonic()
        step = apart - self._apart
        if abs(step) < STEP_S:
            return 0.0  # a drift adds up, and a many small steps are one
        self._apart = apart
        return float(step)


def check_same_clock(slurm: SlurmConfig, now: float) -> None:
    """Raises SlurmError where slurmctld's clock is not ours: a lease of ours would look like its owner's begin time."""
    if slurm.time and abs(slurm.time - now) > APART_S:
        raise SlurmError(
            f"slurmctld's clock is {slurm.time - now:+.0f} s from asrptd's; nothing is written until they agree (NTP)"
        )


MACHINE_SHARE, LONGEST_PAUSE_S = 0.125, 15.0
"""Where Slurm has many jobs, pauses grow up to so long, so that the cycles' CPU time is that share of all cores'. A
machine that others keep busy makes no pause longer."""


class CycleTimer:
    """Seconds of the present cycle by phase (read, decide, write, show); a phase may come several times."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.start()

    def start(self) -> None:
        """A new cycle begins."""
        self.seconds: dict[str, float] = {}
        self._since = self._clock()

    def done(self, phase: str) -> None:
        """All time since the last call was spent on this phase."""
        now = self._clock()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now

    def __str__(self) -> str:
        return ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in self.seconds.items())


def cpu_s() -> float:
    """CPU time of this process so far, and of the commands that it has waited for."""
    return sum(os.times()[:4])


def pause_after(cycle_s: float, cores: int) -> float:
    """The shortest pause after a cycle that took so much CPU time."""
    return min(LONGEST_PAUSE_S, cycle_s * max(0.0, 1 / (MACHINE_SHARE * cores) - 1))
