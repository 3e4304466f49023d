"""The jobs on several servers, whose NICs another job would share, for contention-aware policies.

A policy knows the profiles of the jobs that it started. Of other jobs it knows only where they run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.job import Job, JobId, JobProfile
from slurm_asrpt.core.placement.best_alpha import best_counts, candidate_nodes, ways
from slurm_asrpt.core.placement.nic_sharing import SharedTimes
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.timing.contention import Pace
from slurm_asrpt.core.timing.ring import Linear
from slurm_asrpt.core.timing.speed import at_speed, slowest


@dataclass(frozen=True, slots=True)
class _SpanningJob:
    servers: tuple[str, ...]
    pace: Pace | None  # None for a job without a known profile


class NicContention:
    """The jobs that use each server's NIC. They have equal shares: f(k) = k."""

    def __init__(self, fabric: Fabric) -> None:
        self.times = SharedTimes(fabric, Linear())
        self._jobs: dict[JobId, _SpanningJob] = {}
        self._on: dict[str, dict[JobId, None]] = {}

    def started(self, job_id: JobId, placement: Placement, profile: JobProfile) -> None:
        """A job started by the policy."""
        if len(placement.gpus) > 1:
            self._add(job_id, _SpanningJob(placement.nodes, self.times.pace(placement, profile)))

    def seen(self, job_id: JobId, gpus: Mapping[str, int]) -> None:
        """A running job. Its profile is kept if it is still on the same servers."""
        known = self._jobs.get(job_id)
        if len(gpus) > 1 and (known is None or set(known.servers) != set(gpus)):
            self._add(job_id, _SpanningJob(tuple(gpus), None))

    def _add(self, job_id: JobId, job: _SpanningJob) -> None:
        self.ended(job_id)
        self._jobs[job_id] = job
        for server in job.servers:
            self._on.setdefault(server, {})[job_id] = None

    def ended(self, job_id: JobId) -> None:
        """A job ended. Unknown IDs are ignored."""
        job = self._jobs.pop(job_id, None)
        for server in job.servers if job is not None else ():
            del self._on[server][job_id]
            if not self._on[server]:
                del self._on[server]

    def servers_in_use(self, view: ClusterView) -> int:
        """The servers whose NIC is in use, as a mask."""
        return sum([view.bits[name] for name in self._on if name in view.bits])

    def best_alpha(self, job: Job, nodes: Sequence[Node]) -> float:
        """α̃_min with exclusive use of the NICs. Raises ValueError if the job does not fit."""
        return min(self.packed_alpha(one, some) for one, some in ways(job, nodes))

    def packed_alpha(self, job: Job, nodes: Sequence[Node]) -> float:
        """The same on the fewest of these nodes, at the speed of the slowest node that may run the job."""
        counts = best_counts(job, nodes)
        profile = at_speed(job.profile, slowest(job.profile, candidate_nodes(nodes, job.request)))
        return self.times.on(counts, profile)((1,) * len(counts))

    def shared(self, placement: Placement, profile: JobProfile) -> Placement:
        """The placement with its alpha next to the jobs that run now."""
        if len(placement.gpus) == 1:
            return placement
        return replace(placement, alpha=self.times.alpha(placement, profile, self._rings(placement.nodes, 1)))

    def slowdown_of_neighbors(self, placement: Placement) -> float:
        """The largest slowdown of a neighbor by a job in this placement, relative to running alone; 1 without any."""
        if len(placement.gpus) == 1:
            return 1.0
        neighbors = dict.fromkeys(job_id for server in placement.gpus for job_id in self._on.get(server, ()))
        return max((self._slowdown(self._jobs[job_id], placement) for job_id in neighbors), default=1.0)

    def _slowdown(self, job: _SpanningJob, placement: Placement) -> float:
        if job.pace is None:
            return 1.0
        rings = tuple([len(self._on[server]) + (server in placement.gpus) for server in job.servers])
        return job.pace(rings) / job.pace((1,) * len(rings))

    def _rings(self, servers: Sequence[str], more: int) -> tuple[int, ...]:
        return tuple([len(self._on.get(server, ())) + more for server in servers])

    def wider(self, view: ClusterView, job: Job, found: Placement) -> Placement:
        """``found``, or a faster placement on more servers whose NICs are not in use."""
        wanted = job.request.candidates
        unused = frozenset(name for name in view.free if name not in self._on and (wanted is None or name in wanted))
        request = replace(job.request, candidates=unused)
        others = [
            place(view, replace(job, request=request), strategy, self.times.fabric)
            for strategy in (Strategy.LEAST_FREE, Strategy.MOST_FREE)
        ]
        choices = [found, *(self.shared(one, job.profile) for one in others if one is not None)]
        return min(choices, key=lambda one: one.alpha)

    def least_contended(
        self, view: ClusterView, job: Job, strategy: Strategy, found: Placement | None
    ) -> Placement | None:
        """``found``, or a faster placement by the strategy on servers whose NICs are not in use; with actual alpha."""
        if found is None or len(found.gpus) == 1 or not self._on:
            return found and self.shared(found, job.profile)
        wanted = job.request.candidates
        unused = frozenset(name for name in view.free if name not in self._on and (wanted is None or name in wanted))
        other = place(view, replace(job, request=replace(job.request, candidates=unused)), strategy, self.times.fabric)
        choices = [self.shared(one, job.profile) for one in (found, other) if one is not None]
        return min(choices, key=lambda one: one.alpha)
