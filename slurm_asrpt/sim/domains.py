"""Simulations with NVLink domains smaller than a server (docs/decisions/0046).

As Slurm does, a server gives each job its lowest free GPUs, and a job runs as fast as they allow.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.placement.mapping import mapping_on
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.sim.engine import PlainRun, Runner, Simulation


def with_domains(fabric: Fabric) -> Runner:
    """A runner for ``simulate``. fabric: the real one; that of the policy may know nothing of domains."""
    return partial(DomainRun, fabric=fabric)


class DomainRun(PlainRun):
    """A simulation in which servers give the lowest free GPU indexes, and take them back."""

    def __init__(self, of: Simulation, fabric: Fabric) -> None:
        super().__init__(of)
        self.fabric = fabric
        self.view.indexes = {node.name: (1 << node.gpus) - 1 for node in of.nodes}

    def _begin(self, start: Start, now: float) -> None:
        job, gpus = start.job, start.placement.gpus
        indexes, layouts = self.view.next_indexes(gpus), self.view.layouts(gpus, self.fabric.domain)
        if job.gpus > 1:
            nodes = [self.view.by_name[name] for name in gpus]
            _, alpha, _ = mapping_on(nodes, tuple(gpus.values()), job.profile, self.fabric, layouts)
            start = replace(start, placement=replace(start.placement, alpha=alpha))
        super()._begin(start, now)
        self.held[int(job.id)] = indexes
