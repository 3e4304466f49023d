"""A trace as clean columns, and the one place that says which rows cannot be used and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

COLUMNS: Mapping[str, str] = {
    "job_id": "the source's own id",
    "submit_s": "submission, seconds since the first job of the trace",
    "user": "who submitted it, empty if the source does not say",
    "group": "recurrence key: jobs of one group run the same program; empty if the source does not say",
    "gpus": "GPUs of the whole job, at least 1",
    "duration_s": "run time without queueing, seconds, above 0",
    "status": "how it ended in the source's words, empty if it does not say",
    "time_limit_s": "the user's time limit, seconds; inf for none",
    "wait_s": "wait in the real system, seconds; nan if the source does not say",
    "queue": "partition, virtual cluster or queue; empty if the source does not say",
}
"""The columns of every trace, with units."""

LONGEST_S = 10 * 365 * 86400.0
MOST_GPUS = 1_000_000
_DEFAULTS = {"user": "", "group": "", "status": "", "time_limit_s": np.inf, "wait_s": np.nan, "queue": ""}
_TEXT = ("job_id", "user", "group", "status", "queue")


@dataclass(frozen=True)
class Trace:
    """Jobs in the order of submission.

    jobs: one row per job with COLUMNS. rows: rows read. left_out: how many rows were left out, by reason.
    changed: how many rows were kept but altered (a fractional GPU rounded up, say), by what was done.
    """

    name: str
    jobs: pd.DataFrame
    rows: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.jobs)

    def slice(self, first: int, count: int) -> Trace:
        """Consecutive jobs, on the same clock."""
        return Trace(self.name, self.jobs.iloc[first : first + count].reset_index(drop=True), self.rows)


def clean(name: str, raw: pd.DataFrame, changed: Mapping[str, int] | None = None) -> Trace:
    """A trace of the rows that make sense; every other row is counted under its first fault.

    raw: COLUMNS by name, of which job_id, submit_s, gpus and duration_s are needed; cells may be anything. The clock
    is shifted so that the first job comes at 0. Raises ValueError for a missing column.
    """
    missing = [column for column in COLUMNS if column not in raw and column not in _DEFAULTS]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}")
    jobs = pd.DataFrame({column: raw.get(column, _DEFAULTS.get(column)) for column in COLUMNS}, index=raw.index)
    for column in _TEXT:
        jobs[column] = jobs[column].fillna("").astype(str)
    for column in ("submit_s", "gpus", "duration_s", "time_limit_s", "wait_s"):
        jobs[column] = pd.to_numeric(jobs[column], errors="coerce")
    left_out: dict[str, int] = {}
    for fault, bad in _faults(jobs):
        count = int(bad.sum())
        if count:
            left_out[fault] = count
            jobs = jobs[~bad.reindex(jobs.index)]
    jobs["time_limit_s"] = jobs["time_limit_s"].where(jobs["time_limit_s"] > 0, np.inf)
    jobs["wait_s"] = jobs["wait_s"].where(jobs["wait_s"] >= 0, np.nan)
    jobs["gpus"] = jobs["gpus"].astype(np.int64)
    jobs = jobs.sort_values("submit_s", kind="stable", ignore_index=True)
    jobs["submit_s"] -= jobs["submit_s"].min() if len(jobs) else 0.0
    return Trace(name, jobs, len(raw), left_out, dict(changed or {}))


def _faults(jobs: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    """(fault, which rows have it and no fault named before it)."""
    submit, gpus, duration = jobs["submit_s"], jobs["gpus"], jobs["duration_s"]
    checks = [
        ("no job id", jobs["job_id"] == ""),
        ("no submission time", ~np.isfinite(submit)),
        ("no number of GPUs", ~np.isfinite(gpus)),
        ("no GPUs", gpus <= 0),
        ("absurd number of GPUs", (gpus > MOST_GPUS) | (gpus != np.floor(gpus))),
        ("no run time", ~np.isfinite(duration)),
        ("negative run time", duration < 0),
        ("zero run time", duration == 0),
        ("absurd run time", duration > LONGEST_S),
        ("job id repeated", jobs["job_id"].duplicated()),
    ]
    found: list[tuple[str, pd.Series]] = []
    seen = pd.Series(False, index=jobs.index)
    for fault, bad in checks:
        found.append((fault, bad & ~seen))
        seen |= bad
    return found
