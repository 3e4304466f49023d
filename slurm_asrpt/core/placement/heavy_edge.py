"""Heavy-Edge: assigns replicas to servers so that those with much traffic share a server (paper, section IV-B).

The paper does not define an order of equally heavy edges, and most models have many. Here the edge to the vertex with
the most bytes into the set comes first, then the most bytes in total, then the lowest number. The ends of a pipeline
lose least on a server of their own, and so they go to the small servers (benchmarks/README.md shows the gain).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random

from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.placement.graph import Weights, edge_weights


@lru_cache(maxsize=65536)
def heavy_edge(profile: JobProfile, counts: tuple[int, ...], seed: int = 0) -> tuple[int, ...]:
    """The server of each GPU of the job, as an index into ``counts``.

    counts: GPUs allocated on each server, all > 0, summing to profile.gpus. Servers are filled in descending order of
    their counts, equal ones as listed. seed: for the steps where the paper says "randomly".
    Raises ValueError for counts that do not fit the profile or that split the tensor slices of a replica.
    """
    room = replica_counts(profile, counts)
    heaviest = iter(_by_weight(profile))
    ranks = [0] * profile.replicas
    left = set(range(profile.replicas))
    random = Random(seed)  # noqa: S311  (not for secrets)
    for server in sorted(range(len(room)), key=lambda m: -room[m]):
        for replica in _pick(profile, heaviest, left, room[server], random):
            ranks[replica] = server
            left.discard(replica)
    return gpu_ranks(profile, ranks)


def replica_counts(profile: JobProfile, counts: Sequence[int]) -> tuple[int, ...]:
    """Whole replicas per server, from GPUs per server. Raises ValueError for counts that do not fit the profile."""
    if sum(counts) != profile.gpus or min(counts) < 1:
        raise ValueError(f"GPU counts {counts} do not hold the {profile.gpus} replicas of {profile.name}")
    if any(count % profile.tensor for count in counts):
        raise ValueError(f"GPU counts {counts} part the {profile.tensor} tensor slices of a replica of {profile.name}")
    return tuple(count // profile.tensor for count in counts)


def gpu_ranks(profile: JobProfile, replica_ranks: Sequence[int]) -> tuple[int, ...]:
    """The server of each GPU, from the server of each replica. The slices of a replica share a server."""
    if profile.tensor == 1:
        return tuple(replica_ranks)
    return tuple(server for server in replica_ranks for _ in range(profile.tensor))


Edge = tuple[int, int]


@lru_cache(maxsize=4096)
def _by_weight(profile: JobProfile) -> tuple[Edge, ...]:
    """All edges, the heaviest first; ties by the total bytes of the two vertices, the most first."""
    total = _totals(profile)
    edges = (
        (-weight, -total[a] - total[b], a, b)
        for a, row in enumerate(edge_weights(profile))
        for b, weight in row.items()
        if a < b
    )
    return tuple((a, b) for _, _, a, b in sorted(edges))


@lru_cache(maxsize=4096)
def _totals(profile: JobProfile) -> tuple[float, ...]:
    """The total edge weight of each vertex."""
    return tuple(sum(row.values()) for row in edge_weights(profile))


def _pick(profile: JobProfile, heaviest: Iterator[Edge], left: set[int], size: int, random: Random) -> Sequence[int]:
    """The replicas for one server with room for ``size``."""
    if size == len(left):
        return sorted(left)
    total = _totals(profile)
    if size == 1:
        return [min(left, key=lambda v: (total[v], v))]
    return _grow(edge_weights(profile), total, heaviest, left, size, random)


def _grow(
    weights: Weights, total: Sequence[float], heaviest: Iterator[Edge], left: set[int], size: int, random: Random
) -> list[int]:
    """Start with the heaviest edge within ``left``, then add the vertex with the heaviest edge into the set."""
    chosen: list[int] = []
    # unassigned vertex -> negated weights of its heaviest edge into the set, all edges into the set, all edges
    pull: dict[int, tuple[float, float, float]] = {}

    def take(vertex: int) -> None:
        chosen.append(vertex)
        pull.pop(vertex, None)
        for other, weight in weights[vertex].items():
            if other in left and other not in chosen:
                largest, into, _ = pull.get(other, (0.0, 0.0, 0.0))
                pull[other] = (min(-weight, largest), into - weight, -total[other])

    while len(chosen) < size:
        if pull:
            take(min(pull, key=lambda v: (pull[v], v)))
            continue
        free = left.difference(chosen)
        edge = _next_edge(heaviest, free) if size - len(chosen) >= 2 else None
        for vertex in edge or (random.choice(sorted(free)),):
            take(vertex)
    return chosen


def _next_edge(heaviest: Iterator[Edge], free: set[int]) -> Edge | None:
    """The heaviest edge with both ends in ``free``. Skipped edges have a placed end and are never needed again."""
    return next(((a, b) for a, b in heaviest if a in free and b in free), None)
