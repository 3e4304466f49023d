"""Iteration times where no bandwidth is reserved: jobs that leave a server share its NIC.

The papers' timing (4)-(7) gives a job x/g of a server's NIC for x of its g GPUs. Here each of k jobs that leave the
server gets 1/f(k) of it, (6)-(8) of the SJF-BCO paper: as if the server had x f(k) GPUs, so that the formulas stay.
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
    """Seconds per iteration by profile, form of placement and neighbors; each is worked out once.

    degradation: f, the share of a NIC that each of k jobs has is 1/f(k).
    """

    def __init__(self, fabric: Fabric, degradation: Degradation) -> None:
        self.fabric, self.degradation = fabric, degradation
        self._paces = lru_cache(maxsize=65536)(self._pace)

    def pace(self, placement: Placement, profile: JobProfile) -> Pace:
        """How alpha follows from the jobs that leave each server of a placement, in its order, this one included."""
        if len(placement.gpus) == 1:
            alpha = placement.alpha
            return lambda rings: alpha
        at = {name: number for number, name in enumerate(placement.gpus)}
        ranks, counts = tuple([at[name] for name in placement.ranks]), tuple(placement.gpus.values())
        return self._paces(at_speed(profile, placement.speed), ranks, counts)

    def on(self, counts: tuple[int, ...], profile: JobProfile) -> Pace:
        """The same for GPUs on each of several servers, placed by Heavy-Edge."""
        return self._paces(profile, heavy_edge(profile, counts), counts)

    def alpha(self, placement: Placement, profile: JobProfile, rings: Sequence[int]) -> float:
        """Seconds per iteration with so many jobs leaving each server of the placement, this one included."""
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
