"""EASY backfill with the users' time limits, as Slurm's sched/backfill does it for its first job.

Jobs are queued in the order in which they became eligible. The head starts as soon as it fits; until then it has a
reservation at the earliest time at which it fits if every running job runs to its time limit. A job behind it may start
now if its own limit ends before that time, or if it leaves enough GPUs for the head (Lifka 1995; Mu'alem and Feitelson,
IEEE TPDS 12(6), 2001).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.free_index import Plan, quick_place
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, Request
from slurm_asrpt.core.limits import Charges, Held
from slurm_asrpt.core.placement.best_alpha import BestAlphas
from slurm_asrpt.core.placement.selection import Strategy
from slurm_asrpt.core.policies.base import (
    Decision,
    Phase,
    Policy,
    Reason,
    Start,
    Wait,
    behind,
    no_room,
    over_limit,
    reason,
)
from slurm_asrpt.core.policies.limit_tree import LimitTree
from slurm_asrpt.core.policies.options import PolicyOptions
from slurm_asrpt.core.policies.saved_amounts import amounts_of, read_amounts

ANY = 1e300
"""A bound on time limits that every job meets, in seconds; also the limit of jobs without one."""
_MOST_FREE = Strategy.MOST_FREE  # lookups of enum members are slow


class Running(NamedTuple):
    """A running job: the end of its time limit, in seconds, and the resources that it holds."""

    end: float
    gpus: Mapping[str, int]
    request: Request


@dataclass(slots=True)
class Reservation:
    """The reservation of the head of the queue. time: its start, seconds. extra: GPUs that the head leaves free."""

    job: Job
    time: float
    view: ClusterView | None  # the cluster at that time; None if only the number of free GPUs counts for the head
    extra: int

    def short(self, now: float) -> float:
        """The longest time limit, in seconds, that ends before the reservation; never that of a job without limit."""
        return min(self.time - now, ANY / 2)


Shape = tuple[int, Request | None, Charges]
"""GPUs, form of request and limits, which decide whether a job fits. None for ANYWHERE: hashing a request is slow."""


class EasyBackfill(Policy):
    """FIFO with a reservation for the head and backfill behind it, by the jobs' time limits.

    A running job beyond its limit (which Slurm would have killed) is expected to end at any moment. ``finished`` must
    also be called for running jobs that end; otherwise a job is assumed to hold its GPUs until its time limit.
    """

    start_key = ("place_in_queue",)

    def __init__(self, fabric: Fabric, options: PolicyOptions) -> None:
        super().__init__(fabric, options)
        self._best_alphas = BestAlphas((), fabric)
        self._jobs: dict[JobId, Job] = {}
        self._seats: dict[JobId, int] = {}  # place in the queue; negative for returned jobs
        self._next_seat, self._front_seat = 0, -1
        self._order: list[tuple[int, JobId]] = []  # heap of the seats; outdated entries are dropped at the top
        self._shapes: dict[Shape, LimitTree] = {}
        self._held: Held[Shape] = Held()  # shapes over a limit of the site: these
        self._held_shapes: dict[Shape, LimitTree] = {}
        self._too_large: set[JobId] = set()  # too large for the cluster: they do not block other jobs
        self._running: dict[JobId, Running] = {}
        self._ends: list[tuple[float, JobId]] = []  # of the running jobs, ascending
        self._blocked: Wait | None = None
        self._left: Plan | None = None  # the cluster after the last decision, if the head is blocked
        self._after: Plan | None = None  # the same in any case
        self.reservation: Reservation | None = None  # the head's, after the last decision

    # events

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self._best_alphas = BestAlphas(nodes, self.fabric)
        self._rebuild_queues()

    def _rebuild_queues(self) -> None:
        """Rebuild the queues of all waiting jobs by shape."""
        self._shapes.clear()
        self._held.clear()
        self._held_shapes.clear()
        self._too_large.clear()
        self._order.clear()
        for job_id, seat in sorted(self._seats.items(), key=lambda item: item[1]):
            self._enter(self._jobs[job_id], seat)

    def submitted(self, job: Job, now: float) -> bool:
        self._stop_running(job.id)  # requeued while the daemon was away
        self._enter(job, self._next_seat)
        self._next_seat += 1
        return self._left is not None and job.gpus > self._left.free

    def returned(self, job: Job, now: float) -> None:
        self._stop_running(job.id)
        self._enter(job, self._front_seat)
        self._front_seat -= 1

    def changed(self, job: Job, now: float) -> None:
        seat = self._seats.get(job.id)
        if seat is not None:
            self._leave(job.id)
            self._enter(job, seat)

    def finished(self, job_id: JobId, now: float) -> None:
        if job_id in self._jobs:
            self._leave(job_id)
        self._stop_running(job_id)

    def running(self, job_id: JobId, gpus: Mapping[str, int], until: float, now: float) -> None:
        known = self._running.get(job_id)
        self._stop_running(job_id)
        self._run(job_id, Running(min(until, ANY), dict(gpus), known.request if known else ANYWHERE))

    def _enter(self, job: Job, seat: int) -> None:
        self._jobs[job.id], self._seats[job.id] = job, seat
        if self._best_alphas.fits(job):
            shape = _shape(job)
            tree = self._shapes.get(shape)
            if tree is None:
                tree = self._held_shapes.get(shape)
            if tree is None:
                tree = self._shapes[shape] = LimitTree()
            tree.add(seat, job.id, _limit(job))
            heapq.heappush(self._order, (seat, job.id))
        else:
            self._too_large.add(job.id)

    def _leave(self, job_id: JobId) -> None:
        job = self._jobs.pop(job_id, None)
        if job is None:
            return
        del self._seats[job_id]
        self._too_large.discard(job_id)
        shape = _shape(job)
        tree, shapes = self._shapes.get(shape), self._shapes
        if tree is None:
            tree, shapes = self._held_shapes.get(shape), self._held_shapes
        if tree is not None:
            tree.remove(job_id)
            if not len(tree):
                del shapes[shape]
                self._held.drop(shape)

    def _start_running(self, job: Job, placement: Placement, now: float) -> None:
        self._run(job.id, Running(now + _limit(job), placement.gpus, job.request))

    def _run(self, job_id: JobId, run: Running) -> None:
        self._running[job_id] = run
        insort(self._ends, (run.end, job_id))

    def _stop_running(self, job_id: JobId) -> None:
        run = self._running.pop(job_id, None)
        if run is not None:
            del self._ends[bisect_left(self._ends, (run.end, job_id))]

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        decisions: list[Decision] = []
        if not self._seats:
            self.reservation = self._blocked = None
            return decisions
        if self._held_shapes:
            for shape in self._held.released(cluster.headroom):
                self._shapes[shape] = self._held_shapes.pop(shape)
        plan = self._after = Plan(cluster)
        head = self._start_from_head(plan, now, decisions)
        self.reservation = self._blocked = self._left = None
        if head is not None:
            self.reservation = self._reserve(head, plan, now)
            until = self.reservation.time if now < self.reservation.time < ANY else None
            self._blocked = Wait(head, no_room(head, plan), until)
            decisions.extend(self._backfill(self.reservation, plan, now, decisions))
            decisions.append(self._blocked)
            self._left = plan
        return decisions

    def _start_from_head(self, plan: Plan, now: float, decisions: list[Decision]) -> Job | None:
        """Start jobs in order. Returns the first job that does not fit."""
        while (job := self._head(plan)) is not None:
            placement = self._place(plan, job)
            if placement is None:
                return job
            decisions.append(self._start(job, placement, plan, now))
        return None

    def _head(self, plan: Plan) -> Job | None:
        """The first job in the queue that is neither too large for the cluster nor over a limit."""
        while self._order:
            seat, job_id = self._order[0]
            if self._seats.get(job_id) == seat and job_id not in self._too_large:
                job = self._jobs[job_id]
                return self._first_within_limits(plan) if job.charges and plan.over_limit(job) else job
            heapq.heappop(self._order)
        return None

    def _first_within_limits(self, plan: Plan) -> Job | None:
        """Takes the shapes over a limit that it meets out of the decisions, until the limit has room again."""
        while self._shapes:
            row = min([row for tree in self._shapes.values() if (row := tree.first(ANY)) is not None])
            job = self._jobs[row[1]]
            limit = plan.over_limit(job)
            if limit is None:
                return job
            self._hold(_shape(job), limit)
        return None

    def _hold(self, shape: Shape, limit: str) -> None:
        self._held.hold(shape, shape[2], limit)
        self._held_shapes[shape] = self._shapes.pop(shape)

    def _start(self, job: Job, placement: Placement, plan: Plan, now: float) -> Start:
        plan.add(job, placement)
        key = (self._seats[job.id],)
        self._leave(job.id)
        self._start_running(job, placement, now)
        return Start(job, placement, key)

    def _place(self, plan: Plan, job: Job) -> Placement | None:
        return plan.place(job, _MOST_FREE, self.fabric)

    def _reserve(self, head: Job, plan: Plan, now: float) -> Reservation:
        """The earliest time at which the head fits if running jobs end at their limits."""
        if _plain(head):
            free = plan.free
            for end, job_id in self._ends:
                free += sum(self._running[job_id].gpus.values())
                if free >= head.gpus:
                    return Reservation(head, max(now, end), None, free - head.gpus)
            return Reservation(head, ANY, None, 0)
        later = plan.view().copy()
        for end, job_id in self._ends:
            _release(later, self._running[job_id])
            if quick_place(later, head, _MOST_FREE, self.fabric) is not None:
                return Reservation(head, max(now, end), later, later.total_free - head.gpus)
        return Reservation(head, ANY, later, 0)

    def _backfill(self, reservation: Reservation, plan: Plan, now: float, decisions: list[Decision]) -> list[Wait]:
        """Start jobs behind the head, in order, that do not delay its reservation. Returns the jobs that would."""
        refused: list[Wait] = []
        if not plan.free:
            return refused
        exhausted: set[Shape] = {_shape(reservation.job)}  # shapes that do not fit now, at first the head's
        short_only: set[Shape] = set()  # shapes whose jobs must end before the reservation
        short = reservation.short(now)
        while plan.free:
            found = self._candidate(reservation, plan, short, exhausted, short_only)
            if found is None:
                break
            job, shape = found
            placement = self._place(plan, job)
            if placement is None:
                exhausted.add(shape)
            elif _limit(job) <= short or _fits_beside(reservation, job, placement, self.fabric):
                decisions.append(self._start(job, placement, plan, now))
                _count_backfilled(reservation, job, placement, long=_limit(job) > short)
            else:  # the same holds for any other long job of this shape
                short_only.add(shape)
                refused.append(Wait(job, _would_delay(reservation, now)))
        return refused

    def _candidate(
        self, reservation: Reservation, plan: Plan, short: float, exhausted: set[Shape], short_only: set[Shape]
    ) -> tuple[Job, Shape] | None:
        """The first job in the queue that may be short enough or small enough."""
        best: tuple[tuple[int, JobId], Shape] | None = None
        over: list[tuple[Shape, str]] = []
        for shape, tree in self._shapes.items():
            if shape[0] > plan.free or shape in exhausted:
                continue
            row = tree.first(ANY if shape[0] <= reservation.extra and shape not in short_only else short)
            if row is None or (best is not None and row > best[0]):
                continue
            charges = shape[2]
            limit = plan.headroom.exceeded(charges) if charges else None
            if limit is None:
                best = row, shape
            else:
                over.append((shape, limit))
        for shape, limit in over:
            self._hold(shape, limit)
        return None if best is None else (self._jobs[best[0][1]], best[1])

    # what users see, and restarts

    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        order = sorted(self._seats, key=lambda job_id: self._seats[job_id])
        able = (job_id for job_id in order if job_id not in self._too_large and not self._limited(job_id))
        head = next(able, None)
        room = self._shapes_with_room()
        return [(job_id, self._why(job_id, ahead, head, room, now)) for ahead, job_id in enumerate(order)]

    def _shapes_with_room(self) -> set[Shape]:
        """The shapes that fit into the GPUs left free by the last decision."""
        if self._left is None:
            return set()
        firsts = [self._jobs[row[1]] for tree in self._shapes.values() if (row := tree.first(ANY)) is not None]
        return {_shape(job) for job in firsts if self._place(self._left, job) is not None}

    def _why(self, job_id: JobId, ahead: int, head: JobId | None, room: set[Shape], now: float) -> Reason:
        job = self._jobs[job_id]
        if job_id in self._too_large:
            return reason(Phase.WAITING, "capacity", need=job.gpus)
        if self._blocked is not None and self._blocked.job.id == job_id:
            return self._blocked.reason
        limited = self._limited(job_id)
        if limited is not None:
            return limited
        reservation = self.reservation
        if reservation is not None and _shape(job) in room and _limit(job) > reservation.short(now):
            return _would_delay(reservation, now)
        return behind(job_id, ahead, head)

    def _limited(self, job_id: JobId) -> Reason | None:
        job = self._jobs[job_id]
        return over_limit(job, self._after) if job.charges and self._after is not None else None

    def dump(self) -> dict[str, Any]:
        running = [[end, job_id, *_row(self._running[job_id])] for end, job_id in self._ends]
        return {"seats": dict(self._seats), "running": running}

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        try:
            seats = {JobId(j): int(seat) for j, seat in state["seats"].items() if j in jobs}
            running = {JobId(j): _parse_row(float(end), *row) for end, j, *row in state["running"]}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not a state of policy easy-backfill: {error!r}") from error
        self._jobs = {job_id: jobs[job_id] for job_id in seats}
        self._seats, self._running = seats, running
        self._ends = sorted((run.end, job_id) for job_id, run in running.items())
        self._next_seat = max(seats.values(), default=-1) + 1
        self._front_seat = min([0, *seats.values()]) - 1
        self._blocked = self.reservation = self._left = None
        self._rebuild_queues()


def _row(run: Running) -> list[Any]:
    """A running job in the saved state: its GPUs, and what it takes beside them."""
    return [dict(run.gpus), amounts_of(run.request)]


def _parse_row(end: float, gpus: Mapping[str, int], amounts: Sequence[Any] = ()) -> Running:
    """The inverse; states before 2026-11-22 have no amounts. Raises TypeError, ValueError, AttributeError."""
    return Running(end, {str(n): int(g) for n, g in gpus.items()}, read_amounts(amounts))


def _limit(job: Job) -> float:
    """The job's time limit, seconds; ANY for none."""
    return min(job.time_limit, ANY)


def _shape(job: Job) -> Shape:
    return job.gpus, None if job.request is ANYWHERE else job.request, job.charges


def _plain(job: Job) -> bool:
    """Whether only free GPUs count: any servers, any split, no request for CPUs or memory."""
    return job.request is ANYWHERE or job.request == ANYWHERE


def _release(view: ClusterView, run: Running) -> None:
    """Free the GPUs of a job, up to the GPUs of each node: an end may be missed, or a node may be gone."""
    held = {n: min(g, view.by_name[n].gpus - view.free[n]) for n, g in run.gpus.items() if n in view.by_name}
    view.give(held, run.request)


def _fits_beside(reservation: Reservation, job: Job, placement: Placement, fabric: Fabric) -> bool:
    """Whether the head still fits at the time of its reservation if this job runs."""
    if job.gpus > reservation.extra:
        return False
    if reservation.view is None:
        return True
    beside = reservation.view.copy()
    beside.take(placement.gpus, job.request)
    return quick_place(beside, reservation.job, _MOST_FREE, fabric) is not None


def _would_delay(reservation: Reservation, now: float) -> Reason:
    in_s = max(0.0, reservation.time - now) if reservation.time < ANY else None
    return reason(Phase.WAITING, "reservation", head=reservation.job.id, need=reservation.job.gpus, in_s=in_s)


def _count_backfilled(reservation: Reservation, job: Job, placement: Placement, long: bool) -> None:
    """Count a backfilled job that runs beyond the reservation's time: it uses GPUs that the head leaves free."""
    if long:
        reservation.extra -= job.gpus
        if reservation.view is not None:
            reservation.view.take(placement.gpus, job.request)
