"""A policy, its state and the cluster at one time, where forecasts and replays begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.limits import Headroom
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Policy


@dataclass(frozen=True)
class PolicySnapshot:
    """The cluster and the policy at ``now``, seconds.

    policy, settings, state: the policy's name, its options and its saved state.
    free, free_cpus, free_memory: by node; None if CPUs or memory do not count. free_gres: as in ``ClusterView``.
    headroom: what is left of the site's limits, by name. indexes: the free GPU indexes (``ClusterView``).
    kept: what only brief requests may use (``ClusterView``).
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
    headroom: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    indexes: Mapping[str, int] | None = field(default=None, kw_only=True)
    kept: Mapping[str, tuple[float, float]] = field(default_factory=dict, kw_only=True)
    free_gres: Mapping[str, Mapping[str, float]] | None = field(default=None, kw_only=True)

    def view(self) -> ClusterView:
        headroom = Headroom(self.headroom)
        view = ClusterView(
            self.nodes,
            self.free,
            self.free_cpus,
            self.free_memory,
            headroom,
            indexes=self.indexes,
            free_gres=self.free_gres,
        )
        view.kept = self.kept
        return view

    def policy_with(self, jobs: Iterable[Job]) -> Policy:
        """A copy of the policy at that time. Raises ValueError for an invalid state."""
        policy = make_policy(self.policy, fabric=self.fabric, **self.settings)
        policy.cluster_changed(self.nodes, self.now)
        policy.load(self.state, {job.id: job for job in jobs})
        return policy
