"""Job arrays: how their tasks become jobs.

Slurm keeps all waiting tasks of an array in one record. It splits a task from that record as soon as something is
written to the task alone. So asrptd gives the next tasks of each array leases of their own; from the next cycle on they
are jobs like any other. The other tasks keep the lease that the hook has written, renewed as any: if asrptd is gone,
Slurm starts them. To split a task is to write, so in modes shadow and order arrays are left to Slurm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from slurm_asrpt.core.job import ARRAY_TASKS_AHEAD, admissible_tasks
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.slurm.records import PENDING

SPLITS_A_CYCLE = ARRAY_TASKS_AHEAD
"""So many tasks are split from all arrays in one cycle."""


@dataclass(frozen=True)
class ArraySplit:
    """Tasks to be split from this record now. first: no other task of the array waits, so these are next in line."""

    rest: ManagedJob
    tasks: list[int]
    first: bool


def next_splits(jobs: Iterable[ManagedJob]) -> list[ArraySplit]:
    """Of the records in which tasks wait together, those from which tasks are to be split now. jobs: all of them."""
    everybody = list(jobs)
    rests = [job for job in everybody if job.has_waiting_tasks]
    return list(_chosen(rests, everybody)) if rests else []


def _chosen(rests: Iterable[ManagedJob], everybody: Iterable[ManagedJob]) -> Iterator[ArraySplit]:
    counts, left = TaskCounts(everybody), SPLITS_A_CYCLE
    for rest in rests:
        record = rest.record
        most = min(
            left, admissible_tasks(counts.waiting[record.job_id], counts.known[record.job_id], record.array_most)
        )
        tasks = list(islice(chain.from_iterable(read_tasks(record.array_tasks)), most))
        left -= len(tasks)
        if tasks:
            yield ArraySplit(rest, tasks, first=not counts.waiting[record.job_id])


class TaskCounts:
    """Tasks of each array that are jobs of their own. waiting: those that wait; known: with those that run, too."""

    def __init__(self, jobs: Iterable[ManagedJob]) -> None:
        self.waiting, self.known = Counter[str](), Counter[str]()
        for job in jobs:
            if not job.record.array_tasks:
                self.known[job.record.array_id] += 1
                waits = job.record.state == PENDING and job.state is not JobState.PINNED
                self.waiting[job.record.array_id] += waits
