"""When servers will be free for a job of asrpt-gated, by the predicted ends of the running jobs."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.best_alpha import candidate_nodes, fewest_servers
from slurm_asrpt.core.placement.selection import offers
from slurm_asrpt.core.policies.gated.reach import Reach
from slurm_asrpt.core.policies.gated.servers import Servers, bits
from slurm_asrpt.core.policies.running_jobs import RunningJobs

SHORT_S = 86400.0
"""Assumed time for which an idle server without enough CPUs or memory for a job lacks them: it is unknown."""
_KINDS = 4096  # size of the cache: a daemon runs for years


def _last(servers: Sequence[tuple[int, float, int]]) -> float:
    """When the last of these is free. Each is what it lacks of the largest size, when it is free, its place."""
    return max([time for _, time, _ in servers])


@dataclass(frozen=True, slots=True)
class Needs:
    """The servers that jobs of one form need: ``servers`` of those at ``places``, in node-table order. mask: the same.

    largest: GPUs of the largest of these servers.
    spare: for each place, how many GPUs fewer its server has than the largest; the least are preferred.
    together: sets of indices of ``places``, of which one must have all servers; empty if any will do (``Reach``).
    """

    servers: int
    largest: int
    places: tuple[int, ...]
    spare: tuple[int, ...]
    mask: int
    together: tuple[tuple[int, ...], ...] = ()

    def share(self, job: Job) -> int:
        """GPUs that a job needs of each of its servers, if it asks for parts of several; 0: all of theirs."""
        return job.request.per_node or 0 if self.servers > 1 else 0


class FreeTimes:
    """Predicts when the servers of a cluster can run a job.

    nodes: in node-table order. running_jobs: the jobs on them. among: the mask of the servers to consider.
    reach: the switches under which a job must stay; None: any.
    """

    def __init__(
        self, nodes: Sequence[Node], running_jobs: RunningJobs, among: int, reach: Reach | None = None
    ) -> None:
        self._nodes, self._running_jobs, self._reach = nodes, running_jobs, reach
        self._among = [(at, nodes[at]) for at in bits(among)]
        self._known: dict[Hashable, Needs] = {}

    def soonest(self, job: Job, servers: Servers, now: float) -> tuple[int, float]:
        """The fewest servers that could hold the job, those that are free soonest: a mask, and when, seconds.

        Raises ValueError for a job that is too large for the cluster.
        """
        needs = self.needs(job)
        times = self._times(job, needs, servers, now)
        if needs.servers == 1:
            time = min(times)
            return 1 << needs.places[times.index(time)], max(now, time)
        rows = list(zip(needs.spare, times, needs.places, strict=True))
        sets = [[rows[at] for at in some] for some in needs.together]
        of_each = [sorted(some)[: needs.servers] for some in sets] or [heapq.nsmallest(needs.servers, rows)]
        chosen = min(of_each, key=_last)
        return sum([1 << at for _, _, at in chosen]), max(now, _last(chosen))

    def needs(self, job: Job) -> Needs:
        """The servers that the job needs. Raises ValueError for a job that is too large for the cluster."""
        form = (job.profile, job.request)
        found = self._known.get(form)
        if found is None:
            if len(self._known) >= _KINDS:
                self._known.clear()
            found = self._known[form] = self._look_up(job)
        return found

    def _look_up(self, job: Job) -> Needs:
        nodes = [node for _, node in self._among]
        number = fewest_servers(job, nodes)
        least = job.gpus if number == 1 else 1
        names = {node.name for node in candidate_nodes(nodes, job.request)}
        places = tuple(at for at, node in self._among if node.name in names and node.gpus >= least)
        sizes = [self._nodes[at].gpus for at in places]
        even = number == 1 or job.request.per_node is not None
        spare = tuple([0 if even else max(sizes) - size for size in sizes])
        mask = sum(1 << at for at in places)
        masks = () if self._reach is None else self._reach.switches_for(job, number, mask)
        together = tuple([tuple([row for row, at in enumerate(places) if one >> at & 1]) for one in masks])
        return Needs(number, max(sizes), places, spare, mask, together)

    def _times(self, job: Job, needs: Needs, servers: Servers, now: float) -> list[float]:
        """When each server can run the job, or its share of one that asks for parts of several servers.

        If the job needs several servers without saying how many GPUs of each: when they are completely free.
        """
        free_at, places = self._running_jobs.free_at, needs.places
        if share := needs.share(job):
            return self._share_times(job, share, places, servers, now)
        if needs.servers == 1 and 2 * job.gpus < needs.largest:
            return self._exact_times(job.gpus, needs.places, servers, now)
        times = free_at if len(places) == len(free_at) else [free_at[at] for at in places]
        return times if servers.plain(job) else self._penalize_short(job, times, needs, servers, now)

    def _exact_times(self, gpus: int, places: Sequence[int], servers: Servers, now: float) -> list[float]:
        """The exact times, for a job that needs less than half a server."""
        free, nodes, running_jobs = servers.view.free, self._nodes, self._running_jobs
        return [
            running_jobs.free_at[at]
            if 2 * gpus >= nodes[at].gpus
            else running_jobs.room_at(at, gpus, free[nodes[at].name], now)
            for at in places
        ]

    def _share_times(self, job: Job, share: int, places: Sequence[int], servers: Servers, now: float) -> list[float]:
        """When each server has so many GPUs free; with a penalty if it has, but lacks CPUs or memory."""
        usable, free = dict(self._offered(job, servers)), servers.view.free
        times = list[float]()
        for at in places:
            name = self._nodes[at].name
            time = self._running_jobs.room_at(at, share, free[name], now)
            times.append(now + SHORT_S if time <= now and usable.get(name, 0) < share else time)
        return times

    @staticmethod
    def _offered(job: Job, servers: Servers) -> Iterator[tuple[str, int]]:
        return ((node.name, count) for node, count in offers(servers.view, job.request))

    def _penalize_short(
        self, job: Job, times: Sequence[float], needs: Needs, servers: Servers, now: float
    ) -> list[float]:
        """The times with a penalty for idle servers that lack CPUs or memory for the job."""
        usable = dict(self._offered(job, servers))
        least = job.request.per_node or (job.gpus if needs.servers == 1 else job.request.unit)
        return [
            now + SHORT_S if time == RunningJobs.IDLE and usable.get(self._nodes[at].name, 0) < least else time
            for at, time in zip(needs.places, times, strict=True)
        ]
