"""The job graph (paper, section IV-B): a vertex per replica, an edge per communicating pair, weighted in bytes.

With tensor parallelism, there is a vertex per slice of a replica (section VI). The slices of a replica must share a
server, so Heavy-Edge uses the graph in which they are contracted to one vertex, ``edge_weights``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

from slurm_asrpt.core.job import AllReduce, JobProfile, Stage

if TYPE_CHECKING:
    import networkx as nx

Weights = tuple[dict[int, float], ...]
"""Adjacency: for each replica its neighbors and the bytes per iteration between them."""


@lru_cache(maxsize=4096)
def edge_weights(profile: JobProfile) -> Weights:
    """The graph between replicas as adjacency dictionaries, in replica order; parallel edges are summed."""
    adjacency: Weights = tuple({} for _ in range(profile.replicas))
    for a, b, weight in _edges(profile):
        if weight > 0:
            adjacency[a][b] = adjacency[a].get(b, 0.0) + weight
            adjacency[b][a] = adjacency[a][b]
    return adjacency


def job_graph(profile: JobProfile) -> nx.Graph[int]:
    """The graph between GPUs, for inspection: vertices have ``stage`` and ``replica``, edges ``weight`` in bytes.

    Slice i of a replica exchanges 1/t of the replicas' bytes with the slices i of others, and 2 (t-1)/t tensor_bytes
    with the next slice of its own replica (ring all-reduce).
    """
    import networkx as nx  # a tenth of the start-up time of asrptd, which needs only edge_weights

    graph: nx.Graph[int] = nx.Graph(name=profile.name)
    slices = profile.tensor
    for gpu, stage in enumerate(profile.stage_of):
        graph.add_node(gpu, stage=stage, replica=gpu // slices)
    for a, neighbors in enumerate(edge_weights(profile)):
        for b, weight in neighbors.items():
            for i in range(slices):
                graph.add_edge(a * slices + i, b * slices + i, weight=weight / slices)
    for replica, stage in enumerate(profile.stage_of_replica):
        weight = 2 * (slices - 1) / slices * profile.stages[stage].tensor_bytes
        for i, j in _ring(slices):
            graph.add_edge(replica * slices + i, replica * slices + j, weight=weight)
    return graph


def _edges(profile: JobProfile) -> Iterator[tuple[int, int, float]]:
    first = 0
    for s, stage in enumerate(profile.stages):
        k = stage.replicas
        if s > 0:
            before = profile.stages[s - 1].replicas
            weight = 2 * stage.bytes_in / before
            yield from ((a, b, weight) for a in range(first - before, first) for b in range(first, first + k))
        pairs = _ring(k) if profile.allreduce is AllReduce.RING else chain(*double_tree(k))
        weight = (2 if profile.allreduce is AllReduce.RING else 1) * (k - 1) / k * stage.param_bytes
        yield from ((first + a, first + b, weight) for a, b in pairs)
        yield from ((first + a, first + b, weight) for a, b, weight in _routes(stage))
        first += k


def _routes(stage: Stage) -> Iterator[tuple[int, int, float]]:
    """4 b (w_i + w_j) between experts i and j: tokens in both directions, forward and backward (section VI)."""
    for i, own in enumerate(stage.routing):
        for j, other in enumerate(stage.routing[:i]):
            yield j, i, 4 * stage.routed_bytes * (own + other)


def _ring(k: int) -> Iterator[tuple[int, int]]:
    """Consecutive replicas; two replicas share one edge, one has none."""
    if k == 2:
        yield (0, 1)
    elif k > 2:
        yield from ((i, (i + 1) % k) for i in range(k))


def double_tree(k: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """NCCL's double binary trees over k ranks, as (parent, child): a tree, and its mirror image (k even) or itself
    shifted by one rank (k odd).

    No rank has more than one edge in both trees (Sanders et al. 2009), so that all have about as many bytes. NCCL has a
    rank for each server there; here, each replica is one.
    """
    tree = [(_parent(child, k), child) for child in range(1, k)]
    if k % 2 == 0:
        return tree, [(k - 1 - a, k - 1 - b) for a, b in tree]
    return tree, [((a + 1) % k, (b + 1) % k) for a, b in tree]


def _parent(rank: int, k: int) -> int:
    """The parent of a rank above 0 in the tree whose leaves are the odd ranks, and whose root, 0, has one child.

    With b the lowest set bit of a rank, its children are b/2 below and above it, or as near above as there are ranks.
    """
    bit = rank & -rank
    up = (rank ^ bit) | bit << 1
    return up if up < k else rank ^ bit
