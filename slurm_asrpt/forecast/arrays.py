"""Tasks of job arrays that are no jobs yet: in a forecast, too, they become jobs as those before them start or end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

from slurm_asrpt.core.arrays import room
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.forecast.sampling import Quantiles

MAX_TASKS = 2000
"""So many of them, of all arrays, become jobs in one future: it ends where more would, as at the horizon."""
Task = tuple[Job, float]
"""And the iterations that it will run."""


@dataclass(frozen=True)
class PendingTasks:
    """Tasks of an array that wait in one record. job, span: of each; the job's id is the array's.

    tasks: their numbers in order, as the arguments of ranges, at least one. waiting, running: those of the array that
    are jobs already. most: so many may run at once, 0 without a bound.
    """

    job: Job
    span: Quantiles
    tasks: tuple[tuple[int, int, int], ...]
    waiting: int = 0
    running: int = 0
    most: int = 0

    @property
    def count(self) -> int:
        return sum(len(range(*each)) for each in self.tasks)

    @property
    def asked(self) -> dict[JobId, JobId]:
        """Tasks whose starts are told, by the names under which they are.

        The next one under the array's id. The last one under its own, unless no future goes so far.
        """
        last = self.task_id(range(*self.tasks[-1])[-1])
        return {self.job.id: self.task_id(self.tasks[0][0])} | ({last: last} if self.count <= MAX_TASKS else {})

    def task_id(self, number: int) -> JobId:
        return JobId(f"{self.job.id}_{number}")


class TaskFeed:
    """Those that are still to come in one future. lengths: the iterations of one task of a rest after the other.

    over: more would have come than are played.
    """

    def __init__(self, rests: Iterable[PendingTasks], lengths: Callable[[PendingTasks], Iterator[float]]) -> None:
        self._arrays = {str(rest.job.id): _Array(rest, lengths(rest)) for rest in rests}
        self._changed = list(self._arrays.values())  # of which a task has started or ended since the last ones came
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
        """Whether some could come, and might start at once: none of those before them waits."""
        return any(array.room and not array.waiting for array in self._changed)

    def release(self) -> Iterator[Task]:
        """Those that are jobs from now on."""
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
    """waiting, known: its tasks that are jobs, as in ``room``."""

    def __init__(self, rest: PendingTasks, lengths: Iterator[float]) -> None:
        self.waiting, self.known = rest.waiting, rest.waiting + rest.running
        self._rest, self._left, self._lengths = rest, rest.count, lengths
        self._numbers = chain.from_iterable(range(*each) for each in rest.tasks)

    @property
    def room(self) -> int:
        return min(self._left, room(self.waiting, self.known, self._rest.most))

    def release(self) -> Iterator[Task]:
        for number in islice(self._numbers, self.room):
            self.waiting, self.known, self._left = self.waiting + 1, self.known + 1, self._left - 1
            yield replace(self._rest.job, id=self._rest.task_id(number)), next(self._lengths)
