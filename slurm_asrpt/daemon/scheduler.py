"""One cycle of asrptd: read Slurm, tell the policy what happened, let it decide, write the decisions back.

What runs when is in ``Scheduler.cycle``; each step is a method below it. All state that a restart needs is saved
before Slurm is touched.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_asrpt.config import Mode, Settings
from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.placement.selection import fits
from slurm_asrpt.core.policies.base import Phase, Policy, Reason, Start, Wait, reason
from slurm_asrpt.daemon import placing, rankmap, writeback_order
from slurm_asrpt.daemon.audit import Audit
from slurm_asrpt.daemon.intake import Profiles, admit, unpinned
from slurm_asrpt.daemon.recorder import Recorder
from slurm_asrpt.daemon.store import Store
from slurm_asrpt.daemon.tracked import Pin, Place, Saved, Tracked
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, JobRecord, NodeRecord
from slurm_asrpt.slurm.request import LEFT_WORDS, Ask, LeftToSlurm
from slurm_asrpt.slurm.tag import parse_tag

MAP_WAIT_S = 2.0
BACKOFF_S = 5.0
LONGEST_BACKOFF_S = 300.0
LEASE_SLACK_S = 2.0  # Slurm counts whole seconds


@dataclass
class Parts:
    """What a scheduler works with."""

    settings: Settings
    client: SlurmClient
    slurm: SlurmConfig
    policy: Policy
    profiles: Profiles
    store: Store
    audit: Audit
    recorder: Recorder
    clock: Any = field(default=time)


class Scheduler:
    """The daemon's brainstem: keeps ``tracked`` (every job of our partitions) in step with Slurm and the policy."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.settings, self.client, self.policy = parts.settings, parts.client, parts.policy
        self.fabric = Fabric(self.settings.fabric.inter_bytes_per_s, self.settings.fabric.intra_bytes_per_s)
        self.tracked: dict[str, Tracked] = {}
        self.nodes: list[NodeRecord] = []
        self.view = ClusterView(())
        self._done: set[tuple[str, float]] = set()
        self._saved: dict[str, Any] | None = parts.store.load()
        self._saved_jobs: Mapping[str, Any] = (self._saved or {}).get("jobs", {})
        self._first = True

    @property
    def enforcing(self) -> bool:
        return self.settings.daemon.mode is Mode.ENFORCE

    def cycle(self, now: float) -> float | None:
        """Do everything once. Returns when the policy wants to be asked again. Raises SlurmError."""
        jobs, self.nodes = self.client.jobs(), self.client.nodes()
        self._follow_cluster(now)
        self._follow_jobs(jobs, now)
        self._take_back_what_did_not_start(now)
        self._feed_policy(self._eligible(now), now)
        starts = self._decide(now)
        self._save()
        if self.enforcing:
            self._write_starts(starts, now)
            self._renew_leases(now)
        elif self.settings.daemon.mode is Mode.ORDER:
            self._write_order()
        self._save()
        self.parts.audit.flush()
        return self.policy.next_wakeup(now)

    # reading

    def _follow_cluster(self, now: float) -> None:
        """Tell the policy when the nodes that may serve our jobs have changed."""
        managed = set(self.settings.slurm.partitions)
        ours = [n for n in self.nodes if n.usable and n.gpus and n.partitions & managed and not n.other_gres]
        nodes = [Node(n.name, n.gpus, n.index, n.gpu_type) for n in ours]
        if tuple(nodes) != self.view.nodes or self._first:
            self.policy.cluster_changed(nodes, now)
            self.parts.audit.record(now, "cluster", nodes=len(nodes), gpus=sum(n.gpus for n in nodes))
        self.view = ClusterView(
            nodes,
            # a node that cleans up after a job shows its GPUs as free, but Slurm starts nothing there yet
            {n.name: 0 if n.completing else max(0, n.gpus - n.gpus_used) for n in ours},
            {n.name: n.cpus - n.cpus_used for n in ours},
            {n.name: n.memory - n.memory_used for n in ours} if self.parts.slurm.memory_consumed else None,
        )

    def _follow_jobs(self, records: Iterable[JobRecord], now: float) -> None:
        """Bring ``tracked`` up to date: new jobs, jobs that have started, ended, or disappeared."""
        managed, seen, ended = set(self.settings.slurm.partitions), set[str](), set[tuple[str, float]]()
        for record in records:
            if record.state != PENDING and record.state not in RUNNING_STATES:
                ended.add((record.job_id, record.submit_time))
                self._ended(record, now)
            elif set(record.partition.split(",")) & managed:
                seen.add(record.job_id)
                tracked = self._track(record)
                if record.state != PENDING:
                    self._running(tracked, now)
        for job_id in self.tracked.keys() - seen:
            self._vanished(self.tracked[job_id], now)
        self._done &= ended

    def _eligible(self, now: float) -> list[Tracked]:
        """The pending jobs that the policy should hold."""
        return [t for t in self.tracked.values() if t.record.state == PENDING and self._pending(t, now)]

    def _track(self, record: JobRecord) -> Tracked:
        tracked = self.tracked.get(record.job_id)
        if tracked is None or tracked.record.submit_time != record.submit_time:
            before = tracked
            tracked = self.tracked[record.job_id] = Tracked(record)
            if before is not None:  # requeued: Slurm keeps our pin on the record, so we keep what it overwrote
                tracked.tag, tracked.original = before.tag, before.original
                self.policy.finished(JobId(record.job_id), record.submit_time)
            elif record.job_id in self._saved_jobs:
                Saved(self._saved_jobs[record.job_id]).restore(tracked)
        tracked.record = record
        tracked.tag = parse_tag(record.admin_comment) or tracked.tag
        return tracked

    def _pending(self, tracked: Tracked, now: float) -> bool:
        """Whether the policy should hold this pending job; if not, ``why`` says why not."""
        if tracked.place is Place.RUNNING:  # requeued without a new submit time
            tracked.place, tracked.pin, tracked.real = Place.APART, None, None
            tracked.begin, tracked.lease_until = None, 0.0
        if tracked.place is Place.PINNED:
            return False
        try:
            record = unpinned(tracked.record, tracked.original)
            tracked.ask, tracked.job = self._admit(tracked, record, now)
        except LeftToSlurm as verdict:
            self._leave(tracked, verdict.why, now)
            return False
        why = self._apart_reason(tracked, now)
        if why is None:
            return True
        self._withdraw(tracked, Place.APART, why, now)
        return False

    def _admit(self, tracked: Tracked, record: JobRecord, now: float) -> tuple[Ask, Job]:
        """The job without the nodes where it has just failed to start, unless it needs them."""
        partitions, profiles = self.settings.slurm.partitions, self.parts.profiles
        nodes = [n for n in self.nodes if tracked.avoid.get(n.name, 0.0) <= now]
        if len(nodes) < len(self.nodes):
            ask, job = admit(record, tracked.tag, nodes, partitions, profiles)
            if fits(job, self.view.nodes):
                return ask, job
        return admit(record, tracked.tag, self.nodes, partitions, profiles)

    def _leave(self, tracked: Tracked, why: str, now: float) -> None:
        if tracked.place is not Place.LEFT:
            self.parts.audit.record(now, "left", tracked.record.job_id, why=why)
        self._withdraw(tracked, Place.LEFT, reason(Phase.LEFT, "left", why=LEFT_WORDS.get(why, why)), now)

    def _withdraw(self, tracked: Tracked, place: Place, why: Reason, now: float) -> None:
        if tracked.place is Place.QUEUED:
            self.policy.finished(JobId(tracked.record.job_id), now)
        tracked.place, tracked.why = place, why

    def _apart_reason(self, tracked: Tracked, now: float) -> Reason | None:
        """Why a job of ours is not for the policy yet, or None if it is."""
        record, slurm_reason = tracked.record, tracked.record.reason
        if slurm_reason.startswith("JobHeld") or record.priority == 0:
            return reason(Phase.WAITING, "held", slurm_reason=slurm_reason)
        if slurm_reason.startswith("Dependency") or record.dependency:  # the reason is "None" after each lease
            return reason(Phase.WAITING, "dependency")
        self._follow_begin(tracked, now)
        if tracked.not_before > now:
            return reason(Phase.WAITING, "begin")
        if tracked.retry_at > now:
            return reason(Phase.WAITING, "not-started", slurm_reason=slurm_reason)
        return None

    def _follow_begin(self, tracked: Tracked, now: float) -> None:
        """Take over a begin time that is no lease of ours: its owner, or Slurm at a requeue, has set it."""
        shown = tracked.record.eligible_time
        if shown <= now:
            if tracked.lease_until > now + LEASE_SLACK_S:  # StartTime=now
                tracked.begin = 0.0
        elif self._is_lease(tracked, shown, now):
            tracked.lease_until = tracked.lease_until or shown
        else:
            tracked.begin = shown

    def _is_lease(self, tracked: Tracked, shown: float, now: float) -> bool:
        """Whether a begin time in the future is the lease that we or the hook have written."""
        if not self.enforcing:
            return False
        if tracked.lease_until:
            latest = tracked.lease_until + tracked.lease_spread + LEASE_SLACK_S
            return tracked.lease_until - LEASE_SLACK_S <= shown <= latest
        if tracked.record.restarts:  # Slurm itself defers a requeued job, and no hook has leased it
            return False
        return shown <= max(now, tracked.not_before) + self._lease + LEASE_SLACK_S

    @property
    def _lease(self) -> int:
        return self.settings.daemon.lease_s

    def _running(self, tracked: Tracked, now: float) -> None:
        record = tracked.record
        if tracked.place is Place.QUEUED:
            self.policy.finished(JobId(record.job_id), now)
        if tracked.place is not Place.RUNNING or tracked.real is None:
            self._read_back(tracked, now)
        tracked.place, tracked.why = Place.RUNNING, None

    def _read_back(self, tracked: Tracked, now: float) -> None:
        """What was really allocated, beside what was planned."""
        record, pin = tracked.record, tracked.pin
        if not record.gpus_by_node:
            return
        tracked.real = placing.real_placement(tracked, self.nodes, self.fabric, self.parts.profiles)
        got = dict(record.gpus_by_node)
        facts: dict[str, Any] = {"gpus": got, "alpha": tracked.real.alpha if tracked.real else None}
        if pin is not None:
            facts |= {"planned": pin.gpus, "as_planned": pin.gpus == got, "planned_alpha": pin.alpha}
        self.parts.audit.record(now, "running", record.job_id, **facts)
        if tracked.mapped and tracked.real is not None:
            rankmap.write_hosts(self.settings.paths.spool, record.number, tracked.real.ranks)

    def _ended(self, record: JobRecord, now: float) -> None:
        key = (record.job_id, record.submit_time)
        if key in self._done:
            return
        self._done.add(key)
        tracked = self.tracked.pop(record.job_id, None)
        if tracked is None:
            tracked = Tracked(record, parse_tag(record.admin_comment))
            if record.job_id in self._saved_jobs:
                Saved(self._saved_jobs[record.job_id]).restore(tracked)
        self.policy.finished(JobId(record.job_id), now)
        tracked.record = record
        if self.parts.recorder.record(tracked):
            self.parts.audit.record(now, "ended", record.job_id, state=record.state)
        rankmap.remove(self.settings.paths.spool, [record.number])

    def _vanished(self, tracked: Tracked, now: float) -> None:
        """Slurm no longer knows the job (we were away longer than MinJobAge): say so rather than guess."""
        self.parts.audit.record(now, "vanished", tracked.record.job_id, place=str(tracked.place))
        self.policy.finished(JobId(tracked.record.job_id), now)
        del self.tracked[tracked.record.job_id]

    # the policy

    def _feed_policy(self, eligible: list[Tracked], now: float) -> None:
        """Submit what has become eligible, in order of submission; after a restart take up the saved state first."""
        if self._first:
            self._resume(eligible, now)
        for tracked in sorted(eligible, key=lambda t: (t.record.submit_time, t.record.number)):
            assert tracked.job is not None  # noqa: S101  (eligible jobs have been admitted)
            if tracked.place is Place.QUEUED:
                continue
            if tracked.failures:
                self.policy.returned(tracked.job, now)
            else:
                self.policy.submitted(tracked.job, min(now, tracked.job.submit_time) if self._cold else now)
            tracked.place, tracked.why = Place.QUEUED, None
            self.parts.audit.record(
                now, "queued", tracked.record.job_id, iterations=tracked.job.predicted_iterations, gpus=tracked.job.gpus
            )
        self._first = False

    def _resume(self, eligible: list[Tracked], now: float) -> None:
        jobs = {t.job.id: t.job for t in eligible if t.job is not None}
        state = (self._saved or {}).get("policy")
        self._cold = state is None
        if state is not None and (self._saved or {}).get("policy_name") == self.settings.policy.name:
            try:
                self.policy.load(state, jobs)
            except ValueError as error:
                self._cold = True
                self.parts.audit.record(now, "policy-state-lost", error=str(error))
        held = {job_id for job_id, _ in self.policy.queue(now)} if not self._cold else set()
        for tracked in eligible:
            tracked.place = Place.QUEUED if tracked.record.job_id in held else Place.APART

    _cold = False

    def _decide(self, now: float) -> list[Tracked]:
        """Ask the policy; what it starts is pinned (in mode enforce only after it has been written)."""
        view = self.view.copy()
        for tracked in self.tracked.values():
            if tracked.place is Place.PINNED and tracked.pin is not None:
                placing.reserve(view, tracked)
        starts = []
        for decision in self.policy.decide(view, now):
            tracked = self.tracked[decision.job.id]
            if isinstance(decision, Start):
                starts.append(self._pin(tracked, decision, now))
            else:
                self._note_wait(tracked, decision, now)
        return starts

    def _pin(self, tracked: Tracked, start: Start, now: float) -> Tracked:
        placement = start.placement
        before = tracked.original or writeback.original(tracked.record)
        tracked.pin = Pin(dict(placement.gpus), list(placement.ranks), placement.alpha, now, before)
        tracked.place, tracked.why = Place.PINNED, reason(Phase.STARTING, "starting")
        if self.enforcing:
            tracked.original = before
        block = rankmap.block_order(placement.gpus)
        one_to_one = tracked.ask is not None and tracked.ask.one_task_per_gpu
        tracked.mapped = self.enforcing and one_to_one and start.job.profiled and placement.ranks != block
        self.parts.audit.record(
            now, "start", start.job.id, gpus=dict(placement.gpus), alpha=placement.alpha, mapped=tracked.mapped
        )
        return tracked

    def _note_wait(self, tracked: Tracked, wait: Wait, now: float) -> None:
        if tracked.why is None or tracked.why.kind != wait.reason.kind:
            facts = {"reason": wait.reason.kind, "until": wait.until, **wait.reason.facts}
            self.parts.audit.record(now, "wait", wait.job.id, **facts)
        tracked.why = wait.reason

    # writing

    def _write_starts(self, starts: list[Tracked], now: float) -> None:
        fenced = self._fence(starts, now)
        for tracked in fenced:
            if tracked.mapped:
                rankmap.announce(self.settings.paths.spool, tracked.record.number)
        pins = [writeback.pin(t.record.job_id, t.pin.gpus, self.parts.slurm.multifactor) for t in fenced if t.pin]
        for tracked, error in zip(fenced, self.client.update(pins), strict=True):
            if error:
                self._did_not_start(tracked, error, now)
        self._write_rank_maps([t for t in fenced if t.mapped and t.place is Place.PINNED])

    def _fence(self, jobs: list[Tracked], now: float) -> list[Tracked]:
        """Those of these jobs that took a fresh lease: they are pending and stay so while we touch their nodes."""
        errors = self._lease_until(jobs, [now + self._lease] * len(jobs), now)
        fenced = []
        for tracked, error in zip(jobs, errors, strict=True):
            if error:
                self.parts.audit.record(now, "fence-refused", tracked.record.job_id, error=error)
                tracked.place, tracked.pin = Place.APART, None
            else:
                fenced.append(tracked)
        return fenced

    def _lease_until(self, jobs: Sequence[Tracked], ends: Sequence[float], now: float) -> list[str]:
        """Write leases that end then; one error text per job."""
        wanted = zip(jobs, ends, strict=True)
        errors = self.client.update([writeback.lease(t.record.job_id, end - now) for t, end in wanted])
        spread = max(0.0, self.parts.clock.time() - now)  # "now" in an update is when Slurm reads it
        for tracked, end, error in zip(jobs, ends, errors, strict=True):
            if not error:
                tracked.lease_until, tracked.lease_spread = end, spread
        return errors

    def _write_rank_maps(self, waiting: list[Tracked]) -> None:
        """Host files must be there before the first srun: ask for the real allocations at short intervals."""
        deadline = self.parts.clock.monotonic() + MAP_WAIT_S
        left = {str(t.record.number): t for t in waiting}
        while left and self.parts.clock.monotonic() < deadline:
            for number, gpus in self.client.allocations(list(left)).items():
                tracked = left.pop(number)
                placement = placing.placement_of(tracked, gpus, self.nodes, self.fabric)
                rankmap.write_hosts(self.settings.paths.spool, tracked.record.number, placement.ranks)
            if left:
                self.parts.clock.sleep(0.1)

    def _did_not_start(self, tracked: Tracked, why: str, now: float) -> None:
        """Back to waiting: at once the first time, then after growing pauses."""
        tracked.failures += 1
        pause = 0.0 if tracked.failures == 1 else min(LONGEST_BACKOFF_S, BACKOFF_S * 2 ** (tracked.failures - 2))
        if tracked.pin is not None and tracked.failures > 1 and why not in ("Resources", "Priority", "None"):
            tracked.avoid.update(dict.fromkeys(tracked.pin.gpus, now + LONGEST_BACKOFF_S))
        tracked.place, tracked.pin, tracked.retry_at = Place.APART, None, now + pause
        tracked.why = reason(Phase.WAITING, "not-started", slurm_reason=why)
        rankmap.remove(self.settings.paths.spool, [tracked.record.number])
        self.parts.audit.record(now, "not-started", tracked.record.job_id, why=why, retry_at=tracked.retry_at)

    def _take_back_what_did_not_start(self, now: float) -> None:
        """Unpin what Slurm has not started in time, and what a requeue left pinned."""
        if not self.enforcing:
            return
        patience = self.settings.daemon.unpin_after_s
        late = [
            t
            for t in self.tracked.values()
            if t.place is Place.PINNED and t.record.state == PENDING and t.pin and now - t.pin.at > patience
        ]
        stale = [t for t in self.tracked.values() if t.place in (Place.APART, Place.LEFT, Place.QUEUED) and t.original]
        slurm_reasons = {t.record.job_id: t.record.reason for t in late}
        updates = []
        for tracked in self._fence(late + stale, now):
            if tracked.original is not None:
                before = tracked.original
                if tracked.record.priority == 0:  # held since: Slurm would refuse a priority, and with it the rest
                    before = replace(before, priority=0)
                multifactor = self.parts.slurm.multifactor
                updates.append(writeback.unpin(tracked.record.job_id, before, len(self.nodes), multifactor))
        errors = dict(zip((u.job_id for u in updates), self.client.update(updates), strict=True))
        for tracked in late + stale:
            job_id = tracked.record.job_id
            if errors.get(job_id) == "":  # Slurm was read before: what it shows of the pin is no longer so
                tracked.record, tracked.original = unpinned(tracked.record, tracked.original), None
            if job_id in slurm_reasons and job_id in errors:
                self._did_not_start(tracked, slurm_reasons[job_id], now)

    def _renew_leases(self, now: float) -> None:
        """Renew what has less than half its lease left; hand over what we leave to Slurm but have leased."""
        pending = [t for t in self.tracked.values() if t.record.state == PENDING]
        waiting = [t for t in pending if t.place in (Place.APART, Place.QUEUED) and self._lease_runs_out(t, now)]
        ends = [max(now, t.not_before) + self._lease for t in waiting]
        errors = self._lease_until(waiting, ends, now)
        left = [t for t in pending if t.place is Place.LEFT and self._ours_to_hand_over(t, now)]
        errors += self.client.update([writeback.hand_over(t.record.job_id) for t in left])
        for tracked in left:
            tracked.handed_over = True
        for tracked, error in zip(waiting + left, errors, strict=True):
            if error:
                self.parts.audit.record(now, "lease-refused", tracked.record.job_id, error=error)

    def _lease_runs_out(self, tracked: Tracked, now: float) -> bool:
        """Whether less than half a lease is left, by what Slurm shows: an owner's StartTime=now ends a lease."""
        if tracked.lease_until == now + self._lease:
            return False  # written in this cycle, after Slurm was read
        return tracked.record.eligible_time - max(now, tracked.not_before) < self._lease / 2

    def _ours_to_hand_over(self, tracked: Tracked, now: float) -> bool:
        """A job with a lease of the hook's (not left by the hook) that the daemon leaves to Slurm."""
        tag = tracked.tag
        leased = tracked.record.reason == "BeginTime" and tracked.record.eligible_time > now
        return bool(leased and tag and not tag.left and tag.begin <= now and not tracked.handed_over)

    def _write_order(self) -> None:
        """Mode order: SiteFactor by the policy's order; what it would start now comes first."""
        decided = [t.record.job_id for t in self.tracked.values() if t.place is Place.PINNED]
        queued = [str(job_id) for job_id, _ in self.policy.queue(self.parts.clock.time())]
        factors = writeback_order.factors(decided + queued, {k: t.site_factor for k, t in self.tracked.items()})
        updates = [writeback.site_factor(job_id, factor) for job_id, factor in factors.items()]
        for update, error in zip(updates, self.client.update(updates), strict=True):
            if not error:
                self.tracked[update.job_id].site_factor = factors[update.job_id]

    def _save(self) -> None:
        self.parts.store.save(
            {
                "policy_name": self.settings.policy.name,
                "policy": self.policy.dump(),
                "jobs": {job_id: tracked.dump() for job_id, tracked in self.tracked.items()},
            }
        )
