"""Whether jobs have started when it was said."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_asrpt.history.store import History

_TOLD = "forecast_made > 0 AND end_time >= ?"
_EARLY = "start_time < forecast_low"
_CLOSED = "forecast_high > 0"
_LATE = f"{_CLOSED} AND start_time > forecast_high"


@dataclass(frozen=True)
class Calibration:
    """jobs: that were given a start time. Shares of them that started inside its interval, before and after; 0 of 0.

    closed: jobs of these that were given a latest time, too: the others cannot be late.
    """

    jobs: int
    inside: float
    early: float
    late: float
    closed: int = 0

    @property
    def closed_late(self) -> float:
        """Share of them that began after it."""
        return self.late * self.jobs / max(self.closed, 1)


def calibration(history: History, since: int) -> Calibration:
    """Of the runs that ended at ``since`` or later, seconds since the epoch. Raises HistoryError."""
    wheres = (_TOLD, *(f"{_TOLD} AND {which}" for which in (_EARLY, _LATE, _CLOSED)))
    jobs, early, late, closed = (history.count(where, (since,)) for where in wheres)
    least = max(jobs, 1)
    return Calibration(jobs, (jobs - early - late) / least, early / least, late / least, closed)
