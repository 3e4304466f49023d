"""Slurm's record of a job, read with care: a pin of asrptd, or a requeue in progress, has changed some of it."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from operator import attrgetter

from slurm_asrpt.slurm.records import PENDING, JobRecord
from slurm_asrpt.slurm.writeback import Original


def is_another(record: JobRecord, before: JobRecord) -> bool:
    """Whether slurmctld was killed and has reused the number for another job: a requeue would count as a restart."""
    return record.submit_time > before.submit_time and not record.restarts


def still_its_run(record: JobRecord, before: JobRecord) -> JobRecord:
    """``record``, but with the start of the ending run if a requeue is in progress.

    Until the processes have ended, Slurm shows the time of the requeue as start time, one more restart, and the old
    submit time.
    """
    if record.state == PENDING or record.submit_time != before.submit_time or record.restarts <= before.restarts:
        return record
    return replace(record, start_time=before.start_time, restarts=before.restarts)


def unpinned(record: JobRecord, before: Original | None) -> JobRecord:
    """The record as it was before a pin overwrote its node list, node counts, tasks, CPUs and priority."""
    if before is None:
        return record
    return replace(
        record,
        min_nodes=before.min_nodes,
        max_nodes=before.max_nodes,
        tasks=before.tasks,
        cpus=before.cpus or record.cpus,
        priority=before.priority if record.priority else 0,  # 0: held meanwhile
        required_nodes=before.required_nodes,
    )


_PASSING = (
    *("reason", "eligible_time", "accrue_time", "start_time", "end_time"),
    *("priority", "nice", "array_tasks", "tres"),
)
request_values = attrgetter(*(each.name for each in dataclasses.fields(JobRecord) if each.name not in _PASSING))
"""The values of a record that determine the job's request: without those that merely change over time."""

_OF_ONE_JOB = (
    *("job_id", "number", "het_id", "name", "user", "uid", "account", "qos", "admin_comment", "submit_time"),
    *("time_limit", "dependency", "licenses", "requeue", "restarts", "exit_code", "signal", "array_most"),
    *("nodes", "gpus_by_node", "gpus_by_type", "gpu_indexes"),
)
_SHAPE = (each.name for each in dataclasses.fields(JobRecord) if each.name not in {*_PASSING, *_OF_ONE_JOB})
shape_values = attrgetter(*_SHAPE, "tres", "federated")
"""The values of a pending record that determine what it requests of the nodes: many jobs have the same."""
