"""A trace as clean columns, and the rules by which rows are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
from numpy.typing import ArrayLike

from slurm_asrpt.lazy_pandas import pd

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

LIMIT_COLUMNS = ("account", "qos", "tres")
"""Columns of sources that know them, text: what decides which limits of the site a job counts against."""

NODE_COLUMNS = ("min_nodes", "max_nodes")
"""Columns of sources that know them, numbers: the owner's ``-N``; nan if unknown, max_nodes also without a bound."""

LONGEST_S = 10 * 365 * 86400.0
MAX_GPUS = 1_000_000
LATEST_S = 1e11
"""Submissions beyond this (the year 5138) are absurd."""
DAY_S = 86400.0
_DEFAULTS = {"user": "", "group": "", "status": "", "time_limit_s": np.inf, "wait_s": np.nan, "queue": ""}
_NEEDED = tuple(column for column in COLUMNS if column not in _DEFAULTS)
TEXT = ("job_id", "user", "group", "status", "queue")
"""Columns of text; the others are numbers."""
NUMBERS = tuple(column for column in COLUMNS if column not in TEXT)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclass(frozen=True)
class Trace:
    """Jobs in the order of submission.

    jobs: one row per job with COLUMNS, and LIMIT_COLUMNS and NODE_COLUMNS if the source has them. rows: number of rows
    read. left_out: number of rows left out, by reason. merged: number of rows that are not jobs of their own (a job
    step, a task of a job), by kind. changed: number of jobs that were kept but altered (a part of a GPU rounded up, for
    example), by alteration. first_s: local time of day of the first submission, seconds after midnight; None if
    unknown. first_at: the same in seconds since the epoch; None if unknown. Every row is accounted for:
    rows == len(jobs) + left_out + merged.
    """

    name: str
    jobs: pd.DataFrame
    rows: int
    left_out: Mapping[str, int] = field(default_factory=dict)
    changed: Mapping[str, int] = field(default_factory=dict)
    merged: Mapping[str, int] = field(default_factory=dict)
    first_s: float | None = None
    first_at: float | None = None

    def __len__(self) -> int:
        return len(self.jobs)

    def slice(self, first: int, count: int) -> Trace:
        """Consecutive jobs, on the same clock."""
        jobs = self.jobs.iloc[first : first + count].reset_index(drop=True)
        return Trace(self.name, jobs, len(jobs), first_s=self.first_s)


def clean(
    name: str,
    raw: pd.DataFrame,
    changed: Mapping[str, pd.Series | int] | None = None,
    left_out: Mapping[str, int] | None = None,
    merged: Mapping[str, int] | None = None,
    midnights: bool = False,
    epoch: bool = False,
) -> Trace:
    """A trace of the valid rows; every other row is counted under its first fault.

    raw: COLUMNS by name, of which job_id, submit_s, gpus and duration_s are required; cells may hold anything. The
    clock is shifted so that the first job comes at 0. left_out, merged: rows that the reader has counted and that
    are not in raw. changed: by alteration, a mask of the altered rows of raw, or a count. midnights: whether
    multiples of 86400 in submit_s are local midnights. epoch: whether submit_s counts from the epoch (with
    midnights, in local time). Raises ValueError for a missing column.
    """
    missing = [column for column in _NEEDED if column not in raw]
    if missing:
        raise ValueError(f"no column {', '.join(missing)}")
    more, nodes = ([column for column in kind if column in raw] for kind in (LIMIT_COLUMNS, NODE_COLUMNS))
    columns = (*COLUMNS, *more, *nodes)
    jobs = pd.DataFrame({column: raw.get(column, _DEFAULTS.get(column)) for column in columns}, index=raw.index)
    for column in (*TEXT, *more):
        jobs[column] = _text(jobs[column])
    for column in (*NUMBERS, *nodes):
        jobs[column] = numbers(jobs[column])
    faults = {fault: count for fault, count in (left_out or {}).items() if count}
    usable = np.ones(len(jobs), dtype=bool)
    for fault, bad in _faults(jobs):
        count = int((bad & usable).sum())
        if count:
            faults[fault] = faults.get(fault, 0) + count
            usable &= ~bad
    jobs = jobs[usable]
    jobs, twice = _once(jobs)
    if twice:
        faults["job id repeated"] = faults.get("job id repeated", 0) + twice
    altered = {what: _among(jobs.index, of) for what, of in (changed or {}).items()}
    jobs, first = _on_clock(jobs)
    rows = len(raw) + sum((left_out or {}).values()) + sum((merged or {}).values())
    first_s, first_at = first % DAY_S if midnights else None, instant(first, midnights) if epoch else None
    told = (first_s, first_at) if len(jobs) else (None, None)
    return Trace(name, jobs, rows, faults, _counted(altered), _counted(merged), *told)


def instant(seconds: float, local: bool) -> float:
    """Seconds since the epoch. local: ``seconds`` are those of local time."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).timestamp() if local else seconds


def numbers(values: ArrayLike | pd.Series) -> pd.Series:
    """float64; nan if not a number."""
    series = pd.Series(values)
    if series.dtype.kind in "iuf":
        return series.astype(np.float64)
    if series.dtype.kind == "b":
        return pd.Series(np.nan, index=series.index)
    found = pd.to_numeric(series.astype(object), errors="coerce")
    if found.dtype == object:  # integers beyond 64 bits
        found = found.map(_float)
    return found.astype(np.float64)


def _float(value: object) -> float:
    try:
        return float(str(value))
    except (ValueError, OverflowError):
        return float("nan")


def whole_gpus(gpus: pd.Series) -> tuple[pd.Series, pd.Series]:
    """GPUs rounded up to whole ones, and which jobs that changed.

    For traces with fractional GPUs: a job's fractions are added up over all its workers, and the sum is rounded up.
    Nothing here shares a GPU, and rounding down would give a job fewer GPUs than it used. Zero stays zero.
    """
    whole = np.maximum(np.ceil(gpus - 1e-9), 1.0).where(gpus > 0, gpus)  # a sum of parts may be off by a rounding error
    return whole, (whole - gpus).abs() > 1e-9


ROUNDED = "part of a GPU rounded up to a whole one"
"""What ``changed`` says of such jobs."""


def all_of(frame: pd.DataFrame) -> pd.Series:
    """A mask of every row, for ``changed``."""
    return pd.Series(True, index=frame.index)


def _among(kept: pd.Index, of: pd.Series | int) -> int:
    return int(of.loc[kept].sum()) if isinstance(of, pd.Series) else of


def _counted(counts: Mapping[str, int] | None) -> dict[str, int]:
    return {what: count for what, count in (counts or {}).items() if count}


def _text(column: pd.Series) -> pd.Series:
    """Text on one line: characters that could control a terminal or break a file of rows become question marks."""
    text = column.astype(object).where(column.notna(), "").astype(str)
    if _CONTROL.search("".join(text.tolist())):
        text = text.map(lambda word: _CONTROL.sub("?", word))
    return text.astype(object)


def _on_clock(jobs: pd.DataFrame) -> tuple[pd.DataFrame, float]:
    """The jobs in order, on a clock that begins with the first; and the first submission on the old one."""
    jobs = jobs.sort_values("submit_s", kind="stable", ignore_index=True)
    first = float(jobs["submit_s"].iloc[0]) if len(jobs) else 0.0
    jobs["submit_s"] -= first
    jobs["time_limit_s"] = jobs["time_limit_s"].where(jobs["time_limit_s"] > 0, np.inf)
    jobs["wait_s"] = jobs["wait_s"].where((jobs["wait_s"] >= 0) & np.isfinite(jobs["wait_s"]), np.nan)
    jobs["gpus"] = jobs["gpus"].astype(np.int64)
    return jobs, first


def _once(jobs: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    twice = jobs["job_id"].duplicated()
    return jobs[~twice], int(twice.sum())


def _faults(jobs: pd.DataFrame) -> list[tuple[str, pd.Series]]:
    """(fault, mask of rows); a row counts under its first fault."""
    submit, gpus, duration = jobs["submit_s"], jobs["gpus"], jobs["duration_s"]
    return [
        ("no job id", jobs["job_id"] == ""),
        ("no submission time", ~np.isfinite(submit)),
        ("absurd submission time", submit.abs() > LATEST_S),
        ("no number of GPUs", ~np.isfinite(gpus)),
        ("no GPUs", gpus == 0),
        ("negative number of GPUs", gpus < 0),
        ("absurd number of GPUs", (gpus > MAX_GPUS) | (gpus != np.floor(gpus))),
        ("no run time", ~np.isfinite(duration)),
        ("negative run time", duration < 0),
        ("zero run time", duration == 0),
        ("absurd run time", duration > LONGEST_S),
    ]


def recurrence_key(jobs: pd.DataFrame) -> pd.Series:
    """The group of each job: the source's, else user and GPUs, else queue and GPUs."""
    owner = jobs["user"].where(jobs["user"] != "", jobs["queue"])
    proxy = owner + "/" + jobs["gpus"].astype(str)
    return pd.Series(jobs["group"].where(jobs["group"] != "", proxy))
