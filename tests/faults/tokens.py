"""The tokens of jobs in tickets, and what slurmctld's log reports of jobs that it forgot."""

from __future__ import annotations

import re

from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.slurm.records import JobRecord

JOB = r"JobId=(\d+(?:_\d+)?)(?:\(\d+\))?"
"""As in slurmctld's log: 12, or 12_3(15)."""


def token_of(job_id: str, name: str) -> str:
    """The token of a job is its name; that of an array task also has the task id."""
    _, _, task = job_id.partition("_")
    return f"{name}.{task}" if task else name


def tokens_of(record: JobRecord) -> list[str]:
    """The tokens of a job, or of all pending array tasks in this record."""
    if record.array_tasks:
        return [f"{record.name}.{task}" for some in read_tasks(record.array_tasks) for task in some]
    return [token_of(record.job_id, record.name)]


def recovered(log: str) -> set[str]:
    """Ids of jobs that slurmctld started, found pending after its restart, and started again.

    It may find an array task in its array (12_*), if it has not saved that the task was split off.
    """
    again = set[str]()
    begun: dict[str, bool] = {}  # whether slurmctld restarted since the start
    for what, job_id in re.findall(rf"(Allocate|Started|Recovered) {JOB}", log):
        if what == "Recovered":
            begun |= {each: True for each in begun if each == job_id or each.startswith(f"{job_id}_")}
        else:
            again |= {job_id} if begun.get(job_id) else set()
            begun[job_id] = False
    return again


def ghosts(log: str) -> set[str]:
    """Ids of jobs that slurmctld saw end, and reports as running since its restart."""
    over: dict[str, bool] = {}  # whether slurmctld restarted since the end
    events = rf"(submit_batch_job:|Allocate|Started|Recovered|_job_complete:) {JOB}( Assoc| done)?"
    for what, job_id, more in re.findall(events, log):
        if more == " done":
            over[job_id] = False
        elif what == "Recovered" and job_id in over:
            over[job_id] = True
        elif what in ("submit_batch_job:", "Allocate", "Started"):  # another job, or another run
            over.pop(job_id, None)
    return {job_id for job_id, back in over.items() if back}
