"""A cluster view that knows its nodes by free GPUs, so that servers are picked without a look at every node.

One bit mask per number of free GPUs: bit i stands for the i-th node of the table. A start changes two bits a node, a
copy copies eight or so integers, and the servers for an ordinary request are read off the masks. The choice is that
of ``selection.place``, to the letter (tests/property/test_freeindex.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.job import ANYWHERE, Job, JobProfile, Request
from slurm_asrpt.core.placement.selection import Strategy, place, placement_on
from slurm_asrpt.core.placement.splitter import slurm_split

_SINGLES = 65536


class IndexedView(ClusterView):
    """A ClusterView with ``masks``: masks[f] has the bits of the nodes that have f GPUs free."""

    def __init__(self, nodes: Iterable[Node], *stocks: Any, **named_stocks: Any) -> None:
        super().__init__(nodes, *stocks, **named_stocks)
        self._bits = {node.name: 1 << i for i, node in enumerate(self.nodes)}
        self._single: dict[tuple[int, JobProfile, Fabric], Placement] = {}  # shared by copies
        self.masks = [0] * (max((node.gpus for node in self.nodes), default=0) + 1)
        for name, free in self.free.items():
            self.masks[free] |= self._bits[name]

    def _move(self, gpus: Mapping[str, int], request: Request, sign: int) -> None:
        free = self.free
        if len(gpus) == 1 and self.free_cpus is None and self.free_memory is None:
            (name,) = gpus  # nearly every move of a simulation; spelled out because it costs half as much
            before, after = free[name], free[name] + sign * gpus[name]
            if 0 <= after <= self.by_name[name].gpus:
                free[name] = after
                self.total_free += after - before
                self._file(name, before, after)
                return
        moves = [(name, free[name]) for name in gpus]
        super()._move(gpus, request, sign)
        for name, before in moves:
            self._file(name, before, free[name])

    def _file(self, name: str, before: int, after: int) -> None:
        bit = self._bits[name]
        self.masks[before] ^= bit
        self.masks[after] |= bit

    def on_one_node(self, position: int, profile: JobProfile, fabric: Fabric) -> Placement:
        """A whole job on one node. Most jobs of a simulation are: each kind is mapped once per node."""
        key = (position, profile, fabric)
        found = self._single.get(key)
        if found is None:
            found = placement_on([self.nodes[position]], (profile.gpus,), profile, fabric)
            if len(self._single) < _SINGLES:
                self._single[key] = found
        return found

    def copy(self) -> IndexedView:
        clone = object.__new__(IndexedView)
        clone.__dict__.update(self.__dict__)
        clone.free, clone.masks = self.free.copy(), self.masks.copy()
        clone.free_cpus = None if self.free_cpus is None else self.free_cpus.copy()
        clone.free_memory = None if self.free_memory is None else self.free_memory.copy()
        return clone


class Plan:
    """The cluster as it will be after the starts of one decision, which are only played out if somebody looks."""

    def __init__(self, cluster: ClusterView) -> None:
        self.free = cluster.total_free
        self._view, self._copied = cluster, False
        self._pending: list[tuple[Placement, Job]] = []

    def add(self, job: Job, placement: Placement) -> None:
        """Plan a start. The cluster itself is left alone."""
        self._pending.append((placement, job))
        self.free -= job.gpus

    def view(self) -> ClusterView:
        """The cluster after the starts; to read only."""
        if self._pending and not self._copied:
            self._view, self._copied = self._view.copy(), True
        for placement, job in self._pending:
            self._view.take(placement.gpus, job.request)
        self._pending.clear()
        return self._view


def quick_place(view: ClusterView, job: Job, strategy: Strategy, fabric: Fabric) -> Placement | None:
    """What ``selection.place`` returns, in a time that does not grow with the nodes where view and request allow it."""
    if view.total_free < job.gpus:
        return None
    if not isinstance(view, IndexedView) or not (job.request is ANYWHERE or job.request == ANYWHERE):
        return place(view, job, strategy, fabric)
    positions = _choose(view.masks, job.gpus, strategy)
    if positions is None:
        return place(view, job, strategy, fabric)
    if len(positions) == 1:
        return view.on_one_node(positions[0], job.profile, fabric)
    nodes = [view.nodes[i] for i in sorted(positions)]
    counts = slurm_split([view.free[node.name] for node in nodes], job.gpus)
    return None if counts is None else placement_on(nodes, counts, job.profile, fabric)


def _choose(masks: list[int], gpus: int, strategy: Strategy) -> list[int] | None:
    """Positions of the servers that hold the job, enough GPUs being free; None where the masks do not tell."""
    if strategy is Strategy.MOST_FREE:
        return _most_free(masks, gpus)
    if strategy is Strategy.LEAST_FREE:
        return _least_free(masks, gpus)
    single = next((mask for mask in masks[gpus:] if mask), 0)
    return [_lowest(single)] if single else None


def _most_free(masks: list[int], gpus: int) -> list[int]:
    """Descending; the server that is partly used is the last among its equals, so that the remainder falls there."""
    chosen: list[int] = []
    for free in range(len(masks) - 1, 0, -1):
        mask = masks[free]
        if mask:
            enough = -(-gpus // free)
            if mask.bit_count() >= enough:
                if enough > 1:
                    chosen.extend(_positions(mask, enough - 1))
                chosen.append(mask.bit_length() - 1)
                break
            chosen.extend(_positions(mask, -1))
            gpus -= free * mask.bit_count()
    return chosen


def _least_free(masks: list[int], gpus: int) -> list[int]:
    chosen: list[int] = []
    for free in range(1, len(masks)):
        mask = masks[free]
        if mask:
            enough = -(-gpus // free)
            chosen.extend(_positions(mask, enough))
            gpus -= free * mask.bit_count()
            if gpus <= 0:
                break
    return chosen


def _positions(mask: int, most: int) -> Iterator[int]:
    """The lowest bits of a mask, ``most`` of them, or all for -1."""
    while mask and most:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
        most -= 1


def _lowest(mask: int) -> int:
    return (mask & -mask).bit_length() - 1
