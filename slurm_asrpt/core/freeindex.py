"""Servers picked by the bit masks of a cluster view (``ClusterView.masks``), without a look at every node.

A start changes two bits a node, and the servers for an ordinary request are read off the masks. The choice is that of
``selection.place``, to the letter (tests/property/test_freeindex.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from slurm_asrpt.core.cluster import ClusterView, Fabric, Placement
from slurm_asrpt.core.job import ANYWHERE, Job, JobProfile
from slurm_asrpt.core.placement.selection import Strategy, place, placement_on
from slurm_asrpt.core.placement.splitter import slurm_split

IndexedView = ClusterView
"""Every view has the masks."""

_KINDS = 4096  # profiles whose placements on single servers are kept, per table of nodes


class Plan:
    """The cluster as it will be after the starts of one decision, which are only played out if somebody looks."""

    __slots__ = ("_copied", "_pending", "_view", "free")

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
        if self._pending:
            if not self._copied:
                self._view, self._copied = self._view.copy(), True
            for placement, job in self._pending:
                self._view.take(placement.gpus, job.request)
            self._pending.clear()
        return self._view


def quick_place(view: ClusterView, job: Job, strategy: Strategy, fabric: Fabric) -> Placement | None:
    """What ``selection.place`` returns, in a time that does not grow with the nodes where the request allows it."""
    if view.total_free < job.gpus:
        return None
    if not (job.request is ANYWHERE or job.request == ANYWHERE):
        return place(view, job, strategy, fabric)
    bit = _one_server(view.masks, job.gpus, strategy)
    if bit:
        return _on_one_node(view, bit, job.profile, fabric)
    if strategy is Strategy.TIGHTEST:
        return place(view, job, strategy, fabric)
    positions = (_most_free if strategy is Strategy.MOST_FREE else _least_free)(view.masks, job.gpus)
    nodes = [view.nodes[i] for i in sorted(positions)]
    counts = slurm_split([view.free[node.name] for node in nodes], job.gpus)
    return None if counts is None else placement_on(nodes, counts, job.profile, fabric)


def _on_one_node(view: ClusterView, bit: int, profile: JobProfile, fabric: Fabric) -> Placement:
    """A whole job on one node. Most jobs of a simulation are: each kind is mapped once per node."""
    known = view.singles.get(profile)
    if known is None or known[0] is not fabric:
        if len(view.singles) >= _KINDS:
            view.singles.clear()
        known = view.singles[profile] = (fabric, {})
    found = known[1].get(bit)
    if found is None:
        node = view.nodes[bit.bit_length() - 1]
        found = known[1][bit] = placement_on([node], (profile.gpus,), profile, fabric)
    return found


def _one_server(masks: list[int], gpus: int, strategy: Strategy) -> int:
    """The bit of the server that holds the whole job, enough GPUs being free; 0 if the strategy picks several."""
    if strategy is Strategy.MOST_FREE:
        free = len(masks) - 1
        while not masks[free]:
            free -= 1
        # the server that is partly used is the last among its equals, so that the remainder falls there
        return 1 << masks[free].bit_length() - 1 if free >= gpus else 0
    free = gpus if strategy is Strategy.TIGHTEST else 1
    while free < len(masks):
        mask = masks[free]
        if mask:
            return mask & -mask if free >= gpus else 0
        free += 1
    return 0


def _most_free(masks: list[int], gpus: int) -> list[int]:
    """Positions, descending by free GPUs; the last server is the last among its equals, as for a single one."""
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
    """Positions, ascending by free GPUs."""
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
