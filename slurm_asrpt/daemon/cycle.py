"""One cycle of asrptd: read Slurm, tell the policy what happened, let it decide, write the decisions back.

``World`` is what Slurm looks like, ``Writer`` writes to it; here is what lies between them. All state that a restart
needs is saved before Slurm is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from pydantic import TypeAdapter

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.core.cluster import ClusterView
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.base import Interrupt, Phase, Start, Wait, reason
from slurm_asrpt.daemon import placements
from slurm_asrpt.daemon.clock import STEP_S, Laps
from slurm_asrpt.daemon.forecasts.run_lengths import iterations_of
from slurm_asrpt.daemon.jobs import arrays
from slurm_asrpt.daemon.jobs.admission import explained
from slurm_asrpt.daemon.jobs.managed_job import Pin, Place, Tracked
from slurm_asrpt.daemon.lifecycle import World
from slurm_asrpt.daemon.parts import Parts
from slurm_asrpt.daemon.preemption import Interrupter
from slurm_asrpt.daemon.record import decisions, facts
from slurm_asrpt.daemon.writes import rank_maps
from slurm_asrpt.daemon.writes.release import hand_back
from slurm_asrpt.daemon.writes.starts import Writer
from slurm_asrpt.forecast.conformal import Margins
from slurm_asrpt.slurm import writeback

_MARGINS = TypeAdapter(Margins)


class Scheduler:
    """Lets a policy schedule the jobs of a world."""

    def __init__(self, parts: Parts) -> None:
        self.parts, self.settings, self.policy = parts, parts.settings, parts.policy
        self._saved: Mapping[str, Any] = parts.store.load() or {}
        self.world = World(parts, self._saved)
        parts.margins = _margins(self._saved.get("forecast_margins"))
        self.writer = Writer(self.world, self._save)
        self.interrupter = Interrupter(self.world)
        self.laps = Laps(parts.clock.monotonic)
        self.decided: decisions.Decided | None = None
        """The last decision."""
        self._first = True
        self._cold = False  # no state of the policy could be taken up: submit times stand in for it

    def cycle(self, now: float) -> float | None:
        """Do everything once. Returns when there is something to decide again. Raises SlurmError.

        At once where tasks were parted from an array of which none waits: they may start.
        """
        self.writer.began = self.parts.clock.monotonic()
        self.laps.start()
        lines = self.parts.audit.lines
        jobs, nodes = self.parts.client.jobs(), self.parts.client.nodes()
        self.laps.done("read")
        self.world.follow(jobs, nodes, now)
        self.laps.done("decide")
        if self.world.enforcing:
            self.writer.take_back_what_did_not_start(now)
            self.laps.done("write")
        else:
            hand_back(self.writer, now)
            self.writer.reconsider_what_slurm_has_not_started(now)
        self._feed_policy(self.world.eligible(now), now)
        starts = self._decide(now)
        self.laps.done("decide")
        partings = arrays.next_tasks(self.world.tracked.values()) if self.world.enforcing else []
        self._write(starts, partings, now)
        self.laps.done("write")
        if self.parts.audit.lines > lines and self.decided is not None:
            told = decisions.cycle_facts(self.decided, self.world, self.laps.seconds)
            self.parts.audit.record(now, "cycle", **told)
        self.parts.audit.flush()
        return now if any(parting.first for parting in partings) else self.policy.next_wakeup(now)

    def between_cycles(self, pause_s: float) -> None:
        """What takes long and what no decision waits for, in a pause of so many seconds. Raises SlurmError, OSError."""
        self._save(self.parts.clock.time())  # what came of the writes; who dies among them must do without, too
        self.writer.write_rank_maps(pause_s)
        self.parts.client.catch_up()

    def _write(self, starts: list[Tracked], partings: list[arrays.Parting], now: float) -> None:
        """What a restart must know comes before Slurm is touched; what came of it is saved after the cycle."""
        renewals, tasks = self.writer.due(now, partings) if self.world.enforcing else ([], [])
        if self.world.enforcing:
            self.writer.intend_leases([*starts, *renewals], now)
        self.interrupter.intend_requeues(now)
        moved = self.writer.intend_order(now) if self.parts.mode is Mode.ORDER else []
        self._save(now)
        self.parts.audit.flush()  # what is about to be written to Slurm
        if self.world.enforcing:
            self.writer.write(starts, renewals, tasks, now)
        elif moved:
            self.writer.write_order(moved)
        self.interrupter.carry_out(now)

    def _feed_policy(self, eligible: list[Tracked], now: float) -> None:
        """Submit what has become eligible, in order of submission; after a restart take up the saved state first."""
        if self._first:
            self._resume(eligible, now)
        self.interrupter.tell(now)
        for tracked in sorted(eligible, key=lambda t: (t.record.submit_time, t.record.number)):
            assert tracked.job is not None  # noqa: S101  (eligible jobs have been admitted)
            if tracked.place is Place.QUEUED:
                continue
            if tracked.failures:
                self.policy.returned(tracked.job, now)
            else:
                since = min(now, tracked.job.submit_time) if self._cold else now
                self.policy.submitted(tracked.job, since)
                self._came(tracked, tracked.job, since)
            tracked.place, tracked.why = Place.QUEUED, None
            self.parts.audit.record(now, "queued", tracked.record.job_id, **facts.queued_facts(tracked, tracked.job))
        self._first = False

    def _came(self, tracked: Tracked, job: Job, since: float) -> None:
        span = iterations_of(tracked, self.parts.misses) if job.predicted_iterations > 0 else None
        if tracked.record.job_id != tracked.record.array_id:  # it came with its array, of which it was parted now
            since = min(since, job.submit_time)
        self.parts.arrivals.came(job, span, self.world.best_alpha(job) or 1.0, since)

    def _resume(self, eligible: list[Tracked], now: float) -> None:
        jobs = {t.job.id: t.job for t in eligible if t.job is not None}
        state = self._saved.get("policy") if self._saved.get("policy_name") == self.settings.policy.name else None
        if self.parts.store.saved_at > now + STEP_S:  # the clock has stepped back: its times are still to come
            state = None
        self._cold = state is None  # none was saved, by another policy, or in another time
        if state is not None:
            try:
                self.policy.load(state, jobs)
                self._catch_up(now)
            except ValueError as error:
                self._cold = True
                self.parts.audit.record(now, "policy-state-lost", error=str(error))
        held = {job_id for job_id, _ in self.policy.queue(now)} if not self._cold else set()
        for tracked in eligible:
            tracked.place = Place.QUEUED if tracked.record.job_id in held else Place.APART

    def _catch_up(self, now: float) -> None:
        """What has ended or begun while no daemon was there."""
        saved = self._saved.get("jobs")
        for job_id in saved if isinstance(saved, dict) else ():
            if job_id not in self.world.tracked:
                self.policy.finished(JobId(job_id), now)
        self.world.tell_all_running(now)

    def _decide(self, now: float) -> list[Tracked]:
        """Ask the policy; what it starts is pinned (in mode enforce only after it has been written)."""
        view = self.world.view.copy()
        for tracked in self.world.tracked.values():
            if tracked.place is Place.PINNED and tracked.pin is not None:
                placements.reserve(view, tracked)
        self.decided = decisions.decide(self.policy, self.world, view, now)
        decisions.serve(self.settings.paths.state, self.decided)
        view = view.copy()  # the policy goes on looking at the other
        starts = list[Tracked]()
        for decision in self.decided.decisions:
            if isinstance(decision, Interrupt):
                self.interrupter.intend(decision, now)
                continue
            tracked = self.world.tracked[decision.job.id]
            if isinstance(decision, Start):
                starts.append(self._pin(tracked, decision, now))
                self._record_start(tracked, decision, view, len(starts), now)
            else:
                self._note_wait(tracked, decision, now)
        self._note_unsaid(now)
        return starts

    def _note_unsaid(self, now: float) -> None:
        """Why those wait who are new and of whom the policy has said nothing: it did not come to look at them."""
        unsaid = [t for t in self.world.tracked.values() if t.place is Place.QUEUED and t.why is None]
        reasons = dict(self.policy.queue(now)) if unsaid else {}
        for tracked in unsaid:
            job_id = JobId(tracked.record.job_id)
            if tracked.job is not None and job_id in reasons:
                self._note_wait(tracked, Wait(tracked.job, reasons[job_id]), now)

    def _record_start(self, tracked: Tracked, start: Start, view: ClusterView, number: int, now: float) -> None:
        """view: what was free before this one of the cycle's starts; afterwards without it."""
        best, compared = self.world.best_alpha(start.job), number <= decisions.MOST_COMPARED
        told = decisions.start_facts(start, best, view, self.settings, self.world.fabric, compared)
        self.parts.audit.record(now, "start", start.job.id, mapped=tracked.mapped, **told)
        view.take(start.placement.gpus, start.job.request)

    def _pin(self, tracked: Tracked, start: Start, now: float) -> Tracked:
        placement = start.placement
        before = tracked.original or writeback.original(tracked.record)
        tracked.pin = Pin(dict(placement.gpus), list(placement.ranks), placement.alpha, now, before)
        tracked.place, tracked.why = Place.PINNED, reason(Phase.STARTING, "starting")
        tracked.decided = tracked.decided or now
        if self.world.enforcing:
            tracked.original = before
        block = rank_maps.block_order(placement.gpus)
        tracked.mapped = self.world.enforcing and tracked.one_to_one and start.job.profiled and placement.ranks != block
        return tracked

    def _note_wait(self, tracked: Tracked, wait: Wait, now: float) -> None:
        why = explained(self.world, tracked, wait.reason, now)
        if tracked.why is None or tracked.why.kind != why.kind:
            self.parts.audit.record(now, "wait", wait.job.id, reason=why.kind, until=wait.until, **why.facts)
        tracked.why = why

    def _save(self, now: float) -> None:
        known = [*self.world.ended.pinned(), *self.world.tracked.values()]
        jobs = {tracked.record.job_id: tracked.dump() for tracked in known}
        if self._first:  # the policy has not taken up its state yet
            self.parts.store.amend(self._saved, jobs, now)
            return
        self.parts.store.save(
            {
                "policy_name": self.settings.policy.name,
                "policy": self.policy.dump(),
                "forecast_margins": asdict(self.parts.margins),
            },
            jobs,
            now,
        )


def _margins(saved: Any) -> Margins:
    """Those of the daemon before us; none where it had none, or what stands there is nothing."""
    try:
        return _MARGINS.validate_python(saved)
    except ValueError:
        return Margins()
