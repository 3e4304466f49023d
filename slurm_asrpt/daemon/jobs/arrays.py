"""Job arrays: how their tasks become jobs.

Slurm keeps all pending tasks of an array in one record, and splits a task from it when the task alone is updated. So
asrptd gives the next tasks of each array their own leases; from the next cycle on they are jobs like any other. The
other tasks keep the hook's lease, which asrptd renews too: if asrptd dies, Slurm starts them. In mode order the tasks
stay together, with one place in the queue: that of the next task. In mode shadow arrays are left to Slurm.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from slurm_asrpt.core.job import ARRAY_TASKS_AHEAD, admissible_tasks
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES

SPLITS_PER_CYCLE = ARRAY_TASKS_AHEAD
"""Number of tasks that are split from all arrays per cycle."""
_COUNT = RUNNING_STATES - {"COMPLETING"}
"""States in which a task counts against the limit of its array."""


@dataclass(frozen=True)
class ArraySplit:
    """Tasks to split from this record now. first: no other task of the array is in the queue."""

    rest: ManagedJob
    tasks: list[int]
    first: bool


def next_splits(jobs: Iterable[ManagedJob]) -> list[ArraySplit]:
    """The splits for this cycle. jobs: all jobs."""
    all_jobs = list(jobs)
    rests = [job for job in all_jobs if job.has_waiting_tasks]
    return list(_chosen(rests, all_jobs)) if rests else []


def _chosen(rests: Iterable[ManagedJob], all_jobs: Iterable[ManagedJob]) -> Iterator[ArraySplit]:
    counts, left = TaskCounts(all_jobs), SPLITS_PER_CYCLE
    for rest in rests:
        record = rest.record
        most = min(
            left, admissible_tasks(counts.waiting[record.job_id], counts.known[record.job_id], record.array_most)
        )
        tasks = list(islice(chain.from_iterable(read_tasks(record.array_tasks)), most))
        left -= len(tasks)
        if tasks:
            yield ArraySplit(rest, tasks, first=not counts.waiting[record.job_id])


def beyond_limits(eligible: Iterable[ManagedJob], jobs: Iterable[ManagedJob]) -> dict[str, int]:
    """The eligible tasks for which too many of their array have started (``--array=0-9%4``), with the limits.

    Tasks are split within the limit, but the last one is in the array's own record, and the limit may have been
    lowered. jobs: all jobs.
    """
    limited, found = defaultdict[str, list[ManagedJob]](list), dict[str, int]()
    for job in eligible:
        if job.record.array_most and not job.record.array_tasks:
            limited[job.record.array_id].append(job)
    if not limited:
        return found
    started = Counter(job.record.array_id for job in jobs if _has_started(job))
    for array_id, tasks in limited.items():
        most = max(job.record.array_most for job in tasks)
        found |= {job.record.job_id: most for job in tasks[max(0, most - started[array_id]) :]}
    return found


def _has_started(job: ManagedJob) -> bool:
    return job.state is JobState.PINNED or job.record.state in _COUNT


class TaskCounts:
    """Number of tasks of each array that are separate jobs. waiting: pending ones; known: pending and running ones.

    Slurm starts the next task while one still completes.
    """

    def __init__(self, jobs: Iterable[ManagedJob]) -> None:
        self.waiting, self.known = Counter[str](), Counter[str]()
        for job in jobs:
            if not job.record.array_tasks and job.record.state != "COMPLETING":
                self.known[job.record.array_id] += 1
                waits = job.record.state == PENDING and job.state is not JobState.PINNED
                self.waiting[job.record.array_id] += waits
