"""AlloX [6]: places and orders jobs by min-cost bipartite matching; each job runs on one GPU.

The k-th last job n on GPU m delays k jobs by its own time p_{n,m}. So the matching of jobs to pairs (m, k) with the
smallest sum of k p_{n,m} minimizes the total completion time on unrelated machines. "It conducts job-level scheduling
and ignores the intra-job parallelism" (section VII): the tasks of a job run one after another on its GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_asrpt.core.rounds.jobs import Fleet, Part, Progress, RoundJob
from slurm_asrpt.core.rounds.policy import IdleGpus, register


@register("sched-allox", clairvoyant=True)
class SchedAllox:
    """Repeats the matching when a job arrives or ends; only jobs that have not started can move."""

    def __init__(self, fleet: Fleet, jobs: Sequence[RoundJob]) -> None:
        self._fleet = fleet
        self._idle = IdleGpus(fleet)
        self._waiting: dict[str, Progress] = {}
        self._place: dict[str, int] = {}
        self._ends = np.zeros(len(fleet.kind))
        self._next: list[Progress] = []
        self._stale = False

    def seconds(self, job: RoundJob) -> np.ndarray:
        """p_{n,m} by type: all rounds on one GPU, each with all its tasks in sequence and one synchronization."""
        each = job.tasks * np.array(job.compute_s) + np.array(job.sync_s)
        return np.asarray((job.rounds or 1) * each)

    def arrived(self, job: Progress, now: float) -> None:
        self._waiting[job.job.id] = job
        self._stale = True

    def round_ended(self, job: Progress, now: float) -> None:
        self._next.append(job)

    def finished(self, job: Progress, now: float) -> None:
        self._idle.add((self._place.pop(job.job.id),))
        self._stale = True

    def freed(self, gpus: Sequence[int], now: float) -> None:
        held = self._place.values()
        new = [gpu for gpu in gpus if gpu not in held]  # in a pool, GPUs may come later than jobs
        self._idle.add(new)
        self._stale = self._stale or bool(new)

    def assign(self, now: float) -> list[Part]:
        parts = [job.take((self._place[job.job.id],), (job.job.tasks,)) for job in self._next]
        self._next.clear()
        if self._stale and self._waiting and self._idle.number:
            parts += [self._begin(name, gpu, now) for name, gpu in self._first(now)]
        self._stale = False
        return parts

    def _begin(self, name: str, gpu: int, now: float) -> Part:
        job = self._waiting.pop(name)
        self._idle.take(gpu)
        self._place[name] = gpu
        self._ends[gpu] = now + self.seconds(job.job)[self._fleet.kind[gpu]]
        return job.take((gpu,), (job.job.tasks,))

    def _first(self, now: float) -> list[tuple[str, int]]:
        """The first job on each idle GPU: the one with the highest k among those matched to it."""
        from scipy.optimize import linear_sum_assignment  # half a second, and only this needs it

        names = list(self._waiting)
        gpus = len(self._fleet.kind)
        deep = -(-len(names) // gpus) + 1
        seconds = np.array([self.seconds(self._waiting[name].job) for name in names])[:, list(self._fleet.kind)]
        busy = np.maximum(0.0, self._ends - now)
        costs = np.concatenate([k * seconds + busy for k in range(1, deep + 1)], axis=1)
        rows, columns = linear_sum_assignment(costs)
        first: dict[int, tuple[int, str]] = {}
        for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
            k, gpu = divmod(column, gpus)
            first[gpu] = max(first.get(gpu, (-1, "")), (k, names[row]))
        return [(name, gpu) for gpu, (_, name) in sorted(first.items()) if gpu in self._idle]


@register("sched-allox-unit")
class SchedAlloxUnit(SchedAllox):
    """The online variant (section VI-D): sizes are unknown, so each job counts as one round."""
