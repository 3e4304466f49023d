"""The settings of Slurm's backfill scheduler, from ``scontrol show config``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

BACKFILL = "sched/backfill"


@dataclass(frozen=True)
class SchedulerSettings:
    """SchedulerType, and those of SchedulerParameters that decide what backfill plans; times in seconds.

    bf_max_job_user: 0 for no limit. bf_window_linear_s: 0 if the groups double in which far ends are seen. The defaults
    are those of Slurm.
    """

    type: str = BACKFILL
    bf_interval_s: float = 30.0
    bf_window_s: float = 86400.0
    bf_resolution_s: float = 60.0
    bf_max_job_test: int = 500
    bf_max_job_user: int = 0
    bf_window_linear_s: float = 0.0


def parse_scheduler(config: Mapping[str, str]) -> SchedulerSettings:
    """A value that is missing or out of range is Slurm's default, as in slurmctld."""
    pairs = (part.partition("=") for part in config.get("SchedulerParameters", "").lower().split(","))
    given = {name.strip(): int(value) for name, _, value in pairs if re.fullmatch(r"[0-9]{1,9}", value.strip())}
    usual = SchedulerSettings()
    return SchedulerSettings(
        config.get("SchedulerType", BACKFILL),
        float(given.get("bf_interval", 0) or usual.bf_interval_s),
        60.0 * given.get("bf_window", 0) or usual.bf_window_s,
        float(given.get("bf_resolution", 0) or usual.bf_resolution_s),
        given.get("bf_max_job_test", 0) or usual.bf_max_job_test,
        given.get("bf_max_job_user", usual.bf_max_job_user),
        float(given.get("bf_window_linear", 0)),
    )
