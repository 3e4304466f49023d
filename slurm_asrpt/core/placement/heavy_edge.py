"""Heavy-Edge: assigns replicas to servers so that those with much traffic share a server (paper, section IV-B).

If the servers are under several switches, it first assigns replicas to the switches of the highest level, each like one
server with room for as many replicas as there are below it, then those of each switch in the same way.

The paper does not define an order of equally heavy edges, and most models have many. Here the edge to the vertex with
the most bytes into the set comes first, then the most bytes in total, then the lowest number. The ends of a pipeline
lose least on a server of their own, and so they go to the small servers (the gain: benchmarks/results/heavy_edge.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random

from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.placement.graph import Weights, edge_weights
from slurm_asrpt.core.topology import Blocks


@lru_cache(maxsize=65536)
def heavy_edge(profile: JobProfile, counts: tuple[int, ...], seed: int = 0, blocks: Blocks = ()) -> tuple[int, ...]:
    """The server of each GPU of the job, as an index into ``counts``.

    counts: GPUs allocated on each server, all > 0, summing to profile.gpus. Servers are filled in descending order of
    their counts, equal ones as listed; so are switches. seed: for the steps where the paper says "randomly".
    blocks: the switch of each server at the levels above (``blocks_of``).
    Raises ValueError for counts that do not fit the profile or that split the tensor slices of a replica.
    """
    room = replica_counts(profile, counts)
    ranks = [0] * profile.replicas
    random = Random(seed)  # noqa: S311  (not for secrets)

    def divide(left: set[int], servers: Sequence[int], blocks: Blocks) -> None:
        """Assign the replicas ``left``, which fill these servers. blocks: the levels that may part the servers."""
        heaviest = iter(_by_weight(profile))
        sized = [(sum([room[m] for m in some]), some) for some in groups(servers, blocks)]
        for size, some in sorted(sized, key=lambda part: -part[0]):
            chosen = _pick(profile, heaviest, left, size, random)
            left.difference_update(chosen)
            if blocks:
                divide(set(chosen), some, blocks[:-1])
            else:
                for replica in chosen:
                    ranks[replica] = some[0]

    divide(set(range(profile.replicas)), range(len(room)), blocks)
    return gpu_ranks(profile, ranks)


def groups(servers: Sequence[int], blocks: Blocks) -> list[list[int]]:
    """The servers under each switch of the highest level, in order of appearance; without levels, each server alone."""
    found: dict[int, list[int]] = {}
    for server in servers:
        found.setdefault(blocks[-1][server] if blocks else server, []).append(server)
    return list(found.values())


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
    chosen, free = list[int](), set(left)
    # free vertex -> negated weights of its heaviest edge into the set, all edges into the set, all edges; its number
    pull: dict[int, tuple[float, float, float, int]] = {}

    def take(vertex: int) -> None:
        chosen.append(vertex)
        free.discard(vertex)
        pull.pop(vertex, None)
        for other, weight in weights[vertex].items():
            if other in free:
                largest, into, _, _ = pull.get(other, _NO_EDGE)
                pull[other] = (-weight if -weight < largest else largest, into - weight, -total[other], other)

    while len(chosen) < size:
        if pull:
            take(min(pull.values())[3])
            continue
        edge = _next_edge(heaviest, free) if size - len(chosen) >= 2 else None
        for vertex in edge or (random.choice(sorted(free)),):
            take(vertex)
    return chosen


_NO_EDGE = (0.0, 0.0, 0.0, 0)


def _next_edge(heaviest: Iterator[Edge], free: set[int]) -> Edge | None:
    """The heaviest edge with both ends in ``free``. Skipped edges have a placed end and are never needed again."""
    return next(((a, b) for a, b in heaviest if a in free and b in free), None)
