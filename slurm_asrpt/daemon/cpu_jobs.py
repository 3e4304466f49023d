"""Starts jobs without GPUs beside the policy's jobs (``core.cpu_jobs``)."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_asrpt.core.cluster import ClusterView, Placement, host_of
from slurm_asrpt.core.cpu_jobs import CpuJob, CpuStock, Room, stock_of
from slurm_asrpt.core.policies.base import Phase, reason
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.slurm import writeback
from slurm_asrpt.status.reason_texts import LEFT_WORDS

NOT_NEXT = ("over-limit", "capacity", "virtual", "ahead")
"""Reasons of GPU jobs that would not start even if more CPUs were free."""


class CpuJobs:
    """Decides which waiting jobs without GPUs start, before and after the policy's decision."""

    def __init__(self, jobs: JobTable, cluster: ClusterState, audit: AuditWriter, bands: bool) -> None:
        """bands: whether the policy follows the site's priorities."""
        self._jobs, self._cluster, self._audit, self._bands = jobs, cluster, audit, bands

    def start_first(self, view: ClusterView, now: float) -> list[ManagedJob]:
        """Start the first job, or keep its room, if its turn is before that of every waiting GPU job.

        view: the free resources before the policy's decision; reduced by what the job takes or keeps.
        """
        first = next(iter(self._waiting(view)), None)
        if first is None or first.cpu_job is None:
            return []
        if any(self._turn(job) < self._turn(first) for job in self._gpu_jobs()):
            return []
        stock = self._stock(view)
        nodes = stock.nodes_for(first.cpu_job)
        taken = stock.start(first.cpu_job, nodes) if nodes else stock.keep_for(first.cpu_job)
        for name, room in taken.items():
            view.set_aside(name, *room)
        return [self._start(first, first.cpu_job, nodes, view, now)] if nodes else []

    def start_others(self, view: ClusterView, now: float) -> list[ManagedJob]:
        """Start jobs, the first ones first. view: the free resources after the policy's decision."""
        starts, full, stock = list[ManagedJob](), set[CpuJob](), None
        for job in self._waiting(view):
            assert job.cpu_job is not None  # noqa: S101  (see _waiting)
            if stock is None:
                stock = self._stock(view)
                stock.keep_for_gpus(job.job for job in self._gpu_jobs() if job.job is not None)
            shape = job.cpu_job.shape
            nodes = () if shape in full else stock.nodes_for(job.cpu_job)
            if nodes:
                stock.start(job.cpu_job, nodes)
                starts.append(self._start(job, job.cpu_job, nodes, view, now))
            elif not full:
                stock.keep_for(job.cpu_job)
            if not nodes:
                full.add(shape)
        return starts

    def _waiting(self, view: ClusterView) -> Iterator[ManagedJob]:
        """The jobs that may start now, in order, without those over a limit."""
        waiting = [job for job in self._jobs.pending(JobState.INELIGIBLE) if job.waits_for_cpus]
        waiting.sort(key=self._turn)
        return (job for job in waiting if job.cpu_job and not view.headroom.exceeded(job.cpu_job.charges))

    def _turn(self, job: ManagedJob) -> tuple[int, float, int]:
        """Slurm's times of submission are whole seconds; its job numbers are in the same order."""
        asked = job.job or job.cpu_job
        return asked.band if asked is not None and self._bands else 0, job.record.submit_time, job.record.number

    def _gpu_jobs(self) -> list[ManagedJob]:
        """The jobs in the policy's queue that free GPUs or CPUs would let start."""
        queued = self._jobs.in_state(JobState.QUEUED)
        return [job for job in queued if job.reason is None or job.reason.kind not in NOT_NEXT]

    def _stock(self, view: ClusterView) -> CpuStock:
        others: dict[str, Room] = dict(self._cluster.other_rooms)
        idle = set(self._cluster.idle)
        for job in self._jobs.in_state(JobState.PINNED):  # Slurm does not show these starts yet
            if job.pin is None:
                continue
            idle -= set(map(host_of, job.pin.gpus))
            if job.cpu_job is not None:
                need = job.cpu_job.share(len(job.pin.gpus))
                others = {n: _less(room, need) if n in job.pin.gpus else room for n, room in others.items()}
        return stock_of(view, others, frozenset(idle), self._cluster.powered_down)

    def _start(
        self, job: ManagedJob, asked: CpuJob, nodes: tuple[str, ...], view: ClusterView, now: float
    ) -> ManagedJob:
        placement = Placement(dict.fromkeys(nodes, 0), (), 1.0)
        original = job.original or writeback.original(job.record)
        why = reason(Phase.STARTING, "starting")
        if job.by_slurm:
            why = reason(Phase.STARTING, "slurm-starts", why=LEFT_WORDS[job.by_slurm])
        job.pinned(placement, now, original, written=True, why=why)
        view.headroom.take(asked.charges)
        self._audit.record(now, "start-cpus", job.record.job_id, cpus=asked.cpus, nodes=list(nodes))
        return job


def _less(room: Room, need: Room) -> Room:
    return Room(room.cpus - need.cpus, room.memory - need.memory)
