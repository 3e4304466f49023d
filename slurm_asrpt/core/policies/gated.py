"""asrpt-gated: predicted workload decides the order, placement decides who may start (docs/decisions/0007).

It keeps A-SRPT's prediction, job graph and Heavy-Edge and replaces the release rule:

1. Order. Jobs are looked at by predicted workload g_i ñ_i α̃_i^min, least first. An unseen job counts as long as unseen
   jobs have lasted on average.
2. Gate. A job starts only on the fewest servers that could ever hold it, with α/α̃^min <= ``gate``; single servers are
   chosen by when they will be free, so that jobs that end together run together.
3. Reservation. The first job that cannot start gets the servers that are predicted to be free soonest. Jobs behind it
   may use them only until then, and elsewhere they must not put off the time at which a server in use will be free.
4. Patience. A job that has waited for ``patience_s`` goes before all younger ones, and its servers are kept for it
   alone. It then starts no later than (k+1) L seconds on, with k jobs before it that had waited as long, and L the
   longest run of any job: each of them waits for what runs on its servers, and for nothing that came later.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.freeindex import Plan, plain
from slurm_asrpt.core.job import ANYWHERE, Job, JobId
from slurm_asrpt.core.placement.selection import Strategy, candidate_nodes, fewest_servers, place, placement_on
from slurm_asrpt.core.placement.splitter import slurm_split
from slurm_asrpt.core.policies.base import Decision, Phase, Reason, Start, Wait, reason, register
from slurm_asrpt.core.policies.baselines import Alone, no_room
from slurm_asrpt.core.policies.occupancy import Occupancy, Run
from slurm_asrpt.core.policies.virtual_machine import id_key

DAY = 86400.0
FIRST_GUESS_S = 3600.0
"""How long an unseen job is taken to last before any has ended."""

Key = tuple[int, float, float, tuple[int, ...], JobId]
"""Rank (0, or negative for a job handed back), predicted GPU-seconds, submission, numeric id, id: least first."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job in the queue. seconds: its predicted run time in the best placement. best: α̃_min, None if it never fits."""

    job: Job
    key: Key
    seconds: float
    best: float | None


@dataclass(frozen=True)
class Reservation:
    """Servers kept for a job. mask: bits of their places in the node table. time: when they are predicted to be free.

    alone: nobody else may use them meanwhile, however short.
    """

    job: Job
    mask: int
    time: float
    alone: bool


@register("asrpt-gated")
class Gated:
    """Work-conserving by predicted workload, gated by placement, with a reservation and a bound on every delay.

    gate: the largest α/α̃^min with which a job starts. patience_s: the wait after which a job goes first, seconds.
    """

    def __init__(self, fabric: Fabric, gate: float = 1.1, patience_s: float = 7 * DAY) -> None:
        self.fabric, self.gate, self.patience_s = fabric, gate, patience_s
        self._nodes: tuple[Node, ...] = ()
        self._size = 0  # GPUs of every server, 0 if they differ
        self._alone = Alone((), fabric)
        self._fewest: dict[Hashable, int] = {}
        self._occupancy = Occupancy(())
        self._waiting: dict[JobId, Waiting] = {}
        self._shelves: dict[Hashable, list[Key]] = {}  # heaps by kind of job; what has left is dropped when it comes up
        self._by_age: list[tuple[float, tuple[int, ...], JobId]] = []  # heap; likewise
        self._unseen_runs, self._unseen_s = 1, FIRST_GUESS_S
        self._started: dict[JobId, tuple[Job, float]] = {}  # running, of unseen groups: the job and α/α̃_min
        self._returns = 0
        self.reservation: Reservation | None = None  # after the last decision
        self._last: Wait | None = None
        self._free = 0

    # events

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self._nodes = tuple(sorted(nodes, key=lambda node: node.index))
        sizes = {node.gpus for node in nodes}
        self._size = sizes.pop() if len(sizes) == 1 else 0
        self._alone = Alone(nodes, self.fabric)
        self._fewest.clear()
        self._occupancy = Occupancy(self._nodes, self._occupancy.runs)
        self.reservation = None
        waiting, self._waiting = list(self._waiting.values()), {}
        self._shelves.clear()
        self._by_age.clear()
        for entry in waiting:
            self._enter(entry.job, entry.key[0])

    def submitted(self, job: Job, now: float) -> None:
        self._enter(job, 0)

    def returned(self, job: Job, now: float) -> None:
        self._occupancy.ended(job.id)
        self._started.pop(job.id, None)
        self._returns += 1
        self._enter(job, -self._returns)

    def changed(self, job: Job, now: float) -> None:
        entry = self._waiting.get(job.id)
        if entry is not None:
            self._leave(job.id)
            self._enter(job, entry.key[0])

    def finished(self, job_id: JobId, now: float) -> None:
        self._leave(job_id)
        run = self._occupancy.ended(job_id)
        unseen = self._started.pop(job_id, None)
        if run is not None and unseen is not None:
            self._unseen_runs += 1
            self._unseen_s += (now - run.start) / unseen[1]

    def running(self, job_id: JobId, gpus: Mapping[str, int], until: float, now: float) -> None:
        """A job runs that may not be ours: its time limit is all that is known of its end (``SeesRunning``)."""
        self._leave(job_id)
        if job_id not in self._occupancy.runs:
            self._occupancy.began(job_id, Run(now, min(until, now + 365 * DAY), dict(gpus)))

    def _enter(self, job: Job, rank: int) -> None:
        best = self._alone.alpha(job)
        seconds = job.predicted_iterations * (best or 1.0)
        if not seconds:
            seconds = self._unseen_s / self._unseen_runs
        key = (rank, job.gpus * seconds, job.submit_time, id_key(job.id), job.id)
        self._waiting[job.id] = Waiting(job, key, seconds, best)
        if best is not None:
            heapq.heappush(self._shelves.setdefault(_kind(job), []), key)
            heapq.heappush(self._by_age, (job.submit_time, key[3], job.id))

    def _leave(self, job_id: JobId) -> None:
        self._waiting.pop(job_id, None)
        if self.reservation is not None and self.reservation.job.id == job_id:
            self.reservation = None

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        plan, starts = Plan(cluster), list[Decision]()
        kept, self.reservation, self._last = self.reservation, None, None
        servers = _Servers(plan, self._occupancy)
        for entry in self._in_order(now, plan):
            placement = self._place(entry, servers, kept, now) if entry.job.gpus <= plan.free else None
            if placement is not None:
                starts.append(self._start(entry, placement, plan, now))
                servers = _Servers(plan, self._occupancy)
            elif self.reservation is None:
                self._occupancy.look_at(now)
                self.reservation = self._reserve(entry, servers, kept, now)
                self._last = self._explain(entry, plan, now)
        self._free = plan.free
        return starts if self._last is None else [*starts, self._last]

    def _in_order(self, now: float, plan: Plan) -> Iterator[Waiting]:
        """Whom to look at: those who have waited too long by age, then the others by workload.

        Of several jobs of one kind the first stands for all: if it does not start, the others would not either. Who
        needs more GPUs than are free is looked at only while nobody has a reservation.
        """
        passed: set[Hashable] = set()
        for entry in self._impatient(now):
            yield entry
            if entry.job.id in self._waiting:
                passed.add(_kind(entry.job))
        heads = [(head, kind) for kind in list(self._shelves) if (head := self._head(kind)) and kind not in passed]
        heapq.heapify(heads)
        while heads and plan.free:
            key, kind = heapq.heappop(heads)
            entry = self._waiting[key[-1]]
            if entry.job.gpus > plan.free and self.reservation is not None:
                continue
            yield entry
            if entry.job.id not in self._waiting and (head := self._head(kind)):
                heapq.heappush(heads, (head, kind))

    def _impatient(self, now: float) -> list[Waiting]:
        """The jobs that have waited for longer than ``patience_s``, the oldest first."""
        found = list[Waiting]()
        put_back = []
        while self._by_age and self._by_age[0][0] + self.patience_s <= now:
            row = heapq.heappop(self._by_age)
            entry = self._waiting.get(row[-1])
            if entry is not None and entry.key[2] == row[0]:
                put_back.append(row)
                found.append(entry)
        for row in put_back:
            heapq.heappush(self._by_age, row)
        return found

    def _head(self, kind: Hashable) -> Key | None:
        """The first job of a kind that still waits."""
        heap = self._shelves[kind]
        while heap:
            entry = self._waiting.get(heap[0][-1])
            if entry is not None and entry.key == heap[0] and _kind(entry.job) == kind:
                return heap[0]
            heapq.heappop(heap)
        del self._shelves[kind]
        return None

    def _start(self, entry: Waiting, placement: Placement, plan: Plan, now: float) -> Start:
        job, slower = entry.job, placement.alpha / (entry.best or placement.alpha)
        plan.add(job, placement)
        self._leave(job.id)
        self._occupancy.began(job.id, Run(now, now + entry.seconds * slower, placement.gpus))
        if not job.predicted_iterations:
            self._started[job.id] = (job, slower)
        return Start(job, placement)

    # where to start

    def _place(self, entry: Waiting, servers: _Servers, kept: Reservation | None, now: float) -> Placement | None:
        """The placement with which a job may start now, or None."""
        job = entry.job
        allowed = self._allowed(servers, now + entry.seconds)
        if self._size and plain(job, servers.view):
            found = self._packed(entry, servers, allowed, now)
        else:
            found = self._general(entry, servers, allowed, self.gate)
        if found is None and kept is not None and kept.job.id == job.id and kept.alone:
            return self._general(entry, servers, kept.mask, float("inf"))
        return found

    def _allowed(self, servers: _Servers, end: float) -> int:
        """The servers that a job with this predicted end may use: a mask. Rule 3."""
        taken = self.reservation
        if taken is None:
            return servers.all
        allowed = servers.all & ~taken.mask if taken.alone or end > taken.time else servers.all
        free_at = self._occupancy.free_at
        for at in _bits(allowed & servers.partly):
            if free_at[at] < end:
                allowed ^= 1 << at
        return allowed

    def _packed(self, entry: Waiting, servers: _Servers, allowed: int, now: float) -> Placement | None:
        """A plain request on equal servers: one server, or whole ones and one for the rest."""
        job, size = entry.job, self._size
        whole, rest = divmod(job.gpus, size)
        if not whole or (whole == 1 and not rest):
            at = self._server(job.gpus, servers, allowed, now + entry.seconds)
            return None if at is None else placement_on([self._nodes[at]], (job.gpus,), job.profile, self.fabric)
        chosen = list(_bits(servers.view.masks[size] & allowed, whole))
        if len(chosen) < whole:
            return None
        if rest:
            last = _for_the_rest(servers.view.masks, allowed, chosen, rest)
            if last is None:
                return None
            chosen.append(last)
        chosen.sort()
        counts = servers.split(chosen, job.gpus)
        if counts is None:
            return None
        found = placement_on([self._nodes[at] for at in chosen], counts, job.profile, self.fabric)
        return found if found.alpha <= self.gate * (entry.best or 0.0) else None

    def _server(self, gpus: int, servers: _Servers, allowed: int, end: float) -> int | None:
        """The server in use with the nearest predicted end, rather after the job's than before it; else an idle one."""
        free_at, masks = self._occupancy.free_at, servers.view.masks
        best: tuple[bool, float, int] | None = None
        for free in range(gpus, self._size):
            for at in _bits(masks[free] & allowed):
                gap = free_at[at] - end
                score = (gap < 0, abs(gap), at)
                if best is None or score < best:
                    best = score
        if best is not None:
            return best[2]
        idle = masks[self._size] & allowed
        return (idle & -idle).bit_length() - 1 if idle else None

    def _general(self, entry: Waiting, servers: _Servers, allowed: int, gate: float) -> Placement | None:
        """Any request on any servers: on the fewest that could hold it, within the gate."""
        job = entry.job
        names = frozenset(self._nodes[at].name for at in _bits(allowed))
        wanted = job.request.candidates
        request = replace(job.request, candidates=names if wanted is None else names & wanted)
        narrowed = replace(job, request=request)
        for strategy in (Strategy.TIGHTEST, Strategy.MOST_FREE):
            found = place(servers.view, narrowed, strategy, self.fabric)
            few = found is not None and len(found.gpus) <= self._fewest_servers(job)
            if found is not None and few and found.alpha <= gate * (entry.best or found.alpha):
                return found
        return None

    def _fewest_servers(self, job: Job) -> int:
        kind = (job.profile, job.request)
        if kind not in self._fewest:
            if len(self._fewest) > 4096:  # a daemon runs for years
                self._fewest.clear()
            self._fewest[kind] = fewest_servers(job, self._nodes)
        return self._fewest[kind]

    # reservations

    def _reserve(self, entry: Waiting, servers: _Servers, kept: Reservation | None, now: float) -> Reservation | None:
        """The servers that will be free soonest; for one who has waited too long those that are kept already."""
        job = entry.job
        impatient = job.submit_time + self.patience_s <= now
        if impatient and kept is not None and kept.job.id == job.id and kept.alone:
            return kept
        number = self._fewest_servers(job)
        eligible = {node.name for node in candidate_nodes(self._nodes, job.request)}
        times = sorted(self._times(job, number, servers, eligible, now))
        if len(times) < number:
            return None
        mask = sum(1 << at for _, at in times[:number])
        return Reservation(job, mask, max(now, times[number - 1][0]), impatient)

    def _times(
        self, job: Job, number: int, servers: _Servers, eligible: set[str], now: float
    ) -> Iterator[tuple[float, int]]:
        """(when it can serve the job, place in the table) for each server: all of it where several are needed."""
        largest = max((node.gpus for node in self._nodes if node.name in eligible), default=0)
        for at, node in enumerate(self._nodes):
            if node.name not in eligible:
                continue
            if number == 1 and node.gpus >= job.gpus:
                if 2 * job.gpus >= node.gpus:  # nearly all of it: not worth the exact look
                    yield self._occupancy.free_at[at], at
                else:
                    yield self._occupancy.room_at(at, job.gpus, servers.view.free[node.name], now), at
            elif number > 1 and (node.gpus == largest or job.request.per_node is not None):
                yield self._occupancy.free_at[at], at

    def _explain(self, entry: Waiting, plan: Plan, now: float) -> Wait:
        job, held = entry.job, self.reservation
        if held is None or job.gpus > plan.free:
            return Wait(job, no_room(job, plan))
        return Wait(job, reason(Phase.WAITING, "reserved", need=job.gpus, in_s=held.time - now), held.time)

    def next_wakeup(self, now: float) -> float | None:
        """When the next job loses its patience."""
        while self._by_age and self._by_age[0][-1] not in self._waiting:
            heapq.heappop(self._by_age)
        if not self._by_age:
            return None
        # the oldest may have lost it already; then the event that helps it will come by itself
        time = self._by_age[0][0] + self.patience_s
        return time if time > now else None

    # what users see, and restarts

    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        late = [entry.job.id for entry in self._impatient(now)]
        rest = sorted(entry.key for entry in self._waiting.values() if entry.job.id not in set(late))
        order = [*late, *(key[-1] for key in rest)]
        return [(job_id, self._why(self._waiting[job_id], ahead, now)) for ahead, job_id in enumerate(order)]

    def _why(self, entry: Waiting, ahead: int, now: float) -> Reason:
        job, held = entry.job, self.reservation
        if entry.best is None:
            return reason(Phase.WAITING, "capacity", need=job.gpus)
        if self._last is not None and self._last.job.id == job.id:
            return self._last.reason
        if job.gpus > self._free:
            return reason(Phase.WAITING, "gpus", need=job.gpus, free=self._free)
        if held is not None:
            facts = {"head": held.job.id, "need": held.job.gpus, "in_s": max(0.0, held.time - now)}
            return reason(Phase.WAITING, "reservation", **facts)
        return reason(Phase.WAITING, "behind", ahead=ahead, head=None)

    def dump(self) -> dict[str, Any]:
        runs = {job_id: [run.start, run.end, dict(run.gpus)] for job_id, run in self._occupancy.runs.items()}
        order = [[entry.job.id, entry.key[0]] for entry in sorted(self._waiting.values(), key=lambda e: e.key)]
        unseen = [self._unseen_runs, self._unseen_s]
        return {"order": order, "returns": self._returns, "runs": runs, "unseen": unseen}

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        try:
            order = [(JobId(job_id), int(rank)) for job_id, rank in state["order"]]
            rows = state["runs"].items()
            runs = {JobId(j): Run(float(start), float(end), dict(gpus)) for j, (start, end, gpus) in rows}
            unseen = int(state["unseen"][0]), float(state["unseen"][1])
            returns = int(state["returns"])
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(f"not a state of policy asrpt-gated: {error!r}") from error
        self._waiting, self._returns = {}, returns
        self._shelves.clear()
        self._by_age.clear()
        self._started.clear()
        self.reservation = self._last = None
        self._unseen_runs, self._unseen_s = unseen
        self._occupancy = Occupancy(self._nodes, runs)
        for job_id, rank in order:
            if job_id in jobs:
                self._enter(jobs[job_id], rank)


class _Servers:
    """The cluster beside the planned starts. partly: mask of the servers in use that have GPUs free."""

    def __init__(self, plan: Plan, occupancy: Occupancy) -> None:
        self.view = plan.view()
        self.all = (1 << len(self.view.nodes)) - 1
        idle = Occupancy.IDLE
        free = 0
        for mask in self.view.masks[1:]:
            free |= mask
        self.partly = sum(1 << at for at in _bits(free) if occupancy.free_at[at] != idle)

    def split(self, chosen: Sequence[int], gpus: int) -> tuple[int, ...] | None:
        """GPUs per server as Slurm will give them."""
        return slurm_split([self.view.free[self.view.nodes[at].name] for at in chosen], gpus)


def _kind(job: Job) -> Hashable:
    """Jobs of one kind can start on the same servers."""
    return job.profile if job.request is ANYWHERE else (job.profile, job.request)


def _bits(mask: int, most: int = -1) -> Iterator[int]:
    """The places of the set bits, the lowest first."""
    while mask and most:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
        most -= 1


def _for_the_rest(masks: Sequence[int], allowed: int, chosen: Sequence[int], rest: int) -> int | None:
    """The server for what is left beside whole ones: exactly as many GPUs free, or the last of them in the node table.

    Slurm fills in node-table order; a server with more GPUs free that comes earlier would get more than the rest.
    """
    others = allowed & ~sum(1 << at for at in chosen)
    exact = masks[rest] & others
    if exact:
        return (exact & -exact).bit_length() - 1
    behind = others >> (chosen[-1] + 1) << (chosen[-1] + 1)
    for free in range(rest + 1, len(masks)):
        if masks[free] & behind:
            return (masks[free] & behind).bit_length() - 1
    return None
