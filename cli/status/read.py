"""What asrptd has published, and how much of it still counts."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from slurm_asrpt.config.location import run_folder
from slurm_asrpt.status.document import (
    FILE_NAME,
    JobStatus,
    Status,
    read_around,
    read_jobs,
    read_screenful,
    read_status,
    read_users,
    stale_after,
    withdrawn_after,
)
from slurm_asrpt.text import slurm_time


def status_folder(config: Path | None) -> Path:
    """The folder with the status. The settings are only checked where none is found. Raises InputError."""
    folder = run_folder(config)
    if folder is not None and (folder / FILE_NAME).exists():
        return folder
    from slurm_asrpt.config.settings import load_settings

    return load_settings(config).paths.run


def published(folder: Path, now: float) -> Status:
    """The status without estimates that are too old. Raises AsrptError."""
    return _without_old_estimates(read_status(folder), now)


def screenful(folder: Path, now: float, user: str, rows: int) -> Status:
    """The same with no more jobs than a screen of so many rows may show. Raises AsrptError."""
    return _without_old_estimates(read_screenful(folder, user, rows), now)


def staleness(found: Status, now: float) -> str:
    """What is to be said of a status that is old; "" of a fresh one."""
    age = now - found.written
    if age <= stale_after(found.interval_s):
        return ""
    return (
        f"this is {slurm_time(age)} old, and asrptd writes it every {found.interval_s:g} s: "
        "it may be down (systemctl status asrptd)"
    )


def warn_if_stale(found: Status, now: float) -> None:
    if text := staleness(found, now):
        print(f"asrpt-status: {text}", file=sys.stderr)


def of_users(folder: Path, now: float, users: Iterable[str]) -> Status:
    """The same with their jobs alone. Raises AsrptError."""
    return _without_old_estimates(read_users(folder, users), now)


def of_jobs(folder: Path, now: float, job_ids: Iterable[str]) -> Status:
    """The same with these jobs and arrays alone. Raises AsrptError."""
    return _without_old_estimates(read_jobs(folder, job_ids), now)


def around(folder: Path, now: float, job_id: str) -> Status:
    """The same with what an explanation of a job needs. Raises AsrptError."""
    return _without_old_estimates(read_around(folder, job_id), now)


def _without_old_estimates(found: Status, now: float) -> Status:
    """Estimates of starts are withdrawn by asrptd, and here where it is gone."""
    oldest = now - withdrawn_after(found.forecast_s)
    jobs = [job if job.start_made is None or job.start_made >= oldest else _withdrawn(job) for job in found.jobs]
    return replace(found, jobs=jobs)


def _withdrawn(job: JobStatus) -> JobStatus:
    return replace(
        job,
        start_earliest=None,
        start_median=None,
        start_latest=None,
        last_start_earliest=None,
        last_start_latest=None,
        start_made=None,
        start_unknown="the last estimate is too old",
    )
