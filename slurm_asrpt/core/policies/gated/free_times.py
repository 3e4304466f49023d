"""When servers will be free for a job of asrpt-gated, by the predicted ends of the running jobs."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.best_alpha import candidate_nodes, fewest_servers
from slurm_asrpt.core.placement.selection import usable_on
from slurm_asrpt.core.policies.gated.reach import Reach
from slurm_asrpt.core.policies.gated.servers import Servers, bits
from slurm_asrpt.core.policies.running_jobs import RunningJobs

SHORT_S = 86400.0
"""Assumed time for which a server lacks CPUs or the like that no known job on it has: it is unknown."""
_KINDS = 4096  # size of the cache: a daemon runs for years


def is_unknown(time: float, now: float) -> bool:
    """Whether this time, as of ``now``, is the assumed one of a server that lacks what no known job on it has."""
    return time == now + SHORT_S


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

    def share_of(self, job: Job, mask: int, servers: Servers) -> int:
        """``Needs.share``; the GPUs of a job whose one server, in the mask, has them, but lacks CPUs or the like."""
        needs, gpus = self.needs(job), job.gpus
        if needs.servers == 1 and any(self._lacks(job, at, gpus, gpus, servers) for at in bits(mask)):
            return gpus
        return needs.share(job)

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

    def ready_at(self, job: Job, at: int, share: int, servers: Servers, now: float) -> float:
        """When the server at this place has what the job needs of it: ``share`` GPUs, and what comes with them."""
        time = self._running_jobs.room_at(at, share, servers.view.free[self._nodes[at].name], now)
        lacks = self._lacks(job, at, share, share, servers)
        return self._resources_at(job, at, share, servers, now) if lacks else time

    def _times(self, job: Job, needs: Needs, servers: Servers, now: float) -> list[float]:
        """When each server can run the job, or its share of one that asks for parts of several servers.

        If the job needs several servers without saying how many GPUs of each: when they are completely free.
        """
        free_at, places = self._running_jobs.free_at, needs.places
        if share := needs.share(job):
            return [self.ready_at(job, at, share, servers, now) for at in places]
        if needs.servers == 1 and 2 * job.gpus < needs.largest:
            times = self._exact_times(job.gpus, needs.places, servers, now)
        else:
            times = free_at if len(places) == len(free_at) else [free_at[at] for at in places]
        return times if servers.plain(job) else self._with_resources(job, times, needs, servers, now)

    def _exact_times(self, gpus: int, places: Sequence[int], servers: Servers, now: float) -> list[float]:
        """The exact times, for a job that needs less than half a server."""
        free, nodes, running_jobs = servers.view.free, self._nodes, self._running_jobs
        return [
            running_jobs.free_at[at]
            if 2 * gpus >= nodes[at].gpus
            else running_jobs.room_at(at, gpus, free[nodes[at].name], now)
            for at in places
        ]

    def _with_resources(
        self, job: Job, times: Sequence[float], needs: Needs, servers: Servers, now: float
    ) -> list[float]:
        """The times; of servers that have the GPUs now, but lack CPUs or the like, when they have these."""
        found = list[float]()
        for at, time in zip(needs.places, times, strict=True):
            gpus, least = self._nodes[at].gpus, job.request.unit
            if needs.servers == 1:
                gpus = least = job.gpus
            lacks = self._lacks(job, at, gpus, least, servers)
            found.append(self._resources_at(job, at, least, servers, now) if lacks else time)
        return found

    def _lacks(self, job: Job, at: int, gpus: int, least: int, servers: Servers) -> bool:
        """Whether a server has so many GPUs free, but not the CPUs, memory or other resources for the least of them."""
        name, view = self._nodes[at].name, servers.view
        return view.free[name] >= gpus and not servers.plain(job) and usable_on(view, name, job.request) < least

    def _resources_at(self, job: Job, at: int, least: int, servers: Servers, now: float) -> float:
        """When the jobs that run on a server are predicted to have left what it lacks for so many GPUs."""
        name = self._nodes[at].name
        for end, later in self._running_jobs.as_they_end(at, servers.view, now):
            if usable_on(later, name, job.request) >= least:
                return end
        return now + SHORT_S
