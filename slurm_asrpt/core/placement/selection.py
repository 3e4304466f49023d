"""The choice of servers for a job among those with free GPUs, and the split of its GPUs over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from operator import attrgetter

from slurm_asrpt.core.cluster import ClusterView, Fabric, Gres, Node, Placement
from slurm_asrpt.core.domains import layout_of, lowest
from slurm_asrpt.core.job import Job, Request
from slurm_asrpt.core.placement.mapping import placement_in
from slurm_asrpt.core.placement.splitter import Split, even_split, fill
from slurm_asrpt.core.topology import Switches, most_together


class Strategy(StrEnum):
    """The order in which servers are considered."""

    MOST_FREE = "most-free"  # Algorithm 1, line 9: communication-heavy jobs
    LEAST_FREE = "least-free"  # Algorithm 1, line 22: the others
    TIGHTEST = "tightest"  # fewest servers, then the fewest free GPUs: jobs without a profile


ROUNDING = 1e-9
Offer = tuple[Node, int]
"""A server, and how many of its GPUs the job could have now."""


def offers(view: ClusterView, request: Request) -> list[Offer]:
    """The servers with free GPUs for the request, in node-table order. CPUs, memory and GRES limit the GPUs, too."""
    names = view.free if request.candidates is None else request.candidates
    found = []
    for node in view.nodes:
        free = view.free[node.name]
        if free and node.name in names:
            usable = _bounded(view, node.name, free, request)
            if usable >= (request.per_node or request.unit):
                found.append((node, usable))
    return found


def usable_on(view: ClusterView, server: str, request: Request) -> int:
    """How many GPUs of a server the request could have now; 0 if it may not use the server."""
    if request.candidates is not None and server not in request.candidates:
        return 0
    return _bounded(view, server, view.free[server], request)


def _bounded(view: ClusterView, server: str, free: int, request: Request) -> int:
    name = view.hosts.get(server, server)
    cpus, memory = (0.0, 0.0) if request.brief else view.kept.get(name, (0.0, 0.0))
    needs = ((view.free_cpus, cpus, request.cpus_per_gpu), (view.free_memory, memory, request.memory_per_gpu))
    for stock, kept, per_gpu in needs:
        if stock is not None and per_gpu > 0:
            free = min(free, int(max(0.0, stock.get(name, 0) - kept) / per_gpu + ROUNDING))  # 1 // 0.2 is 4
    if view.free_memory is not None and view.free_memory.get(name, 0) - memory < request.memory_per_node:
        return 0
    if request.gres_per_node and not view.has_gres(name, request):
        return 0
    if request.shares_per_gpu and view.free_gres is not None:
        free = min(free, _within_shares(view.free_gres, name, request))
    return free - free % request.unit


def _within_shares(stocks: Gres, node: str, request: Request) -> int:
    """How many GPUs of a node the request could have for the shares of its CPUs."""
    left = ((stocks.get(share, {}).get(node, 0.0), per_gpu) for share, per_gpu in request.shares_per_gpu)
    return min(int(max(0.0, cpus) / per_gpu + ROUNDING) for cpus, per_gpu in left)


def place(view: ClusterView, job: Job, strategy: Strategy, fabric: Fabric) -> Placement | None:
    """The placement on the servers that the strategy selects, split as in this view; None if none is possible now.

    If there are several kinds of GPU, it uses one kind or all, whichever has the least alpha. If the request names
    several sets of nodes (``within``), it uses the set with the least alpha; ties by the fewest servers.
    """
    if job.request.within:
        found = [place(view, one, strategy, fabric) for one in within_each(job)]
        return min([one for one in found if one is not None], key=_alpha_and_servers, default=None)
    if not view.kinds:
        return _place(view, job, strategy, fabric)
    names = [node.name for node, _ in offers(view, job.request)]
    kinds = [frozenset([name for name in names if view.bits[name] & kind]) for kind in view.kinds]
    alone = (replace(job, request=replace(job.request, candidates=kind)) for kind in kinds if kind)
    return least_alpha([_place(view, one, strategy, fabric) for one in (*alone, job)])


def within_each(job: Job) -> list[Job]:
    """One copy of the job for each set of nodes in ``within``, with this set as candidates; the job itself without."""
    request = job.request
    if not request.within:
        return [job]
    named = request.candidates
    sets = [names if named is None else names & named for names in request.within]
    return [replace(job, request=replace(request, candidates=names, within=())) for names in sets]


def _alpha_and_servers(placement: Placement) -> tuple[float, int]:
    return placement.alpha, len(placement.gpus)


def least_alpha(found: Iterable[Placement | None]) -> Placement | None:
    """The placement with the least alpha, the first of equals; None if there is none."""
    return min([one for one in found if one is not None], key=attrgetter("alpha"), default=None)


def _place(view: ClusterView, job: Job, strategy: Strategy, fabric: Fabric) -> Placement | None:
    servers = _servers(view, job, strategy)
    if servers is None:
        return None
    found = placement_in(view, *servers, job.profile, fabric)
    undivided = undivided_servers(view, job, fabric) if len(found.gpus) == 1 else frozenset()
    if not undivided or not undivided.isdisjoint(found.gpus):
        return found
    nearer = _servers_among(view, replace(job, request=replace(job.request, candidates=undivided)), strategy)
    return least_alpha([found, placement_in(view, *nearer, job.profile, fabric) if nearer else None])


def undivided_servers(view: ClusterView, job: Job, fabric: Fabric) -> frozenset[str]:
    """The servers on each of which the job could start, with GPUs in as few NVLink domains as it needs.

    Empty for a job to which it makes no difference.
    """
    if view.indexes is None or not fabric.domain or job.gpus == 1 or not job.communication_known:
        return frozenset()
    fewest, indexes = -(-job.gpus // fabric.domain), view.indexes
    able = [node.name for node, usable in offers(view, job.request) if usable >= job.gpus]
    return frozenset(
        [name for name in able if len(layout_of(lowest(indexes[name], job.gpus), fabric.domain)) <= fewest]
    )


def _servers(view: ClusterView, job: Job, strategy: Strategy) -> tuple[list[Node], tuple[int, ...]] | None:
    """The servers and the GPUs on each; under the fewest switches, if the job can start there."""
    together = _together(view, view.switches, job, strategy) if view.switches is not None and view.total_free else None
    found = None if together is None else _servers_among(view, together, strategy)
    return found or _servers_among(view, job, strategy)


def _together(view: ClusterView, switches: Switches, job: Job, strategy: Strategy) -> Job | None:
    """The job limited to the servers under the fewest switches; None if one server can hold it."""
    masks = [0] * len(view.masks)
    for node, usable in offers(view, job.request):
        masks[usable] |= view.bits[node.name]
    per_node, least = job.request.per_node, job.request.min_nodes
    if any(masks[job.gpus :]) and least <= 1 and per_node in (None, job.gpus):
        return None
    servers = max(least, -(-job.gpus // (per_node or len(masks) - 1)))
    among = most_together(switches, masks, job.gpus, 0 if strategy is Strategy.LEAST_FREE else servers)
    names = frozenset([node.name for node in view.nodes if view.bits[node.name] & among])
    return replace(job, request=replace(job.request, candidates=names))


def _servers_among(view: ClusterView, job: Job, strategy: Strategy) -> tuple[list[Node], tuple[int, ...]] | None:
    if job.request.step and view.split is Split.SLURM:
        return split_groups(view, job, strategy)
    chosen = _choose(offers(view, job.request), job, strategy)
    if chosen is None:
        return None
    if view.split is Split.SLURM:
        chosen.sort(key=_index)
    counts = split(job.request, [usable for _, usable in chosen], job.gpus)
    return None if counts is None else in_table_order([node for node, _ in chosen], counts)


def _index(offer: Offer) -> int:
    return offer[0].index


def in_table_order(nodes: Sequence[Node], counts: Sequence[int]) -> tuple[list[Node], tuple[int, ...]]:
    """The servers and the GPUs on each, in node-table order."""
    pairs = sorted(zip(nodes, counts, strict=True), key=_index)
    return [node for node, _ in pairs], tuple([count for _, count in pairs])


def has_room(view: ClusterView, job: Job) -> bool:
    """Whether the job could start now on any servers."""
    return any(_servers(view, one, Strategy.MOST_FREE) is not None for one in within_each(job))


def split_groups(view: ClusterView, job: Job, strategy: Strategy) -> tuple[list[Node], tuple[int, ...]] | None:
    """Servers and GPUs on each, for groups of GPUs that must share a server although Slurm splits in smaller steps.

    Slurm's split must keep each group whole. Try the servers that the strategy selects, then only servers whose free
    GPUs are whole groups. Of these, the most free ones split well unless -N requests more nodes than needed.
    """
    loose = replace(job.request, unit=job.request.step, step=0)
    usable = {node.name: count for node, count in offers(view, loose)}
    available = offers(view, job.request)
    whole = [offer for offer in available if usable[offer[0].name] == offer[1]]
    for some, order in ((available, strategy), (whole, strategy), (whole, Strategy.MOST_FREE)):
        nodes = sorted((node for node, _ in _choose(some, job, order) or ()), key=lambda node: node.index)
        counts = split(loose, [usable[node.name] for node in nodes], job.gpus) if nodes else None
        if counts is not None and not any(count % job.request.unit for count in counts):
            return nodes, counts
    return None


def split(request: Request, usable: Sequence[int], gpus: int) -> tuple[int, ...] | None:
    """GPUs per server, in the order of a split, as this form of request allows."""
    if request.per_node is None:
        tasks = fill([free // request.unit for free in usable], gpus // request.unit)
        return None if tasks is None else tuple(count * request.unit for count in tasks)
    return even_split(len(usable), request.per_node)


def _choose(available: list[Offer], job: Job, strategy: Strategy) -> list[Offer] | None:
    if job.request.per_node is not None:
        return _choose_even(available, job, strategy)
    if strategy is Strategy.TIGHTEST:
        return _tightest(available, job)
    if strategy is Strategy.MOST_FREE:
        return _partial_last(available, _prefix(_by_free(available, descending=True), job))
    ordered = _by_free(available, descending=False)
    return _prefix(ordered, job) or _window(ordered, job)


def _by_free(available: Iterable[Offer], descending: bool) -> list[Offer]:
    sign = -1 if descending else 1
    return sorted(available, key=lambda offer: (sign * offer[1], offer[0].index))


def _choose_even(available: list[Offer], job: Job, strategy: Strategy) -> list[Offer] | None:
    needed = job.gpus // (job.request.per_node or 1)
    ordered = _by_free(available, descending=strategy is Strategy.MOST_FREE)
    return ordered[:needed] if len(ordered) >= needed else None


def _prefix(ordered: list[Offer], job: Job) -> list[Offer] | None:
    """The first servers that can hold the job, within the bounds of its -N; None if there are too few or too many."""
    total = 0
    for number, (_, usable) in enumerate(ordered, start=1):
        total += usable
        if total >= job.gpus and number >= job.request.min_nodes:
            return ordered[:number] if number <= most_nodes(job) else None
    return None


def _window(ordered: list[Offer], job: Job) -> list[Offer] | None:
    """The least free consecutive servers, as many as -N allows, that can hold the job."""
    width = min(most_nodes(job), len(ordered))
    if width < job.request.min_nodes:
        return None
    for first in range(len(ordered) - width + 1):
        run = ordered[first : first + width]
        if sum(usable for _, usable in run) >= job.gpus:
            return run
    return None


def most_nodes(job: Job) -> int:
    """How many servers the job may have."""
    tasks = job.gpus // job.request.unit
    return min(job.request.max_nodes or tasks, tasks)


def _tightest(available: list[Offer], job: Job) -> list[Offer] | None:
    """The fewest servers that can hold the job; of these sets, the one with the fewest free GPUs."""
    fewest = _prefix(_by_free(available, descending=True), job)
    if fewest is None:
        return None
    ordered, width = _by_free(available, descending=False), len(fewest)
    runs = (ordered[i : i + width] for i in range(len(ordered) - width + 1))
    return next((run for run in runs if sum(usable for _, usable in run) >= job.gpus), fewest)


def _partial_last(available: list[Offer], chosen: list[Offer] | None) -> list[Offer] | None:
    """Of equally free servers, make the partly used one the last in the node table.

    Slurm fills nodes in node-table order, so the remainder then goes to the server that the selection intended.
    """
    if chosen is None:
        return None
    *full, last = chosen
    equals = [offer for offer in available if offer[1] == last[1] and offer not in full]
    return [*full, max(equals, key=lambda offer: offer[0].index)]
