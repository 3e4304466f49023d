"""Preemption by Slurm, by the site's rules: GPUs of running jobs on which another may start, and what these lose.

Slurm preempts by its own rules once a job is pinned to nodes: there, and no more jobs than it needs. So a start needs
the nodes on which the victims lose least. Which of several victims on a node Slurm takes is its own choice, but the
GPUs of a node are the same in any case: those that are free, and those of the jobs that may be preempted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slurm_asrpt.core.cluster import ClusterView
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, PreemptionClass, Request


@dataclass(frozen=True, slots=True)
class PreemptableJob:
    """A running job that others may preempt.

    kind: see ``PreemptionClass``. gpus: by node. lost: GPU-seconds that it has computed in this run.
    held: the CPUs and memory that it frees.
    """

    id: JobId
    kind: str
    gpus: Mapping[str, int]
    lost: float
    held: Request = ANYWHERE


@dataclass(frozen=True)
class Preemptable:
    """The preemptable jobs, in the order in which Slurm considers them.

    claimed: GPUs by node that jobs which are about to start take from them.
    """

    jobs: tuple[PreemptableJob, ...]
    claimed: Mapping[str, int] = field(default_factory=dict)

    def freed(self, view: ClusterView, kinds: Collection[str]) -> ClusterView:
        """The cluster as a job sees it that may preempt these kinds: their GPUs are free."""
        found = view.copy()
        found.preemptable = None
        for job in self.jobs:
            if job.kind in kinds:  # a node may show more GPUs as free than it should: it is read after the jobs
                room = {name: found.by_name[name].gpus - found.free[name] for name in job.gpus if name in found.free}
                found.give({name: min(job.gpus[name], most) for name, most in room.items() if most}, job.held)
        take_what_is_free(found, self.claimed)
        return found


def take_what_is_free(view: ClusterView, gpus: Mapping[str, int], request: Request = ANYWHERE) -> dict[str, int]:
    """Allocate as many of these GPUs as are free. Returns the others by node: jobs must end for them.

    A node without free GPUs starts no job, so its CPUs and memory do not count.
    """
    free = {name: view.free[name] for name in gpus if name in view.free}
    view.take({name: gpus[name] for name in free if gpus[name] <= free[name]}, request)
    view.take({name: free[name] for name in free if 0 < free[name] < gpus[name]})
    return {name: gpus[name] - free[name] for name in free if gpus[name] > free[name]}


class SlurmPreemptionPlan:
    """What may be preempted, after the starts of one decision.

    cluster: without these starts. victims: the jobs that Slurm is expected to preempt for them, or for starts of
    earlier decisions. most: GPUs of the other preemptable jobs.
    """

    def __init__(self, cluster: ClusterView, preemptable: Preemptable) -> None:
        self._cluster, self._preemptable = cluster, preemptable
        self._starts: list[tuple[Mapping[str, int], Request]] = []
        self._views: dict[frozenset[str], ClusterView] = {}
        self._prices: dict[
            str, dict[tuple[frozenset[str], int], tuple[float, int]]
        ] = {}  # by node, until a start there
        self._on: dict[str, list[PreemptableJob]] = {}
        for job in preemptable.jobs:
            for name in job.gpus:
                self._on.setdefault(name, []).append(job)
        self.victims = self._claimed()
        self.most = sum([sum(job.gpus.values()) for job in preemptable.jobs if job.id not in self.victims])

    def _claimed(self) -> dict[JobId, PreemptableJob]:
        """The jobs that end for the starts of earlier decisions."""
        claimed = self._preemptable.claimed
        return {job.id: job for name, gpus in claimed.items() for job in _first(self._on.get(name, ()), name, gpus)}

    def view(self, kinds: frozenset[str]) -> ClusterView:
        """The cluster after the starts for a job that may preempt these kinds; read-only."""
        found = self._views.get(kinds)
        if found is None:
            found = self._views[kinds] = self._preemptable.freed(self._cluster, kinds)
            for gpus, request in self._starts:
                take_what_is_free(found, gpus, request)
        return found

    def ids(self, kinds: Collection[str]) -> set[JobId]:
        """The running jobs of these kinds that may be preempted."""
        return {job.id for job in self._preemptable.jobs if job.kind in kinds}

    def add(self, job: Job, gpus: Mapping[str, int]) -> None:
        """Plan a start."""
        self._starts.append((gpus, job.request))
        for name in gpus:
            self._prices.pop(name, None)
        for view in self._views.values():
            take_what_is_free(view, gpus, job.request)

    def add_preempting(self, job: Job, gpus: Mapping[str, int]) -> tuple[PreemptableJob, ...]:
        """Plan a start on GPUs that are not all free. Returns the jobs that Slurm is expected to preempt for it."""
        victims = self._victims(job.preempts, gpus)
        self.victims |= {victim.id: victim for victim in victims}
        for name in {name for victim in victims for name in victim.gpus}:
            self._prices.pop(name, None)
        self.most -= sum([sum(victim.gpus.values()) for victim in victims])
        self.add(job, gpus)
        return victims

    def by_loss(self, job: Job, names: Iterable[str]) -> Sequence[str]:
        """These nodes, those first on which the victims of this job would lose least; of equals, the fewest victims."""
        free, need = self.view(job.preempts).free, job.request.per_node or job.gpus
        return sorted(names, key=lambda name: self._price(name, job.preempts, min(need, free[name])))

    def _price(self, name: str, kinds: frozenset[str], gpus: int) -> tuple[float, int]:
        """What the victims on a node would lose for so many GPUs, and how many they are."""
        known = self._prices.setdefault(name, {})
        found = known.get((kinds, gpus))
        if found is None:
            victims = self._victims(kinds, {name: gpus})
            found = known[kinds, gpus] = sum([victim.lost for victim in victims]), len(victims)
        return found

    def _victims(self, kinds: frozenset[str], gpus: Mapping[str, int]) -> tuple[PreemptableJob, ...]:
        """The jobs that must end for these GPUs, in Slurm's order; no more than needed."""
        chosen = dict[JobId, PreemptableJob]()
        for name, count in gpus.items():
            able = [job for job in self._on.get(name, ()) if job.kind in kinds and job.id not in self.victims]
            need = count - self.view(kinds).free[name] + sum([job.gpus[name] for job in able])
            need -= sum([job.gpus[name] for job in able if job.id in chosen])
            rest = [job for job in able if job.id not in chosen]
            chosen |= {job.id: job for job in _first(rest, name, need)}
        return tuple(chosen.values())


def _first(jobs: Sequence[PreemptableJob], name: str, need: int) -> list[PreemptableJob]:
    """The first of these jobs that free ``need`` GPUs on a node, without those that the others make superfluous."""
    chosen = list[PreemptableJob]()
    for job in jobs:
        if need <= 0:
            break
        chosen.append(job)
        need -= job.gpus[name]
    for job in reversed(chosen):
        if need + job.gpus[name] <= 0:
            chosen.remove(job)
            need += job.gpus[name]
    return chosen


def precedence(waiting: Collection[PreemptionClass | None]) -> dict[str, int]:
    """The order of the kinds of these waiting jobs: a kind goes behind all kinds that may preempt it. Others have 0."""
    known = [each for each in waiting if each is not None]
    order = dict.fromkeys((each.kind for each in known), 0)
    for _ in order:  # rules that go round in a circle end here
        for each in known:
            for victim in each.preempts & order.keys() - {each.kind}:
                order[victim] = max(order[victim], order[each.kind] + 1)
    return order
