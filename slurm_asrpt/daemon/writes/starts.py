"""What is written to Slurm: starts, their undoing, leases, and in mode order the order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies.base import Phase, reason
from slurm_asrpt.daemon import placements
from slurm_asrpt.daemon.jobs import arrays
from slurm_asrpt.daemon.jobs.admission import LEASE_SLACK_S, unpinned
from slurm_asrpt.daemon.jobs.managed_job import LONGEST_BACKOFF_S, Place, Tracked
from slurm_asrpt.daemon.lifecycle import World
from slurm_asrpt.daemon.writes import order, rank_maps
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.records import Update

MAP_WAIT_S = 2.0
"""So long a start is waited for; host files of later ones are written when the job is read back."""
MAP_POLL_S = 0.2
BACKOFF_S = 5.0
NODE_LOST = "NodeDown"
"""As Slurm says it of a node that is down, drained or gone."""
FEW, MOST = 100, 1000
"""Leases that are renewed in one cycle: fewer are no burden, more keep slurmctld busy for over a second."""


class Writer:
    """Writes to the jobs of a world and keeps what is known of them in step. Every method may raise SlurmError."""

    def __init__(self, world: World, save: Callable[[float], None]) -> None:
        """save: what a restart must know; asked for before Slurm is touched."""
        self.world, self.parts, self.save = world, world.parts, save
        self.client, self.settings, self.audit = world.parts.client, world.settings, world.parts.audit
        self.began = world.parts.clock.monotonic()
        """When the cycle began, by a clock that does not step."""
        self._unmapped: dict[str, tuple[Tracked, float]] = {}  # by number; until when to ask for the real allocation

    @property
    def _lease(self) -> int:
        return self.settings.daemon.lease_s

    def write(self, starts: list[Tracked], waiting: list[Tracked], tasks: list[Update], now: float) -> None:
        """Start some and renew the leases of others as was intended; hand over what we leave to Slurm but have leased.

        In two calls, as each starts a program: the fences of the starts first, then all else behind their pins.
        tasks: of arrays, to be parted from the rest by leases of their own.
        """
        fenced = self._fenced(starts, self._write_leases(starts, now), now)
        left = [t for t in self.world.pending(Place.LEFT) if self._ours_to_hand_over(t, now)]
        updates = [*self._pins(fenced), *self._leases(waiting, now)]
        handed = [writeback.hand_over(t.record.address) for t in left]
        errors = self.client.update([*updates, *handed, *tasks])
        self._note_pins(fenced, errors[: len(fenced)], now)
        self._note_leases(waiting, errors[len(fenced) : len(updates)])
        for tracked, error in zip(waiting + left, errors[len(fenced) :], strict=False):
            tracked.handed_over = tracked.place is Place.LEFT and not error
        others = [*(t.record.job_id for t in waiting + left), *(task.job_id for task in tasks)]
        for job_id, error in zip(others, errors[len(fenced) :], strict=True):
            if error:
                self.audit.record(now, "lease-refused", job_id, error=error)

    # starts

    def _pins(self, fenced: Sequence[Tracked]) -> list[Update]:
        for tracked in fenced:
            if tracked.mapped and self._takes_whole_servers(tracked):
                self._write_rank_map(tracked, tracked.pin.gpus if tracked.pin else {})
            elif tracked.mapped:
                rank_maps.announce(self.settings.paths.spool, tracked.record.number)
        return [writeback.pin(t.record.job_id, t.pin.gpus, self.parts.slurm.multifactor) for t in fenced if t.pin]

    def _note_pins(self, fenced: Sequence[Tracked], errors: Sequence[str], now: float) -> None:
        for tracked, error in zip(fenced, errors, strict=True):
            if error:
                self._did_not_start(tracked, error, now)
            tracked.written = now + self._late
        until = self.parts.clock.monotonic() + MAP_WAIT_S
        unknown = [t for t in fenced if t.mapped and not self._takes_whole_servers(t)]
        self._unmapped |= {str(t.record.number): (t, until) for t in unknown}

    def _takes_whole_servers(self, tracked: Tracked) -> bool:
        """All GPUs of every node of its pin: then the pin is what Slurm will allocate, and its job need not wait."""
        sizes = self.world.view.by_name
        gpus = tracked.pin.gpus if tracked.pin is not None else {}
        return all(name in sizes and sizes[name].gpus == count for name, count in gpus.items())

    def write_rank_maps(self, most_s: float) -> None:
        """Host files must be there before the first srun: ask for the real allocations at short intervals.

        most_s: the time for it; starts that take longer are gone on with next time.
        """
        clock, self._unmapped = self.parts.clock, {n: u for n, u in self._unmapped.items() if _awaits_map(u[0])}
        latest = clock.monotonic() + most_s
        while self._unmapped:
            for number, gpus in self.client.allocations(list(self._unmapped)).items():
                self._write_rank_map(self._unmapped.pop(number)[0], gpus)
            now = clock.monotonic()
            self._unmapped = {n: (t, until) for n, (t, until) in self._unmapped.items() if now < until}
            if not self._unmapped or now + MAP_POLL_S > latest:
                return
            clock.sleep(MAP_POLL_S)

    def _write_rank_map(self, tracked: Tracked, gpus: Mapping[str, int]) -> None:
        if not placements.could_be(tracked, gpus):
            return  # read back once it runs
        placement = placements.placement_of(tracked, gpus, self.world.servers, self.world.fabric)
        if placement is None:
            rank_maps.withdraw(self.settings.paths.spool, tracked.record.number)
        else:
            rank_maps.write_hosts(self.settings.paths.spool, tracked.record.number, placement.ranks)

    def _fenced(self, jobs: list[Tracked], errors: list[str], now: float) -> list[Tracked]:
        """Those of these jobs that took a fresh lease: they are pending and stay so while we touch their nodes."""
        fenced = []
        for tracked, error in zip(jobs, errors, strict=True):
            if error:
                self.audit.record(now, "fence-refused", tracked.record.job_id, error=error)
                self.world.withdraw(tracked, Place.APART, tracked.why, now)
                tracked.pin = None
            else:
                fenced.append(tracked)
        return fenced

    # their undoing

    def take_back_what_did_not_start(self, now: float) -> None:
        """Unpin what Slurm has not started in time, and what a requeue left pinned."""
        pinned = [t for t in self.world.pending(Place.PINNED) if t.pin is not None]
        reasons = {t.record.job_id: why for t in pinned if (why := self._in_vain(t, now))}
        late = [t for t in pinned if t.record.job_id in reasons]
        for tracked in self.take_pins_off(late + self.world.requeued(now), now):
            if tracked.record.job_id in reasons:
                self._did_not_start(tracked, reasons[tracked.record.job_id], now)

    def _in_vain(self, tracked: Tracked, now: float) -> str:
        """Why the pin of a waiting job is to be taken back, in Slurm's words; "" while it may still lead to a start.

        At once where a node of it cannot be used any more: a slurmctld that comes back without that node would end
        the job.
        """
        assert tracked.pin is not None  # noqa: S101  (the caller has seen to it)
        if not tracked.pin.gpus.keys() <= self.world.view.free.keys():
            return NODE_LOST
        late = now - max(tracked.pin.at, tracked.written) > self.settings.daemon.unpin_after_s
        return (tracked.record.reason or "None") if late or _is_limit(tracked.record.reason) else ""

    def take_pins_off(self, jobs: list[Tracked], now: float) -> list[Tracked]:
        """Those of these jobs that still wait: each has a fresh lease and, unless Slurm refused, its pin no more."""
        if jobs:
            self.intend_leases(jobs, now)
            self.save(now)
        fenced = [t for t in self._fenced(jobs, self._write_leases(jobs, now), now) if t.original is not None]
        rank_maps.remove(self.settings.paths.spool, [t.record.number for t in fenced])  # another run has other nodes
        for tracked, error in zip(fenced, self.client.update([self._unpin(t) for t in fenced]), strict=True):
            if not error:
                self._forget_pin(tracked)
        return fenced

    def reconsider_what_slurm_has_not_started(self, now: float) -> None:
        """Modes shadow and order: Slurm goes its own way, and GPUs must not stay promised to a job for ever."""
        patience = self.settings.daemon.unpin_after_s
        for tracked in self.world.pending(Place.PINNED):
            if tracked.pin is not None and now - tracked.pin.at > patience:
                self._did_not_start(tracked, tracked.record.reason, now)

    def _unpin(self, tracked: Tracked) -> Update:
        assert tracked.original is not None  # noqa: S101  (the caller has seen to it)
        held = tracked.record.priority == 0  # Slurm refuses a priority then, and all else with it
        before = replace(tracked.original, priority=0) if held else tracked.original
        return writeback.unpin(tracked.record.job_id, before, len(self.world.nodes), self.parts.slurm)

    def _forget_pin(self, tracked: Tracked) -> None:
        """The record was read before the pin was undone: bring it up to date, or it would look like the owner's."""
        record = unpinned(tracked.record, tracked.original)
        if record.reason not in ("BeginTime", "Dependency") and not record.reason.startswith("JobHeld"):
            record = replace(record, reason="BeginTime", eligible_time=tracked.lease_until)
        tracked.record, tracked.original, tracked.site_factor = record, None, None

    def _did_not_start(self, tracked: Tracked, why: str, now: float) -> None:
        """Back to waiting: at once the first time (unless a limit holds it), then after growing pauses."""
        self.world.policy.finished(JobId(tracked.record.job_id), now)  # it holds no GPUs; it returns when it may
        tracked.failures += 1
        at_once = tracked.failures == 1 and not _is_limit(why)
        pause = 0.0 if at_once else min(LONGEST_BACKOFF_S, BACKOFF_S * 2.0 ** (tracked.failures - 2))
        if tracked.pin is not None and tracked.failures > 1 and why not in ("Resources", "Priority", "None"):
            tracked.avoid.update(dict.fromkeys(tracked.pin.gpus, now + LONGEST_BACKOFF_S))
        tracked.place, tracked.pin, tracked.retry_at = Place.APART, None, now + pause
        tracked.why = reason(Phase.WAITING, _kind(why, self.world.enforcing), slurm_reason=why)
        rank_maps.remove(self.settings.paths.spool, [tracked.record.number])
        self.audit.record(now, "not-started", tracked.record.job_id, why=why, retry_at=tracked.retry_at)

    # leases and order

    def intend_leases(self, jobs: Sequence[Tracked], now: float) -> None:
        """Note the leases that are about to be written; to be saved before they are.

        Should asrptd die or the answer be lost, the new one may hold, from as late as a command may take, or what
        Slurm shows now. Else it would take its own leases for begin times that the jobs' owners have set.
        """
        for tracked in jobs:
            tracked.lease_before = tracked.record.eligible_time
            tracked.lease_until = max(now, tracked.not_before) + self._lease
            tracked.lease_spread = self._late + self.settings.slurm.timeout_s

    def _write_leases(self, jobs: Sequence[Tracked], now: float) -> list[str]:
        """Write the leases that were intended; one error text per job."""
        errors = self.client.update(self._leases(jobs, now))
        self._note_leases(jobs, errors)
        return errors

    def _leases(self, jobs: Sequence[Tracked], now: float) -> list[Update]:
        return [writeback.lease(t.record.address, t.lease_until - now) for t in jobs]

    def _note_leases(self, jobs: Sequence[Tracked], errors: Sequence[str]) -> None:
        for tracked, error in zip(jobs, errors, strict=True):
            if error and tracked.record.array_tasks:
                continue  # of one task, it may be: the others have taken it
            if error:
                tracked.lease_until = tracked.lease_before
            else:  # the record was read before
                tracked.record = replace(tracked.record, eligible_time=tracked.lease_until)
            tracked.lease_before, tracked.lease_spread = 0.0, self._late

    def due(self, now: float, partings: Sequence[arrays.Parting]) -> tuple[list[Tracked], list[Update]]:
        """Whose lease is to be renewed, and leases for the next tasks of arrays, of which the others get the same."""
        leased = {t.record.job_id: t for t in [*self.to_renew(now), *(each.rest for each in partings)]}
        names = [f"{each.rest.record.job_id}_{task}" for each in partings for task in each.tasks]
        return list(leased.values()), [writeback.lease(name, self._lease) for name in names]

    @property
    def _late(self) -> float:
        """Seconds since the cycle began: "now" in an update is when Slurm reads it."""
        return float(self.parts.clock.monotonic() - self.began)

    def to_renew(self, now: float) -> list[Tracked]:
        """Those whose lease has come down to ``renewal_s``, the shortest first, so many that all are renewed in time.

        Twice as many as are due if they come evenly, so that jobs which were leased together do not stay together; of
        those with half of that left many more, and the rest in the next cycles: slurmctld has others to serve.
        """
        waiting, daemon = self.world.pending(Place.APART, Place.QUEUED), self.settings.daemon
        left = [(self._lease_left(tracked, now), tracked) for tracked in waiting]
        due = sorted((pair for pair in left if pair[0] < daemon.renewal_s), key=lambda pair: pair[0])
        evenly = math.ceil(len(waiting) * 2 * daemon.interval_s / (self._lease - daemon.renewal_s))
        urgent = sum(seconds < daemon.renewal_s / 2 for seconds, _ in due)
        return [tracked for _, tracked in due[: max(FEW, evenly, min(urgent, MOST))]]

    def _lease_left(self, tracked: Tracked, now: float) -> float:
        """Seconds that a lease runs, by what Slurm shows: an owner's StartTime=now ends a lease.

        None of one that reaches too far: the clock has stepped back.
        """
        left = tracked.record.eligible_time - max(now, tracked.not_before)
        return 0.0 if left > self._lease + tracked.lease_spread + 2 * LEASE_SLACK_S else left

    def leases_left(self, now: float) -> list[float]:
        """Seconds that the leases of the waiting jobs still run."""
        if not self.world.enforcing:
            return []
        waiting = self.world.pending(Place.APART, Place.QUEUED)
        return [t.lease_until - now for t in waiting if t.lease_until > now]

    def _ours_to_hand_over(self, tracked: Tracked, now: float) -> bool:
        """A job with a lease of the hook's (not left by the hook) that the daemon leaves to Slurm."""
        tag = tracked.tag
        leased = tracked.record.reason == "BeginTime" and tracked.record.eligible_time > now
        return bool(leased and tag and not tag.left and tag.begin <= now and not tracked.handed_over)

    def intend_order(self, now: float) -> list[tuple[Tracked, int, int | None]]:
        """Mode order: SiteFactors by the policy's order, as far as they change; what it would start now comes first.

        Those jobs are noted as ones that may have any factor, to be saved before it is written: should asrptd die or
        the answer be lost, it is written anew, and taken off where the job is handed back. With each its old one.
        """
        tracked = self.world.tracked
        decided = [t.record.job_id for t in tracked.values() if t.place is Place.PINNED]
        queued = [str(job_id) for job_id, _ in self.parts.policy.queue(now)]
        factors = order.factors(decided + queued, {k: t.site_factor for k, t in tracked.items()})
        moved = [(tracked[job_id], factor, tracked[job_id].site_factor) for job_id, factor in factors.items()]
        for job, _, _ in moved:
            job.site_factor = order.ANY
        return moved

    def write_order(self, moved: Sequence[tuple[Tracked, int, int | None]]) -> None:
        """Write the factors that were intended."""
        updates = [writeback.site_factor(tracked.record.job_id, factor) for tracked, factor, _ in moved]
        for (tracked, factor, before), error in zip(moved, self.client.update(updates), strict=True):
            tracked.site_factor = before if error else factor


def _awaits_map(tracked: Tracked) -> bool:
    return tracked.mapped and tracked.place is Place.PINNED


def _is_limit(slurm_reason: str) -> bool:
    """A reason of Slurm that only time or an admin removes: no use in keeping GPUs for the job meanwhile."""
    return any(word in slurm_reason for word in ("Limit", "Assoc", "QOS", "Licenses", "MaxJobs", "MaxGRES"))


def _kind(slurm_reason: str, enforcing: bool) -> str:
    if _is_limit(slurm_reason):
        return "limit"
    return "not-started" if enforcing else "not-followed"
