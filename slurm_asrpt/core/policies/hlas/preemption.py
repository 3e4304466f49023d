"""The free GPUs during one decision with preemption by asrptd, and the choice of the jobs to preempt."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence

from slurm_asrpt.core.cluster import ClusterView, Fabric, Placement
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.policies.base import PreemptibleRun


class PreemptionPlan:
    """now: free GPUs for starts. later: the same plus the GPUs of jobs that are being preempted; never fewer.

    left: runs that are not being preempted. ending: the IDs of those that are.
    GPUs of nodes that clean up count like those of jobs that are being preempted.
    """

    def __init__(self, cluster: ClusterView, runs: Iterable[PreemptibleRun], fabric: Fabric) -> None:
        self.now, self.later, self._fabric = cluster.copy(), cluster.copy(), fabric
        self.left, self.ending = list(runs), list[JobId]()
        self.preempt([run for run in self.left if run.ending])

    def start(self, job: Job) -> Placement | None:
        """Place the job on GPUs that are free now and allocate them; None if it does not fit."""
        placement = self._place(self.now, job)
        if placement is not None:
            self.now.take(placement.gpus, job.request)
            self.later.take(placement.gpus, job.request)
            self.now.headroom.take(job.charges)
        return placement

    def over_limit(self, job: Job) -> bool:
        """Whether a limit of the site keeps the job from starting now."""
        return bool(job.charges) and self.now.headroom.exceeded(job.charges) is not None

    def reserve(self, job: Job) -> bool:
        """Whether the job fits later. If so, reserve GPUs for it, as few as possible of those that are free now."""
        placement = self._place(self.later, job)
        if placement is None:
            return False
        missing = {name: count - self.later.free[name] + self.now.free[name] for name, count in placement.gpus.items()}
        self.later.take(placement.gpus, job.request)
        self.now.take({name: count for name, count in missing.items() if count > 0}, job.request)
        return True

    def servers_for(self, job: Job, among: Container[str], first: Container[str]) -> Mapping[str, int]:
        """The GPUs per server that the job would get on these servers, once all are free; none if it cannot run there.

        On as few of them as possible: those named first, then those where most GPUs are free now.
        """
        able = [node for node in self.now.nodes if node.name in among]
        nodes = sorted(able, key=lambda node: (node.name not in first, -self.later.free[node.name], node.index))

        def placed(number: int) -> Placement | None:
            return self._place(ClusterView(nodes, {node.name: node.gpus for node in nodes[:number]}), job)

        least = bisect_left(range(len(nodes)), True, key=lambda number: placed(number) is not None)
        found = placed(least)
        return {} if found is None else found.gpus

    def hold(self, job: Job, gpus: Mapping[str, int]) -> None:
        """Keep these GPUs for the job, as far as they are free now or later, and what else becomes free there."""
        for view in (self.now, self.later):
            free = {name: min(count, view.free[name]) for name, count in gpus.items()}
            view.take({name: count for name, count in free.items() if count}, job.request)
        self.left = [run for run in self.left if gpus.keys().isdisjoint(run.gpus)]

    def victims_for(self, job: Job, candidates: Sequence[PreemptibleRun]) -> list[PreemptibleRun]:
        """The runs to preempt for the job, from the first of these; empty if all of them are not enough."""
        if not self._fits(job, candidates):
            return []
        low, high = 0, len(candidates)
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits(job, candidates[:middle]) else (middle, high)
        chosen = list(candidates[:high])
        for run in reversed(candidates[:high]):
            others = [each for each in chosen if each is not run]
            chosen = others if self._fits(job, others) else chosen
        return chosen

    def preempt(self, runs: Sequence[PreemptibleRun]) -> None:
        """Preempt these runs: their GPUs will be free later."""
        for run in runs:
            self.left.remove(run)
            if not run.cleaning:
                self.ending.append(run.job_id)
            _give(self.later, run)

    def _fits(self, job: Job, runs: Sequence[PreemptibleRun]) -> bool:
        """Whether the job would fit later without these runs."""
        view = self.later.copy()
        for run in runs:
            _give(view, run)
        return self._place(view, job) is not None

    def _place(self, view: ClusterView, job: Job) -> Placement | None:
        return place(view, job, Strategy.MOST_FREE, self._fabric) if view.total_free >= job.gpus else None


def _give(view: ClusterView, run: PreemptibleRun) -> None:
    """Free the GPUs of a run in the view, which may be slightly newer than the run."""
    room = {name: view.by_name[name].gpus - view.free[name] for name in run.gpus if name in view.by_name}
    view.give({name: min(count, room[name]) for name, count in run.gpus.items() if name in room}, run.held)
