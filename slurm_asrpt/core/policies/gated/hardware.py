"""The servers of a cluster as asrpt-gated needs them: all that follows from the node table alone."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.best_alpha import packed_alpha
from slurm_asrpt.core.policies.gated.gpu_types import Choices
from slurm_asrpt.core.policies.gated.placement import Placer
from slurm_asrpt.core.policies.gated.reach import Reach
from slurm_asrpt.core.policies.nic_contention import NicContention
from slurm_asrpt.core.policies.running_jobs import RunningJobs


class Hardware:
    """The servers that may run jobs; another object after each change of the node table.

    nodes: in node-table order. gpus: all GPUs. largest: GPUs of the largest server. size: GPUs of every server, 0 if
    servers differ in GPUs, type or speed. placer: finds placements. reach: the switches under which a job must stay.
    """

    def __init__(self, nodes: Sequence[Node], fabric: Fabric, gate: float, contention: NicContention | None) -> None:
        self.nodes = tuple(sorted(nodes, key=lambda node: node.index))
        self.gpus = sum(node.gpus for node in nodes)
        self.largest = max((node.gpus for node in nodes), default=0)
        models = {(node.gpus, node.gpu_type, node.speed) for node in nodes}
        self.size = models.pop()[0] if len(models) == 1 else 0
        self.placer = Placer(self.nodes, fabric, gate, contention)
        self.reach = Reach(self.nodes, fabric, gate)
        self._fabric, self._gate, self._contention = fabric, gate, contention

    def choices(self, running: RunningJobs) -> Choices:
        """Finds the kinds of GPU that could run each job, beside these running jobs."""
        return Choices(self.nodes, running, self._alpha, self._gate, self.reach)

    def _alpha(self, job: Job, nodes: Sequence[Node]) -> float:
        known = self._contention
        return packed_alpha(job, nodes, self._fabric) if known is None else known.packed_alpha(job, nodes)
