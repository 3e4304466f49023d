"""Coverage of published start-time intervals: the share of jobs that started inside them."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_asrpt.history.store import History

_PUBLISHED = "forecast_made > 0 AND end_time >= ?"
_BEFORE = "start_time < forecast_low"
_BOUNDED = "forecast_high > 0"
_AFTER = f"{_BOUNDED} AND start_time > forecast_high"


@dataclass(frozen=True)
class Calibration:
    """jobs: number of jobs with a published start time. inside, early, late: shares that started inside, before and
    after the interval; 0 if there are no jobs.

    closed: jobs whose interval had an upper end; only these can be late.
    """

    jobs: int
    inside: float
    early: float
    late: float
    closed: int = 0

    @property
    def closed_late(self) -> float:
        """Share of the jobs with an upper end that started after it."""
        return self.late * self.jobs / max(self.closed, 1)


def calibration(history: History, since: int) -> Calibration:
    """Coverage over the runs that ended at or after ``since`` (seconds since the epoch). Raises HistoryError."""
    wheres = (_PUBLISHED, *(f"{_PUBLISHED} AND {which}" for which in (_BEFORE, _AFTER, _BOUNDED)))
    jobs, early, late, closed = (history.count(where, (since,)) for where in wheres)
    least = max(jobs, 1)
    return Calibration(jobs, (jobs - early - late) / least, early / least, late / least, closed)
