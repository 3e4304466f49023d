"""What a policy decides from, at one moment: forecasts and replays begin there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.policies import Policy, make_policy


@dataclass(frozen=True)
class Moment:
    """The cluster and the policy at ``now``, seconds.

    policy, settings, state: its name, what it was made with but the fabric, and its dump.
    free, free_cpus, free_memory: by node; None where that is not looked at.
    """

    now: float
    policy: str
    settings: Mapping[str, Any]
    state: Mapping[str, Any]
    fabric: Fabric
    nodes: tuple[Node, ...]
    free: Mapping[str, int]
    free_cpus: Mapping[str, float] | None
    free_memory: Mapping[str, float] | None

    def view(self) -> ClusterView:
        return ClusterView(self.nodes, self.free, self.free_cpus, self.free_memory)

    def policy_with(self, jobs: Iterable[Job]) -> Policy:
        """The policy as it was then, free to go its own way. Raises ValueError for a state that is none."""
        policy = make_policy(self.policy, fabric=self.fabric, **self.settings)
        policy.cluster_changed(self.nodes, self.now)
        policy.load(self.state, {job.id: job for job in jobs})
        return policy
