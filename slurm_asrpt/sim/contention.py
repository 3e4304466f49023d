"""Simulations without reserved bandwidth: a job's speed changes whenever a neighbor on its servers starts or ends."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from functools import partial

import numpy as np

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.nic_sharing import SharedTimes
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.core.timing.contention import ContendingJobs
from slurm_asrpt.core.timing.ring import Degradation, Linear
from slurm_asrpt.sim.description import Cluster
from slurm_asrpt.sim.engine import PlainRun, Result, Runner, Simulation


def sharing(fabric: Fabric, degradation: Degradation) -> Runner:
    """A runner for ``simulate``: each of k jobs that use the NIC of a server gets 1/f(k) of it."""
    return partial(ContendedRun, times=SharedTimes(fabric, degradation))


def runner_of(cluster: Cluster) -> Runner | None:
    """The runner for ``simulate`` on this cluster; None without contention."""
    return None if cluster.contention is None else sharing(cluster.fabric, Linear(cluster.contention))


class ContendedRun(PlainRun):
    """A simulation whose jobs share the servers' NICs. In the result, alpha is the average over a job's run."""

    def __init__(self, of: Simulation, times: SharedTimes) -> None:
        super().__init__(of)
        self.times = times
        self.contending = ContendingJobs[int]()
        self.has: dict[int, tuple[Job, Mapping[str, int]]] = {}  # running jobs by row, and their GPUs by node
        self.end = array("d", [math.nan]) * len(of.table)

    def _begin(self, start: Start, now: float) -> None:
        super()._begin(start, now)
        self.running.clear()  # the parent has just stored the end for reserved bandwidth
        row, placement = int(start.job.id), start.placement
        self.has[row] = start.job, placement.gpus
        pace = self.times.pace(placement, start.job.profile)
        self.contending.start(row, placement.gpus, self.iterations[row], pace, now)
        self.next_end = self.contending.next_end()
        self.end[row] = math.inf

    def _ends(self, now: float) -> None:
        """Pass the jobs that end to the parent, one by one, with the actual end."""
        while self.contending.next_end() <= now:
            end, row = self.contending.pop()
            self.end[row] = end
            self.running.append((end, row, *self.has.pop(row)))
            self.next_end = end
            super()._ends(now)
        self.next_end = self.contending.next_end()

    def result(self, interrupted: bool) -> Result:
        found = super().result(interrupted)
        return found.with_times(found.start, np.array(self.end))
