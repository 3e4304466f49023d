"""Pins: the nodes that Slurm must start a job on, with the host file of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slurm_asrpt.core.cluster import host_of
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.limits import LimitsWatch
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.writes.rank_maps import RankMaps
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.slurm.records import Update


class Pins:
    """Pins fenced jobs and unpins them."""

    def __init__(
        self,
        client: SlurmClient,
        slurm: SlurmConfig,
        cluster: ClusterState,
        limits: LimitsWatch,
        rank_maps: RankMaps,
    ) -> None:
        self._client, self._slurm, self._cluster, self._rank_maps = client, slurm, cluster, rank_maps
        self._limits = limits

    def updates(self, jobs: Sequence[ManagedJob], waiting: Sequence[ManagedJob]) -> list[Update]:
        """The updates that pin these jobs. Their host files are written first, where the nodes are certain.

        waiting: jobs that were pinned before and have not started.
        """
        self._rank_maps.prepare(jobs)
        turns = writeback.turns(map(_nodes, jobs), map(_nodes, waiting))
        return [self._pin(job, turn) for job, turn in zip(jobs, turns, strict=True)]

    def _pin(self, job: ManagedJob, turn: int) -> Update:
        assert job.pin is not None  # noqa: S101  (jobs that start have one)
        if job.by_slurm:
            return writeback.next_for_slurm(job.record.job_id, self._slurm.multifactor)
        before = job.original.cpus if job.original is not None else 0
        cpus = writeback.raised_cpus(job.record, before or job.record.cpus, len(_nodes(job)))
        return writeback.pin(job.record.job_id, job.pin.gpus, self._slurm.multifactor, turn, cpus)

    def written(self, jobs: Sequence[ManagedJob]) -> None:
        """Slurm has the pins: the other host files follow the allocations."""
        self._rank_maps.started(jobs)

    def unpin(self, jobs: Sequence[ManagedJob]) -> None:
        """Unpin these jobs. One that Slurm refuses to unpin keeps its pin. Raises SlurmError."""
        self.remove_rank_maps(jobs)
        updates = [update for job in jobs if (update := self._unpin(job)).fields]
        errors = {update.job_id: error for update, error in zip(updates, self._client.update(updates), strict=True)}
        for job in jobs:
            if not errors.get(job.record.job_id):
                job.pin_cleared()

    def remove_rank_maps(self, jobs: Sequence[ManagedJob]) -> None:
        self._rank_maps.remove(jobs)

    def has_lost_nodes(self, job: ManagedJob) -> bool:
        """Whether a pinned node cannot be used any more."""
        return job.pin is not None and not job.by_slurm and not all(map(self._cluster.is_usable, job.pin.gpus))

    def is_cleaning(self, job: ManagedJob) -> bool:
        """Whether Slurm starts nothing on a pinned node until it has cleaned up."""
        return job.pin is not None and not self._cluster.cleaning.keys().isdisjoint(job.pin.gpus)

    def _unpin(self, job: ManagedJob) -> Update:
        assert job.original is not None  # noqa: S101  (the caller has seen to it)
        held = job.record.priority == 0  # Slurm refuses a priority then, and all else with it
        before = replace(job.original, priority=0) if held else job.original
        if job.by_slurm and job.record.required_nodes == before.required_nodes:  # asrptd may have chosen them before
            return writeback.not_next_for_slurm(job.record.job_id, before, self._slurm.multifactor)
        unbounded = max(self._limits.most_nodes(job.record) or len(self._cluster.nodes), before.min_nodes)
        job.unbounded_is(0 if before.max_nodes else unbounded)
        nodes = max(len(_nodes(job)), job.record.min_nodes)  # after a restart, the record has those of the pin
        raises_cpus = bool(writeback.raised_cpus(job.record, before.cpus, max(before.min_nodes, 1)))
        return writeback.unpin(job.record.job_id, before, unbounded, nodes, self._slurm, raises_cpus)


def _nodes(job: ManagedJob) -> set[str]:
    """The nodes that asrptd has chosen for a job."""
    return set() if job.pin is None or job.by_slurm else set(map(host_of, job.pin.gpus))
