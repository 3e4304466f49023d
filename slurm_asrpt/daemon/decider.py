"""Asks the policy what to do now, and notes the answer: in the jobs, in the audit trail, in a snapshot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.cluster import ClusterView
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies import power_saving
from slurm_asrpt.core.policies.base import Phase, Policy, Preempt, Reason, Start, Wait, reason
from slurm_asrpt.core.slurm_preemption import take_what_is_free
from slurm_asrpt.daemon import placements
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.cpu_jobs import CpuJobs
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.priorities import with_cause
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.site_rules import SiteRules
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.jobs.wait_reasons import KeptGpus, explain_wait
from slurm_asrpt.daemon.power_saving import startup_of
from slurm_asrpt.daemon.preemption import Preemption
from slurm_asrpt.daemon.record import decisions
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.slurm import writeback
from slurm_asrpt.status.reason_texts import LEFT_WORDS
from slurm_asrpt.switch import OperatingMode


class Decider:
    """The decisions of a policy, as the daemon takes them up. Nothing is written to Slurm here."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        jobs: JobTable,
        cluster: ClusterState,
        rules: SiteRules,
        preemption: Preemption,
        cpu_jobs: CpuJobs,
        audit: AuditWriter,
        mode: OperatingMode,
    ) -> None:
        self.policy, self.cluster = policy, cluster
        self.decided: decisions.RecordedDecision | None = None
        """The last decision."""
        self._settings, self._state_folder = settings.policy, settings.paths.state
        self._jobs, self._rules, self._cpu_jobs = jobs, rules, cpu_jobs
        self._preemption, self._audit, self._mode = preemption, audit, mode

    def decide(self, now: float) -> list[ManagedJob]:
        """Let the policy decide, and pin the jobs that it starts. Returns these jobs."""
        starting = self._jobs.in_state(JobState.PINNED)
        view = self._view(starting, now)
        starts = self._cpu_jobs.start_first(view, now)
        inputs = decisions.inputs_of(self.policy, self._settings, self._jobs, self.cluster.fabric, view, now)
        answer = power_saving.decide(self.policy, view, inputs.jobs, now)
        self.decided = decisions.RecordedDecision(inputs, answer)
        decisions.serve_snapshot(self._state_folder, self.decided)
        view = view.copy()  # the policy goes on looking at the other
        waits = list[Wait]()
        for decision in self.decided.decisions:
            if isinstance(decision, Preempt):
                self._preemption.intend(decision, now)
            elif isinstance(decision, Start):
                starts.append(self._pin(decision, view, now))
                self._record_start(starts[-1], decision, view, len(starts), now)
            else:
                waits.append(decision)
        kept = KeptGpus([*starting, *starts], self.cluster.view.free)
        for wait in waits:
            self._note_wait(self._jobs[wait.job.id], wait, kept, now)
        self._note_unsaid(kept, now)
        return [*starts, *self._cpu_jobs.start_others(view, now)]

    def _view(self, starting: Sequence[ManagedJob], now: float) -> ClusterView:
        """The cluster as the policy gets it: without what starts need that Slurm has not made yet."""
        view = self.cluster.view.copy()
        claimed = Counter[str]()
        for job in starting:
            claimed.update(placements.take_for_start(view, job))
        view.headroom = self._rules.limits.headroom(starting)
        view.preemptable = self._rules.preemptable(claimed, self.cluster.view, now)
        not_up, delay_s = self.cluster.not_up, self.cluster.startup_delay.seconds
        view.startup = startup_of(not_up, delay_s, view, self._jobs.in_state(JobState.RUNNING), now)
        return view

    def _note_unsaid(self, kept: KeptGpus, now: float) -> None:
        """Note why new jobs are pending that the policy has not considered."""
        unsaid = [job for job in self._jobs.in_state(JobState.QUEUED) if job.reason is None]
        reasons = dict(self.policy.queue(now)) if unsaid else {}
        for job in unsaid:
            job_id = JobId(job.record.job_id)
            if job.job is not None and job_id in reasons:
                self._note_wait(job, Wait(job.job, reasons[job_id]), kept, now)

    def _pin(self, start: Start, view: ClusterView, now: float) -> ManagedJob:
        job, placement, enforcing = self._jobs[start.job.id], start.placement, self._mode.enforcing
        why, original = self._why_starting(job, start), job.original or writeback.original(job.record)
        job.pinned(placement, now, original, enforcing, why, self._others_end_s(start, view))
        block = placements.block_order(placement.gpus)
        job.needs_map(enforcing and job.one_task_per_gpu and start.job.profiled and placement.ranks != block)
        return job

    def _others_end_s(self, start: Start, view: ClusterView) -> float:
        """How long the jobs may take to end that Slurm preempts for it, or for an earlier start on the same nodes."""
        if start.victims:
            return self._rules.end_s(frozenset(victim.kind for victim in start.victims))
        waits = any(count > view.free.get(name, 0) for name, count in start.placement.gpus.items())
        return self._rules.end_s(start.job.preempts) if waits else 0.0

    def _why_starting(self, job: ManagedJob, start: Start) -> Reason:
        if not self._mode.enforcing:
            return reason(Phase.STARTING, "would-start")
        if job.by_slurm:
            return reason(Phase.STARTING, "slurm-starts", why=LEFT_WORDS.get(job.by_slurm, job.by_slurm))
        if start.filling is not None:
            return reason(Phase.STARTING, "filling", head=start.filling.id)
        if not start.victims:
            return reason(Phase.STARTING, "starting")
        kinds = self._rules.kinds_of(start.victims)
        return reason(Phase.STARTING, "preempting", victims=len(start.victims), kinds=kinds)

    def _record_start(self, job: ManagedJob, start: Start, view: ClusterView, number: int, now: float) -> None:
        """Record a start. view: the free resources before it; this start's are removed from it."""
        best, compared = self.cluster.best_alpha(start.job), number <= decisions.MAX_COMPARED
        recorded = decisions.start_facts(start, best, view, self._settings.name, self.cluster.fabric, compared)
        if job.by_slurm:
            recorded["by_slurm"] = job.by_slurm
        self._audit.record(now, "start", start.job.id, mapped=job.mapped, **recorded)
        take_what_is_free(view, start.placement.gpus, start.job.request)
        view.headroom.take(start.job.charges)

    def _note_wait(self, job: ManagedJob, wait: Wait, kept: KeptGpus, now: float) -> None:
        why = explain_wait(job, with_cause(wait.reason, self._jobs), self.cluster, self._rules.limits, kept, now)
        why = self._cpu_jobs.why_waits(job, why, now)
        if job.reason is None or job.reason.kind != why.kind:
            self._audit.record(now, "wait", wait.job.id, reason=why.kind, until=wait.until, **why.facts)
        job.waits(why)

    def record_cycle(self, phases: Mapping[str, float], now: float) -> None:
        """The inputs of the last decision go to the audit trail. phases: seconds of each part of the cycle."""
        if self.decided is not None:
            recorded = decisions.cycle_facts(self.decided, self._jobs, self._mode.label, phases)
            self._audit.record(now, "cycle", **recorded)
