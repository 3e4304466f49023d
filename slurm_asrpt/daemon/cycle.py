"""One cycle of asrptd: read Slurm, tell the policy what happened, let it decide, write the decisions back.

All state that a restart needs is saved before Slurm is touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slurm_asrpt.config.settings import Mode, PolicySettings
from slurm_asrpt.core.cluster import ClusterView
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies.base import Interrupt, Policy, Start, Wait
from slurm_asrpt.daemon import placements
from slurm_asrpt.daemon.clock import CycleTimer
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs import arrays
from slurm_asrpt.daemon.jobs.admission import explain_wait
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.site_rules import SiteRules
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.lifecycle import Eligibility, JobLifecycle
from slurm_asrpt.daemon.policy_feed import PolicyFeed
from slurm_asrpt.daemon.power_saving import startup_of
from slurm_asrpt.daemon.preemption import Preemption
from slurm_asrpt.daemon.record import decisions
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.state import StateSaver
from slurm_asrpt.daemon.writes.leases import Leases
from slurm_asrpt.daemon.writes.order import OrderWriter
from slurm_asrpt.daemon.writes.rank_maps import RankMaps
from slurm_asrpt.daemon.writes.release import Release
from slurm_asrpt.daemon.writes.starts import Starts
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.switch import OperatingMode


class Scheduler:
    """Lets a policy schedule the managed jobs. ``scheduling.py`` puts one together."""

    def __init__(
        self,
        *,
        settings: PolicySettings,
        state_folder: Path,
        policy: Policy,
        jobs: JobTable,
        cluster: ClusterState,
        client: SlurmClient,
        lifecycle: JobLifecycle,
        rules: SiteRules,
        eligibility: Eligibility,
        feed: PolicyFeed,
        preemption: Preemption,
        leases: Leases,
        starts: Starts,
        rank_maps: RankMaps,
        order: OrderWriter,
        release: Release,
        saver: StateSaver,
        audit: AuditWriter,
        mode: OperatingMode,
        clock: Any,
    ) -> None:
        self.policy, self.jobs, self.cluster, self.feed = policy, jobs, cluster, feed
        self.timer = CycleTimer(clock.monotonic)
        self.decided: decisions.RecordedDecision | None = None
        """The last decision."""
        self._settings, self._state_folder, self._client, self._clock = settings, state_folder, client, clock
        self._lifecycle, self._rules, self._eligibility = lifecycle, rules, eligibility
        self._preemption, self._leases, self._starts, self._rank_maps = preemption, leases, starts, rank_maps
        self._order, self._release, self._saver, self._audit, self._mode = order, release, saver, audit, mode

    def cycle(self, now: float) -> float | None:
        """Do everything once. Returns when there is something to decide again. Raises SlurmError.

        At once where tasks were split from an array of which none waits: they may start.
        """
        self._leases.cycle_began()
        self.timer.start()
        lines = self._audit.lines
        self._read(now)
        if self._mode.enforcing:
            self._starts.take_back_what_did_not_start(now)
            self.timer.done("write")
        else:
            self._release.release_all(now)
            self._starts.reconsider_what_slurm_has_not_started(now)
        self._feed_policy(now)
        starts = self._decide(now)
        self.timer.done("decide")
        splits = arrays.next_splits(self.jobs.values()) if self._mode.enforcing else []
        self._write(starts, splits, now)
        self.timer.done("write")
        if self._audit.lines > lines and self.decided is not None:
            recorded = decisions.cycle_facts(self.decided, self.jobs, self._mode.label, self.timer.seconds)
            self._audit.record(now, "cycle", **recorded)
        self._audit.flush()
        return now if any(split.first for split in splits) else self.policy.next_wakeup(now)

    def between_cycles(self, pause_s: float) -> None:
        """What takes long and delays no decision, in a pause of so many seconds. Raises SlurmError, OSError."""
        self._saver.save(self._clock.time())  # what came of the writes: asrptd may die before the next cycle
        self._rank_maps.write(pause_s)
        self._client.catch_up()

    def _read(self, now: float) -> None:
        records, nodes = self._client.jobs(), self._client.nodes()
        self.timer.done("read")
        self._rules.follow(nodes, now)
        self._lifecycle.follow_nodes(nodes, now, self._rules.open_nodes(now))
        self._lifecycle.follow_jobs(records, now)
        self.timer.done("decide")

    def _feed_policy(self, now: float) -> None:
        """Submit what has become eligible; after a restart let the policy take up its saved state first."""
        eligible = self._eligibility.eligible(now)
        if not self.feed.resumed:
            self.feed.resume(self._saver.saved, self._saver.saved_at, eligible, now)
        self._preemption.tell(now)
        self.feed.submit(eligible, now)

    def _decide(self, now: float) -> list[ManagedJob]:
        """Ask the policy; what it starts is pinned (in mode enforce only after it has been written)."""
        view = self.cluster.view.copy()
        for job in self.jobs.in_state(JobState.PINNED):
            placements.reserve(view, job)
        not_up, delay_s = self.cluster.not_up, self.cluster.startup_delay.seconds
        view.startup = startup_of(not_up, delay_s, view, self.jobs.in_state(JobState.RUNNING), now)
        fabric = self.cluster.fabric
        self.decided = decisions.decide(self.policy, self._settings, self.jobs, fabric, view, now)
        decisions.serve_snapshot(self._state_folder, self.decided)
        view = view.copy()  # the policy goes on looking at the other
        starts = list[ManagedJob]()
        for decision in self.decided.decisions:
            if isinstance(decision, Interrupt):
                self._preemption.intend(decision, now)
            elif isinstance(decision, Start):
                starts.append(self._pin(decision, now))
                self._record_start(starts[-1], decision, view, len(starts), now)
            else:
                self._note_wait(self.jobs[decision.job.id], decision, now)
        self._note_unsaid(now)
        return starts

    def _note_unsaid(self, now: float) -> None:
        """Why new jobs wait that the policy did not come to look at."""
        unsaid = [job for job in self.jobs.in_state(JobState.QUEUED) if job.reason is None]
        reasons = dict(self.policy.queue(now)) if unsaid else {}
        for job in unsaid:
            job_id = JobId(job.record.job_id)
            if job.job is not None and job_id in reasons:
                self._note_wait(job, Wait(job.job, reasons[job_id]), now)

    def _pin(self, start: Start, now: float) -> ManagedJob:
        job, placement, enforcing = self.jobs[start.job.id], start.placement, self._mode.enforcing
        job.pinned(placement, now, job.original or writeback.original(job.record), written=enforcing)
        block = placements.block_order(placement.gpus)
        job.needs_map(enforcing and job.one_task_per_gpu and start.job.profiled and placement.ranks != block)
        return job

    def _record_start(self, job: ManagedJob, start: Start, view: ClusterView, number: int, now: float) -> None:
        """view: what was free before this one of the cycle's starts; afterwards without it."""
        best, compared = self.cluster.best_alpha(start.job), number <= decisions.MOST_COMPARED
        recorded = decisions.start_facts(start, best, view, self._settings.name, self.cluster.fabric, compared)
        self._audit.record(now, "start", start.job.id, mapped=job.mapped, **recorded)
        view.take(start.placement.gpus, start.job.request)

    def _note_wait(self, job: ManagedJob, wait: Wait, now: float) -> None:
        why = explain_wait(job, wait.reason, self.cluster, now)
        if job.reason is None or job.reason.kind != why.kind:
            self._audit.record(now, "wait", wait.job.id, reason=why.kind, until=wait.until, **why.facts)
        job.waits(why)

    def _write(self, starts: list[ManagedJob], splits: list[arrays.ArraySplit], now: float) -> None:
        """What a restart must know comes before Slurm is touched; what came of it is saved after the cycle."""
        enforcing = self._mode.enforcing
        renewals, tasks = self._leases.due(now, splits) if enforcing else ([], [])
        if enforcing:
            self._leases.intend([*starts, *renewals], now)
        self._preemption.intend_requeues(now)
        moved = self._order.intend(now) if self._mode.current is Mode.ORDER else []
        self._saver.save(now)
        self._audit.flush()  # what is about to be written to Slurm
        if enforcing:
            self._starts.write(starts, renewals, tasks, now)
        elif moved:
            self._order.write(moved)
        self._preemption.carry_out(now)
