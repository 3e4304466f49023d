"""The cluster as a policy sees it: nodes in Slurm's table order and the GPUs that are free on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING

from slurm_asrpt.core.domains import Layouts, layouts_of, lowest
from slurm_asrpt.core.job import ANYWHERE, JobProfile, Request
from slurm_asrpt.core.limits import Headroom
from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.core.topology import switches_of

if TYPE_CHECKING:
    from slurm_asrpt.core.slurm_preemption import Preemptable


@dataclass(frozen=True, slots=True)
class Fabric:
    """Bandwidths of the cluster in bytes/s.

    inter: B_inter, of one server to those under the same switch of level 1: its NIC, or NVLink in a block of servers.
    intra: B_intra, GPU to GPU inside a server.
    beyond: of one server through a switch of level 2, 3 ...; the last holds for all levels above, without any, inter.
    domain: GPUs of a server that reach each other with ``intra``, its NVLink domain; 0 for all of the server.
    across: A, GPU to GPU between domains of a server.

    Raises ValueError for a bandwidth that is not above 0, or a domain below 0.
    """

    inter: float
    intra: float
    beyond: tuple[float, ...] = ()
    domain: int = 0
    across: float = 0.0

    def __post_init__(self) -> None:
        speeds = (self.inter, self.intra, *self.beyond, *((self.across,) if self.domain else ()))
        if not all(speed > 0 for speed in speeds):
            raise ValueError(f"bandwidths must be above 0 bytes/s, not {', '.join(map(str, speeds))}")
        if self.domain < 0:
            raise ValueError(f"an NVLink domain has at least one GPU, not {self.domain}")

    def through(self, level: int) -> float:
        """Bandwidth of one server through a switch of that level, from 1."""
        if level == 1 or not self.beyond:
            return self.inter
        return self.beyond[min(level - 2, len(self.beyond) - 1)]


PART = ":"
"""Between the name of a node and a GPU type: no node name of Slurm contains it."""


def part_name(host: str, gpu_type: str) -> str:
    """The server that stands for the GPUs of one type on a node with several."""
    return f"{host}{PART}{gpu_type}"


def host_of(name: str) -> str:
    """Slurm's node of a server: ``n1`` for ``n1`` and ``n1:a100``."""
    return name.partition(PART)[0]


@dataclass(frozen=True, slots=True)
class Node:
    """One server: a node of Slurm, or the GPUs of one type on a node with several, which share its CPUs and memory.

    index: its position in Slurm's node table, which decides how Slurm splits GPUs.
    speed: speed of its GPUs relative to the reference GPU; a speed in the job's profile takes precedence.
    switches: the switches above it, from level 1; a block of Slurm's topology/block is one, too.
    weight: as in Slurm: a job starts on nodes of a larger one only if those of less do not suffice.

    Raises ValueError for a speed that is not a finite number above 0.
    """

    name: str
    gpus: int
    index: int = 0
    gpu_type: str = ""
    speed: float = 1.0
    switches: tuple[str, ...] = ()
    weight: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.speed < float("inf"):
            raise ValueError(f"{self.name}: the speed of a GPU is a finite number above 0, not {self.speed}")


@dataclass(slots=True)  # not frozen, at half the cost: a simulation creates one for each job on several servers
class Placement:
    """The nodes of a job's GPUs, and the node of each replica (rank i = replica i).

    gpus: GPUs per node, in node-table order.
    ranks: the node of each replica, len(ranks) = sum of gpus.
    alpha: seconds per iteration in this placement (7).
    speed: speed of its slowest GPU for this job, relative to the reference GPU.
    layouts: its GPUs in the NVLink domains of each node; () if it uses one of each.
    """

    gpus: Mapping[str, int]
    ranks: tuple[str, ...]
    alpha: float
    speed: float = 1.0
    layouts: Layouts = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.gpus)


@dataclass(frozen=True, slots=True)
class Startup:
    """Nodes that are powered down or powering up: jobs that are started there wait until they are up.

    seconds: the expected wait.
    freed: what running jobs are predicted to free elsewhere within that time: GPUs by node, CPUs and memory.
    """

    nodes: frozenset[str]
    seconds: float
    freed: tuple[tuple[Mapping[str, int], Request], ...] = ()


Gres = dict[str, dict[str, float]]
"""Amounts of other generic resources, by resource and node; and the CPUs of nodes that partitions may use, by share."""


def copy_of(gres: Mapping[str, Mapping[str, float]] | None) -> Gres | None:
    """An independent copy; None of None."""
    return None if gres is None else {name: dict(by_node) for name, by_node in gres.items()}


Ranks = Callable[[Sequence[str]], tuple[str, ...]]
"""Maps the names of the servers to the node of each replica."""


@dataclass(slots=True)
class MappingCache:
    """Cached placements of the jobs of one profile.

    alone: placements on one server, by the bit of the server.
    forms: ranks, alpha and speed, by GPUs per server and the servers' hardware models, in node-table order; if it
        makes a difference, by their switches, too.
    """

    profile: JobProfile
    fabric: Fabric
    single: dict[int, Placement] = field(default_factory=dict)
    forms: dict[tuple[object, ...], tuple[Ranks, float, float]] = field(default_factory=dict)


def _times(count: int, amounts: Iterable[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    return ((name, count * amount) for name, amount in amounts)


def kinds_of(nodes: Sequence[Node]) -> tuple[int, ...]:
    """The servers of each kind of GPU, the fastest kind first: masks of positions in ``nodes``."""
    found: dict[tuple[str, float], int] = {}
    for place, node in enumerate(nodes):
        kind = (node.gpu_type, node.speed)
        found[kind] = found.get(kind, 0) | 1 << place
    return tuple(mask for _, mask in sorted(found.items(), key=lambda item: (-item[0][1], item[0][0])))


def spread(counts: Sequence[int]) -> list[int]:
    """``counts[i]`` copies of each number i, mixed as evenly as possible, so that the order favors no number."""
    places = [((n + 0.5) / count, number) for number, count in enumerate(counts) for n in range(count)]
    return [number for _, number in sorted(places)]


def capacity(nodes: Iterable[Node]) -> float:
    """The number of reference GPUs with the same total speed."""
    return float(sum([node.gpus * node.speed for node in nodes]))


def with_reference_gpus(nodes: Iterable[Node]) -> list[Node]:
    """The same servers with reference GPUs."""
    return [replace(node, gpu_type="", speed=1.0) for node in nodes]


class ClusterView:
    """Free GPUs per server, free CPUs and memory per node. Policies read it; its owner allocates and frees them.

    hosts: the nodes of servers that are only a part of one (``part_name``). The stocks of CPUs and memory are by node.
    free_gres: what is free of other generic resources (``Request.gres_per_node``), and of shares of CPUs
        (``Request.shares_per_gpu``); None if they do not count.
    masks: nodes by free GPUs, so that selection need not scan all nodes (core/free_index.py): bit i of masks[f] is set
        if the i-th node of the table has f GPUs free. bits: the bit of each node.
    kinds: see ``kinds_of``; empty if all GPUs are of one kind.
    switches: those above the nodes; None if none is known, or one connects all.
    overdrawn: whether a node had less memory than its jobs use. Such a node cannot start jobs, but masks include it.
    version: counts the changes; the same view with the same version is the same state.
    headroom: what is left of the site's limits; its owner takes and gives back charges there.
    startup: nodes that are not up yet; their GPUs count as free. None if all are up.
    kept: free CPUs and memory by node that only brief requests may use (``Request.brief``).
    preemptable: running jobs that the site lets others preempt; None if there are none. Their GPUs are not free here.
    split: how the GPUs of a job are split over its servers. A real cluster has Slurm's split.
    indexes: the free GPU indexes of each server, as masks; jobs take the lowest. None if domains do not count.

    Raises ValueError if the free GPUs of a node would fall below zero or exceed its GPUs: no GPU is allocated twice.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        free: Mapping[str, int] | None = None,
        free_cpus: Mapping[str, float] | None = None,
        free_memory: Mapping[str, float] | None = None,
        headroom: Headroom | None = None,
        startup: Startup | None = None,
        split: Split = Split.SLURM,
        indexes: Mapping[str, int] | None = None,
        free_gres: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self.headroom = headroom or Headroom()
        self.startup = startup
        self.split = split
        self.kept: Mapping[str, tuple[float, float]] = {}
        self.preemptable: Preemptable | None = None
        self.nodes = tuple(sorted(nodes, key=lambda n: n.index))
        self.by_name = {node.name: node for node in self.nodes}
        self.hosts = {node.name: host_of(node.name) for node in self.nodes if PART in node.name}
        kinds = kinds_of(self.nodes)
        self.kinds = kinds if len(kinds) > 1 else ()
        self.switches = switches_of(self.nodes)
        if len(self.by_name) != len(self.nodes):
            raise ValueError("two nodes have the same name")
        self.free = {n.name: (n.gpus if free is None else free.get(n.name, 0)) for n in self.nodes}
        self.free_cpus = None if free_cpus is None else dict(free_cpus)
        self.free_memory = None if free_memory is None else dict(free_memory)
        self.free_gres = copy_of(free_gres)
        self._limited = not (free_cpus is None and free_memory is None and free_gres is None)
        self.overdrawn = any(left < 0 for left in (self.free_memory or {}).values())
        self.total_gpus = sum(n.gpus for n in self.nodes)
        self.total_free = sum(self.free.values())
        self.version = 0
        self.bits = {node.name: 1 << i for i, node in enumerate(self.nodes)}
        self._places = {node.name: (self.bits[node.name], node.gpus) for node in self.nodes}
        self.masks = [0] * (max((node.gpus for node in self.nodes), default=0) + 1)
        for name, count in self.free.items():
            self._check(name, count)
            self.masks[count] |= self.bits[name]
        self.names = tuple([node.name for node in self.nodes])
        number: dict[tuple[int, str, float], int] = {}  # nodes of one hardware model are equivalent for a job
        self.makes = tuple([number.setdefault((n.gpus, n.gpu_type, n.speed), len(number)) for n in self.nodes])
        self.indexes = None if indexes is None else dict(indexes)
        self.mapped: dict[int, MappingCache] = {}  # for core/free_index.py: by id() of the profile; shared by copies

    def _check(self, name: str, free: int) -> None:
        if not 0 <= free <= self.by_name[name].gpus:
            raise ValueError(f"{name} would have {free} of {self.by_name[name].gpus} GPUs free")

    def take(self, gpus: Mapping[str, int], request: Request = ANYWHERE) -> int:
        """Allocate GPUs, and the CPUs and memory that come with them. Returns the number of GPUs.

        Raises ValueError if they are not free.
        """
        free, masks, bits = self.free, self.masks, self.bits  # inlined like ``give``, for speed: runs once per job
        name, taken = "", 0
        try:
            for name, count in gpus.items():
                before = free[name]
                after = before - count
                if after < 0:
                    self._check(name, after)
                free[name] = after
                bit = bits[name]
                masks[before] ^= bit
                masks[after] ^= bit
                taken += count
        except (KeyError, ValueError):
            self._undo(gpus, name, self.give)
            raise
        self.total_free -= taken
        self.version += 1
        if self._limited:
            self._adjust_stocks(gpus, request, -1)
        if self.indexes is not None:
            for name, indexes in self.next_indexes(gpus).items():
                self.indexes[name] ^= indexes
        return taken

    def next_indexes(self, gpus: Mapping[str, int]) -> dict[str, int]:
        """The indexes that a job with these GPUs would get, by server; empty if they do not count."""
        free = self.indexes or {}
        return {name: lowest(free.get(name, 0), count) for name, count in gpus.items() if name in free}

    def give(
        self, gpus: Mapping[str, int], request: Request = ANYWHERE, indexes: Mapping[str, int] | None = None
    ) -> None:
        """Free these GPUs. Raises ValueError if a node would have more free GPUs than GPUs.

        indexes: those of the GPUs, by server; unknown ones count as the lowest that are in use.
        """
        free, masks, places = self.free, self.masks, self._places
        name, given = "", 0
        try:
            for name, count in gpus.items():
                before = free[name]
                after = before + count
                bit, size = places[name]
                if after > size:
                    self._check(name, after)
                free[name] = after
                masks[before] ^= bit
                masks[after] ^= bit
                given += count
        except (KeyError, ValueError):
            self._undo(gpus, name, self.take)
            raise
        self.total_free += given
        self.version += 1
        if self._limited:
            self._adjust_stocks(gpus, request, +1)
        if self.indexes is not None:
            self._give_indexes(gpus, indexes or {})

    def _give_indexes(self, gpus: Mapping[str, int], indexes: Mapping[str, int]) -> None:
        assert self.indexes is not None  # noqa: S101  (the caller asks)
        for name, count in gpus.items():
            free, whole = self.indexes.get(name, 0), (1 << self.by_name[name].gpus) - 1
            self.indexes[name] = free | (indexes[name] if name in indexes else lowest(whole & ~free, count))

    def _undo(self, gpus: Mapping[str, int], failed: str, back: Callable[[Mapping[str, int]], object]) -> None:
        """Restore the nodes before the one that failed: a change is all or nothing."""
        total = self.total_free
        back(dict(takewhile(lambda item: item[0] != failed, gpus.items())))
        self.total_free = total

    def _adjust_stocks(self, gpus: Mapping[str, int], request: Request, sign: int) -> None:
        for server, count in gpus.items():
            name = self.hosts.get(server, server)
            if self.free_cpus is not None:
                self.free_cpus[name] = self.free_cpus.get(name, 0) + sign * count * request.cpus_per_gpu
            if self.free_memory is not None:
                memory = count * request.memory_per_gpu + request.memory_per_node
                left = self.free_memory[name] = self.free_memory.get(name, 0) + sign * memory
                self.overdrawn = self.overdrawn or left < 0
            if self.free_gres is not None:
                for resource, amount in (*request.gres_per_node, *_times(count, request.shares_per_gpu)):
                    by_node = self.free_gres.setdefault(resource, {})
                    by_node[name] = by_node.get(name, 0) + sign * amount

    def has_gres(self, name: str, request: Request) -> bool:
        """Whether a node has the other generic resources of the request."""
        free = self.free_gres
        return free is None or all(free.get(what, {}).get(name, 0) >= amount for what, amount in request.gres_per_node)

    def alone(self, server: str) -> ClusterView:
        """An independent view of one server."""
        name = self.hosts.get(server, server)
        return ClusterView(
            [self.by_name[server]],
            {server: self.free[server]},
            self.free_cpus and {name: self.free_cpus.get(name, 0.0)},
            self.free_memory and {name: self.free_memory.get(name, 0.0)},
            free_gres=self.free_gres and {what: {name: free.get(name, 0)} for what, free in self.free_gres.items()},
        )

    def layouts(self, gpus: Mapping[str, int], domain: int) -> Layouts:
        """How the indexes that a job with these GPUs would get are divided over NVLink domains."""
        return layouts_of(self.next_indexes(gpus).values(), domain) if self.indexes and domain else ()

    def set_aside(self, name: str, cpus: float, memory: float) -> None:
        """Take CPUs and memory (MiB) of a node without GPUs, down to nothing left. Unknown nodes are ignored."""
        for stock, amount in ((self.free_cpus, cpus), (self.free_memory, memory)):
            if stock is not None and name in stock:
                stock[name] -= min(max(0.0, stock[name]), amount)
        self.version += 1

    def keep(self, rooms: Mapping[str, tuple[float, float]]) -> None:
        """Keep these CPUs and this memory (MiB) from requests that are not brief. Unknown nodes are ignored."""
        cpus, memory = self.free_cpus or {}, self.free_memory or {}
        self.kept = {
            name: (min(room[0], max(0.0, cpus.get(name, 0.0))), min(room[1], max(0.0, memory.get(name, 0.0))))
            for name, room in rooms.items()
            if name in cpus or name in memory
        }
        self.version += 1

    def copy(self) -> ClusterView:
        """An independent view with the same free GPUs, to plan several starts at once."""
        clone = object.__new__(ClusterView)
        clone.__dict__.update(self.__dict__)  # copies share the node table and what depends on it
        clone.free, clone.masks, clone.headroom = self.free.copy(), self.masks.copy(), self.headroom.copy()
        clone.free_cpus = None if self.free_cpus is None else self.free_cpus.copy()
        clone.free_memory = None if self.free_memory is None else self.free_memory.copy()
        clone.free_gres = copy_of(self.free_gres) if self.free_gres else self.free_gres
        clone.indexes = None if self.indexes is None else self.indexes.copy()
        return clone
