"""What a forecast is made from: the cluster, the policy's state and what runs, waits and has lately arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ConfigDict, TypeAdapter

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId, Request
from slurm_asrpt.core.policies import Policy, make_policy
from slurm_asrpt.forecast.margins import Margins
from slurm_asrpt.forecast.span import Span

PUBLISHED = "forecast.json"
"""In the run folder, for asrpt-status --what-if."""


@dataclass(frozen=True)
class Waiting:
    """A job that waits, or one that came lately. span: its iterations."""

    job: Job
    span: Span


@dataclass(frozen=True)
class Running:
    """A job that holds GPUs. span: of the whole run, seconds; ran_s of it are over. limit_s: what its limit leaves."""

    job_id: JobId
    gpus: Mapping[str, int]
    request: Request
    ran_s: float
    span: Span
    limit_s: float


@dataclass(frozen=True)
class Snapshot:
    """Just after a decision of the policy, at ``now``, seconds.

    policy, settings, state: its name, what it was made with but the fabric, and its dump.
    free, free_cpus, free_memory: by node, beside all that ``running`` holds; None where that is not looked at.
    recent: the jobs that became eligible in the last ``window_s`` seconds, by their submit times.
    margins: what estimates are moved by before anybody sees them.
    """

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")

    now: float
    policy: str
    settings: Mapping[str, Any]
    state: Mapping[str, Any]
    fabric: Fabric
    nodes: tuple[Node, ...]
    free: Mapping[str, int]
    free_cpus: Mapping[str, float] | None
    free_memory: Mapping[str, float] | None
    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]
    recent: tuple[Waiting, ...] = ()
    window_s: float = 0.0
    margins: Margins = field(default_factory=Margins)

    def view(self) -> ClusterView:
        return ClusterView(self.nodes, self.free, self.free_cpus, self.free_memory)

    def make_policy(self) -> Policy:
        """The policy as it was then, free to go its own way. Raises ValueError for a state that is none."""
        policy = make_policy(self.policy, fabric=self.fabric, **self.settings)
        policy.cluster_changed(self.nodes, self.now)
        policy.load(self.state, {each.job.id: each.job for each in self.waiting})
        return policy


_JSON = TypeAdapter(Snapshot)


def to_json(snapshot: Snapshot) -> bytes:
    return _JSON.dump_json(snapshot)


def from_json(data: bytes) -> Snapshot:
    """Raises ValueError for anything else."""
    return _JSON.validate_json(data)
