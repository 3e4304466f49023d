"""asrpt-gated: jobs in the order of predicted workload, started only in good placements (docs/decisions/0007).

It uses the prediction, job graph and Heavy-Edge of A-SRPT, but another rule for starting jobs:

1. Order. Jobs are considered by band (the site's priorities), then by estimated workload over weight, g_i s_i / w_i,
   least first (Smith's rule). s_i: the runtime in the best placement, on reference GPUs, estimated from the prediction
   ñ_i α̃_i^min, the time limit and the runtime of a job that was submitted next to it (``similar``), and calibrated by
   the jobs that have ended (``estimates``).
2. Gate. A job starts only on the fewest servers that could ever hold it, with α/α̃^min <= ``gate``. Single servers are
   chosen by the time at which they will be free, so that jobs that end together run together, several ones under the
   fewest switches (docs/decisions/0038). (With ``contention``, a job uses more servers if that is faster and no other
   job waits: docs/decisions/0013.)
3. Reservation. A job that cannot start reserves the servers that are predicted to be free soonest. Jobs behind it may
   use them only until then, and must not delay the time at which any other busy server that it could use will be free.
   GPU time that the reservation is expected to leave idle counts as work of the jobs that need such servers, shared
   among them: the job gets its reservation in the place in the order that it has with it (docs/decisions/0033, 0049).
4. Patience. A job that has waited for ``patience_s`` goes before all younger jobs of its band, and keeps the servers
   that it reserves, after twice that time for itself alone. Such jobs hold at most ``late_share`` of all GPUs, or one
   of them holds more, which is then made up for (module ``late_share``). Jobs with a turn do so at once and without
   this bound, in the order of their turns: a job whose nodes Slurm must choose has the place that Slurm itself would
   give it (docs/decisions/0031).
   If servers are equal and none disappears, a job that requests only GPUs therefore starts within
   2 (k+1) L (1 + M / (late_share G)) seconds after twice its patience, however wrong the predictions. k: the jobs
   submitted before it that still waited then. L: the longest run of any job. M: the GPUs of the servers that the
   largest job needs. G: all GPUs (``sim.metrics.latest_starts``, tests/property/test_gated_promise.py).
5. Kinds of GPU. The gate applies to each kind, with α̃^min on its servers. A job starts on the best kind with room for
   it (``gpu_types``), and waits for a faster kind only if it would exceed its time limit. Its reservation is on the
   kind on which it is predicted to end first (docs/decisions/0017).
6. Preemption. Where the site lets a job preempt others, it goes before these jobs, late or not. If it does not fit into
   the free GPUs, it starts on the servers where the jobs that Slurm preempts for it lose least (docs/decisions/0027).
7. Interruptions, if ``interrupts`` is set: a job with little work may preempt jobs with much, if the owners of both
   agree (module ``interruptions``, docs/decisions/0037). With ``fills``, jobs whose owners agree also use GPUs that are
   kept for others, until these can start (module ``fillers``, docs/decisions/0047).

Two special cases: If a job cannot start although all its servers are idle (a lack of CPUs or memory), it gets no
reservation, because no job's end would help. If only the gate keeps a job from idle servers, it starts there anyway.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, PreemptionClass, id_key
from slurm_asrpt.core.placement.selection import packed_alpha
from slurm_asrpt.core.policies.base import (
    Decision,
    Phase,
    Policy,
    Preempt,
    Reason,
    Run,
    Start,
    Wait,
    before_band,
    behind,
    head_rank,
    lacks_room,
    no_room,
    over_limit,
    reason,
    updated_rank,
)
from slurm_asrpt.core.policies.gated.estimates import Estimates, Known
from slurm_asrpt.core.policies.gated.free_times import FreeTimes
from slurm_asrpt.core.policies.gated.gpu_types import Choice, Choices, covering, within_limit
from slurm_asrpt.core.policies.gated.idle_time import Overruns, of_delay, shared
from slurm_asrpt.core.policies.gated.interruptions import CONSIDERED, Claim, Interruptions
from slurm_asrpt.core.policies.gated.late_share import LateShare
from slurm_asrpt.core.policies.gated.next_starts import Pool, Room, able_mask, next_starts
from slurm_asrpt.core.policies.gated.options import GatedOptions
from slurm_asrpt.core.policies.gated.placement import Placer
from slurm_asrpt.core.policies.gated.queue import FirstBySize, Key, Waiting, Waitlist
from slurm_asrpt.core.policies.gated.reach import Reach
from slurm_asrpt.core.policies.gated.saved_state import (
    Queued,
    State,
    read_state,
    restore_reservation,
    saved_reservation,
)
from slurm_asrpt.core.policies.gated.servers import Reservation, Servers, bits
from slurm_asrpt.core.policies.gated.similar import SimilarJobs
from slurm_asrpt.core.policies.nic_contention import NicContention
from slurm_asrpt.core.policies.running_jobs import NO_END_S, RunningJob, RunningJobs
from slurm_asrpt.core.preemptable import precedence

Ranks = Mapping[PreemptionClass | None, int]
EXCLUSIVE_AFTER = 2.0
"""After this many times ``patience_s``, a waiting job keeps its servers for itself alone."""
_INF = float("inf")


class Started(NamedTuple):
    """What was known about the runtime of a running job, its α/α̃_min, and its runtime in earlier runs, seconds."""

    known: Known
    slowdown: float
    had: float = 0.0


class Gated(Policy):
    """Work-conserving by predicted workload, gated by placement, with a reservation and a bound on every delay.

    gate: the largest α/α̃^min with which a job starts. patience_s: the wait after which a job goes first, seconds.
    contention: no bandwidth is reserved; jobs that use the same NICs affect each other's α.
    """

    Options = GatedOptions
    start_key = ("rank", "gpu_seconds", "submitted")
    bands = True
    preempting = True

    def __init__(self, fabric: Fabric, options: GatedOptions) -> None:
        super().__init__(fabric, options)
        self.gate, self.patience_s = options.gate, options.patience_s
        # else the room that fillers make for a job could go to one that is scattered
        self.scatter = options.scatter and not (options.interrupts and options.fills)
        self.contention = NicContention(fabric) if options.contention else None
        self._nodes: tuple[Node, ...] = ()
        self._size = 0  # GPUs of every server, 0 if they differ
        self._largest = 0  # GPUs of the largest server
        self._placer = Placer((), fabric, self.gate, self.contention)
        self._running_jobs = RunningJobs(())
        self._reach = Reach((), fabric, self.gate)
        self._choices = Choices((), self._running_jobs, self._alpha, self.gate)
        self._queue = Waitlist(self.patience_s)
        self._estimates, self._similar = Estimates(), SimilarJobs()
        self._started: dict[JobId, Started] = {}
        self._late = LateShare(options.late_share)
        self._overruns = Overruns()
        self._returns = 0
        self._preempts = False  # whether a job has come that may preempt others
        self._victims: Collection[str] = frozenset()  # kinds of running jobs that others may preempt
        self.reservation: Reservation | None = None  # after the last decision
        self._put_back: dict[JobId, Key] = {}  # jobs of this decision that cannot start: their places with idle time
        self._yielding: dict[JobId, Key] = {}  # jobs of this decision that could: their places behind larger ones
        self._sizes: FirstBySize | None = None  # in this decision, once it has been asked
        self._waits: dict[JobId, Wait] = {}  # from the last decision
        self._left: Plan | None = None  # the cluster after the last decision
        self.interrupts, self._fills = options.interrupts, options.fills
        self._interruptions = Interruptions(options)
        self._fill_at: float | None = None  # when GPUs that are kept now may be filled

    # events

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self._nodes = tuple(sorted(nodes, key=lambda node: node.index))
        models = {(node.gpus, node.gpu_type, node.speed) for node in nodes}
        self._size = models.pop()[0] if len(models) == 1 else 0
        self._largest = max((node.gpus for node in nodes), default=0)
        self._late.advance(now)
        self._late.total = sum(node.gpus for node in nodes)
        self._placer = Placer(self._nodes, self.fabric, self.gate, self.contention)
        self._reach = Reach(self._nodes, self.fabric, self.gate)
        self._set_running(self._running_jobs.runs)
        self.reservation = None
        self._overruns.forget()
        claiming = self._interruptions.drop_claims()
        for entry in claiming:
            self._late.running.pop(entry.job.id, None)
        for entry in [*self._queue.clear(), *claiming]:
            self._enter(entry.job, entry.key[0], entry.since)

    def _set_running(self, runs: Mapping[JobId, RunningJob]) -> None:
        self._running_jobs = RunningJobs(self._nodes, runs)
        self._choices = Choices(self._nodes, self._running_jobs, self._alpha, self.gate, self._reach)
        if self.contention is not None:
            for job_id, run in runs.items():
                self.contention.seen(job_id, run.gpus)

    def _alpha(self, job: Job, nodes: Sequence[Node]) -> float:
        known = self.contention
        return packed_alpha(job, nodes, self.fabric) if known is None else known.packed_alpha(job, nodes)

    def submitted(self, job: Job, now: float) -> bool:
        self._stop_running(job.id)  # requeued while the daemon was away
        since = self._interruptions.waited.pop(job.id, math.inf)
        self._enter(job, job.band, min(since, max(now, job.submit_time)))  # time spent in hold does not count
        return False

    def returned(self, job: Job, now: float) -> None:
        self._stop_running(job.id)
        self._returns += 1
        self._enter(job, head_rank(job, self._returns), job.submit_time)

    def changed(self, job: Job, now: float) -> None:
        held, entry = self.reservation, self._leave(job.id)
        if entry is not None:
            self._enter(job, updated_rank(job, entry.key[0]), entry.since)
            if held is not None and held.job == replace(job, turn=held.job.turn):  # only its turn is another
                self.reservation = replace(held, job=job)

    def finished(self, job_id: JobId, now: float) -> None:
        self._leave(job_id)
        self._late.advance(now)
        started, run = self._started.get(job_id), self._running_jobs.runs.get(job_id)
        preempted = self._interruptions.ended(job_id)
        if run is not None and started is not None and not preempted:
            seconds = started.had + (now - run.start) / started.slowdown
            self._estimates.ended(started.known, seconds)
            self._estimate_again(self._similar.ended(job_id, seconds))
        self._stop_running(job_id)

    def started_by_slurm(self, job_id: JobId, gpus: Mapping[str, int], now: float) -> None:
        """A waiting job runs. On one server, or if it may be scattered, it runs as in its best placement.

        Else only its time limit is known.
        """
        entry = self._queue.entries.get(job_id)
        if entry is None or not entry.choices or (len(gpus) != 1 and not self.scatters(entry.job)):
            self.finished(job_id, now)
            return
        self._late.advance(now)
        self._leave(job_id)
        self._began(entry, dict(gpus), 1.0, now)

    def running(self, job_id: JobId, gpus: Mapping[str, int], until: float, now: float) -> None:
        """A running job, possibly one that the policy did not start: then only its time limit is known."""
        self._leave(job_id)
        if self.contention is not None:
            self.contention.seen(job_id, gpus)
        known = self._running_jobs.runs.get(job_id)
        if known is None:
            self._running_jobs.began(job_id, RunningJob(now, min(until, now + NO_END_S), dict(gpus)))
        elif known.gpus != gpus:  # Slurm allocated other GPUs than planned
            self._running_jobs.began(job_id, replace(known, gpus=dict(gpus)))

    def _stop_running(self, job_id: JobId) -> RunningJob | None:
        self._started.pop(job_id, None)
        self._similar.stopped(job_id)
        self._interruptions.fillers.gone(job_id)
        self._late.running.pop(job_id, None)
        if self.contention is not None:
            self.contention.ended(job_id)
        return self._running_jobs.ended(job_id)

    def _enter(self, job: Job, rank: float, since: float, seconds: float | None = None) -> None:
        """Queue a job. seconds: its estimated runtime, if it was set before."""
        self._preempts = self._preempts or bool(job.preempts)
        choices, to_reference = self._choices.of(job)
        best = choices[0].best if choices else 1.0
        if job.id in self._queue.entries:
            self._similar.left(self._queue.entries[job.id].job)
        self._similar.waits(job)
        whole = seconds or self._estimates.seconds(self._known(job, best))
        seconds = seconds or self._interruptions.left_s(job, whole, to_reference)
        number = id_key(job.id)
        favor = self._interruptions.favor(job)
        key = (rank, favor * job.gpus * seconds * to_reference / job.weight, job.submit_time, number, job.id)
        if len(choices) > 1 and job.predicted_iterations:
            choices = within_limit(choices, job)
        shape = self._shape(job) if rank == job.band else (rank, job.id)  # a returned job is alone in its shape
        shape = (len(choices), shape) if len(choices) > 1 else shape
        kind = (rank, job.weight, shape) if rank or job.weight != 1.0 else shape
        age = (_INF if job.turn is None else job.turn, since, number, job.id)
        self._queue.enter(Waiting(job, key, seconds, choices, kind, shape, age))

    def _estimate_again(self, waiting: Iterable[JobId]) -> None:
        """Estimate the runtimes of jobs again: more is known about similar jobs."""
        for job_id in waiting:
            entry = self._queue.entries[job_id]
            self._enter(entry.job, entry.key[0], entry.since)

    def _known(self, job: Job, best: float) -> Known:
        """best: α̃_min of the job."""
        return Known(job.predicted_iterations * best, job.time_limit, self._similar.runtime(job))

    def _shape(self, job: Job) -> Hashable:
        """The shape of a job. Jobs of one shape can start on the same servers, and count against the same limits."""
        if job.preemption is not None:
            return (job.preemption, self._shape(replace(job, preemption=None)))
        if job.charges:
            return (job.charges, job.profile, job.request)
        if job.request is not ANYWHERE:
            return (job.profile, job.request)
        return job.gpus if job.gpus <= self._size else job.profile

    def _leave(self, job_id: JobId) -> Waiting | None:
        if self.reservation is not None and self.reservation.job.id == job_id:
            self.reservation = None
        claim = self._interruptions.claims.pop(job_id, None)
        if claim is not None:
            self._late.running.pop(job_id, None)
            return claim.entry
        entry = self._queue.leave(job_id)
        if entry is not None:
            self._similar.left(entry.job)
        return entry

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        previous, self.reservation = self.reservation, None
        self._waits.clear()
        self._put_back.clear()
        self._yielding.clear()
        self._sizes = None
        self._queue.release(cluster.headroom)
        self._late.advance(now)
        self._estimate_again(self._similar.outlived(now))
        fillers = self._interruptions.to_give_back() if self.interrupts else ()
        servers, starts = Servers(cluster, self._running_jobs, fillers), list[Decision]()
        if self._interruptions.claims:
            starts += self._on_claims(servers, now)
        for entry in self._in_order(now, servers, previous):
            placement = self._place(entry, servers, previous, now) if entry.job.gpus <= servers.free else None
            if placement is not None and self._lets_larger_go_first(entry, placement, servers, previous, now):
                continue
            if placement is None and entry.job.preempts:
                placement = self._place_by_preemption(entry, servers, now)
            if placement is None and servers.fillers and self.reservation is None:
                preempted = self._preempt_fillers(entry, servers, previous, now)
                if preempted:
                    starts += preempted
                    continue
            if placement is None and self.reservation is None:
                placement = self._scattered(entry, servers, now) or self._reserve(entry, servers, previous, now)
            if placement is not None:
                starts.append(self._start(entry, placement, servers, now))
        if self.interrupts:
            starts += self._interrupt_and_fill(servers, now)
        self._left = servers.plan
        if self._preempts:
            self._victims = _kinds_running(cluster, starts)
        self._note_kept(servers)
        self._overruns.follow(self.reservation, self._queue.entries, now)
        return [*starts, *self._waits.values()] if self._waits else starts

    def _note_kept(self, servers: Servers) -> None:
        """Note which GPUs are kept idle from now on for a late job."""
        held, free = self.reservation, servers.view.free
        exclusive = held is not None and held.exclusive
        self._late.kept = sum(free[self._nodes[at].name] for at in bits(held.mask)) if held and exclusive else 0

    def _goes_first(self, entry: Waiting, previous: Reservation | None, now: float) -> bool:
        """Whether a job goes before its turn by work: it has one in Slurm's order, or it is late and within the share.

        A late job that has servers keeps them.
        """
        if entry.job.turn is not None:
            return True
        if not self._queue.is_late(entry, now):
            return False
        own = previous is not None and previous.kept and previous.job.id == entry.job.id
        held = self.reservation  # of an older job
        claimed = held.job.gpus if held is not None and held.kept and held.job.turn is None else 0
        return own or self._late.allows(entry.job.gpus, claimed)

    def _in_order(self, now: float, servers: Servers, previous: Reservation | None) -> Iterator[Waiting]:
        """The jobs to consider, each behind those that may preempt it, by band: late jobs by age, then by workload.

        If a job does not start, no job of its shape with the same or a longer runtime is considered: during a decision,
        free servers only decrease. Jobs that need more GPUs than are free are considered only until one has a
        reservation.
        """
        failed: dict[Hashable, float] = {}
        late = list(self._queue.late(now))
        ranks = self._ranks([*late, *self._line_heads()]) if self._preempts else {}
        for rank in sorted(set(ranks.values())) or [0]:
            aged = [entry for entry in late if _rank(entry, ranks) == rank]
            for band in sorted({entry.job.band for entry in aged}):
                yield from self._heads(servers, failed, band, ranks, rank)
                first = (entry for entry in aged if entry.job.band == band)
                if not (yield from self._aged(first, servers, failed, previous, now)):
                    break
            yield from self._heads(servers, failed, _INF, ranks, rank)

    def _line_heads(self) -> list[Waiting]:
        """The first job of each kind of those that could start, but for those that a limit holds."""
        entries = self._queue.entries
        return [entries[key[-1]] for line in self._queue.lines.values() for key in line.heads.values()]

    def _ranks(self, waiting: Sequence[Waiting]) -> Ranks:
        """The rank of each class of these jobs: behind those of the jobs that may preempt it."""
        classes = {entry.job.preemption for entry in waiting}
        order = precedence(classes)
        return {each: order[each.kind] if each else 0 for each in classes}

    def _aged(
        self,
        late: Iterable[Waiting],
        servers: Servers,
        failed: dict[Hashable, float],
        previous: Reservation | None,
        now: float,
    ) -> Generator[Waiting, None, bool]:
        """The jobs that go before their turn by work. Returns whether the share of late jobs has room for all."""
        for entry in late:
            if not self._goes_first(entry, previous, now):
                return False
            if self._may_start(entry, servers, failed):
                yield entry
                if entry.job.id in self._queue.entries:
                    failed[entry.shape] = entry.seconds
                elif entry.job.turn is None:
                    self._late.running[entry.job.id] = entry.job.gpus
        return True

    def _heads(
        self, servers: Servers, failed: dict[Hashable, float], before: float, ranks: Ranks, rank: int
    ) -> Iterator[Waiting]:
        """The jobs of this rank in the bands below ``before``, by workload.

        A job that is put back comes a second time, if no other has a reservation by then; one that lets a larger job go
        first, in any case.
        """
        if not servers.room:
            return
        # keys differ by job ID, so kinds and lines are never compared
        lines = self._queue.lines.values()
        heads = [
            (key, False, kind, line) for line in lines for kind, key in line.heads.items() if math.ceil(key[0]) < before
        ]
        if ranks:
            heads = [head for head in heads if _rank(self._queue.entries[head[0][-1]], ranks) == rank]
        heapq.heapify(heads)
        while heads and servers.room:
            key, again, kind, line = heapq.heappop(heads)
            entry = self._queue.entries[key[-1]]
            if again and self.reservation is not None and entry.job.id not in self._yielding:
                continue
            if self._may_start(entry, servers, {} if again else failed):
                yield entry
                following = line.heads.get(kind)
                waits = following == entry.key  # it could not start
                if waits:
                    failed[entry.shape] = entry.seconds
                    following = None if again else self._place_behind(entry.job.id)
                elif again:
                    failed.pop(entry.shape, None)
                if following is not None:
                    heapq.heappush(heads, (following, waits, kind, line))

    def _place_behind(self, job_id: JobId) -> Key | None:
        """The second place in this decision of a job that did not start; None if it has none."""
        return self._yielding.get(job_id) or self._put_back.get(job_id)

    def _may_start(self, entry: Waiting, servers: Servers, failed: Mapping[Hashable, float]) -> bool:
        job = entry.job
        if job.charges and (limit := servers.plan.over_limit(job)):
            self._queue.hold(job.charges, limit)
            return False
        if job.gpus > servers.room_for(job) and self.reservation is not None:
            return False
        return entry.seconds < failed.get(entry.shape, _INF)

    def _start(self, entry: Waiting, placement: Placement, servers: Servers, now: float) -> Start:
        job = entry.job
        best = entry.choices[0].best
        slowdown = placement.alpha / best if best else 1.0
        victims = servers.start(job, placement)
        self._leave(job.id)
        if self.contention is not None:
            self.contention.started(job.id, placement, job.profile)
        self._began(entry, placement.gpus, slowdown, now)
        return Start(job, placement, entry.key, victims)

    def _began(self, entry: Waiting, gpus: Mapping[str, int], slowdown: float, now: float) -> None:
        """A job runs from now on. slowdown: its α/α̃_min."""
        job, end = entry.job, now + entry.seconds * slowdown
        fills = job.id in self._interruptions.fillers.running
        self._running_jobs.began(job.id, RunningJob(now, end, gpus, fills))
        had = self._interruptions.had_s(job, self._choices.of(job)[1]) if self.interrupts else 0.0
        self._started[job.id] = Started(self._known(job, entry.choices[0].best), slowdown, had)
        if self.interrupts:
            self._interruptions.started(entry, self._queue.is_late(entry, now))
        self._similar.started(job, now, slowdown, end)

    def next_starts(self, most: int) -> Sequence[JobId]:
        """As ``Policy.next_starts``: the first jobs by work that fit on any server of their pool after an end there.

        Or only the job whose turn it is, if servers are kept for it alone.
        """
        if self._left is None or self.contention is not None or self._may_preempt():
            return ()
        if self._interruptions.claims or self._interruptions.fillers.running:
            return ()
        held = self.reservation
        if held is not None and held.exclusive and held.job.turn is not None:
            return (held.job.id,)[:most]
        if self._queue.any_late:
            return ()
        free, runs = self._left.view().free, self._running_jobs

        def pool(mask: int) -> Pool:
            here = {node.name: free[node.name] for node in map(self._nodes.__getitem__, bits(mask))}
            together = Room(sum(here.values()), *runs.freed_in_all(here)) if self.scatter else None
            return Pool(Room(max(here.values(), default=0), *runs.freed(here)), together)

        entries = [entry for entry in self._queue.entries.values() if entry.choices]
        ranks = self._ranks(entries) if self._preempts else {}
        if ranks and not ranks.items() >= self._ranks(self._line_heads()).items():
            return ()  # the order changes when a limit holds jobs no more
        order = sorted(entries, key=lambda one: (_rank(one, ranks), one.key))
        sizes = FirstBySize(self._queue)
        certain = takewhile(lambda entry: self._larger(entry, sizes) is None, order)
        waiting = ((entry, self._limited(entry) is not None) for entry in certain)
        every = (1 << len(self._nodes)) - 1
        return next_starts(waiting, most, self.reservation is None, every, pool, self.scatters)

    def _may_preempt(self) -> bool:
        """Whether a waiting job may preempt a running one: if it were released, Slurm would choose the nodes."""
        return bool(self._victims) and any(
            entry.choices and not entry.job.preempts.isdisjoint(self._victims) for entry in self._queue.entries.values()
        )

    # where to start

    def _place(self, entry: Waiting, servers: Servers, previous: Reservation | None, now: float) -> Placement | None:
        """The best placement in which a job may start now, or None."""
        job, protected = entry.job, self._protected()
        for choice in entry.choices:
            end = now + entry.lasts(choice.best)
            allowed = self._allowed(servers, end) | self._beside(job, choice, servers)
            found = self._placer.find(job, choice, servers, allowed, end, protected)
            if found is not None:
                alone = len(self._queue.entries) == 1
                return self._placer.wider(job, servers, found) if alone else found
        own = previous is not None and previous.kept and previous.job.id == job.id and self.reservation is None
        return self._on_kept(entry, servers, previous.mask) if own and previous is not None else None

    def scatters(self, job: Job) -> bool:
        """As ``Policy.scatters``."""
        return self.scatter and job.anyhow and not job.communication_known and job.turn is None

    def _scattered(self, entry: Waiting, servers: Servers, now: float) -> Placement | None:
        """With ``scatter``, a placement on more servers than the job needs, rather than a reservation."""
        job = entry.job
        if not self.scatters(job) or job.gpus > servers.free:
            return None
        allowed = self._allowed(servers, now)  # no other job has a reservation
        found = (self._placer.scattered(job, choice, servers, allowed) for choice in entry.choices)
        return next((placement for placement in found if placement is not None), None)

    def _place_by_preemption(self, entry: Waiting, servers: Servers, now: float) -> Placement | None:
        """The best placement on GPUs that are free or that the job may preempt, where its victims lose least."""
        job, able = entry.job, servers.preempting(entry.job)
        if able is None or servers.preemption is None or job.gpus > able.free:
            return None
        for choice in entry.choices:
            end = now + entry.lasts(choice.best)
            allowed = self._allowed(able, end) & choice.group.mask & ~able.masks[0]
            allowed = able.free_later(allowed, end, self._protected())
            names = servers.preemption.by_loss(job, [self._nodes[at].name for at in bits(allowed)])
            found = self._placer.on_first(job, choice, able, [able.view.bits[name] for name in names])
            if found is not None:
                return found
        return None

    def _protected(self) -> int:
        """Servers that others must not keep busy for longer than predicted: the reservation might move there.

        A late job keeps its servers for itself alone, so that the others do not matter. For parts of servers, a job on
        another part seldom matters.
        """
        held = self.reservation
        return 0 if held is None or held.kept or held.share else held.able

    def _allowed(self, servers: Servers, end: float) -> int:
        """The servers without a reservation before this predicted end, as a mask."""
        taken, able = self.reservation, servers.all
        if self._interruptions.claims:
            able &= ~self._interruptions.claimed
        return able if taken is None or (end <= taken.time and not taken.exclusive) else able & ~taken.mask

    def _beside(self, job: Job, choice: Choice, servers: Servers) -> int:
        """The servers on which the job leaves free what is reserved on parts of them, as a mask."""
        taken = self.reservation
        if taken is None or not taken.share or choice.group.free_times.needs(job).servers > 1:
            return 0
        return taken.beside(servers, job.gpus) & ~self._interruptions.claimed

    def _on_kept(self, entry: Waiting, servers: Servers, mask: int) -> Placement | None:
        """The placement on servers reserved for the job, with any alpha."""
        return self._placer.general(entry.job, covering(entry.choices, mask), servers, mask, _INF)

    # interruptions

    def served(self, waiting: Mapping[JobId, float], runs: Sequence[Run], now: float) -> None:
        """As ``PreemptivePolicy.served``."""
        self._interruptions.served(waiting, runs)
        self._settle(self._interruptions.fillers.firm(self._interruptions.runs))

    def _on_claims(self, servers: Servers, now: float) -> list[Decision]:
        """Start the jobs for which others have been preempted, on the servers of these."""
        starts = list[Decision]()
        for claim in self._interruptions.due(servers.view.bits, now):
            entry = claim.entry
            self._similar.waits(entry.job)
            self._queue.enter(entry)
            placement = self._on_kept(entry, servers, claim.mask)
            if placement is not None:
                starts.append(self._start(entry, placement, servers, now))
            else:
                self._late.running.pop(entry.job.id, None)
        return starts

    def _interrupt_and_fill(self, servers: Servers, now: float) -> list[Decision]:
        known, found = self._interruptions, list[Decision]()
        self._settle(known.fillers.first(self.reservation, self._queue.entries))
        timely, self._fill_at = known.is_time(now), None
        if timely and known.runs:
            found += self._interrupt(servers, now)
        if self.reservation is not None and self._keeps(self.reservation, servers, now):
            if timely:
                found += self._fill(self.reservation, servers, now)
            else:
                self._fill_at = known.next_time
        return found

    def _keeps(self, held: Reservation, servers: Servers, now: float) -> bool:
        """Whether a reservation may keep GPUs idle that jobs could fill."""
        fillers = self._interruptions.fillers
        if not self._fills or not servers.free or not fillers.lasts(held, now):
            return False
        return any(map(fillers.able, self._queue.entries.values()))

    def _interrupt(self, servers: Servers, now: float) -> list[Decision]:
        """Preempt jobs for waiting ones with little work, which then wait for their GPUs only."""
        found = list[Decision]()
        self._interruptions.look(self._running_jobs, now)
        total = sum(node.gpus for node in self._nodes)
        lasts = sum([entry.job.gpus * entry.seconds for entry in self._queue.entries.values()]) / total  # the queue
        able = (entry for entry in self._queue.entries.values() if entry.job.interruptible and entry.choices)
        waiting = (each for each in able if not (each.job.charges and servers.plan.over_limit(each.job)))
        for entry in heapq.nsmallest(CONSIDERED, waiting, key=lambda one: one.key):
            held = self.reservation
            if held is not None and held.job.id == entry.job.id:
                time = held.time
            else:
                time = self._soonest(entry.job, entry.choices[0], servers, now)[1]
            chosen = self._interruptions.choose(
                entry, max(time - now, lasts), servers, self._nodes, self._running_jobs, now
            )
            if chosen is None:
                continue
            self._leave(entry.job.id)
            found += self._interruptions.claim(entry, chosen.mask, chosen.runs, now)
            self._interruptions.look(self._running_jobs, now)
        return found

    def _preempt_fillers(
        self, entry: Waiting, servers: Servers, previous: Reservation | None, now: float
    ) -> list[Preempt]:
        """Preempt fillers, if the job could start now without them. It starts when they have ended."""
        unfilled = servers.unfilled
        placement = self._place(entry, unfilled, previous, now) if entry.job.gpus <= unfilled.free else None
        if placement is None:
            self._running_jobs.extend_overdue(now)
            held = self._servers_for(entry, self._goes_first(entry, previous, now), unfilled, previous, now)
            placement = self._on_kept(entry, unfilled, held.mask) if self._idle(held.mask, unfilled) else None
        victims = servers.to_preempt(entry.job, placement) if placement is not None else []
        if placement is None or not victims:
            return []
        self._leave(entry.job.id)
        mask = sum([servers.view.bits[name] for name in placement.gpus])
        servers.preempted({run.job_id for run in victims})
        return self._interruptions.claim(entry, mask, victims, now)

    def _fill(self, held: Reservation, servers: Servers, now: float) -> list[Decision]:
        """Start jobs on GPUs that are kept for the job with the reservation, those with the least work first."""
        fillers, starts = self._interruptions.fillers, list[Decision]()
        waiting = (one for one in self._queue.entries.values() if fillers.able(one) and one.job.gpus <= servers.free)
        able = (one for one in waiting if one.job.id != held.job.id and not self._queue.is_late(one, now))
        allowed = servers.all & ~self._interruptions.claimed
        for entry in heapq.nsmallest(CONSIDERED, able, key=lambda one: one.key):
            for choice in entry.choices:
                end = now + entry.lasts(choice.best)
                placement = self._placer.find(entry.job, choice, servers, allowed, end, protected=0)
                if placement is not None:
                    fillers.started(entry)
                    starts.append(replace(self._start(entry, placement, servers, now), filling=held.job))
                    break
        return starts

    def _settle(self, fillers: Iterable[JobId]) -> None:
        """Some fillers go on as jobs like any other."""
        for job_id in fillers:
            if job_id not in self._interruptions.ending and job_id in self._running_jobs.runs:
                self._interruptions.fillers.gone(job_id)
                self._running_jobs.began(job_id, replace(self._running_jobs.runs[job_id], fills=False))

    # reservations

    def _lets_larger_go_first(
        self, entry: Waiting, placement: Placement, servers: Servers, previous: Reservation | None, now: float
    ) -> bool:
        """Whether a job that could start is put behind a larger one, which it would delay by more than it is worth.

        It is not if a job on these servers has outlived its prediction by far: it is unknown when they will be free.
        """
        if self.reservation is not None or entry.job.id in self._yielding or self._goes_first(entry, previous, now):
            return False
        self._sizes = self._sizes or FirstBySize(self._queue)
        larger = self._larger(entry, self._sizes)
        if larger is None or servers.plan.over_limit(larger.job):
            return False
        self._running_jobs.extend_overdue(now)
        held = self._servers_for(larger, False, servers.unfilled, previous, now)
        lasts = entry.lasts(placement.alpha)
        delay = min(lasts, now + lasts - held.time)
        mask = sum([servers.view.bits[name] for name in placement.gpus])
        if delay <= 0.0 or not held.mask & mask or self._running_jobs.any_outlived_by_far(bits(held.mask), now):
            return False
        rank, _, submitted, number, job_id = entry.key
        work = self._work_of_delay(entry, larger, self._in_use(held.mask, servers)) * delay / lasts
        if work <= self._work_with_idle(larger, held, servers, now):
            return False
        self._yielding[job_id] = (rank, work, submitted, number, job_id)
        return True

    def _larger(self, entry: Waiting, sizes: FirstBySize) -> Waiting | None:
        """The first larger job that cannot run beside it on any server, if it may have to wait for that one."""
        larger = sizes.larger(entry, self._largest)
        return None if larger is None or self._work_of_delay(entry, larger) <= larger.key[1] else larger

    def _work_of_delay(self, entry: Waiting, larger: Waiting, in_use: int = 0) -> float:
        """The work of a job if it delays a larger one for its whole runtime. in_use: GPUs on that one's servers."""
        waiting = self._queue.beside(entry, larger.job.gpus)
        return of_delay(entry.key[1], larger.job.gpus, waiting, in_use)

    def _in_use(self, mask: int, servers: Servers) -> int:
        free = servers.view.free
        return sum([node.gpus - free[node.name] for node in map(self._nodes.__getitem__, bits(mask))])

    def _work_with_idle(self, entry: Waiting, held: Reservation, servers: Servers, now: float) -> float:
        """The work of a job with the time that its reservation would leave idle, shared with jobs of as many GPUs."""
        idle = self._idle_time(held, servers.unfilled, now) * self._overruns.ratio(entry.job.gpus)
        return shared(idle / entry.job.weight, self._queue.works_from(entry))

    def _reserve(self, entry: Waiting, servers: Servers, previous: Reservation | None, now: float) -> Placement | None:
        """Reserve servers for a job that cannot start. Returns a placement if these servers are idle.

        If they would idle until then, the job is put back behind the jobs with less work than its own and that time,
        or less than the mean of k jobs of as many GPUs and that time.
        On unequal servers, the gate may exclude all placements that a job could ever get; then waiting is useless. A
        job that cannot start even on idle servers gets no reservation: it does not wait for another job's end.
        """
        self._running_jobs.extend_overdue(now)
        first = self._goes_first(entry, previous, now)
        job, held = entry.job, self._servers_for(entry, first, servers.unfilled, previous, now)
        if self._idle(held.mask, servers):
            placement = self._on_kept(entry, servers, held.mask)
            if placement is None:
                self._waits[job.id] = Wait(job, no_room(job, servers.plan))
            return placement
        if not first and job.id not in self._put_back:
            rank, _, submitted, number, _ = entry.key
            work = self._work_with_idle(entry, held, servers, now)
            self._put_back[job.id] = (rank, work, submitted, number, job.id)
            return None
        self.reservation = held
        coming = reason(Phase.WAITING, "reserved", need=job.gpus, in_s=self._until(held, now))
        self._waits[job.id] = Wait(job, lacks_room(job, servers.plan) or coming, held.time)
        return None

    def _until(self, held: Reservation, now: float) -> float | None:
        """Seconds until a reservation begins; None if that is the end of a job without a time limit."""
        return max(0.0, held.time - now) if self._running_jobs.is_estimate(held.time) else None

    def _idle_time(self, held: Reservation, servers: Servers, now: float) -> float:
        """For how long GPUs are predicted to idle until a reservation begins, seconds of reference GPUs."""
        free, idle_until = servers.view.free, self._running_jobs.idle_until
        most = held.share or max(free.values())
        nodes = [(at, self._nodes[at]) for at in bits(held.mask)]
        return sum([node.speed * idle_until(held.time, at, min(most, free[node.name]), now) for at, node in nodes])

    def _idle(self, mask: int, servers: Servers) -> bool:
        if mask & (self._running_jobs.used | servers.masks[0] | self._interruptions.claimed):
            return False
        free = servers.view.free
        return all(free[self._nodes[at].name] == self._nodes[at].gpus for at in bits(mask))

    def _servers_for(
        self, entry: Waiting, first: bool, servers: Servers, previous: Reservation | None, now: float
    ) -> Reservation:
        """A reservation of the servers that will be free soonest; a late job keeps its reserved servers."""
        job = entry.job
        own = previous if previous is not None and previous.job.id == job.id and previous.kept else None
        exclusive = first and (job.turn is not None or entry.since + EXCLUSIVE_AFTER * self.patience_s <= now)
        if first and own is not None and own.mask & self._running_jobs.used:
            time = max([now, *(self._ready_at(own, at, servers, now) for at in bits(own.mask))])
            return replace(own, time=time, exclusive=exclusive, able=able_mask(entry))
        found = [(*self._soonest(job, choice, servers, now), choice) for choice in entry.choices]
        mask, time, choice = min(found, key=lambda one: one[1] + entry.lasts(one[2].best))
        share = choice.group.free_times.needs(job).share(job)
        return Reservation(job, mask, time, kept=first, exclusive=exclusive, able=able_mask(entry), share=share)

    def _ready_at(self, held: Reservation, at: int, servers: Servers, now: float) -> float:
        """When one of its servers has what it needs of it."""
        if not held.share:
            return self._running_jobs.free_at[at]
        return self._running_jobs.room_at(at, held.share, servers.view.free[self._nodes[at].name], now)

    def _soonest(self, job: Job, choice: Choice, servers: Servers, now: float) -> tuple[int, float]:
        """The servers of a choice that will be free soonest, and when; jobs that it may preempt do not count.

        If those without a claim suffice, others are not considered: until when a claim will keep them is unknown.
        """
        able = servers.preempting(job)
        if able is None or servers.preemption is None:
            if claimed := self._interruptions.claimed:
                unclaimed = FreeTimes(self._nodes, self._running_jobs, choice.group.mask & ~claimed, self._reach)
                with suppress(ValueError):  # they are too few
                    return unclaimed.soonest(job, servers, now)
            return choice.group.free_times.soonest(job, servers, now)
        gone = servers.preemption.ids(job.preempts)
        staying = {job_id: run for job_id, run in self._running_jobs.runs.items() if job_id not in gone}
        others = RunningJobs(self._nodes, staying)
        others.extend_overdue(now)
        return FreeTimes(self._nodes, others, choice.group.mask, self._reach).soonest(job, able, now)

    def next_wakeup(self, now: float) -> float | None:
        """When the next job becomes late, or late jobs have paid for what they took before their turn.

        Or when a claim ends, or kept GPUs may be filled.
        """
        late = self._late.paid_at if self._queue.any_late else self._queue.next_late(now)
        times = [claim.until for claim in self._interruptions.claims.values()]
        return min([*times, *(time for time in (late, self._fill_at) if time is not None)], default=None)

    # what users see, and restarts

    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        """As ``Policy.queue``, by the places of the last decision (docs/decisions/0050)."""
        late = dict.fromkeys(entry.job.id for entry in self._queue.all_late(now))
        waiting = (entry for entry in self._queue.entries.values() if entry.job.id not in late)
        order, entries = [*late, *self._by_place(waiting)], self._queue.entries
        order.sort(key=lambda job_id: entries[job_id].job.band)
        if self._preempts:
            ranks = self._ranks(list(entries.values()))
            order.sort(key=lambda job_id: _rank(entries[job_id], ranks))
        higher = before_band([entries[job_id].job for job_id in order])
        able = (job_id for job_id in order if entries[job_id].choices and not self._limited(entries[job_id]))
        head = next(able, None)
        claims = [(job_id, self._room(claim)) for job_id, claim in self._interruptions.claims.items()]
        others = [(each, self._why(entries[each], ahead, head, higher[ahead], now)) for ahead, each in enumerate(order)]
        return [*claims, *others]

    def _by_place(self, waiting: Iterable[Waiting]) -> list[JobId]:
        """These jobs by their places in the last decision: none is before a job of its kind with less work."""
        places, last = list[tuple[Key, Key]](), dict[Hashable, Key]()
        for entry in sorted(waiting, key=attrgetter("key")):
            kind = (entry.job.charges, entry.kind)
            own = self._place_behind(entry.job.id) or entry.key
            last[kind] = max(own, last.get(kind, own))
            places.append((last[kind], entry.key))
        return [key[-1] for _, key in sorted(places)]

    def _room(self, claim: Claim) -> Reason:
        return reason(Phase.WAITING, "room", need=claim.entry.job.gpus, runs=", ".join(sorted(claim.victims)))

    def _why(self, entry: Waiting, ahead: int, head: JobId | None, higher: int, now: float) -> Reason:
        job, held = entry.job, self.reservation
        if not entry.choices:
            return reason(Phase.WAITING, "capacity", need=job.gpus)
        if job.id in self._waits:
            return self._waits[job.id].reason
        limited = self._limited(entry)
        if limited is not None:
            return limited
        short = lacks_room(job, self._left) if self._left is not None else None
        if short is not None:
            return short
        if held is not None:
            until = self._until(held, now)
            return reason(Phase.WAITING, "reservation", head=held.job.id, need=held.job.gpus, in_s=until)
        return behind(job.id, ahead, head, higher)

    def _limited(self, entry: Waiting) -> Reason | None:
        left = self._left
        return over_limit(entry.job, left) if entry.job.charges and left is not None else None

    def dump(self) -> dict[str, Any]:
        claimed = [claim.entry for claim in self._interruptions.claims.values()]
        rows = sorted([*self._queue.entries.values(), *claimed], key=lambda e: e.key)
        return State(
            [Queued(e.job.id, e.key[0], e.since, e.seconds) for e in rows],
            self._returns,
            self._running_jobs.runs,
            {job_id: (*one.known, one.slowdown, one.had) for job_id, one in self._started.items()},
            self._estimates.dump(),
            self._similar.dump(),
            self._late.dump(),
            saved_reservation(self.reservation, self._nodes),
            {self._nodes[at].name: time for at, time in self._running_jobs.outlived.items()},
            self._interruptions.dump(self._nodes) if self.interrupts else None,
            overruns=self._overruns.dump(),
        ).dump()

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        found = read_state(state)
        self._estimates, self._similar = Estimates(), SimilarJobs()
        self._estimates.load(found.estimates)
        self._similar.load(found.similar, jobs)
        self._queue.clear()
        self._interruptions = Interruptions(self._interruptions.options)
        if found.interruptions is not None and self.interrupts:
            self._interruptions.load(found.interruptions)
        self._waits.clear()
        self._returns = found.returns
        self._started = {
            job_id: Started(Known(*known), slowdown, had) for job_id, (*known, slowdown, had) in found.started.items()
        }
        self._late.load(found.late)
        self._overruns.load(found.overruns)
        filling = self._interruptions.fillers.running.keys()
        self._set_running({job_id: replace(run, fills=job_id in filling) for job_id, run in found.runs.items()})
        overdue = found.outlived
        self._running_jobs.outlived = {at: overdue[n.name] for at, n in enumerate(self._nodes) if n.name in overdue}
        for one in found.order:
            if one.job_id in jobs:
                self._enter(jobs[one.job_id], updated_rank(jobs[one.job_id], one.rank), one.since, one.seconds)
        self._restore_claims(found)
        self.reservation = restore_reservation(found.kept, self._nodes, jobs)

    def _restore_claims(self, found: State) -> None:
        """The claims of jobs that still wait, if all their servers still exist."""
        places = {node.name: at for at, node in enumerate(self._nodes)}
        for job_id, (names, victims, until) in found.claims.items() if self.interrupts else ():
            entry = self._queue.entries.get(job_id)
            if entry is not None and places.keys() >= set(names):
                self._leave(job_id)
                mask = sum(1 << places[name] for name in names)
                self._interruptions.claims[job_id] = Claim(entry, mask, frozenset(victims), until)
        for job_id in self._queue.entries:
            self._late.running.pop(job_id, None)


def _kinds_running(cluster: ClusterView, starts: Iterable[Decision]) -> set[str]:
    """The kinds of jobs that others may preempt, of those that run and of those that start now."""
    running = cluster.preemptable.jobs if cluster.preemptable else ()
    starting = (start.job.preemption for start in starts if isinstance(start, Start))
    return {job.kind for job in running} | {each.kind for each in starting if each is not None}


def _rank(entry: Waiting, ranks: Ranks) -> int:
    return ranks.get(entry.job.preemption, 0) if ranks else 0
