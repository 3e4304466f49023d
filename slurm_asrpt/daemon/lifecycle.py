"""The daemon's picture of Slurm: the nodes, every job of our partitions, and what became of them since last time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId, Request
from slurm_asrpt.core.placement.selection import alpha_by_type, fits
from slurm_asrpt.core.policies.base import Phase, Reason, SeesRunning, reason
from slurm_asrpt.core.policies.hlas import service_rate
from slurm_asrpt.daemon import placements
from slurm_asrpt.daemon.jobs import arrays
from slurm_asrpt.daemon.jobs.admission import admit, elsewhere, follow_begin, lasting, unpinned, waits_for_slurm
from slurm_asrpt.daemon.jobs.managed_job import KILLED, Place, Saved, Tracked, is_another, still_its_run
from slurm_asrpt.daemon.jobs.site_rules import AdminRules
from slurm_asrpt.daemon.jobs.table import Ended
from slurm_asrpt.daemon.parts import Parts
from slurm_asrpt.daemon.record import facts
from slurm_asrpt.daemon.writes import rank_maps
from slurm_asrpt.history.store import Run
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.slurm.array_tasks import read_tasks
from slurm_asrpt.slurm.records import PENDING, JobRecord, NodeRecord
from slurm_asrpt.slurm.request import LeftToSlurm
from slurm_asrpt.status.left_to_slurm import LEFT_WORDS

REQUEUE_REST_S = 2.0
"""Started in the second of its requeue, a job dies of the revoked credential of the run before.

From when we first saw it: slurmctld's clock may be some seconds behind ours.
"""


class World:
    """``tracked`` by job id, ``nodes`` in table order, ``view`` of the GPUs that are free for our jobs.

    saved: the state of the daemon before us. The policy hears of jobs that leave it, and of the nodes.
    """

    def __init__(self, parts: Parts, saved: Mapping[str, Any]) -> None:
        self.parts, self.settings, self.policy = parts, parts.settings, parts.policy
        self.fabric = Fabric(self.settings.fabric.inter_bytes_per_s, self.settings.fabric.intra_bytes_per_s)
        self.tracked: dict[str, Tracked] = {}
        self.site = AdminRules(parts)
        self.nodes: list[NodeRecord] = []
        self.servers: list[Node] = []  # the same as policies see nodes
        self.view = ClusterView(())
        self._table: tuple[Any, ...] | None = None
        self._best: dict[Any, Mapping[str, float]] = {}
        self._able: frozenset[str] = frozenset()  # nodes that may ever serve our jobs
        self._requests: dict[Request, Request] = {}
        self.ended = Ended(parts)
        jobs = saved.get("jobs")
        self._saved_jobs: Mapping[str, Any] = jobs if isinstance(jobs, dict) else {}

    @property
    def enforcing(self) -> bool:
        return self.parts.mode is Mode.ENFORCE

    def pending(self, *places: Place) -> list[Tracked]:
        """Pending jobs that stand in one of these places; without any, all."""
        jobs = self.tracked.values()
        return [t for t in jobs if t.record.state == PENDING and (not places or t.place in places)]

    def begun(self) -> dict[str, float]:
        """Number and start time of each running job."""
        jobs = self.tracked.values()
        return {str(t.record.number): t.record.start_time for t in jobs if t.place is Place.RUNNING}

    def follow(self, records: Iterable[JobRecord], nodes: list[NodeRecord], now: float) -> None:
        """Bring the picture up to date with what Slurm says."""
        self._follow_nodes(nodes, now)
        self.site.follow(nodes, now)
        self._follow_jobs(records, now)
        self._saved_jobs = {}  # what the daemon before us knew is true once
        self.ended.settle()

    # nodes

    def _follow_nodes(self, records: list[NodeRecord], now: float) -> None:
        """Tell the policy when the nodes that may serve our jobs have changed."""
        self.nodes = records
        managed = set(self.settings.slurm.partitions)
        ours = [n for n in records if n.usable and placements.is_ours(n, managed)]
        self.servers = [placements.server(n, self.settings.gpu.speeds) for n in records]
        names = {n.name for n in ours}
        nodes = [node for node in self.servers if node.name in names]
        table = tuple((n.name, n.gpus, n.cpus, n.gpu_type, n.partitions, n.other_gres, n.features) for n in records)
        if tuple(nodes) != self.view.nodes or self._table is None:
            self.policy.cluster_changed(nodes, now)
            self.parts.audit.record(now, "cluster", nodes=len(nodes), gpus=sum(n.gpus for n in nodes))
            self._best.clear()
        if table != self._table:  # what jobs may use depends on it: they are admitted anew
            self._table = table
            self._able = frozenset(n.name for n in records if placements.is_ours(n, managed))
            self._requests.clear()
            for tracked in self.tracked.values():
                tracked.admitted = () if tracked.admitted is not None else None
        self.view = ClusterView(
            nodes,
            # a node that cleans up after a job shows its GPUs as free, but Slurm starts nothing there yet
            {n.name: 0 if n.completing else max(0, n.gpus - n.gpus_used) for n in ours},
            {n.name: n.cpus - n.cpus_used for n in ours},
            {n.name: n.memory - n.memory_used for n in ours} if self.parts.slurm.memory_consumed else None,
        )

    def best_alpha(self, job: Job) -> float | None:
        """α̃_min of a job on the present nodes, None if they cannot hold it."""
        return min(self.alpha_by_type(job).values(), default=None)

    def alpha_by_type(self, job: Job) -> Mapping[str, float]:
        """The same for each type of GPU that holds it alone, or for all together; empty if they cannot."""
        key = (job.profile, job.request)
        if key not in self._best:
            nodes = self.view.nodes
            self._best[key] = alpha_by_type(job, nodes, self.fabric) if fits(job, nodes) else {}
        return self._best[key]

    def _best_of(self, tracked: Tracked) -> float | None:
        return None if tracked.job is None else self.best_alpha(tracked.job)

    def _end_of(self, tracked: Tracked, run: Run) -> dict[str, Any]:
        block = placements.block_alpha(tracked, self.servers, self.fabric, self.parts.profiles)
        return facts.ended_facts(run, self._best_of(tracked), block)

    # jobs that come and go

    def _follow_jobs(self, records: Iterable[JobRecord], now: float) -> None:
        """Bring ``tracked`` up to date: new jobs, jobs that have started, ended, or disappeared."""
        managed, seen, ended = set(self.settings.slurm.partitions), set[str](), set[str]()
        for record in records:
            if record.has_ended:
                ended.add(record.job_id)
                if not self._ended(record, now):
                    seen.add(record.job_id)
            elif set(record.partition.split(",")) & managed or record.job_id in self.tracked:
                seen.add(record.job_id)
                tracked = self._track(record, now)
                if record.state != PENDING:
                    self._running(tracked, now)
        for job_id in self.tracked.keys() - seen:
            self.ended.is_gone(self.tracked[job_id].record)
            self._vanished(self.tracked[job_id], now)
        self.ended.keep_only(ended)

    def _known(self, record: JobRecord, now: float) -> Tracked | None:
        """What is known of the job by now."""
        tracked = self.tracked.get(record.job_id)
        if tracked is not None and is_another(record, tracked.record):
            self._vanished(tracked, now)
            rank_maps.remove(self.settings.paths.spool, [record.number])
            return None
        return tracked

    def _track(self, record: JobRecord, now: float) -> Tracked:
        tracked = self._known(record, now)
        if tracked is not None:
            record = still_its_run(record, tracked.record)
        requeued_at = record.submit_time if tracked and tracked.record.submit_time != record.submit_time else 0.0
        if tracked is not None and (requeued_at or record.state == PENDING):
            self._cut(tracked, requeued_at or now, now)
        if tracked is None or requeued_at:
            before = tracked or self.ended.before(record)
            tracked = self.tracked[record.job_id] = Tracked(record, seen=max(now, record.submit_time))
            if before is not None:  # requeued: Slurm keeps our pin on the record, so we keep what it overwrote
                tracked.tag, tracked.original = before.tag, before.original
                tracked.service, tracked.over = before.service, before.over
                self.policy.finished(JobId(record.job_id), record.submit_time)
            else:
                self._restore(tracked, now)
        if tracked.tag is None or record.admin_comment != tracked.record.admin_comment:
            tracked.tag = parse_tag(record.admin_comment) or tracked.tag
        tracked.record = record
        return tracked

    def _cut(self, tracked: Tracked, until: float, now: float) -> None:
        """Keep the run that a requeue has ended. Its progress file stays: the next run may go on from there."""
        if tracked.place is not Place.RUNNING:
            return
        tracked.ends(until)
        run = self.parts.recorder.record_cut(tracked, until)
        if run is not None:
            told = self._end_of(tracked, run)
            self.parts.audit.record(now, "cut", tracked.record.job_id, until=until, **told)

    def _restore(self, tracked: Tracked, now: float) -> None:
        """What the daemon before us knew of a job that is new to us."""
        job_id, array_id = tracked.record.job_id, tracked.record.array_id
        if job_id in self._saved_jobs:
            self._take_up(self._saved_jobs[job_id], tracked, now)
        elif job_id != array_id:
            rest = self.tracked.get(array_id) or Tracked(tracked.record)
            if array_id in self._saved_jobs:
                self._take_up(self._saved_jobs[array_id], rest, now)
            arrays.take_over_lease(tracked, rest)

    def _take_up(self, saved: Any, tracked: Tracked, now: float) -> None:
        try:
            Saved(saved).restore(tracked, now)
        except ValueError as error:
            self.parts.audit.record(now, "job-state-lost", tracked.record.job_id, error=str(error))

    def _ended(self, record: JobRecord, now: float) -> bool:
        """Whether a job has ended for good, which is told once."""
        if self.ended.told(record):
            return True
        known = self._known(record, now)
        tracked = known or Tracked(record, parse_tag(record.admin_comment))
        if known is None:
            self._restore(tracked, now)
        if self.enforcing and record.state == KILLED and tracked.was_over(record):
            self._only_killed(tracked, record, now)
            return False
        self.tracked.pop(record.job_id, None)
        self.policy.finished(JobId(record.job_id), now)
        tracked.record = record
        if facts.failed_by_pin(tracked):
            self.parts.audit.record(now, "pin-failed", record.job_id, **facts.pin_failed_facts(tracked))
        run = self.parts.recorder.record(tracked)
        if run is not None:
            self.parts.arrivals.ended(run, now)
            self.parts.misses.ended(run)
            self.parts.audit.record(now, "ended", record.job_id, **self._end_of(tracked, run))
        elif known is not None:  # nothing to learn from
            self.parts.audit.record(now, "gone", record.job_id, **facts.gone_facts(tracked))
        self.ended.note(tracked)
        return True

    def _only_killed(self, tracked: Tracked, record: JobRecord, now: float) -> None:
        """Keep a job whose script our requeue has ended, and a slurmctld that was killed knows nothing of a requeue."""
        self._cut(tracked, record.end_time, now)
        self.withdraw(tracked, Place.APART, None, now)
        tracked.record = record
        self.tracked[record.job_id] = tracked

    def _vanished(self, tracked: Tracked, now: float) -> None:
        """Slurm no longer knows the job (it was killed, or we were away longer than MinJobAge): say so; no guess."""
        if not tracked.record.array_tasks:  # else all its tasks have become jobs
            self.parts.audit.record(now, "vanished", tracked.record.job_id, place=str(tracked.place))
        self.policy.finished(JobId(tracked.record.job_id), now)
        del self.tracked[tracked.record.job_id]

    # jobs that wait

    def eligible(self, now: float) -> list[Tracked]:
        """The pending jobs that the policy should hold."""
        return [t for t in self.pending() if self._pending(t, now)]

    def _pending(self, tracked: Tracked, now: float) -> bool:
        """Whether the policy should hold this pending job; if not, ``why`` says why not."""
        if tracked.place is Place.RUNNING:  # requeued without a new submit time
            tracked.place, tracked.pin, tracked.real = Place.APART, None, None
            tracked.begin, tracked.lease_until = None, 0.0
        if tracked.place is Place.PINNED and self.enforcing and tracked.original is None:
            self.withdraw(tracked, Place.APART, None, now)  # decided in mode shadow or order, never written
            tracked.pin = None
        if tracked.place is Place.PINNED:
            return False
        try:
            self._admit(tracked, now)
        except LeftToSlurm as verdict:
            self._leave(tracked, verdict.why, now)
            return False
        why = self._apart_reason(tracked, now)
        if why is None:
            return True
        self.withdraw(tracked, Place.APART, why, now)
        return False

    def _admit(self, tracked: Tracked, now: float) -> None:
        """Set what the job asks for, unless nothing of it has changed. Raises LeftToSlurm.

        Nodes on which it would reach into a reservation are left out; so are those where it has just failed to start,
        unless it needs them.
        """
        record = unpinned(tracked.record, tracked.original)
        if record.array_tasks and not (self.enforcing and record.can_be_parted):
            raise LeftToSlurm("array")
        if self.site.preempts(record):
            raise LeftToSlurm("preempts")
        tracked.ahead, band = self.site.ahead(record, now), self.site.band(record)
        closed = frozenset(name for r in tracked.ahead for name in r.nodes)
        avoided = frozenset(name for name, until in tracked.avoid.items() if until > now)
        admitted = (lasting(record), tracked.tag, avoided, closed, band)
        if admitted == tracked.admitted:
            return
        ask, job = admit(record, tracked.tag, self.nodes, self.settings.slurm.partitions, self.parts.profiles)
        tracked.open = replace(job, band=band) if closed else None
        job = elsewhere(replace(job, band=band), closed)
        spared = elsewhere(job, avoided)
        chosen = spared if not avoided or fits(spared, self.view.nodes) else job
        tracked.job, tracked.one_to_one = replace(chosen, request=self._shared(chosen.request)), ask.one_task_per_gpu
        if tracked.place is Place.QUEUED and tracked.admitted is not None:
            self.policy.changed(tracked.job, now)
        tracked.admitted = admitted

    def _shared(self, request: Request) -> Request:
        """The request, one object for all jobs that ask alike; its hundreds of nodes need no names if they are all."""
        if request.candidates is not None and self._able <= request.candidates:
            request = replace(request, candidates=None)
        return self._requests.setdefault(request, request)

    def _leave(self, tracked: Tracked, why: str, now: float) -> None:
        if tracked.place is not Place.LEFT:
            self.parts.audit.record(now, "left", tracked.record.job_id, why=why, user=tracked.record.user)
        self.withdraw(tracked, Place.LEFT, reason(Phase.LEFT, "left", why=LEFT_WORDS.get(why, why), word=why), now)

    def withdraw(self, tracked: Tracked, place: Place, why: Reason | None, now: float) -> None:
        if tracked.place in (Place.QUEUED, Place.PINNED):  # in the policy's queue, or running as far as it knows
            self.policy.finished(JobId(tracked.record.job_id), now)
        tracked.place, tracked.why = place, why

    def requeued(self, now: float) -> list[Tracked]:
        """Waiting jobs on which Slurm still holds a pin of ours: requeued, or left or held since."""
        return self.carrying_pins(now, Place.APART, Place.LEFT, Place.QUEUED)

    def carrying_pins(self, now: float, *places: Place) -> list[Tracked]:
        """Waiting jobs in these places, without any in all, on which Slurm still holds a pin of ours."""
        stale = [t for t in self.pending(*places) if t.original is not None]
        for tracked in stale:  # before a new lease covers what Slurm or the owner has set
            follow_begin(tracked, now, self.parts)
        return stale

    def _apart_reason(self, tracked: Tracked, now: float) -> Reason | None:
        """Why a job of ours is not for the policy yet, or None if it is."""
        follow_begin(tracked, now, self.parts)  # also of a job that is held: Slurm's pause goes on when it is released
        waits = waits_for_slurm(tracked.record)
        if waits is not None:
            return waits
        if tracked.not_before > now or (tracked.record.restarts and now < tracked.seen + REQUEUE_REST_S):
            head = tracked.service.head
            return reason(Phase.WAITING, "interrupted", head=head) if head else reason(Phase.WAITING, "begin")
        if tracked.retry_at > now:
            return tracked.why  # set when the start was taken back
        if tracked.record.array_tasks:
            tasks = tracked.record.array_tasks
            return reason(Phase.WAITING, arrays.REASON, more=sum(map(len, read_tasks(tasks))), tasks=tasks)
        return None

    # jobs that run

    def _running(self, tracked: Tracked, now: float) -> None:
        record = tracked.record
        if tracked.place is Place.QUEUED:
            self.policy.finished(JobId(record.job_id), now)
        new = tracked.place is not Place.RUNNING or (tracked.real is None and record.gpus_by_node != tracked.read)
        if new and not tracked.forgotten:
            self._read_back(tracked, now)
            self._tell_running(tracked, now)
        if tracked.service.began != record.start_time and record.gpus_by_node and not tracked.forgotten:
            tracked.begins(service_rate(record.gpus_by_node, self.view.by_name))
        tracked.place, tracked.why = Place.RUNNING, None

    def tell_all_running(self, now: float) -> None:
        """The policy has just taken up a saved state: what it says of running jobs may be of yesterday."""
        for tracked in self.tracked.values():
            if tracked.place is Place.RUNNING:
                self._tell_running(tracked, now)

    def _tell_running(self, tracked: Tracked, now: float) -> None:
        record = tracked.record
        if isinstance(self.policy, SeesRunning) and record.gpus_by_node:
            until = record.start_time + (record.time_limit or math.inf)
            self.policy.running(JobId(record.job_id), record.gpus_by_node, until, now)

    def _read_back(self, tracked: Tracked, now: float) -> None:
        """What was really allocated, beside what was planned."""
        record = tracked.record
        if not record.gpus_by_node:
            return
        tracked.read = record.gpus_by_node
        tracked.real = placements.real_placement(tracked, self.servers, self.fabric, self.parts.profiles)
        shadow = not self.enforcing and tracked.place in (Place.QUEUED, Place.PINNED)
        told = facts.running_facts(tracked, self._best_of(tracked), shadow)
        self.parts.audit.record(now, "running", record.job_id, **told)
        if tracked.mapped and tracked.real is not None:
            rank_maps.write_hosts(self.settings.paths.spool, record.number, tracked.real.ranks)
