"""Heavy-Edge: which replica goes to which server, so that what talks much sits together (paper, section IV-B)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from random import Random

from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.placement.graph import Weights, edge_weights


@lru_cache(maxsize=65536)
def heavy_edge(profile: JobProfile, counts: tuple[int, ...], seed: int = 0) -> tuple[int, ...]:
    """The server of each GPU of the job, as an index into ``counts``.

    counts: GPUs given to the job on each server, all > 0, summing to profile.gpus. Servers are filled in
    descending order of their counts, equal ones as listed. seed decides where the paper says "randomly".
    Raises ValueError for counts that do not fit the profile, or would part the tensor slices of a replica.
    """
    room = replica_counts(profile, counts)
    weights = edge_weights(profile)
    ranks = [0] * profile.replicas
    left = set(range(profile.replicas))
    random = Random(seed)  # noqa: S311  (not for secrets)
    for server in sorted(range(len(room)), key=lambda m: -room[m]):
        for replica in _pick(weights, left, room[server], random):
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
    """The server of each GPU, from the server of each replica: its slices stay together."""
    if profile.tensor == 1:
        return tuple(replica_ranks)
    return tuple(server for server in replica_ranks for _ in range(profile.tensor))


def _pick(weights: Weights, left: set[int], size: int, random: Random) -> Sequence[int]:
    """The replicas for one server that gives ``size`` GPUs."""
    if size == len(left):
        return sorted(left)
    if size == 1:
        return [min(left, key=lambda v: (sum(weights[v].values()), v))]
    return _grow(weights, left, size, random)


def _grow(weights: Weights, left: set[int], size: int, random: Random) -> list[int]:
    """Start with the heaviest edge among ``left``, then keep adding the vertex with the heaviest edge into the set."""
    chosen: list[int] = []
    pull: dict[int, float] = {}  # unassigned vertex -> its heaviest edge into the set

    def take(vertex: int) -> None:
        chosen.append(vertex)
        pull.pop(vertex, None)
        for other, weight in weights[vertex].items():
            if other in left and other not in chosen:
                pull[other] = max(weight, pull.get(other, 0.0))

    while len(chosen) < size:
        if pull:
            take(min(pull, key=lambda v: (-pull[v], v)))
            continue
        free = left.difference(chosen)
        edge = _heaviest_edge(weights, free) if size - len(chosen) >= 2 else None
        for vertex in edge or (random.choice(sorted(free)),):
            take(vertex)
    return chosen


def _heaviest_edge(weights: Weights, free: set[int]) -> tuple[int, int] | None:
    """The heaviest edge with both ends in ``free``, the lowest numbers first among equals."""
    edges = ((-weight, a, b) for a in free for b, weight in weights[a].items() if a < b and b in free)
    best = min(edges, default=None)
    return None if best is None else (best[1], best[2])
