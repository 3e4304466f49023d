"""Tasks of job arrays that are no jobs yet: in a forecast, too, they become jobs as those before them start or end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice

from slurm_asrpt.core.job import Job, JobId, admissible_tasks
from slurm_asrpt.forecast.sampling import Span

MOST_TASKS = 2000
"""So many of them, of all arrays, become jobs in one future: it ends where more would, as at the horizon."""
Task = tuple[Job, float]
"""And the iterations that it will run."""


@dataclass(frozen=True)
class Rest:
    """Tasks of an array that wait in one record. job, span: of each; the job's id is the array's.

    tasks: their numbers in order, as the arguments of ranges, at least one. waiting, running: those of the array that
    are jobs already. most: so many may run at once, 0 without a bound.
    """

    job: Job
    span: Span
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
        last = self.named(range(*self.tasks[-1])[-1])
        return {self.job.id: self.named(self.tasks[0][0])} | ({last: last} if self.count <= MOST_TASKS else {})

    def named(self, number: int) -> JobId:
        return JobId(f"{self.job.id}_{number}")


class Following:
    """Those that are still to come in one future. lengths: the iterations of one task of a rest after the other.

    over: more would have come than are played.
    """

    def __init__(self, rests: Iterable[Rest], lengths: Callable[[Rest], Iterator[float]]) -> None:
        self._arrays = {str(rest.job.id): _Array(rest, lengths(rest)) for rest in rests}
        self._moved = list(self._arrays.values())  # of which a task has started or ended since the last ones came
        self._room = MOST_TASKS
        self.over = False

    def started(self, job_id: JobId) -> None:
        if array := self._of(job_id):
            array.waiting -= 1
            self._moved.append(array)

    def ended(self, job_id: JobId) -> None:
        if array := self._of(job_id):
            array.known -= 1
            self._moved.append(array)

    def hungry(self) -> bool:
        """Whether some could come, and might start at once: none of those before them waits."""
        return any(array.room and not array.waiting for array in self._moved)

    def come(self) -> Iterator[Task]:
        """Those that are jobs from now on."""
        moved, self._moved = self._moved, []
        for array in moved:
            for task in array.come():
                if not self._room:
                    self.over = True
                    return
                self._room -= 1
                yield task

    def _of(self, job_id: JobId) -> _Array | None:
        return self._arrays.get(job_id.partition("_")[0]) if self._arrays else None


class _Array:
    """waiting, known: its tasks that are jobs, as in ``room``."""

    def __init__(self, rest: Rest, lengths: Iterator[float]) -> None:
        self.waiting, self.known = rest.waiting, rest.waiting + rest.running
        self._rest, self._left, self._lengths = rest, rest.count, lengths
        self._numbers = chain.from_iterable(range(*each) for each in rest.tasks)

    @property
    def room(self) -> int:
        return min(self._left, admissible_tasks(self.waiting, self.known, self._rest.most))

    def come(self) -> Iterator[Task]:
        for number in islice(self._numbers, self.room):
            self.waiting, self.known, self._left = self.waiting + 1, self.known + 1, self._left - 1
            yield replace(self._rest.job, id=self._rest.named(number)), next(self._lengths)
