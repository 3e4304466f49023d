"""Whether jobs have started when it was said."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_asrpt.predict.history import History

_TOLD = "forecast_made > 0 AND end_time >= ?"
_EARLY = "start_time < forecast_low"
_LATE = "forecast_high > 0 AND start_time > forecast_high"


@dataclass(frozen=True)
class Calibration:
    """jobs: that were given a start time. Shares of them that started inside its interval, before and after; 0 of 0."""

    jobs: int
    inside: float
    early: float
    late: float


def calibration(history: History, since: int) -> Calibration:
    """Of the runs that ended at ``since`` or later, seconds since the epoch. Raises HistoryError."""
    jobs, early, late = (history.count(f"{_TOLD}{more}", (since,)) for more in ("", f" AND {_EARLY}", f" AND {_LATE}"))
    least = max(jobs, 1)
    return Calibration(jobs, (jobs - early - late) / least, early / least, late / least)
