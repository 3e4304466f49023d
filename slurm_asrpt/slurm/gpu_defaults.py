"""What a site gives a job for each of its GPUs: DefCpuPerGPU and DefMemPerGPU, of a partition or of the cluster.

Slurm adds them to a job when it first tries to start it, which it does not do to a leased job. Until then, the job
shows the CPUs of its tasks and the site's DefMemPerCPU or DefMemPerNode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_asrpt.slurm.partitions import Rows
from slurm_asrpt.slurm.records import PENDING, JobRecord, NodeRecord


@dataclass(frozen=True)
class GpuDefaults:
    """cpus, memory (MiB): for each GPU, 0 if the site sets none.

    per_cpu, per_node: the memory (MiB) that a job shows if it asks for none; 0 if the site sets none.
    """

    cpus: int = 0
    memory: float = 0.0
    per_cpu: float = 0.0
    per_node: float = 0.0

    def shown(self, job: JobRecord) -> JobRecord:
        """A job that is to be submitted as Slurm will show it."""
        if job.memory_per_node or job.memory_per_cpu or job.memory_per_gpu:
            return job
        return replace(job, memory_per_cpu=self.per_cpu, memory_per_node=self.per_node)

    def applied(self, job: JobRecord) -> JobRecord:
        """A pending job as Slurm will count it.

        Slurm shows ``--cpus-per-task=1`` like no such option: such a job counts with the default, although it gets one
        CPU for each task.
        """
        changes = dict[str, Any]()
        if self.cpus and not job.cpus_per_gpu and job.cpus <= job.tasks:
            changes["cpus_per_gpu"] = self.cpus
        asked = job.memory_per_gpu or job.memory_per_cpu != self.per_cpu or job.memory_per_node != self.per_node
        if self.memory and not asked:
            changes |= {"memory_per_gpu": self.memory, "memory_per_cpu": 0.0, "memory_per_node": 0.0}
        return replace(job, **changes) if changes and job.state == PENDING else job


def as_counted(job: JobRecord, defaults: Mapping[str, GpuDefaults], nodes: Sequence[NodeRecord]) -> JobRecord:
    """A job that is to be submitted as Slurm will count it. defaults: by partition. ``--mem=0`` is all of a node."""
    partitions = job.partition.split(",")
    given = defaults.get(partitions[0], GpuDefaults())
    found = given.applied(given.shown(job))
    if math.isfinite(found.memory_per_node):
        return found
    sizes = [node.memory for node in nodes if not node.partitions.isdisjoint(partitions)]
    return replace(found, memory_per_node=float(max(sizes, default=0)))


def gpu_defaults_of(config: Mapping[str, str], partitions: Rows) -> dict[str, GpuDefaults]:
    """By partition, without those that have none."""
    found = {}
    for name, row in partitions.items():
        of_gpus = _defaults(config.get("JobDefaults", "")) | _defaults(row.get("JobDefaults", ""))
        texts = row if any(_number(row.get(each, "")) for each in _MEMORY) else config
        shown = [_number(texts.get(each, "")) for each in _MEMORY]
        if of_gpus or any(shown):
            cpus, memory = int(of_gpus.get("DefCpuPerGPU", 0)), of_gpus.get("DefMemPerGPU", 0.0)
            found[name] = GpuDefaults(cpus, memory, *shown)
    return found


_MEMORY = ("DefMemPerCPU", "DefMemPerNode")


def _defaults(text: str) -> dict[str, float]:
    """``DefCpuPerGPU=12,DefMemPerGPU=2000``"""
    pairs = (part.partition("=") for part in text.split(","))
    return {name: float(value) for name, _, value in pairs if value.isdecimal()}


def _number(text: str) -> float:
    return float(text) if text.isdecimal() else 0.0
