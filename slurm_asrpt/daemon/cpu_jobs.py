"""Starts jobs without GPUs beside the policy's jobs (``core.cpu_jobs``)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from slurm_asrpt.core.cluster import ClusterView, Placement, host_of
from slurm_asrpt.core.cpu_jobs import CpuJob, CpuStock, KeptRoom, Room, stock_of
from slurm_asrpt.core.job import ANYWHERE, Request
from slurm_asrpt.core.placement.selection import has_room
from slurm_asrpt.core.policies.base import Phase, Reason, reason
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.expected_ends import expected_ends, shares_held
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.policy_feed import PolicyFeed
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.slurm import writeback
from slurm_asrpt.status.reason_texts import LEFT_WORDS

NOT_NEXT = ("over-limit", "capacity", "virtual", "ahead")
"""Reasons of GPU jobs that would not start even if more CPUs were free."""
HELD_BACK = ("resources", "shape", "reserved")
"""Reasons of GPU jobs that may be without room only because some is kept."""


class CpuJobs:
    """Decides which waiting jobs without GPUs start, before and after the policy's decision."""

    def __init__(
        self, jobs: JobTable, cluster: ClusterState, feed: PolicyFeed, audit: AuditWriter, bands: bool
    ) -> None:
        """bands: whether the policy follows the site's priorities."""
        self._jobs, self._cluster, self._feed, self._audit, self._bands = jobs, cluster, feed, audit, bands
        self._kept: KeptRoom | None = None  # from GPU jobs, in this cycle
        self._held_back: dict[tuple[int, Request], bool] = {}  # whether only that keeps a shape from starting
        self._view = ClusterView(())  # as last seen

    def start_first(self, view: ClusterView, now: float) -> list[ManagedJob]:
        """Start the first job, or keep its room, if its turn is before that of every waiting GPU job.

        view: the free resources before the policy's decision; reduced by what the job takes, or with what it keeps.
        """
        self._kept, self._held_back, self._view = None, {}, view
        first = next(iter(self._waiting(view)), None)
        if first is None or first.cpu_job is None:
            return []
        if any(self._turn(job) < self._turn(first) for job in self._gpu_jobs()):
            return []
        stock = self._stock(view)
        nodes = stock.nodes_for(first.cpu_job)
        if not nodes:
            self._keep(stock.room_to_keep(first.cpu_job, expected_ends(self._jobs, self._cluster, now)), view, now)
            return []
        for name, room in stock.start(first.cpu_job, nodes).items():
            view.set_aside(name, *room)
        return [self._start(first, first.cpu_job, nodes, view, now)]

    def _keep(self, kept: KeptRoom, view: ClusterView, now: float) -> None:
        """Keep room from the GPU jobs that would delay the first job."""
        if not kept.is_kept_from_gpu_jobs(now):
            return
        self._kept = kept
        view.keep(kept.rooms)
        for job in self._jobs.in_state(JobState.QUEUED):
            if job.job is None or job.job.request is ANYWHERE:
                continue
            brief = kept.is_brief(job.job.time_limit, now)
            if job.job.request.brief != brief:
                job.request_is(self._cluster.share(replace(job.job.request, brief=brief)))
                self._feed.changed(job.job, now)

    def why_waits(self, job: ManagedJob, why: Reason, now: float) -> Reason:
        """The policy's reason of a GPU job, or that it would delay the first job without GPUs."""
        if why.kind not in HELD_BACK or self._kept is None or job.job is None or not self.may_be_delayed_by(job):
            return why
        shape = job.job.gpus, job.job.request
        if shape not in self._held_back:
            brief = replace(job.job, request=replace(job.job.request, brief=True))
            self._held_back[shape] = has_room(self._view, brief)
        return self._kept.why(now) if self._held_back[shape] else why

    def may_be_delayed_by(self, job: ManagedJob) -> bool:
        """Whether room is kept that this GPU job may not use."""
        return self._kept is not None and job.job is not None and not job.job.request.brief

    def start_others(self, view: ClusterView, now: float) -> list[ManagedJob]:
        """Start jobs, the first ones first. view: the free resources after the policy's decision."""
        self._held_back, self._view = {}, view
        starts, waiting = list[ManagedJob](), list(self._waiting(view))
        if not waiting:
            return starts
        stock, free, kept = self._stock(view), self._stock(view), None
        stock.keep_for_gpus(job.job for job in self._gpu_jobs() if job.job is not None)
        full: dict[tuple[CpuJob, bool], bool] = {}  # shapes without room: whether only the kept room would do
        for job in waiting:
            assert job.cpu_job is not None  # noqa: S101  (see _waiting)
            asked, brief = job.cpu_job, kept is not None and kept.is_brief(job.cpu_job.time_limit, now)
            shape = asked.shape, brief
            nodes = () if shape in full else stock.nodes_for(asked, brief)
            if nodes:
                stock.start(asked, nodes)
                free.start(asked, nodes)
                starts.append(self._start(job, asked, nodes, view, now))
                continue
            if shape not in full:
                full[shape] = kept is not None and not brief and bool(stock.nodes_for(asked, brief=True))
            if kept is None:
                kept = free.room_to_keep(asked, expected_ends(self._jobs, self._cluster, now))
                stock.keep(kept)
            elif full[shape]:
                job.waits(kept.why(now))
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
        others |= self._cluster.shares_beside(shares_held(self._jobs, self._cluster))
        return stock_of(view, others, frozenset(idle), self._cluster.powered_down, frozenset(self._cluster.cpu_caps))

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
