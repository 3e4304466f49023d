"""Jobs without GPUs: where they may start beside GPU jobs, which need CPUs and memory of the same nodes.

Policies schedule GPU jobs. Jobs without GPUs start by band (the site's priorities), then in the order of their
submission, on what waiting GPU jobs do not need beside the free GPUs. The first of them keeps its room from the others,
and from GPU jobs if none of a lower band waits, and none of its own that is older. So within a band, neither kind of
job starves the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

from slurm_asrpt.core.cluster import ClusterView, host_of
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.limits import Charges

_INF = float("inf")


class Room(NamedTuple):
    """CPUs and memory (MiB) of a node."""

    cpus: float
    memory: float

    def holds(self, need: Room) -> bool:
        return self.cpus >= need.cpus and self.memory >= need.memory

    def parts(self, need: Room, most: int) -> int:
        """How many times the need fits, the last time perhaps in part, at most ``most``."""
        pairs = ((self.cpus, need.cpus), (self.memory, need.memory))
        return ceil(min([most, *(max(0.0, have) / each for have, each in pairs if each)]))


@dataclass(frozen=True, slots=True)
class CpuJob:
    """A waiting job without GPUs.

    submit_time: seconds. cpus: in total. min_nodes, max_nodes: the user's ``-N``; max_nodes None means no upper bound.
    memory_per_cpu, memory_per_node: MiB. candidates: the nodes that may run it. whole_nodes: it shares its nodes with
    no other job. band, charges: as of a ``Job``.
    """

    id: JobId
    submit_time: float
    cpus: int
    min_nodes: int = 1
    max_nodes: int | None = None
    memory_per_cpu: float = 0.0
    memory_per_node: float = 0.0
    candidates: frozenset[str] = frozenset()
    whole_nodes: bool = False
    band: int = 0
    charges: Charges = ()

    @property
    def shape(self) -> CpuJob:
        """The same for all jobs that fit into the same room."""
        return replace(self, id=JobId(""), submit_time=0.0, band=0, charges=())

    def share(self, nodes: int) -> Room:
        """What it may need on each of so many nodes."""
        cpus = -(-self.cpus // nodes)
        return Room(cpus, cpus * self.memory_per_cpu + self.memory_per_node)


class CpuStock:
    """What is free on each node for jobs without GPUs.

    rooms: by node. free_gpus: by node. idle: the nodes that run no job. not_up: those that are powered down.
    """

    def __init__(
        self,
        rooms: Mapping[str, Room],
        free_gpus: Mapping[str, int],
        idle: frozenset[str],
        not_up: frozenset[str] = frozenset(),
    ) -> None:
        self._rooms, self._free_gpus, self._idle, self._not_up = dict(rooms), free_gpus, idle, not_up

    def nodes_for(self, job: CpuJob) -> tuple[str, ...]:
        """The nodes on which the job may start, as few as possible; empty if there is no room.

        Prefers nodes that are up, then those with the fewest free GPUs, then those with the fewest free CPUs.
        """
        able = self._able(job)
        able.sort(key=self._cost)
        for count in range(job.min_nodes, min(len(able), job.max_nodes or len(able), job.cpus) + 1):
            need = job.share(count)
            found = [name for name in able if self._rooms[name].holds(need)]
            if len(found) >= count:
                return tuple(sorted(found[:count]))
        return ()

    def _cost(self, name: str) -> tuple[bool, int, float, str]:
        return name in self._not_up, self._free_gpus.get(name, 0), self._rooms[name].cpus, name

    def _able(self, job: CpuJob) -> list[str]:
        names = job.candidates & (self._idle if job.whole_nodes else self._rooms.keys())
        return [name for name in self._rooms if name in names]

    def start(self, job: CpuJob, nodes: tuple[str, ...]) -> dict[str, Room]:
        """The job starts there. Returns what it takes."""
        taken = dict.fromkeys(nodes, Room(_INF, _INF) if job.whole_nodes else job.share(len(nodes)))
        self._take(taken)
        return taken

    def keep_for(self, job: CpuJob) -> dict[str, Room]:
        """Keep the nodes where least is missing for a job that cannot start yet. Returns what is kept."""
        able = [name for name in self._rooms if name in job.candidates]
        able.sort(key=lambda name: (-self._rooms[name].cpus, name))
        return self.start(job, tuple(able[: job.min_nodes]))

    def keep_for_gpus(self, waiting: Iterable[Job]) -> None:
        """Keep what these waiting jobs need beside the free GPUs, first on the nodes with most free CPUs.

        On each node for as many GPUs as there is room for, and one more if some is left: it gathers there.
        """
        asked = [job for job in waiting if job.request.cpus_per_gpu or job.request.memory_per_gpu]
        cpus = max([job.request.cpus_per_gpu for job in asked], default=0.0)
        memory = max([job.request.memory_per_gpu for job in asked], default=0.0)
        gpus = sum([job.gpus for job in asked])
        usable = _usable_by(asked, self._rooms)
        for name in sorted(filter(usable.__contains__, self._rooms), key=lambda each: -self._rooms[each].cpus):
            beside = self._rooms[name].parts(Room(cpus, memory), min(gpus, self._free_gpus.get(name, 0)))
            gpus -= beside
            self._take({name: Room(beside * cpus, beside * memory)})

    def _take(self, taken: Mapping[str, Room]) -> None:
        for name, room in taken.items():
            left = self._rooms[name]
            self._rooms[name] = Room(left.cpus - room.cpus, left.memory - room.memory)


def _usable_by(jobs: Iterable[Job], names: Iterable[str]) -> frozenset[str]:
    """Those of these nodes that at least one of the jobs may use: not nodes that are reserved for others."""
    sets = {id(job.request): job.request.candidates for job in jobs}.values()  # most jobs share a few requests
    listed = [each for each in sets if each is not None]
    return frozenset(names) if len(listed) < len(sets) else frozenset(map(host_of, frozenset[str]().union(*listed)))


def stock_of(
    view: ClusterView, others: Mapping[str, Room], idle: frozenset[str], not_up: frozenset[str] = frozenset()
) -> CpuStock:
    """What a view has free. others: nodes that policies do not use."""
    cpus, memory = view.free_cpus or {}, view.free_memory
    free_gpus = Counter[str]()
    for server, count in view.free.items():
        free_gpus[view.hosts.get(server, server)] += count
    own = {name: Room(cpus.get(name, 0.0), _INF if memory is None else memory.get(name, 0.0)) for name in free_gpus}
    return CpuStock({**others, **own}, free_gpus, idle, not_up)
