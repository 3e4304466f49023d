"""The cluster as a policy sees it: nodes in Slurm's table order and the GPUs that are free on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_asrpt.core.job import ANYWHERE, Request


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
    """One server. ``index`` is its place in Slurm's node table, which decides how Slurm splits GPUs."""

    name: str
    gpus: int
    index: int = 0
    gpu_type: str = ""


@dataclass(frozen=True)
class Placement:
    """Where a job's GPUs are: GPUs per node, and the node of each replica (rank i = replica i).

    gpus: GPUs per node, in node-table order.
    ranks: the node of each replica, len(ranks) = sum of gpus.
    alpha: seconds per iteration in this placement (7).
    """

    gpus: Mapping[str, int]
    ranks: tuple[str, ...]
    alpha: float

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(self.gpus)


class ClusterView:
    """Free GPUs, CPUs and memory per node. Policies read it; its owner takes and gives back.

    Raises ValueError when a node would fall below zero or above its GPUs: no GPU is given twice.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        free: Mapping[str, int] | None = None,
        free_cpus: Mapping[str, float] | None = None,
        free_memory: Mapping[str, float] | None = None,
    ) -> None:
        self.nodes = tuple(sorted(nodes, key=lambda n: n.index))
        self.by_name = {node.name: node for node in self.nodes}
        if len(self.by_name) != len(self.nodes):
            raise ValueError("two nodes have the same name")
        self.free = {n.name: (n.gpus if free is None else free.get(n.name, 0)) for n in self.nodes}
        self.free_cpus = None if free_cpus is None else dict(free_cpus)
        self.free_memory = None if free_memory is None else dict(free_memory)
        self.total_gpus = sum(n.gpus for n in self.nodes)
        self.total_free = sum(self.free.values())

    def take(self, gpus: Mapping[str, int], request: Request = ANYWHERE) -> None:
        """Take these GPUs, and the CPUs and memory that the request drags along. Raises ValueError if not free."""
        self._move(gpus, request, -1)

    def give(self, gpus: Mapping[str, int], request: Request = ANYWHERE) -> None:
        """Give them back. Raises ValueError if the node would have more than it has."""
        self._move(gpus, request, +1)

    def _move(self, gpus: Mapping[str, int], request: Request, sign: int) -> None:
        for name, count in gpus.items():
            after = self.free[name] + sign * count
            if not 0 <= after <= self.by_name[name].gpus:
                raise ValueError(f"{name} would have {after} of {self.by_name[name].gpus} GPUs free")
        for name, count in gpus.items():
            self.free[name] += sign * count
            self.total_free += sign * count
            if self.free_cpus is not None:
                self.free_cpus[name] = self.free_cpus.get(name, 0) + sign * count * request.cpus_per_gpu
            if self.free_memory is not None:
                dragged = count * request.memory_per_gpu + request.memory_per_node
                self.free_memory[name] = self.free_memory.get(name, 0) + sign * dragged

    def copy(self) -> ClusterView:
        """An independent view with the same free GPUs, for planning several starts at once."""
        clone = object.__new__(ClusterView)
        clone.nodes, clone.by_name = self.nodes, self.by_name
        clone.free = dict(self.free)
        clone.free_cpus = None if self.free_cpus is None else dict(self.free_cpus)
        clone.free_memory = None if self.free_memory is None else dict(self.free_memory)
        clone.total_gpus, clone.total_free = self.total_gpus, self.total_free
        return clone
