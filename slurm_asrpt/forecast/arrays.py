"""Array tasks that are not jobs yet. In a simulated future, as in Slurm, they become jobs when earlier tasks start or
end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

from slurm_asrpt.core.job import Job, JobId, admissible_tasks
from slurm_asrpt.forecast.sampling import Quantiles

MAX_TASKS = 2000
"""Limit of tasks, over all arrays, that become jobs in one simulated future. The future ends at this limit, as it does
at the horizon."""
Task = tuple[Job, float]
"""A job and its actual iterations."""


@dataclass(frozen=True)
class PendingTasks:
    """Pending tasks of an array that wait only for others of it. The field names are keys in forecast.json.

    job: a template; its id is the array's. span: iterations of each task.
    tasks: task numbers in order, as arguments of ``range``; at least one.
    waiting, running: number of the array's tasks that are jobs already.
    most: limit of tasks that run at the same time; 0 for no limit.
    split: whether each task has a record of its own. Otherwise Slurm keeps them in one.
    """

    job: Job
    span: Quantiles
    tasks: tuple[tuple[int, int, int], ...]
    waiting: int = 0
    running: int = 0
    most: int = 0
    split: bool = False

    @property
    def count(self) -> int:
        return sum(len(range(*each)) for each in self.tasks)

    @property
    def asked(self) -> dict[JobId, JobId]:
        """The tasks whose start is reported: the ID to report it under, and the task's own ID.

        The next task is reported under the array's ID. The last task is reported under its own ID, unless it is
        beyond MAX_TASKS. Tasks with records of their own are reported under their own IDs.
        """
        if self.split:
            return {name: name for each in self.tasks for name in map(self.task_id, range(*each))}
        last = self.task_id(range(*self.tasks[-1])[-1])
        return {self.job.id: self.task_id(self.tasks[0][0])} | ({last: last} if self.count <= MAX_TASKS else {})

    def task_id(self, number: int) -> JobId:
        return JobId(f"{self.job.id}_{number}")


class TaskFeed:
    """Releases the pending tasks of one simulated future. lengths: for an array, an iterator over the iterations of
    its tasks.

    over: whether the limit MAX_TASKS was reached.
    """

    def __init__(self, arrays: Iterable[PendingTasks], lengths: Callable[[PendingTasks], Iterator[float]]) -> None:
        self._arrays = {str(pending.job.id): _Array(pending, lengths(pending)) for pending in arrays}
        self._changed = list(self._arrays.values())  # arrays with a start or an end since the last release
        self._room = MAX_TASKS
        self.over = False

    def started(self, job_id: JobId) -> None:
        if array := self._of(job_id):
            array.waiting -= 1
            self._changed.append(array)

    def ended(self, job_id: JobId) -> None:
        if array := self._of(job_id):
            array.known -= 1
            self._changed.append(array)

    def ready(self) -> bool:
        """Whether a task could be released and start now: no earlier task of its array waits."""
        return any(array.room and not array.waiting for array in self._changed)

    def release(self) -> Iterator[Task]:
        """The tasks that become jobs now."""
        moved, self._changed = self._changed, []
        for array in moved:
            for task in array.release():
                if not self._room:
                    self.over = True
                    return
                self._room -= 1
                yield task

    def _of(self, job_id: JobId) -> _Array | None:
        return self._arrays.get(job_id.partition("_")[0]) if self._arrays else None


class _Array:
    """waiting, known: number of its tasks that are jobs, as in ``room``."""

    def __init__(self, pending: PendingTasks, lengths: Iterator[float]) -> None:
        self.waiting, self.known = pending.waiting, pending.waiting + pending.running
        self._pending, self._left, self._lengths = pending, pending.count, lengths
        self._numbers = chain.from_iterable(range(*each) for each in pending.tasks)

    @property
    def room(self) -> int:
        return min(self._left, admissible_tasks(self.waiting, self.known, self._pending.most))

    def release(self) -> Iterator[Task]:
        for number in islice(self._numbers, self.room):
            self.waiting, self.known, self._left = self.waiting + 1, self.known + 1, self._left - 1
            yield replace(self._pending.job, id=self._pending.task_id(number)), next(self._lengths)
