"""One decision of asrpt-gated while it is made: what is free, what is reserved, and which jobs have stood back."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from slurm_asrpt.core.cluster import ClusterView, Placement
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.base import Decision, PreemptibleRun, Start, Wait
from slurm_asrpt.core.policies.gated.jobs import Jobs
from slurm_asrpt.core.policies.gated.queue import FirstBySize, Key, Waiting
from slurm_asrpt.core.policies.gated.servers import Reservation, Servers, bits


class OneDecision:
    """Holds what lives for one decision; the modules beside this one ask it, and tell it what they have found.

    jobs: all jobs; those that start leave the queue at once. servers: the cluster after the starts so far. previous:
    the reservation of the last decision. reservation: that of this one, as soon as a job has one. made: the starts and
    preemptions so far. waits: why some jobs wait.
    put_back: the places, with the time that their servers would idle, of jobs that cannot start. yielding: the places
    behind larger jobs of jobs that could. fill_at: when GPUs that are kept now may be filled; None: not later.
    running_kinds: the kinds of jobs that others may preempt, of those that run now. kept_room: of limits of the site,
    what is kept for a late job: the job and its amount.
    """

    __slots__ = (
        "_sizes",
        "fill_at",
        "jobs",
        "kept_room",
        "made",
        "now",
        "previous",
        "put_back",
        "reservation",
        "running_kinds",
        "servers",
        "waits",
        "yielding",
    )

    def __init__(self, jobs: Jobs, cluster: ClusterView, previous: Reservation | None, now: float) -> None:
        fillers = jobs.interruptions.to_give_back() if jobs.interrupts else ()
        self.jobs, self.previous, self.now = jobs, previous, now
        self.servers = Servers(cluster, jobs.running, fillers)
        self.reservation: Reservation | None = None
        self.made = list[Decision]()
        self.waits: dict[JobId, Wait] = {}
        self.put_back: dict[JobId, Key] = {}
        self.yielding: dict[JobId, Key] = {}
        self.fill_at: float | None = None
        self.running_kinds: Collection[str] = ()
        self.kept_room: dict[str, tuple[Job, float]] = {}
        self._sizes: FirstBySize | None = None

    @property
    def sizes(self) -> FirstBySize:
        """The first waiting job of each size; to ask for once all jobs with claims are back in the queue."""
        if self._sizes is None:
            self._sizes = FirstBySize(self.jobs.queue)
        return self._sizes

    def kept_for(self, entry: Waiting) -> Reservation | None:
        """The servers that were kept for this job in the last decision; None if none were."""
        previous = self.previous
        return previous if previous is not None and previous.kept and previous.job.id == entry.job.id else None

    def goes_first(self, entry: Waiting) -> bool:
        """Whether a job goes before its turn by work: it has one in Slurm's order, or it is late and within the share.

        A late job that has servers keeps them.
        """
        if entry.job.turn is not None:
            return True
        if not self.jobs.queue.is_late(entry, self.now):
            return False
        held = self.reservation  # of an older job
        claimed = held.job.gpus if held is not None and held.kept and held.job.turn is None else 0
        return self.kept_for(entry) is not None or self.jobs.late.allows(entry.job.gpus, claimed)

    def keep_room_of_limits(self) -> None:
        """Keep room of limits for late jobs that go before their turn, for the first one of the highest band of each.

        Otherwise, a stream of smaller jobs that count against the same limit would never leave enough room. An infinite
        amount will never fit. (docs/decisions/0053)
        """
        late = self.jobs.queue.all_late(self.now) if self.jobs.queue.any_charges else ()
        for entry in sorted(late, key=lambda each: each.job.band):
            charges = entry.job.charges
            if charges and all(math.isfinite(amount) for _, amount in charges) and self.goes_first(entry):
                for limit, amount in charges:
                    self.kept_room.setdefault(limit, (entry.job, amount))

    def limit_kept_from(self, job: Job) -> JobId | None:
        """The late job for which room is kept that this job would need; None of one that goes before the late job."""
        room = self.servers.plan.headroom.room
        for limit, amount in job.charges if self.kept_room else ():
            owner, kept = self.kept_room.get(limit, (job, 0.0))
            if amount > room.get(limit, math.inf) - kept and not _goes_before(job, owner):
                return owner.id
        return None

    def second_place(self, job_id: JobId) -> Key | None:
        """The second place in the order of a job that did not start in its first one; None if it has none."""
        return self.yielding.get(job_id) or self.put_back.get(job_id)

    def start(self, entry: Waiting, placement: Placement, filling: Job | None = None) -> None:
        """Start a job. filling: the job for which its GPUs are kept."""
        job, jobs = entry.job, self.jobs
        best = entry.choices[0].best
        slowdown = placement.alpha / best if best else 1.0
        victims = self.servers.start(job, placement)
        self._leave(job.id)
        if jobs.contention is not None:
            jobs.contention.started(job.id, placement, job.profile)
        jobs.began(entry, placement.gpus, slowdown, self.now)
        self.made.append(Start(job, placement, entry.key, victims, filling))

    def preempt(self, victims: Sequence[PreemptibleRun], entry: Waiting, mask: int) -> None:
        """Preempt jobs for a waiting one, which gets these servers, a mask, when they have ended."""
        self._leave(entry.job.id)
        self.made += self.jobs.interruptions.claim(entry, mask, victims, self.now)

    def close(self, cluster: ClusterView) -> None:
        """Nothing else starts: note what counts until the next decision. cluster: as the decision was given it."""
        held, jobs = self.reservation, self.jobs
        free, nodes = self.servers.view.free, jobs.hardware.nodes
        exclusive = held is not None and held.exclusive
        jobs.late.kept = sum(free[nodes[at].name] for at in bits(held.mask)) if held and exclusive else 0
        jobs.overruns.follow(held, jobs.queue.entries, self.now)
        if jobs.any_preempts:
            running = cluster.preemptable.jobs if cluster.preemptable else ()
            starting = [start.job.preemption for start in self.made if isinstance(start, Start)]
            self.running_kinds = {job.kind for job in running} | {each.kind for each in starting if each is not None}

    def _leave(self, job_id: JobId) -> None:
        """A job waits no longer."""
        self.jobs.leave(job_id)
        if self.kept_room:
            self.kept_room = {limit: kept for limit, kept in self.kept_room.items() if kept[0].id != job_id}
        if self.reservation is not None and self.reservation.job.id == job_id:
            self.reservation = None


def _goes_before(job: Job, late: Job) -> bool:
    """Whether a late job has no room kept from this one: it is the same, of a higher band, or may preempt it."""
    preempts = late.preemption is not None and late.preemption.kind in job.preempts
    return job.id == late.id or job.band < late.band or preempts
