"""Steps of the clock: what was noted before one is not what it seems after it."""

from __future__ import annotations

import time
from typing import Any

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.client import SlurmConfig

STEP_S = 2.0
"""From which a step counts; NTP slews what is less."""
APART_S = 5.0
"""So far slurmctld's clock may be from ours: it tells whole seconds, and late."""


class StepWatch:
    """Sees the clock step by holding it against one that cannot."""

    def __init__(self, clock: Any = time) -> None:
        self._clock = clock
        self._apart = clock.time() - clock.monotonic()

    def step(self) -> float:
        """Seconds by which the clock has stepped since the last call; 0 for less than counts."""
        apart = self._clock.time() - self._clock.monotonic()
        step = apart - self._apart
        if abs(step) < STEP_S:
            return 0.0  # a drift adds up, and a step of many small ones is one
        self._apart = apart
        return float(step)


def check_same_clock(slurm: SlurmConfig, now: float) -> None:
    """Raises SlurmError where slurmctld's clock is not ours: a lease of ours would look like its owner's begin time."""
    if slurm.time and abs(slurm.time - now) > APART_S:
        raise SlurmError(
            f"slurmctld's clock is {slurm.time - now:+.0f} s from asrptd's; nothing is written until they agree (NTP)"
        )
