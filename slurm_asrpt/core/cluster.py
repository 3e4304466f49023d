"""The cluster as a policy sees it: nodes in Slurm's table order and the GPUs that are free on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from slurm_asrpt.core.job import ANYWHERE, JobProfile, Request


@dataclass(frozen=True, slots=True)
class Fabric:
    """Bandwidths of the cluster in bytes/s: inter is B_inter, one server's NIC; intra is B_intra, GPU to GPU."""

    inter: float
    intra: float

    def __post_init__(self) -> None:
        if not (self.inter > 0 and self.intra > 0):
            raise ValueError(f"bandwidths must be above 0 bytes/s, not {self.inter} and {self.intra}")


@dataclass(frozen=True, slots=True)
class Node:
    """One server. ``index`` is its place in Slurm's node table, which decides how Slurm splits GPUs.

    speed: of its GPUs, over that of the reference GPU, where a job's profile does not say better.

    Raises ValueError for a speed that is none.
    """

    name: str
    gpus: int
    index: int = 0
    gpu_type: str = ""
    speed: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.speed < float("inf"):
            raise ValueError(f"{self.name}: the speed of a GPU is a finite number above 0, not {self.speed}")


@dataclass(slots=True)  # not frozen: a simulation makes one for each job on several servers, at half the price
class Placement:
    """Where a job's GPUs are: GPUs per node, and the node of each replica (rank i = replica i).

    gpus: GPUs per node, in node-table order.
    ranks: the node of each replica, len(ranks) = sum of gpus.
    alpha: seconds per iteration in this placement (7).
    speed: of its slowest GPU for this job, over that of the reference GPU.
    """

    gpus: Mapping[str, int]
    ranks: tuple[str, ...]
    alpha: float
    speed: float = 1.0

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


Ranks = Callable[[Sequence[str]], tuple[str, ...]]
"""What makes the names of the servers the node of each replica."""


@dataclass(slots=True)
class Mapped:
    """How the jobs of one profile have been mapped.

    alone: by the bit of a server that has the whole job.
    forms: ranks, alpha and speed by GPUs per server and the servers' makes, in node-table order.
    """

    profile: JobProfile
    fabric: Fabric
    alone: dict[int, Placement] = field(default_factory=dict)
    forms: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Ranks, float, float]] = field(default_factory=dict)


def kinds_of(nodes: Sequence[Node]) -> tuple[int, ...]:
    """The servers of each kind of GPU, the fastest kind first: masks of places in ``nodes``."""
    found: dict[tuple[str, float], int] = {}
    for place, node in enumerate(nodes):
        kind = (node.gpu_type, node.speed)
        found[kind] = found.get(kind, 0) | 1 << place
    return tuple(mask for _, mask in sorted(found.items(), key=lambda item: (-item[0][1], item[0][0])))


def spread(counts: Sequence[int]) -> list[int]:
    """So many places of each number, mixed as evenly as possible, so that nothing is gained by the order of places."""
    places = [((n + 0.5) / count, number) for number, count in enumerate(counts) for n in range(count)]
    return [number for _, number in sorted(places)]


def capacity(nodes: Iterable[Node]) -> float:
    """How many reference GPUs would do as much."""
    return float(sum([node.gpus * node.speed for node in nodes]))


def all_alike(nodes: Iterable[Node]) -> list[Node]:
    """The same servers with reference GPUs."""
    return [replace(node, gpu_type="", speed=1.0) for node in nodes]


class ClusterView:
    """Free GPUs, CPUs and memory per node. Policies read it; its owner takes and gives back.

    masks: nodes by free GPUs, so that servers are picked without a look at every node (core/free_index.py): bit i of
        masks[f] is set if the i-th node of the table has f GPUs free. bits: the bit of each node.
    kinds: as ``kinds_of`` says; empty where all GPUs are of one.
    overdrawn: whether a node has been short of memory for what runs on it: it serves nobody, so masks say too much.
    version: counts the changes; the same view with the same version is the same state.
    startup: nodes that are not up yet; their GPUs count as free. None if all are up.

    Raises ValueError when a node would fall below zero or above its GPUs: no GPU is given twice.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        free: Mapping[str, int] | None = None,
        free_cpus: Mapping[str, float] | None = None,
        free_memory: Mapping[str, float] | None = None,
        startup: Startup | None = None,
    ) -> None:
        self.startup = startup
        self.nodes = tuple(sorted(nodes, key=lambda n: n.index))
        self.by_name = {node.name: node for node in self.nodes}
        kinds = kinds_of(self.nodes)
        self.kinds = kinds if len(kinds) > 1 else ()
        if len(self.by_name) != len(self.nodes):
            raise ValueError("two nodes have the same name")
        self.free = {n.name: (n.gpus if free is None else free.get(n.name, 0)) for n in self.nodes}
        self.free_cpus = None if free_cpus is None else dict(free_cpus)
        self.free_memory = None if free_memory is None else dict(free_memory)
        self._stocked = free_cpus is not None or free_memory is not None
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
        number: dict[tuple[int, str, float], int] = {}  # nodes of one make serve a job alike
        self.makes = tuple([number.setdefault((n.gpus, n.gpu_type, n.speed), len(number)) for n in self.nodes])
        self.mapped: dict[int, Mapped] = {}  # freeindex's, by the profile's id(); shared by copies

    def _check(self, name: str, free: int) -> None:
        if not 0 <= free <= self.by_name[name].gpus:
            raise ValueError(f"{name} would have {free} of {self.by_name[name].gpus} GPUs free")

    def take(self, gpus: Mapping[str, int], request: Request = ANYWHERE) -> int:
        """Take these GPUs, and the CPUs and memory that the request drags along. How many; ValueError if not free."""
        free, masks, bits = self.free, self.masks, self.bits  # written out, as ``give``: once a job in a simulation
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
        if self._stocked:
            self._move_stocks(gpus, request, -1)
        return taken

    def give(self, gpus: Mapping[str, int], request: Request = ANYWHERE) -> None:
        """Give them back. Raises ValueError if the node would have more than it has."""
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
        if self._stocked:
            self._move_stocks(gpus, request, +1)

    def _undo(self, gpus: Mapping[str, int], failed: str, back: Callable[[Mapping[str, int]], object]) -> None:
        """All or nothing: the nodes before the one that failed are as they were."""
        total = self.total_free
        back(dict(takewhile(lambda item: item[0] != failed, gpus.items())))
        self.total_free = total

    def _move_stocks(self, gpus: Mapping[str, int], request: Request, sign: int) -> None:
        for name, count in gpus.items():
            if self.free_cpus is not None:
                self.free_cpus[name] = self.free_cpus.get(name, 0) + sign * count * request.cpus_per_gpu
            if self.free_memory is not None:
                dragged = count * request.memory_per_gpu + request.memory_per_node
                left = self.free_memory[name] = self.free_memory.get(name, 0) + sign * dragged
                self.overdrawn = self.overdrawn or left < 0

    def copy(self) -> ClusterView:
        """An independent view with the same free GPUs, for planning several starts at once."""
        clone = object.__new__(ClusterView)
        clone.__dict__.update(self.__dict__)  # the table of nodes and what belongs to it is shared
        clone.free, clone.masks = self.free.copy(), self.masks.copy()
        clone.free_cpus = None if self.free_cpus is None else self.free_cpus.copy()
        clone.free_memory = None if self.free_memory is None else self.free_memory.copy()
        return clone
