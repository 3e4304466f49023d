"""A job that asrptd manages: Slurm's record, what asrptd knows and did, and its state changes.

Code outside this package does not assign to its fields, but calls the method for the event
(tests/unit/daemon/test_job_ownership.py).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from slurm_asrpt.core.cluster import Placement
from slurm_asrpt.core.cpu_jobs import WAITS_FOR_CPUS, CpuJob
from slurm_asrpt.core.job import Job, PreemptionClass, Request
from slurm_asrpt.core.limits import Charges
from slurm_asrpt.core.policies.base import Reason
from slurm_asrpt.core.priorities import DEFAULT, Standing
from slurm_asrpt.core.units import Unit
from slurm_asrpt.daemon.jobs.job_record import unpinned
from slurm_asrpt.daemon.jobs.saved_state import (
    FROM_SLURM,
    LONGEST_BACKOFF_S,
    SAVED,
    Forecast,
    Interruption,
    JobState,
    Pin,
    RequeuedRun,
    SavedJob,
    from_raw,
    of_job,
    to_json,
)
from slurm_asrpt.hook.table import Answer
from slurm_asrpt.hook.tag import Tag, parse_tag
from slurm_asrpt.predict.sensitivity import Belief
from slurm_asrpt.slurm.records import PENDING, JobRecord, Reservation
from slurm_asrpt.slurm.request import JobRequest
from slurm_asrpt.slurm.writeback import Original, original, pinned_nodes
from slurm_asrpt.throttle import backoff_s

KILLED = "FAILED"
"""States of a job whose script was killed, by a requeue that Slurm has forgotten or otherwise."""
FIRST_BACKOFF_S = 5.0
REQUEUE_PAUSE_S = 2.0
"""If a job starts in the second of its requeue, it dies of the revoked credential of its previous run.

Counted from the first observation: slurmctld's clock may be some seconds behind.
"""


def predicted(tag: Tag, job: Job | None, alpha: float) -> Tag:
    """A tag with its prediction in iterations of the job. alpha: its seconds per iteration, as ``reference_alpha``.

    Iterations of a profile mean nothing for a job that cannot use it.
    """
    if tag.profile and tag.unit is Unit.ITERATIONS and job is not None and not job.profiled:
        return tag.without_prediction
    return tag.in_iterations(alpha)


class Terms(NamedTuple):
    """What the request of a job follows from: as long as this is the same, the job need not be admitted again.

    request: ``request_values`` of its record. avoided: nodes where it has just failed to start. reserved: nodes that
    reservations keep from it. within: the nodes of each reservation in which it may run. components: the values of
    those of a heterogeneous job. interruptible: whether it may be preempted by asrptd. communication: as its runs have
    taught. own: nodes with room for it beside jobs of the same user, if it shares nodes with no others. shortened:
    Slurm may have to shorten it.
    """

    request: tuple[object, ...]
    tag: Tag | None
    avoided: frozenset[str]
    reserved: frozenset[str]
    within: tuple[frozenset[str], ...]
    preemption: PreemptionClass | None
    components: tuple[object, ...]
    interruptible: bool
    communication: Belief | None
    own: frozenset[str]
    shortened: bool = False


@dataclass(eq=False, kw_only=True)
class ManagedJob(SavedJob):
    """The state of a job. The fields of ``SavedJob`` survive a restart; these do not.

    Methods that change it are named for what has happened to the job (``pinned``, ``started``), or ``NAME_is`` if they
    only set a value.
    """

    record: JobRecord
    submit_time: float = 0.0  # of the record
    job: Job | None = None  # as the policy sees it
    cpu_job: CpuJob | None = None  # a job without GPUs, which no policy sees
    one_task_per_gpu: bool = False  # each rank has one GPU
    standing: Standing = DEFAULT  # its priority under the rules of the site
    in_slurms_order: bool = False  # it goes when Slurm's own order has its turn, and not by its work
    made_from: Terms | tuple[()] | None = None  # what these two follow from; (): nodes have changed
    reservations: tuple[Reservation, ...] = ()  # those whose nodes it must not use now
    admitted_by: tuple[Reservation, ...] = ()  # that which it names, or magnetic ones in which it may run
    unrestricted: Job | None = None  # the job with the nodes of these reservations; None without any
    communication: Belief | None = None  # what its runs have taught about it; None for nothing of use
    reason: Reason | None = None  # why it waits
    first_seen: float = 0.0  # by this daemon, since the last requeue
    decided_tasks: str = ""  # mode order: the pending tasks of its array when the next one's start was decided
    decided_at: float = 0.0  # when this daemon first decided its start
    pin_written_at: float = 0.0  # later than the decision if slurmctld responds slowly
    pinned_before: bool = False  # when its start was decided, an older pin was still in Slurm
    nodes_refused: str = ""  # why asrptd cannot choose its nodes, as Slurm has told: a key of LEFT_WORDS
    postponed: bool = False  # its start was left to Slurm, or waited for such starts: it is planned again
    avoided_nodes: dict[str, float] = field(default_factory=dict)  # where it did not start; until when to avoid them
    allocation: Mapping[str, int] | None = None  # GPUs by node that ``placement`` was made from
    _dumped: tuple[tuple[Any, ...], str] = ((), "")

    # two jobs of one user may have equal saved states, which ``SavedJob`` compares
    __eq__, __hash__ = object.__eq__, object.__hash__

    def __post_init__(self) -> None:
        self.follow(self.record)

    def follow(self, record: JobRecord) -> None:
        """Set Slurm's current record."""
        if self.unbounded and record.max_nodes == self.unbounded:
            record = replace(record, max_nodes=0)  # asrptd wrote it, so its owner asked for no range
        self.record, self.submit_time, self.restarts = record, record.submit_time, record.restarts

    def read_tag(self, record: JobRecord) -> None:
        """Set the hook's tag on a new record. A comment without a tag does not change it."""
        if self.tag is None or record.admin_comment != self.record.admin_comment:
            self.tag = parse_tag(record.admin_comment) or self.tag

    def predicted_late(self, found: Answer) -> None:
        """Set the prediction that the hook's table has now, for a job that had none when it was submitted."""
        assert self.tag is not None  # noqa: S101  (the caller has seen to it)
        self.tag = replace(self.tag, **dataclasses.asdict(found))

    # properties

    @property
    def unpinned(self) -> JobRecord:
        """Slurm's record as its owner asked, without a pin."""
        return unpinned(self.record, self.original)

    @property
    def prediction(self) -> Tag | None:
        """Its tag, with the prediction in iterations of the job."""
        return predicted(self.tag, self.job, self.reference_alpha) if self.tag is not None else None

    @property
    def not_before(self) -> float:
        """The owner's own begin time; 0 for none."""
        return self.begin_time if self.begin_time is not None else float(self.tag.begin if self.tag else 0)

    @property
    def restarts_at(self) -> float:
        """Before this time, a requeued job must not start."""
        return self.first_seen + REQUEUE_PAUSE_S if self.record.restarts else 0.0

    @property
    def charges(self) -> Charges:
        """What it counts against limits, with all components; empty also before it is admitted."""
        asked = self.job or self.cpu_job
        return asked.charges if asked is not None else ()

    @property
    def exceeds_limit_alone(self) -> bool:
        """Whether a limit of the site keeps it from starting even if no other job counts against it."""
        return any(math.isinf(amount) for _, amount in self.charges)

    @property
    def forgotten(self) -> bool:
        """Whether slurmctld was killed before it saved a requeue, and shows the ended run as running or failed."""
        return self.record.state in ("RUNNING", KILLED) and self.was_requeued(self.record)

    @property
    def failed_by_pin(self) -> bool:
        """Whether slurmctld ended the job before it ran, because its pin names a node that no longer exists."""
        return self.original is not None and self.record.state == "NODE_FAIL" and not self.record.nodes

    @property
    def waits_for_map(self) -> bool:
        return self.mapped and self.state is JobState.PINNED

    @property
    def has_waiting_tasks(self) -> bool:
        """Whether this is an array's record whose tasks wait only for earlier tasks."""
        return self.reason is not None and self.reason.kind == "array" and self.record.state == PENDING

    @property
    def is_beyond_limit(self) -> bool:
        """Whether this is an array task with GPUs that waits only because as many of its array run as may."""
        beyond = self.reason is not None and self.reason.kind == "array-limit" and self.record.state == PENDING
        return beyond and self.job is not None

    @property
    def waits_for_cpus(self) -> bool:
        """Whether this is a job without GPUs that may start now."""
        waits = self.reason is not None and self.reason.kind in WAITS_FOR_CPUS
        return waits and self.cpu_job is not None

    def was_requeued(self, record: JobRecord) -> bool:
        """Whether asrptd has requeued the run in this record."""
        return self.requeued_run is not None and self.requeued_run.is_of(record)

    # admission and the policy's queue

    def nodes_changed(self) -> None:
        """The nodes have changed, so the job must be admitted again."""
        self.made_from = () if self.made_from is not None else None

    def refuses_nodes(self, why: str) -> None:
        """Slurm refuses node lists for it, and always will: it must be admitted again. why: a key of LEFT_WORDS."""
        self.nodes_refused = why
        self.nodes_changed()

    def reservations_are(self, reservations: tuple[Reservation, ...], admitted_by: tuple[Reservation, ...]) -> None:
        """The reservations whose nodes it must not use now, and those in which it may run."""
        self.reservations, self.admitted_by = reservations, admitted_by

    def admitted(
        self,
        job: Job,
        unrestricted: Job | None,
        requested: JobRequest,
        terms: Terms,
        in_slurms_order: bool,
        alpha: float,
    ) -> None:
        """Set the policy's job, and what it follows from. alpha: as ``reference_alpha``."""
        self._follow_request(terms)
        self.reference_alpha, self.communication = alpha, terms.communication
        self.job, self.unrestricted, self.one_task_per_gpu = job, unrestricted, requested.one_task_per_gpu
        self.in_slurms_order = in_slurms_order
        self.made_from, self.cpu_job, self.by_slurm = terms, None, requested.by_slurm

    def admitted_without_gpus(self, job: CpuJob, terms: Terms, by_slurm: str = "") -> None:
        """Set what it requests, and what this follows from. by_slurm: why Slurm must choose its nodes."""
        self._follow_request(terms)
        self.cpu_job, self.made_from = job, terms
        self.job, self.unrestricted, self.one_task_per_gpu, self.by_slurm = None, None, False, by_slurm

    def _follow_request(self, terms: Terms) -> None:
        """A job whose request has changed may start where Slurm has refused it before."""
        if isinstance(self.made_from, Terms) and self.made_from.request != terms.request:
            self.retry_at, self.failures = 0.0, 0

    def priority_is(self, band: int, weight: float, charges: Charges) -> bool:
        """Set its priority and what it counts against limits; its request is as before. Returns whether they differ."""
        if self.cpu_job is not None:
            if (self.cpu_job.band, self.cpu_job.charges) == (band, charges):
                return False
            self.cpu_job = replace(self.cpu_job, band=band, charges=charges)
            return True
        assert self.job is not None  # noqa: S101  (it has been admitted)
        if (self.job.band, self.job.weight, self.job.charges) == (band, weight, charges):
            return False
        self.job = replace(self.job, band=band, weight=weight, charges=charges)
        if self.unrestricted is not None:
            self.unrestricted = replace(self.unrestricted, band=band, weight=weight, charges=charges)
        return True

    def turn_is(self, turn: float | None) -> bool:
        """Set its turn in Slurm's own order; None if it goes by its work. Returns whether it has changed."""
        if self.job is None or self.job.turn == turn:
            return False
        self.job = replace(self.job, turn=turn)
        return True

    def request_is(self, request: Request) -> None:
        """Set its request, which differs from the one that it was admitted with in ``brief`` only."""
        if self.job is not None:
            self.job = replace(self.job, request=request)

    def resumed(self, in_queue: bool) -> None:
        """The policy has restored its queue, with or without this job."""
        self.state = JobState.QUEUED if in_queue else JobState.INELIGIBLE

    def queued(self) -> None:
        self.state, self.reason = JobState.QUEUED, None

    def waits(self, why: Reason) -> None:
        """Set why it is pending in the policy's queue."""
        self.reason = why

    def withdrawn(self, state: JobState, why: Reason | None) -> None:
        """It is removed from the policy's queue."""
        self.state, self.reason = state, why

    # a start

    def pinned(
        self, placement: Placement, now: float, original: Original, written: bool, why: Reason, grace_s: float = 0.0
    ) -> None:
        """The policy starts it in this placement. written: Slurm is updated, which overwrites ``original``.

        grace_s: so much longer than others the start may take.
        """
        self.pinned_before = self.original is not None and not self.confined
        self.pin = Pin(dict(placement.gpus), list(placement.ranks), placement.alpha, now, original, grace_s)
        self.state, self.reason = JobState.PINNED, why
        self.decided_tasks = self.record.array_tasks
        self.decided_at = self.decided_at or now
        if written:
            self.original = original

    def needs_map(self, needed: bool) -> None:
        """Set whether its ranks need an order other than Slurm's."""
        self.mapped = needed

    def start_postponed(self) -> None:
        """The pin is not written in this cycle. If the job has not started by the next one, it is planned again."""
        self.original, self.postponed = self.original if self.confined else None, True

    def pin_written(self, at: float) -> None:
        """The pin may be in Slurm, with a SiteFactor of its own."""
        self.pin_written_at, self.site_factor, self.postponed = at, None, False

    def pin_dropped(self) -> None:
        """The pin will not be written, or nothing remains of it."""
        self.pin = None

    def start_refused(self, now: float, why: Reason) -> None:
        """Slurm lets nobody change it, so that the pin is not written. It is queued again after growing pauses."""
        if not self.pinned_before:
            self.original = None
        self.not_started(now, why, at_once=False, avoid=False)

    def pin_cleared(self) -> None:
        """Slurm has removed the pin. The older record is adjusted, or the pin would look like the owner's request."""
        record = self.unpinned
        if record.reason not in ("BeginTime", "Dependency") and not record.reason.startswith("JobHeld"):
            record = replace(record, reason="BeginTime", eligible_time=self.lease_until)
        self.follow(record)
        self.original, self.site_factor, self.confined = None, None, False

    def unbounded_is(self, most: int) -> None:
        """What is about to be written as its maximum of nodes in place of none; 0: it has one."""
        self.unbounded = most

    def not_started(self, now: float, why: Reason, at_once: bool, avoid: bool) -> None:
        """Slurm did not start it. It is queued again, at once the first time, then after growing pauses.

        at_once: whether an immediate retry is allowed. avoid: whether the nodes may be the cause.
        """
        self.failures += 1
        at_once = at_once and self.failures == 1
        pause = 0.0 if at_once else backoff_s(FIRST_BACKOFF_S, LONGEST_BACKOFF_S, self.failures - 2)
        if self.pin is not None and self.failures > 1 and avoid and not self.by_slurm:
            self.avoided_nodes.update(dict.fromkeys(self.pin.gpus, now + LONGEST_BACKOFF_S))
        self.state, self.pin, self.retry_at, self.reason = JobState.INELIGIBLE, None, now + pause, why

    def next_task(self) -> None:
        """Mode order: Slurm has started a task of this array, and the next one is pending."""
        self.state, self.pin, self.reason = JobState.INELIGIBLE, None, None

    def over_limit(self, now: float, why: Reason) -> None:
        """Slurm did not start it for a limit that it shares with others: it waits as before, in its place."""
        self.state, self.pin, self.retry_at, self.reason = JobState.INELIGIBLE, None, now, why

    def started(self) -> None:
        """Slurm has started it."""
        self.state, self.reason = JobState.RUNNING, None

    def allocated(self, placement: Placement | None) -> None:
        """Set the allocation in the record. placement: None if its alpha cannot be computed."""
        self.allocation, self.placement = self.record.gpus_by_node, placement

    def run_began(self, rate: float) -> None:
        """A run begins. rate: GPU-seconds of the reference type attained per second."""
        self.service = replace(self.service, began=self.record.start_time, rate=rate, head="")

    def size_predicted(self, expected: float, until: float) -> None:
        """expected: GPU-seconds that it will attain in all, 0 for none. until: attained ones, then predict again."""
        self.service = replace(self.service, expected=expected, predicted_until=until)

    # begin times and leases

    def begin_time_set(self, begin_time: float) -> None:
        """Its owner, or Slurm at a requeue, has set a begin time. 0: none."""
        self.begin_time = begin_time

    def lease_seen(self, until: float) -> None:
        """Slurm shows a lease of asrptd or the hook; if the answer to the last one was lost, which of them holds."""
        newer = self.lease_before and abs(until - self.lease_until) < abs(until - self.lease_before)
        if newer or not self.lease_until:
            self.lease_until, self.lease_before, self.lease_spread = until, 0.0, 0.0

    def lease_intended(self, until: float, spread: float) -> None:
        """A lease is about to be written.

        If asrptd dies or the answer is lost, either this lease or the current one is in effect. Without this note,
        asrptd would mistake its own lease for a begin time set by the owner.
        """
        self.lease_before, self.lease_until, self.lease_spread = self.record.eligible_time, until, spread

    def lease_written(self, spread: float) -> None:
        """Slurm has accepted the lease. The older record is adjusted."""
        self.follow(replace(self.record, eligible_time=self.lease_until))
        self.lease_before, self.lease_spread = 0.0, spread

    def lease_refused(self, spread: float) -> None:
        self.lease_until, self.lease_before, self.lease_spread = self.lease_before, 0.0, spread

    def to_be_confined(self) -> None:
        """Slurm is about to get the limit of one node for it."""
        self.original, self.confined = self.original or original(self.record), True

    def not_confined(self) -> None:
        """Slurm has not got it."""
        self.original, self.confined = None, False

    def confined_no_longer(self) -> None:
        """It gets all of a pin, or what is written of one is taken off in the next cycle."""
        self.confined = False

    @property
    def is_released_ahead(self) -> bool:
        """In mode enforce: Slurm may start it, or is about to be told so."""
        return self.site_factor is not None

    def released_ahead(self, now: float, factor: int) -> None:
        """Slurm may start it as soon as there is room. factor: its SiteFactor. The older record is adjusted."""
        nodes = 1 if self.confined else self.record.max_nodes
        self.follow(replace(self.record, eligible_time=min(self.record.eligible_time, now), max_nodes=nodes))
        self.site_factor, self.lease_until, self.postponed = factor, 0.0, False

    def inherit_lease(self, rest: ManagedJob) -> None:
        """Set the lease of a task that was just split from its array: that of the array's other tasks."""
        if self.record.submit_time == rest.record.submit_time:
            self.lease_until, self.lease_before = rest.lease_until, rest.lease_before
            self.lease_spread = rest.lease_spread

    # mode order, and the release to Slurm

    def site_factor_is(self, factor: int | None) -> None:
        self.site_factor = factor

    def standing_is(self, standing: Standing) -> None:
        """Set its priority under the rules of the site."""
        self.standing = standing

    def priority_seen(self, priority: int) -> None:
        """Set its priority in Slurm, 0 while it is held. The first one is kept."""
        self.first_priority = (self.first_priority or priority) if priority else 0

    def handed_over_is(self, done: bool) -> None:
        """Set whether the hook's lease on a job that is left to Slurm has been removed."""
        self.handed_over = done

    def released(self, now: float, fields: Iterable[str]) -> None:
        """Slurm has reset these fields of the job. The older record is adjusted."""
        if "SiteFactor" in fields:
            self.site_factor = None
        if "StartTime" in fields:
            self.follow(replace(self.record, eligible_time=max(now, self.not_before)))
            self.lease_until = 0.0

    # preemption and requeues

    def interruption_decided(self, now: float, head: str) -> None:
        """A preemption was decided. It counts, whatever its outcome, except before maintenance (head: "")."""
        self.service = replace(self.service, interruptions=self.service.interruptions + bool(head))
        self.interruption = Interruption(now, head)

    def interruption_resumed(self, now: float) -> None:
        """Slurm has forgotten the requeue of its run, so asrptd repeats it."""
        self.interruption = Interruption(now, self.service.head)

    def signalled(self, now: float, mark: str) -> None:
        if self.interruption is not None:
            self.interruption = replace(self.interruption, sent=now, mark=mark)

    def to_be_requeued(self) -> None:
        """The requeue is about to be requested, which ends its run."""
        if self.service.began:
            self.requeued_run = RequeuedRun(self.service.began, self.record.restarts, self.original)

    def requeue_accepted(self, silent_s: float) -> None:
        """silent_s: how long asrptd has waited in vain for a checkpoint, 0 if the job has reported one."""
        if self.interruption is not None:
            self.interruption = replace(self.interruption, asked=True)
        self.service = replace(self.service, silent_s=silent_s)

    def owner_told(self) -> None:
        self.service = replace(self.service, told=True)

    def requeue_refused(self) -> None:
        """Slurm refused the requeue, so the run continues."""
        self.requeued_run = None

    def requeued_again(self) -> None:
        """It was requeued again, because Slurm had forgotten the first requeue and the removal of the pin."""
        self.original = self.original or (self.requeued_run.original if self.requeued_run else None)

    def interruption_over(self) -> None:
        self.interruption = None

    def cut(self, until: float) -> None:
        """A requeue has ended its run."""
        if self.interruption is not None:
            self.to_be_requeued()
        self.service = self.service.cut(until, self.interruption)
        self.interruption = None

    def waits_again(self) -> None:
        """It was requeued with the same submit time."""
        self.state, self.pin, self.placement = JobState.INELIGIBLE, None, None
        self.begin_time, self.lease_until = None, 0.0

    def continue_from(self, before: ManagedJob) -> None:
        """Adopt what asrptd has written from the job before its requeue, because Slurm keeps pin and SiteFactor."""
        self.tag, self.original, self.by_slurm = before.tag, before.original, before.by_slurm
        self.site_factor = before.site_factor
        self.service, self.requeued_run = before.service, before.requeued_run

    def ended(self) -> None:
        """It has ended, but may be requeued. The run's own values are dropped, because many ended jobs are saved."""
        self.service, self.interruption = self.service.cut(self.record.end_time, None), None
        self.placement = self.forecast = None

    # forecasts

    def forecast_is(self, forecast: Forecast | None) -> None:
        self.forecast = forecast

    # saved state

    def dump(self) -> str:
        """The saved state as JSON text. It is cached, because it rarely changes."""
        values = of_job(self)
        if values != self._dumped[0]:
            self._dumped = (values, to_json(self))
        return self._dumped[1]

    def restore(self, raw: Any, now: float) -> None:
        """Restore the saved state of a job that Slurm still has, completely or not at all. Raises ValueError."""
        saved = from_raw(raw, now)
        if saved.submit_time == self.record.submit_time:
            for name in SAVED:
                if name not in FROM_SLURM:
                    setattr(self, name, getattr(saved, name))
            return
        if _still_pinned(self.record, saved):  # else it is another job with the same number
            self.original = saved.original
        if self.record.restarts > 0:  # Slurm keeps it
            self.site_factor = saved.site_factor
        restarts = math.inf if saved.restarts is None else saved.restarts
        if self.record.restarts > restarts:  # requeued while no daemon ran
            self.service = saved.service.cut(self.record.submit_time, saved.interruption)
            over = RequeuedRun(saved.service.began, int(restarts), saved.original)
            self.requeued_run = over if saved.interruption else saved.requeued_run
        elif saved.requeued_run is not None and saved.requeued_run.is_of(self.record):
            self.service, self.requeued_run = saved.service, saved.requeued_run


def _still_pinned(record: JobRecord, saved: SavedJob) -> bool:
    """Whether a job with another submit time is the same job, requeued with its pin while no daemon ran.

    The pin of a job whose nodes Slurm chooses is only its priority.
    """
    pin = saved.pin
    if record.restarts and saved.confined:
        return True
    if pin is None or not record.restarts:
        return False
    return bool(saved.by_slurm) or record.required_nodes == pinned_nodes(pin.gpus)
