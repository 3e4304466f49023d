"""Through which switches the servers of a job may be connected (docs/decisions/0038)."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.domains import packed
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.best_alpha import best_counts, candidate_nodes, fewest_servers
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.speed import at_speed, slowest
from slurm_asrpt.core.topology import switches_of


class Reach:
    """The switches under which a job that needs several servers starts within the gate.

    nodes: in node-table order. gate: the largest α/α̃^min.
    """

    def __init__(self, nodes: Sequence[Node], fabric: Fabric, gate: float) -> None:
        self._nodes, self._fabric, self._gate = nodes, fabric, gate
        self.switches = switches_of(nodes)

    def switches_for(self, job: Job, servers: int, among: int) -> tuple[int, ...]:
        """The servers under each switch of the highest level through which the job may communicate, as masks.

        Only switches that can hold the job on so many servers of ``among``. Empty if any servers will do.
        """
        if self.switches is None or servers < 2 or not (self._fabric.beyond and job.communication_known):
            return ()
        found, best = tuple[int, ...](), 0.0
        for level, masks in enumerate(self.switches.levels, start=1):
            able = tuple([mask & among for mask in masks if self._can_hold(mask & among, job, servers)])
            if not able:
                continue
            alpha = self._alpha_through(job, level)
            best = best or alpha
            if alpha > self._gate * best:
                return found
            found = able
        return () if not found or self._alpha_through(job, self.switches.depth + 1) <= self._gate * best else found

    def _can_hold(self, mask: int, job: Job, servers: int) -> bool:
        """Whether so many of these servers could hold the job."""
        if mask.bit_count() < servers:
            return False
        try:
            return fewest_servers(job, [node for at, node in enumerate(self._nodes) if mask >> at & 1]) <= servers
        except ValueError:
            return False

    def _alpha_through(self, job: Job, level: int) -> float:
        """Seconds per iteration on the fewest servers, each under a switch of its own at all lower levels."""
        counts = best_counts(job, self._nodes)
        servers = candidate_nodes(self._nodes, job.request)
        sizes = tuple([node.gpus for node in servers[: len(counts)]])
        blocks = (tuple(range(len(counts))),) * (level - 1)
        profile = at_speed(job.profile, slowest(job.profile, servers))
        ranks, layouts = heavy_edge(profile, counts, blocks=blocks), packed(counts, self._fabric.domain)
        return iteration_time(profile, ranks, sizes, self._fabric, blocks, layouts)
