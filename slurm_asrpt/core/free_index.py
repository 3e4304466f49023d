"""Server selection from the bit masks of a cluster view (``ClusterView.masks``), without a scan of all nodes.

A start changes two bits per node, and the masks give the servers for an ordinary request. The choice is exactly that of
``selection.place`` (tests/property/test_freeindex.py).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from operator import itemgetter

from slurm_asrpt.core.cluster import ClusterView, Fabric, MappingCache, Placement
from slurm_asrpt.core.job import ANYWHERE, Job, JobProfile, Request
from slurm_asrpt.core.limits import Headroom
from slurm_asrpt.core.placement.mapping import mapping_on, placement_on
from slurm_asrpt.core.placement.selection import Strategy, has_room, least_alpha, place
from slurm_asrpt.core.placement.splitter import Split, fill
from slurm_asrpt.core.topology import blocks_of, most_together

Chosen = list[tuple[int, int]]
"""Servers: position in the node table, free GPUs."""

_KINDS, _FORMS = 4096, 16384  # size of the caches: profiles per node table, and forms per profile
_fill = lru_cache(maxsize=_KINDS)(fill)
_SLURM = Split.SLURM  # lookups of enum members are slow
_MOST_FREE, _LEAST_FREE, _TIGHTEST = Strategy


class Plan:
    """The cluster after the starts of one decision. Starts are applied only when a caller needs the result."""

    __slots__ = (
        "_cluster",
        "_free_for",
        "_headroom",
        "_in_masks",
        "_in_view",
        "_masks",
        "_room",
        "_starts",
        "_view",
        "counts_only",
        "free",
    )

    def __init__(self, cluster: ClusterView) -> None:
        self.free = cluster.total_free
        self.counts_only = cluster.free_memory is None and cluster.indexes is None  # of plain requests, on all nodes
        self._cluster = self._view = cluster
        self._masks = cluster.masks
        self._headroom: Headroom | None = None  # that of the cluster until a start counts against it
        self._starts: list[tuple[Placement, Job]] = []
        self._room: dict[tuple[int, Request], bool] = {}
        self._free_for: dict[frozenset[str] | None, tuple[int, int]] = {}
        self._in_masks = self._in_view = 0  # number of starts applied to the masks and to the view

    def add(self, job: Job, placement: Placement) -> None:
        """Plan a start. This does not change the cluster itself."""
        self._starts.append((placement, job))
        if job.charges:
            if self._headroom is None:
                self._headroom = self._cluster.headroom.copy()
            self._headroom.take(job.charges)
        if self._free_for or self._room:
            self._free_for, self._room = {}, {}
        self.free -= job.gpus

    def add_preempting(self, job: Job, placement: Placement) -> None:
        """Plan a start for which jobs are preempted: it takes what is free on its nodes."""
        free = self.view().free
        whole = {name: count for name, count in placement.gpus.items() if count <= free[name]}
        rest = {name: free[name] for name in placement.gpus if name not in whole and free[name]}
        before = self.free
        self.add(job, replace(placement, gpus=whole))
        self._starts.append((replace(placement, gpus=rest), replace(job, request=ANYWHERE)))
        self.free = before - sum(whole.values()) - sum(rest.values())

    def over_limit(self, job: Job) -> str | None:
        """The limit of the site that keeps the job from starting beside the starts; None if none does."""
        return self.headroom.exceeded(job.charges) if job.charges else None

    @property
    def headroom(self) -> Headroom:
        """What the starts leave of the site's limits; to read only."""
        return self._headroom or self._cluster.headroom

    def place(self, job: Job, strategy: Strategy, fabric: Fabric) -> Placement | None:
        """``quick_place`` after the planned starts."""
        if job.gpus > self.free:
            return None
        if (job.request is not ANYWHERE or not self.counts_only) and not self._plain(job):
            return place(self.view(), job, strategy, fabric)
        cluster, masks = self._cluster, self._masks if self._in_masks == len(self._starts) else self.masks()
        return (_by_kind if cluster.kinds else _place_plain)(cluster, masks, job, strategy, fabric)

    def free_for(self, request: Request) -> tuple[int, int]:
        """GPUs left free by the starts on the request's candidate servers: in total, and the most on one server."""
        found = self._free_for.get(request.candidates)
        if found is None:
            free = self.view().free
            names = free.keys() if request.candidates is None else free.keys() & request.candidates
            counts = [free[name] for name in names]
            found = self._free_for[request.candidates] = sum(counts), max(counts, default=0)
        return found

    def has_room(self, job: Job) -> bool:
        """Whether the job could start anywhere after the planned starts; cached by shape."""
        shape = (job.gpus, job.request)
        found = self._room.get(shape)
        if found is None:
            found = self._room[shape] = has_room(self.view(), job)
        return found

    def _plain(self, job: Job) -> bool:
        if self.counts_only:
            return job.request is ANYWHERE or job.request == ANYWHERE
        return plain(job, self.view())  # the planned starts can also make nodes short of memory

    def masks(self) -> list[int]:
        """``ClusterView.masks`` after the starts; read-only."""
        if self._in_masks < len(self._starts):
            self._update_masks()
        return self._masks

    def _update_masks(self) -> None:
        """Apply the starts to the masks. Only ordinary requests need this."""
        if not self._in_masks:
            self._masks = self._masks.copy()
        masks, free, bits = self._masks, self._cluster.free, self._cluster.bits
        for placement, _ in self._starts[self._in_masks :]:
            for name, count in placement.gpus.items():
                bit, before = bits[name], free[name]
                while not masks[before] & bit:  # an earlier start has allocated some
                    before -= 1
                masks[before] ^= bit
                masks[before - count] |= bit
        self._in_masks = len(self._starts)

    def view(self) -> ClusterView:
        """The cluster after the starts; read-only."""
        if self._in_view < len(self._starts):
            if not self._in_view:
                self._view = self._cluster.copy()
            for placement, job in self._starts[self._in_view :]:
                self._view.take(placement.gpus, job.request)
            self._in_view = len(self._starts)
        return self._view


def plain(job: Job, view: ClusterView) -> bool:
    """Whether only the numbers of free GPUs count: any servers, any split, no request for CPUs or memory."""
    if view.indexes is not None and job.gpus > 1:
        return False
    return (job.request is ANYWHERE or job.request == ANYWHERE) and not view.overdrawn


def quick_place(view: ClusterView, job: Job, strategy: Strategy, fabric: Fabric) -> Placement | None:
    """The result of ``selection.place``; for plain requests in a time that does not grow with the number of nodes."""
    if view.total_free < job.gpus:
        return None
    if not plain(job, view):
        return place(view, job, strategy, fabric)
    return (_by_kind if view.kinds else _place_plain)(view, view.masks, job, strategy, fabric)


def _by_kind(view: ClusterView, masks: list[int], job: Job, strategy: Strategy, fabric: Fabric) -> Placement | None:
    """``_place_plain`` for the GPUs of each kind and for all of them: the placement with the least alpha."""
    by_kind = ([mask & kind for mask in masks] for kind in view.kinds)
    enough = [some for some in by_kind if _free(some) >= job.gpus]
    return least_alpha([_place_plain(view, some, job, strategy, fabric) for some in (*enough, masks)])


def _free(masks: list[int]) -> int:
    """Free GPUs on the servers of these masks."""
    return sum([free * mask.bit_count() for free, mask in enumerate(masks)])


def _place_plain(view: ClusterView, masks: list[int], job: Job, strategy: Strategy, fabric: Fabric) -> Placement | None:
    """The placement of a plain request, given enough free GPUs. masks: those of the view, or of a plan for it."""
    gpus, profile = job.gpus, job.profile
    known = view.mapped.get(id(profile))  # hashing a profile is slower than all the rest
    if known is None or known.fabric is not fabric:
        known = _new_cache(view, profile, fabric)
    if view.switches is not None and not any(masks[gpus:]):
        servers = 0 if strategy is _LEAST_FREE else -(-gpus // (len(masks) - 1))
        together = most_together(view.switches, masks, gpus, servers)
        masks = [mask & together for mask in masks]
    bit = _one_server(masks, gpus, strategy)
    if bit:  # the case of most jobs in a simulation: one mapping per profile and node
        return known.single.get(bit) or _on_one_node(view, bit, known)
    chosen = _CHOICES[strategy](masks, gpus)
    if view.split is _SLURM:
        chosen.sort()
    places, free = zip(*chosen, strict=True)
    counts = free if sum(free) == gpus else _fill(free, gpus)
    if counts is None:
        return None
    if view.split is not _SLURM:
        places, counts = zip(*sorted(zip(places, counts, strict=True)), strict=True)
    return _on_several(view, places, counts, known)


def _new_cache(view: ClusterView, profile: JobProfile, fabric: Fabric) -> MappingCache:
    if len(view.mapped) >= _KINDS:
        view.mapped.clear()
    found = view.mapped[id(profile)] = MappingCache(profile, fabric)
    return found


def _on_one_node(view: ClusterView, bit: int, known: MappingCache) -> Placement:
    node = view.nodes[bit.bit_length() - 1]
    found = known.single[bit] = placement_on([node], (known.profile.gpus,), known.profile, known.fabric)
    return found


def _on_several(view: ClusterView, places: tuple[int, ...], counts: tuple[int, ...], known: MappingCache) -> Placement:
    """``placement_on`` for two nodes or more, with one mapping per form."""
    at = itemgetter(*places)
    names = at(view.names)
    form: tuple[object, ...] = (counts, at(view.makes))
    if known.fabric.beyond:
        form = (*form, blocks_of(at(view.nodes)))
    mapping = known.forms.get(form)
    if mapping is None:
        if len(known.forms) >= _FORMS:
            known.forms.clear()
        mapping = known.forms[form] = mapping_on(at(view.nodes), counts, known.profile, known.fabric)
    ranks, alpha, speed = mapping
    return Placement(dict(zip(names, counts, strict=True)), ranks(names), alpha, speed)


def _one_server(masks: list[int], gpus: int, strategy: Strategy) -> int:
    """The bit of the server for the whole job, given enough free GPUs; 0 if the strategy selects several servers."""
    if strategy is _MOST_FREE:
        free = len(masks) - 1
        while not masks[free]:
            free -= 1
        # the partly used server is the last of equally free ones, so that it gets the remainder
        return 1 << masks[free].bit_length() - 1 if free >= gpus else 0
    least = gpus if strategy is _TIGHTEST else 1
    for mask in masks[least:]:
        if mask:
            return mask & -mask if least >= gpus else 0
        least += 1
    return 0


def _most_free(masks: list[int], gpus: int) -> Chosen:
    """Descending by free GPUs; the last server is the last of equally free ones, as for a single server."""
    chosen: Chosen = []
    for free in range(len(masks) - 1, 0, -1):
        mask = masks[free]
        if mask:
            enough = -(-gpus // free)
            if mask.bit_count() >= enough:
                if enough > 1:
                    chosen += _lowest(mask, enough - 1, free)
                chosen.append((mask.bit_length() - 1, free))
                break
            chosen += _lowest(mask, -1, free)
            gpus -= free * mask.bit_count()
    return chosen


def _least_free(masks: list[int], gpus: int) -> Chosen:
    """Ascending by free GPUs."""
    chosen: Chosen = []
    for free in range(1, len(masks)):
        mask = masks[free]
        if mask:
            chosen += _lowest(mask, -(-gpus // free), free)
            gpus -= free * mask.bit_count()
            if gpus <= 0:
                break
    return chosen


def _tightest(masks: list[int], gpus: int) -> Chosen:
    """The fewest servers that can hold the job; of these sets, the one with the fewest free GPUs, ascending."""
    free = [free for free in range(1, len(masks)) for _ in range(masks[free].bit_count())]
    up_to = [0, *accumulate(free)]
    width = len(free) - bisect_right(up_to, up_to[-1] - gpus) + 1
    # servers are in ascending order, so the sums over a window of them are, too
    first = bisect_left(range(len(free) - width), gpus, key=lambda i: up_to[i + width] - up_to[i])
    return _window(masks, first, width)


def _window(masks: list[int], first: int, width: int) -> Chosen:
    """``width`` servers in ascending order of free GPUs, from position ``first`` on."""
    chosen: Chosen = []
    for free in range(1, len(masks)):
        here = masks[free].bit_count()
        if first < here:
            found = _lowest(masks[free], first + width, free)[first:]
            chosen += found
            width -= len(found)
            if not width:
                break
        first = max(0, first - here)
    return chosen


_CHOICES = {_MOST_FREE: _most_free, _LEAST_FREE: _least_free, _TIGHTEST: _tightest}


def _lowest(mask: int, most: int, free: int) -> Chosen:
    """The servers of the lowest ``most`` bits of a mask; -1 for all."""
    chosen: Chosen = []
    while mask and most:
        low = mask & -mask
        chosen.append((low.bit_length() - 1, free))
        mask ^= low
        most -= 1
    return chosen
