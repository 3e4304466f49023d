"""Groups of GPUs with about equal speed for every job (Hare (4)-(6)).

    minimize   max_n (p_n^max - p_n^min)
    p_n^max = max_u sum_m z_{m,u} s_{n,m},   p_n^min = min_u sum_m z_{m,u} s_{n,m},   sum_u z_{m,u} = 1

GPUs of a type are equal, so the variables are y_{t,u}, the number of GPUs of type t in group u. Speeds s_{n,m} are
relative to the job's mean GPU: otherwise the fastest small model alone would determine the groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Groups = np.ndarray
"""y, integers: groups x types."""
Speeds = np.ndarray
"""s, jobs x types."""


def relative(speeds: Speeds, counts: Sequence[int]) -> Speeds:
    """Speeds over those of the job's mean GPU."""
    return np.asarray(speeds / ((speeds @ np.asarray(counts)) / sum(counts))[:, None])


def gap(groups: Groups, speeds: Speeds) -> float:
    """The objective max_n (p_n^max - p_n^min)."""
    power = groups @ speeds.T
    return float((power.max(axis=0) - power.min(axis=0)).max())


def group(counts: Sequence[int], speeds: Speeds, groups: int) -> Groups:
    """Groups by a heuristic: spread each type evenly, give the remainder to the slowest groups, then swap GPUs.

    counts: GPUs of each type. speeds: jobs x types, any unit. Raises ValueError for more groups than GPUs.
    """
    if not 1 <= groups <= sum(counts):
        raise ValueError(f"{sum(counts)} GPUs cannot be divided into {groups} groups")
    speeds = relative(speeds, counts)
    found = np.tile(np.asarray(counts) // groups, (groups, 1))
    for kind in sorted(range(len(counts)), key=lambda t: -speeds[:, t].mean()):
        for _ in range(counts[kind] % groups):
            found[np.argmin(_spare(found, kind, speeds)), kind] += 1
    return _improved(_seated(found), speeds)


def _spare(found: Groups, kind: int, speeds: Speeds) -> np.ndarray:
    """Mean power of each group, with a huge penalty for groups that already have one more GPU of the type."""
    ahead = found[:, kind] > found[:, kind].min()
    return np.asarray((found @ speeds.T).mean(axis=1) + 1e9 * ahead)


def _seated(found: Groups) -> Groups:
    """Fill empty groups with a GPU from the largest group."""
    while (sizes := found.sum(axis=1)).min() == 0:
        rich = int(np.argmax(sizes))
        kind = int(np.argmax(found[rich]))
        found[rich, kind] -= 1
        found[int(np.argmin(sizes)), kind] += 1
    return found


def _improved(found: Groups, speeds: Speeds) -> Groups:
    """Move and swap single GPUs with the strongest or the weakest group while that reduces the cost."""
    best = _cost(found, speeds)
    while True:
        power = found @ speeds.T
        job = int((power.max(axis=0) - power.min(axis=0)).argmax())
        rich, poor = int(power[:, job].argmax()), int(power[:, job].argmin())
        pairs = {(rich, u) for u in range(len(found))} | {(u, poor) for u in range(len(found))}
        tried = [other for one, two in sorted(pairs) if one != two for other in _exchanges(found, one, two)]
        costs = [_cost(other, speeds) for other in tried]
        if not costs or min(costs) >= best:
            return found
        best = min(costs)
        found = tried[costs.index(best)]


def _cost(found: Groups, speeds: Speeds) -> tuple[float, float]:
    """The rounded gap, then the spread of all groups, so that a second extreme pair does not hide progress."""
    power = found @ speeds.T
    spans = power.max(axis=0) - power.min(axis=0)
    return round(float(spans.max()), 9), round(float(power.var(axis=0).sum()), 9)


def _exchanges(found: Groups, rich: int, poor: int) -> list[Groups]:
    """All groupings with one GPU moved from ``rich`` to ``poor``, or two swapped; no group becomes empty."""
    takes: list[int | None] = [None, *np.flatnonzero(found[poor]).tolist()]
    pairs = [(give, take) for give in np.flatnonzero(found[rich]).tolist() for take in takes if take != give]
    alone = found[rich].sum() == 1
    return [_exchanged(found, rich, poor, give, take) for give, take in pairs if take is not None or not alone]


def _exchanged(found: Groups, rich: int, poor: int, give: int, take: int | None) -> Groups:
    other = found.copy()
    other[rich, give] -= 1
    other[poor, give] += 1
    if take is not None:
        other[poor, take] -= 1
        other[rich, take] += 1
    return other


def members(groups: Groups, kind: Sequence[int]) -> list[list[int]]:
    """The GPUs of each group. kind: the type of each GPU."""
    pools: list[list[int]] = [[] for _ in range(groups.shape[1])]
    for gpu in reversed(range(len(kind))):
        pools[kind[gpu]].append(gpu)
    return [[pools[t].pop() for t in range(len(pools)) for _ in range(row[t])] for row in groups.tolist()]
