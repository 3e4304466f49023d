"""Steps of the clock, durations of cycles, and the pauses between cycles."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.client import SlurmConfig

STEP_S = 2.0
"""The smallest step that counts; NTP slews smaller ones."""
MAX_DIFFERENCE_S = 5.0
"""Maximum difference to slurmctld's clock, which is reported in whole seconds and with a delay."""


class ClockStepDetector:
    """Compares the clock with the monotonic one."""

    def __init__(self, clock: Any = time) -> None:
        self._clock = clock
        self._apart = clock.time() - clock.monotonic()

    def step(self) -> float:
        """Seconds by which the clock has stepped since the last call; 0 if less than STEP_S."""
        apart = self._clock.time() - self._clock.monotonic()
        step = apart - self._apart
        if abs(step) < STEP_S:
            return 0.0  # keep the old offset, so that drift and small steps add up
        self._apart = apart
        return float(step)


def check_same_clock(slurm: SlurmConfig, now: float) -> None:
    """Raises SlurmError if slurmctld's clock differs: leases would look like owners' begin times."""
    if slurm.time and abs(slurm.time - now) > MAX_DIFFERENCE_S:
        raise SlurmError(
            f"slurmctld's clock differs from asrptd's by {slurm.time - now:+.0f} s; synchronize them (NTP)"
        )


MAX_RETRY_PAUSE_S = 60.0
"""The longest pause after cycles that have failed."""
MACHINE_SHARE, MAX_PAUSE_S = 0.125, 15.0
"""With many jobs, pauses grow up to MAX_PAUSE_S, so that cycles use at most this share of all cores' CPU time.
Other load on the machine does not make pauses longer."""


class CycleTimer:
    """Seconds of the current cycle by phase (read, decide, write, show); a phase may occur several times."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Begin a new cycle."""
        self.seconds: dict[str, float] = {}
        self._since = self._clock()

    def done(self, phase: str) -> None:
        """Add the time since the last call to this phase."""
        now = self._clock()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._since
        self._since = now

    def __str__(self) -> str:
        return ", ".join(f"{phase} {seconds:.3f}" for phase, seconds in self.seconds.items())


def cpu_s() -> float:
    """CPU time of this process and of the commands that it has run so far."""
    return sum(os.times()[:4])


def pause_after(cycle_s: float, cores: int) -> float:
    """The minimum pause after a cycle with this CPU time."""
    return min(MAX_PAUSE_S, cycle_s * max(0.0, 1 / (MACHINE_SHARE * cores) - 1))
