"""From the history's rows to what ``calibrate`` fits: iteration times by profile and placement."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import UNPROFILED, JobProfile
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.predict.history import Run
from slurm_asrpt.profile.calibrate import Observed, Placed
from slurm_asrpt.slurm.records import NodeRecord

SAME = 1e-3
"""Two figures of alpha this near to each other, as a share, are the same: the history keeps all digits."""

CONDITION = "iterations_source = 'reported' AND iterations > 0 AND end_time >= ? AND end_time - start_time >= ?"
"""Of the history's runs, those that can be used; values: the earliest end, the least elapsed seconds."""


class UnusableError(Exception):
    """Why a run says nothing."""


def observe(
    runs: Iterable[Run], nodes: Sequence[NodeRecord], profile_of: Callable[[str, int], JobProfile], fabric: Fabric
) -> tuple[list[Observed], Counter[str]]:
    """Iteration times, and how many runs were left out for which reason. fabric: of the settings."""
    found: dict[Placed, list[float]] = {}
    left: Counter[str] = Counter()
    for run in runs:
        try:
            placed = _placed(run, nodes, profile_of(run.profile, run.gpus), fabric)
        except UnusableError as why:
            left[str(why)] += 1
        else:
            found.setdefault(placed, []).append((run.end_time - run.start_time) / run.iterations)
    return [Observed(placed, statistics.median(times), len(times)) for placed, times in found.items()], left


def _placed(run: Run, nodes: Sequence[NodeRecord], profile: JobProfile, fabric: Fabric) -> Placed:
    """Ranks in Slurm's order, or where those explain the alpha that asrptd has noted, in Heavy-Edge's.

    Raises UnusableError.
    """
    if profile.name == UNPROFILED:
        raise UnusableError("no usable profile")
    servers = [node for node in nodes if node.name in run.nodes]
    if len(servers) != len(run.nodes) or any(node.gpus < run.nodes[node.name] for node in servers):
        raise UnusableError("nodes that are no longer there")
    counts, sizes = tuple(run.nodes[node.name] for node in servers), tuple(node.gpus for node in servers)
    if any(count % profile.tensor for count in counts):
        raise UnusableError("tensor slices apart")
    block = tuple(server for server, count in enumerate(counts) for _ in range(count))
    mapped = tuple(heavy_edge(profile, counts))
    alphas = [iteration_time(profile, ranks, sizes, fabric) for ranks in (block, mapped)]
    for ranks, alpha in zip((block, mapped), alphas, strict=True):
        if _same(alpha, run.alpha) or _same(*alphas):
            return Placed(profile, ranks, sizes)
    raise UnusableError("ranks unknown: settings or profile have changed since")


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= SAME * max(one, other)
