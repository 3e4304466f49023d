"""How soon Slurm's scheduler starts a job that may start: ``SchedulerParameters``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

_DEFAULTS = {"batch_sched_delay": 3.0, "sched_min_interval": 0.0, "bf_interval": 30.0, "sched_interval": 60.0}


class Pace(NamedTuple):
    """delay_s: seconds until the scheduler looks at a job at the latest. by: the parameter that decides it."""

    delay_s: float
    by: str


def pace_of(config: Mapping[str, str]) -> Pace:
    """From ``scontrol show config``. Without the main scheduling loop (sched_interval=-1), backfill starts all jobs."""
    words = (word.partition("=") for word in config.get("SchedulerParameters", "").split(","))
    given = {name: number_in(value) for name, _, value in words if name in _DEFAULTS}
    values = _DEFAULTS | given
    if values["sched_interval"] == -1:
        return Pace(values["bf_interval"], "sched_interval=-1")
    delays = {
        "batch_sched_delay": values["batch_sched_delay"],
        "sched_min_interval": values["sched_min_interval"] / 1e6,
    }
    by = max(delays, key=lambda name: delays[name])
    return Pace(delays[by], by)


def number_in(text: str) -> float:
    """The number at the start of a setting's value; 0 if there is none."""
    found = re.match(r"-?[0-9]+(\.[0-9]+)?", text)
    return float(found[0]) if found else 0.0
