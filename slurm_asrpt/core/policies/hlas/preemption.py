"""The free GPUs during one decision that may interrupt running jobs, and which jobs to interrupt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from slurm_asrpt.core.cluster import ClusterView, Fabric, Placement
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.policies.base import Run


class PreemptionPlan:
    """now: what starts may use. later: with what jobs that are being interrupted will give back; never less.

    left: runs that are not being interrupted. ending: the ids of those that are.
    """

    def __init__(self, cluster: ClusterView, runs: Iterable[Run], fabric: Fabric) -> None:
        self.now, self.later, self._fabric = cluster.copy(), cluster.copy(), fabric
        self.left, self.ending = list(runs), list[JobId]()
        self.interrupt([run for run in self.left if run.ending])

    def start(self, job: Job) -> Placement | None:
        """Where the job can start now, then taken; None if nowhere."""
        placement = self._place(self.now, job)
        if placement is not None:
            self.now.take(placement.gpus, job.request)
            self.later.take(placement.gpus, job.request)
            self.now.headroom.take(job.charges)
        return placement

    def over_limit(self, job: Job) -> bool:
        """Whether a limit of the site keeps the job from starting now."""
        return bool(job.charges) and self.now.headroom.exceeded(job.charges) is not None

    def keep(self, job: Job) -> bool:
        """Whether the job fits later; then that is kept for it, of what is free now as little as can be."""
        placement = self._place(self.later, job)
        if placement is None:
            return False
        lacking = {name: count - self.later.free[name] + self.now.free[name] for name, count in placement.gpus.items()}
        self.later.take(placement.gpus, job.request)
        self.now.take({name: count for name, count in lacking.items() if count > 0}, job.request)
        return True

    def needed(self, job: Job, able: Sequence[Run]) -> list[Run]:
        """Those of the first of these runs whose GPUs the job cannot do without; none if all of them are not enough."""
        if not self._fits(job, able):
            return []
        low, high = 0, len(able)
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits(job, able[:middle]) else (middle, high)
        chosen = list(able[:high])
        for run in reversed(able[:high]):
            others = [each for each in chosen if each is not run]
            chosen = others if self._fits(job, others) else chosen
        return chosen

    def interrupt(self, runs: Sequence[Run]) -> None:
        """Later these runs' GPUs will be free."""
        for run in runs:
            self.left.remove(run)
            self.ending.append(run.job_id)
            _give(self.later, run)

    def _fits(self, job: Job, runs: Sequence[Run]) -> bool:
        """Whether it would fit later without these runs."""
        view = self.later.copy()
        for run in runs:
            _give(view, run)
        return self._place(view, job) is not None

    def _place(self, view: ClusterView, job: Job) -> Placement | None:
        return place(view, job, Strategy.MOST_FREE, self._fabric) if view.total_free >= job.gpus else None


def _give(view: ClusterView, run: Run) -> None:
    """Frees the GPUs of a run on the nodes of the view, which may be slightly newer than the run."""
    room = {name: view.by_name[name].gpus - view.free[name] for name in run.gpus if name in view.by_name}
    view.give({name: min(count, room[name]) for name, count in run.gpus.items() if name in room}, run.held)
