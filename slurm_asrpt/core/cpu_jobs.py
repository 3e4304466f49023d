"""Jobs without GPUs: where they may start beside GPU jobs, which need CPUs and memory of the same nodes.

Policies schedule GPU jobs. Jobs without GPUs start by band (the site's priorities), then in the order of their
submission, on what waiting GPU jobs do not need beside the free GPUs. The first one that cannot start keeps its room
from the others, and for some time from GPU jobs if none of a lower band waits, and none of its own that is older. Jobs
that end before it can start by their time limits use that room meanwhile, as in backfill.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import NamedTuple

from slurm_asrpt.core.cluster import ClusterView, host_of
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.limits import Charges
from slurm_asrpt.core.reasons import Phase, Reason, reason

_INF = float("inf")
KEPT_S, EVERY_S, ALWAYS_S = 1800.0, 7200.0, 86400.0
"""Room is kept from GPU jobs for a job that can start within the first of these, else in the first part of the second.

GPUs must not be idle for hours for a job without GPUs. That part grows, so that no stream of GPU jobs starves it: of a
job that has waited for the third of these it is everything.
"""
WAITS_FOR_CPUS = ("cpus", "whole-nodes")
"""Kinds of reasons of a job without GPUs that may start."""


def share_of(node: str, partition: str) -> str:
    """The name of the room that a partition with MaxCPUsPerNode has on a node, beside the node's own."""
    return f"{node}/{partition}"


class Room(NamedTuple):
    """CPUs and memory (MiB) of a node."""

    cpus: float
    memory: float

    def holds(self, need: Room) -> bool:
        return self.cpus >= need.cpus and self.memory >= need.memory

    def plus(self, other: Room) -> Room:
        return Room(self.cpus + other.cpus, self.memory + other.memory)

    def less(self, taken: Room) -> Room:
        """What is left, down to nothing. It may all be infinite: memory that Slurm does not count, a whole node."""
        return Room(*(have - each if each < have else 0.0 for have, each in zip(self, taken, strict=True)))

    def parts(self, need: Room, most: int) -> int:
        """How many times the need fits, the last time perhaps in part, at most ``most``."""
        pairs = ((self.cpus, need.cpus), (self.memory, need.memory))
        return ceil(min([most, *(max(0.0, have) / each for have, each in pairs if each)]))


@dataclass(frozen=True, slots=True)
class CpuJob:
    """A waiting job without GPUs.

    submit_time: seconds. cpus: in total. min_nodes, max_nodes: the user's ``-N``; max_nodes None means no upper bound.
    memory_per_cpu, memory_per_node: MiB. candidates: the nodes that may run it. whole_nodes: it shares its nodes with
    no other job. partitions: those that it may start in, by name, with their nodes; the MaxCPUsPerNode of one of them
    holds for it. band, charges, time_limit: as of a ``Job``.
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
    partitions: tuple[tuple[str, frozenset[str]], ...] = ()
    band: int = 0
    charges: Charges = ()
    time_limit: float = _INF

    @property
    def shape(self) -> CpuJob:
        """The same for all jobs that fit into the same room."""
        return replace(self, id=JobId(""), submit_time=0.0, band=0, charges=(), time_limit=_INF)

    @property
    def why_waiting(self) -> Reason:
        if self.whole_nodes:
            return reason(Phase.WAITING, "whole-nodes", whole=self.min_nodes)
        return reason(Phase.WAITING, "cpus", cpus=self.cpus)

    def share(self, nodes: int) -> Room:
        """What it may need on each of so many nodes."""
        cpus = -(-self.cpus // nodes)
        return Room(cpus, cpus * self.memory_per_cpu + self.memory_per_node)


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """What becomes free at a time, in seconds. rooms: by node. whole: nodes that are idle then, with all they have."""

    time: float
    rooms: Mapping[str, Room]
    whole: Mapping[str, Room] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeptRoom:
    """The room that is kept for a job. start: when it can start at the earliest, in seconds; inf if unknown."""

    job: CpuJob
    start: float
    rooms: Mapping[str, Room]

    def is_brief(self, time_limit: float, now: float) -> bool:
        """Whether a job that starts now ends before; a job without a time limit never does."""
        return time_limit < _INF and now + time_limit <= self.start

    def is_kept_from_gpu_jobs(self, now: float) -> bool:
        """Whether it is so soon that GPUs may stay idle for it, or the job's turn."""
        periods, since = divmod(now - self.job.submit_time, EVERY_S)
        kept_s = KEPT_S + (EVERY_S - KEPT_S) * min(1.0, periods * EVERY_S / ALWAYS_S)
        return self.start - now <= KEPT_S or since < kept_s

    def why(self, now: float) -> Reason:
        """Of a job that would delay it."""
        in_s = max(0.0, self.start - now) if self.start < _INF else None
        return reason(Phase.WAITING, "kept-room", head=self.job.id, in_s=in_s)


class CpuStock:
    """What is free on each node for jobs without GPUs.

    rooms: by node, and the shares of capped partitions (``share_of``). free_gpus: by node. idle: the nodes that run no
    job. not_up: those that are powered down. capped: the partitions with MaxCPUsPerNode.
    """

    def __init__(
        self,
        rooms: Mapping[str, Room],
        free_gpus: Mapping[str, int],
        idle: frozenset[str],
        not_up: frozenset[str] = frozenset(),
        capped: frozenset[str] = frozenset(),
    ) -> None:
        self._rooms, self._free_gpus, self._idle, self._not_up = dict(rooms), free_gpus, set(idle), not_up
        self._capped = capped
        self._kept: Mapping[str, Room] = {}

    def nodes_for(self, job: CpuJob, brief: bool = False) -> tuple[str, ...]:
        """The nodes on which the job may start, as few as possible; empty if there is no room.

        brief: it may use the room that is kept for another.

        Prefers nodes that are up, then those with the fewest free GPUs, then those with the fewest free CPUs.
        """
        able = self._able(job, brief)
        rooms = {name: self._room(name, job, brief) for name in able}
        largest = max([room.cpus for room in rooms.values()], default=0.0)
        if largest <= 0:
            return ()
        able.sort(key=self._cost)
        least, most = max(job.min_nodes, ceil(job.cpus / largest)), min(len(able), job.max_nodes or len(able), job.cpus)
        for count in range(least, most + 1):
            need = job.share(count)
            found = [name for name in able if rooms[name].holds(need)]
            if len(found) >= count:
                return tuple(sorted(found[:count]))
        return ()

    def _room(self, node: str, job: CpuJob, brief: bool) -> Room:
        """What the job may use there: of the node, and of its partition's share. With whole nodes, it gets all CPUs."""
        own, *share = [self._unkept(name, brief) for name in self._names(node, job)]
        least = min([own.cpus, *(room.cpus for room in share)])
        return Room(0 if job.whole_nodes and least < own.cpus else least, own.memory)

    def _names(self, node: str, job: CpuJob) -> tuple[str, ...]:
        """The rooms on a node that the job needs, the node's own first, then the larger share of its partitions."""
        if not self._capped:
            return (node,)
        names = [name for name, nodes in job.partitions if node in nodes]
        if not names or not self._capped.issuperset(names):
            return (node,)
        return node, max([share_of(node, name) for name in names], key=lambda share: self._rooms[share].cpus)

    def _unkept(self, name: str, brief: bool) -> Room:
        kept = None if brief else self._kept.get(name)
        return self._rooms[name] if kept is None else self._rooms[name].less(kept)

    def _cost(self, name: str) -> tuple[bool, int, float, str]:
        return name in self._not_up, self._free_gpus.get(name, 0), self._rooms[name].cpus, name

    def _able(self, job: CpuJob, brief: bool) -> list[str]:
        idle = self._idle if brief else self._idle - self._kept.keys()
        names = job.candidates & (idle if job.whole_nodes else self._rooms.keys())
        return [name for name in self._rooms if name in names]

    def start(self, job: CpuJob, nodes: tuple[str, ...]) -> dict[str, Room]:
        """The job starts there. Returns what it takes."""
        taken = self._needs(job, nodes)
        self._take(taken)
        self._idle.difference_update(nodes)
        return taken

    def _needs(self, job: CpuJob, nodes: Sequence[str]) -> dict[str, Room]:
        """What the job takes of each room on these nodes."""
        need = Room(_INF, _INF) if job.whole_nodes else job.share(max(1, len(nodes)))
        return {name: need for node in nodes for name in self._names(node, job)}

    def keep(self, kept: KeptRoom) -> None:
        """Keep this room from jobs that are not brief."""
        self._kept = kept.rooms

    def room_to_keep(self, job: CpuJob, ends: Sequence[ExpectedEnd]) -> KeptRoom:
        """The room to keep for a job that cannot start yet, on the nodes where it can start first.

        It is what the job needs beyond what will be free there in time, so that others may use the rest.

        ends: of the running jobs, soonest first. If they do not make room, it is kept where least is missing.
        """
        count = bisect_left(range(len(ends) + 1), True, key=lambda n: bool(self._after(ends[:n]).nodes_for(job)))
        then = self._after(ends[:count])
        nodes = then.nodes_for(job) or then._most_free(job)
        start = ends[count - 1].time if 0 < count <= len(ends) else _INF if count else 0.0
        needs = self._needs(job, nodes).items()
        return KeptRoom(
            job, start, {name: self._rooms[name].less(then._rooms[name].less(need)) for name, need in needs}
        )

    def _after(self, ends: Sequence[ExpectedEnd]) -> CpuStock:
        """The same after these."""
        rooms, idle = dict(self._rooms), set(self._idle)
        for end in ends:
            for name in end.rooms.keys() & rooms.keys():
                rooms[name] = rooms[name].plus(end.rooms[name])
            for name in end.whole.keys() & rooms.keys():
                rooms[name] = end.whole[name]
                idle.add(name)
        return CpuStock(rooms, self._free_gpus, frozenset(idle), self._not_up, self._capped)

    def _most_free(self, job: CpuJob) -> tuple[str, ...]:
        able = [name for name in self._rooms if name in job.candidates]
        able.sort(key=lambda name: (-self._rooms[name].cpus, name))
        return tuple(able[: job.min_nodes])

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
    view: ClusterView,
    others: Mapping[str, Room],
    idle: frozenset[str],
    not_up: frozenset[str] = frozenset(),
    capped: frozenset[str] = frozenset(),
) -> CpuStock:
    """What a view has free. others: nodes that policies do not use, and the shares of capped partitions."""
    cpus, memory = view.free_cpus or {}, view.free_memory
    free_gpus = Counter[str]()
    for server, count in view.free.items():
        free_gpus[view.hosts.get(server, server)] += count
    own = {name: Room(cpus.get(name, 0.0), _INF if memory is None else memory.get(name, 0.0)) for name in free_gpus}
    return CpuStock({**others, **own}, free_gpus, idle, not_up, capped)
