"""What all users may read of a snapshot: no names of users and groups, but those of limits that count in the queue."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace
from typing import TypeVar

from slurm_asrpt.core.job import Job
from slurm_asrpt.forecast.arrays import PendingTasks
from slurm_asrpt.forecast.preemptions import Consenting
from slurm_asrpt.forecast.snapshot import Snapshot, Waiting

_Named = TypeVar("_Named", Waiting, PendingTasks, Consenting)


def without_names(snapshot: Snapshot) -> Snapshot:
    """The names of other limits would tell who ran what before."""
    limits = {limit for each in snapshot.waiting for limit, _ in each.job.charges}
    limits |= {limit for each in snapshot.running for limit, _ in each.charges}
    return replace(
        snapshot,
        headroom={limit: room for limit, room in snapshot.headroom.items() if limit in limits},
        waiting=_nameless(snapshot.waiting, limits),
        recent=_nameless(snapshot.recent, limits),
        arrays=_nameless(snapshot.arrays, limits),
        preemption=replace(snapshot.preemption, consenting=_nameless(snapshot.preemption.consenting, limits)),
    )


def _nameless(jobs: Sequence[_Named], limits: Container[str]) -> tuple[_Named, ...]:
    return tuple(replace(each, job=_nameless_job(each.job, limits)) for each in jobs)


def _nameless_job(job: Job, limits: Container[str]) -> Job:
    charges = tuple([(limit, amount) for limit, amount in job.charges if limit in limits])
    return replace(job, user="", group="", charges=charges)
