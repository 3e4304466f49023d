"""Reads the status that asrptd publishes, and tells whether it is stale."""

from __future__ import annotations

import os
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
from slurm_asrpt.status.ended import read_ended
from slurm_asrpt.status.reason_texts import in_local_time
from slurm_asrpt.text import slurm_time


def status_folder(config: Path | None) -> Path:
    """The directory of the status file. Settings are validated only if it has none. Raises InputError."""
    folder = run_folder(config)
    if folder is not None and (folder / FILE_NAME).exists():
        return folder
    from slurm_asrpt.config.settings import load_settings

    return load_settings(config).paths.run


def published(folder: Path, now: float) -> Status:
    """The whole status, without expired start estimates. Raises AsrptError."""
    return _as_shown(read_status(folder), now)


def screenful(folder: Path, now: float, user: str, rows: int) -> Status:
    """The same with the user's jobs and as many others as fit on a screen with ``rows`` lines. Raises AsrptError."""
    return _as_shown(read_screenful(folder, user, rows), now)


def staleness(found: Status, now: float) -> str:
    """A warning if the status is old, else ""."""
    age = now - found.written
    if age <= stale_after(found.interval_s):
        return ""
    return (
        f"this status is {slurm_time(age)} old, but asrptd writes it every {found.interval_s:g} s: "
        "asrptd may be down (systemctl status asrptd)"
    )


def warn_if_stale(found: Status, now: float) -> None:
    if text := staleness(found, now):
        print(f"asrpt-status: {text}", file=sys.stderr)


def of_users(folder: Path, now: float, users: Iterable[str]) -> Status:
    """The status with only the jobs of these users. Raises AsrptError."""
    return _as_shown(read_users(folder, users), now)


def of_jobs(folder: Path, now: float, job_ids: Iterable[str]) -> Status:
    """The status with only these jobs and arrays. Raises AsrptError."""
    return _as_shown(read_jobs(folder, job_ids), now)


def around(folder: Path, now: float, job_id: str) -> Status:
    """The status with only the jobs that an explanation of ``job_id`` needs. Raises AsrptError."""
    return _as_shown(read_around(folder, job_id), now)


def ended(folder: Path) -> list[JobStatus]:
    """The caller's ended jobs, the latest first; root and asrptd's user see those of all users."""
    return read_ended(folder, os.getuid())


def ended_of(folder: Path, job_id: str) -> list[JobStatus]:
    """The ended job with that ID, or the tasks of that array."""
    found = [job for job in ended(folder) if job_id in (job.job_id, job.job_id.partition("_")[0])]
    return [job for job in found if job.job_id == job_id][:1] or found


def _as_shown(found: Status, now: float) -> Status:
    """Without expired start estimates, which asrptd withdraws unless it is down, and with times in the local zone."""
    oldest = now - withdrawn_after(found.forecast_s)
    jobs = [job if job.start_made is None or job.start_made >= oldest else _withdrawn(job) for job in found.jobs]
    return replace(found, jobs=[_in_local_time(job) if "until" in job.facts else job for job in jobs])


def _in_local_time(job: JobStatus) -> JobStatus:
    text = in_local_time(job.reason, job.text, job.facts)
    unknown = text if job.start_unknown == job.text else job.start_unknown  # the same reason, told once
    return replace(job, text=text, start_unknown=unknown)


def _withdrawn(job: JobStatus) -> JobStatus:
    return replace(
        job,
        start_earliest=None,
        start_median=None,
        start_latest=None,
        start_open="",
        last_start_earliest=None,
        last_start_latest=None,
        last_start_open="",
        start_made=None,
        start_unknown="the last estimate has expired",
    )
