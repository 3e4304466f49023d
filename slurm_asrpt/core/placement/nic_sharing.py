"""Iteration times without reserved bandwidth: jobs that span servers share the NICs.

In the paper's timing (4)-(7), a job with x of a server's g GPUs has x/g of its NIC. Here, each of k jobs that use the
NIC has 1/f(k) of it, (6)-(8) of the SJF-BCO paper. The formulas are the same for a server with x f(k) GPUs.

Levels of the fabric above the servers do not count here: all servers are as near as under one switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from slurm_asrpt.core.cluster import Fabric, Placement
from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.contention import Pace
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.ring import Degradation
from slurm_asrpt.core.timing.speed import at_speed


class SharedTimes:
    """Seconds per iteration by profile, form of placement and neighbors, cached.

    degradation: f; each of k jobs has 1/f(k) of a NIC.
    """

    def __init__(self, fabric: Fabric, degradation: Degradation) -> None:
        self.fabric, self.degradation = fabric, degradation
        self._paces = lru_cache(maxsize=65536)(self._pace)

    def pace(self, placement: Placement, profile: JobProfile) -> Pace:
        """Alpha as a function of how many jobs use the NIC of each server of a placement, including this one."""
        if len(placement.gpus) == 1:
            alpha = placement.alpha
            return lambda rings: alpha
        at = {name: number for number, name in enumerate(placement.gpus)}
        ranks, counts = tuple([at[name] for name in placement.ranks]), tuple(placement.gpus.values())
        return self._paces(at_speed(profile, placement.speed), ranks, counts)

    def on(self, counts: tuple[int, ...], profile: JobProfile) -> Pace:
        """The same function for ``counts`` GPUs on several servers, placed by Heavy-Edge."""
        return self._paces(profile, heavy_edge(profile, counts), counts)

    def alpha(self, placement: Placement, profile: JobProfile, rings: Sequence[int]) -> float:
        """Seconds per iteration. rings: how many jobs use the NIC of each server of the placement, including this."""
        return self.pace(placement, profile)(tuple(rings))

    def _pace(self, profile: JobProfile, ranks: tuple[int, ...], counts: tuple[int, ...]) -> Pace:
        def alpha(rings: tuple[int, ...]) -> float:
            found = known.get(rings)
            if found is None:
                sizes = [count * self.degradation(float(k)) for count, k in zip(counts, rings, strict=True)]
                found = known[rings] = iteration_time(profile, ranks, sizes, self.fabric)
            return found

        known: dict[tuple[int, ...], float] = {}
        return alpha
