"""The paper's baselines (section V-A.1-d) and FIFO: an order of the jobs, strict or work-conserving.

All place by Heavy-Edge on the most-free servers. Strict: the first in the order that does not fit holds back all
behind it. Work-conserving: the first in the order that fits starts, again and again.

Whether a job fits depends on its shape alone (GPUs and form of request), so jobs stand on one shelf per shape, and a
decision looks at the first of each shelf: O(shapes + starts log n), however long the queue.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable, Hashable, Mapping, MutableSequence, Sequence
from typing import Any, ClassVar, NamedTuple

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, id_key
from slurm_asrpt.core.placement.selection import BestAlphas, Strategy
from slurm_asrpt.core.policies.base import (
    Decision,
    Phase,
    Policy,
    Reason,
    Start,
    Wait,
    behind,
    lacks_room,
    no_room,
    over_limit,
    reason,
    standing,
)
from slurm_asrpt.core.policies.options import PolicyOptions

Key = tuple[int, float, float, tuple[int, ...], JobId]
"""Rank (the band, or negative for a job handed back), the policy's value, submission, numeric id, id: least first."""

_MOST_FREE = Strategy.MOST_FREE  # looking up a member of an enum costs more than it should


Shelf = MutableSequence[Key]
"""Keys of jobs of one shape, the least first: a heap, or a sorted row."""


class Shelving(NamedTuple):
    """How keys are put on a shelf and taken from it, the least first."""

    empty: Callable[[], Shelf]
    push: Callable[[Any, Key], None]
    pop: Callable[[Any], Key]


def _queue_up(row: deque[Key], key: Key) -> None:
    if not row or row[-1] < key:
        row.append(key)
    else:
        insort(row, key)


_HEAPS = Shelving(list, heapq.heappush, heapq.heappop)
_ROWS = Shelving(deque, _queue_up, deque.popleft)  # quicker for jobs that come nearly in order, however many wait


class PriorityQueue(Policy):
    """Jobs in one order, started from its head (strict) or wherever one fits (conserving)."""

    bands = True
    conserving: ClassVar[bool] = False

    def __init__(self, fabric: Fabric, options: PolicyOptions) -> None:
        super().__init__(fabric, options)
        self._best_alphas = BestAlphas((), fabric)
        self._jobs: dict[JobId, Job] = {}
        self._keys: dict[JobId, Key] = {}
        in_order = type(self).value is PriorityQueue.value  # jobs arrive in the order in which they start
        self._shelving = _ROWS if in_order else _HEAPS
        self._shelves: dict[Hashable, Shelf] = {}  # the first on each always waits, others may have left
        self._misfits: set[JobId] = set()  # no cluster of ours can hold them: they block nobody
        self._returns = 0
        self._first: Key | None = None  # the least key that waits and is no misfit's, once it has been looked for
        self._free = 0  # GPUs left by the last decision
        self._left: Plan | None = None  # the cluster that it left
        self._last: Wait | None = None  # the first job that did not fit then

    def value(self, job: Job, alpha: float) -> float:
        """What orders the jobs, least first, from a job and its α̃_min in seconds per iteration.

        Ties go by submission, then by id: with the same value for all, the first job submitted goes first.
        """
        return 0.0

    # events

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self._best_alphas = BestAlphas(nodes, self.fabric)
        ranks = {job_id: key[0] for job_id, key in self._keys.items()}
        self._shelves.clear()
        self._misfits.clear()
        self._first = None
        for job_id, rank in ranks.items():
            self._add(self._jobs[job_id], rank)

    def submitted(self, job: Job, now: float) -> bool:
        self._add(job, job.band)
        if self._first is None:  # nobody was left waiting
            return False
        if job.charges or self._jobs[self._first[4]].charges:  # a limit may keep back those that come before it
            return False
        return job.gpus > self._free if self.conserving else self._first[4] != job.id

    def returned(self, job: Job, now: float) -> None:
        self._returns += 1
        self._add(job, -self._returns)

    def changed(self, job: Job, now: float) -> None:
        key = self._keys.get(job.id)
        if key is not None:
            self._forget(job.id)
            self._enter(job, (standing(job, key[0]), *key[1:]), self._best_alphas.fits(job))  # a new tuple: see _clean

    def finished(self, job_id: JobId, now: float) -> None:
        if job_id in self._jobs:
            self._forget(job_id)

    def _add(self, job: Job, rank: int) -> None:
        alpha = self._best_alphas.alpha(job)
        value = self.value(job, 1.0 if alpha is None else alpha)
        self._enter(job, (rank, value, job.submit_time, id_key(job.id), job.id), alpha is not None)

    def _enter(self, job: Job, key: Key, fits: bool) -> None:
        self._jobs[job.id], self._keys[job.id] = job, key
        if not fits:
            self._misfits.add(job.id)
            return
        shelf = self._shelf(job)
        keys = self._shelves.get(shelf)
        if keys is None:
            keys = self._shelves[shelf] = self._shelving.empty()
        self._shelving.push(keys, key)
        if self._first is not None and key < self._first:
            self._first = key

    def _shelf(self, job: Job) -> Hashable:
        """Where a job stands; the strict orders have a single shelf for all jobs that count against the same limits."""
        if job.charges:
            return (job.charges, job.gpus, job.request) if self.conserving else job.charges
        if not self.conserving:
            return None
        return job.gpus if job.request is ANYWHERE else (job.gpus, job.request)  # hashing a request is slow

    def _forget(self, job_id: JobId) -> None:
        """A job that waits no longer does."""
        job, key = self._jobs.pop(job_id), self._keys.pop(job_id)
        if key is self._first:
            self._first = None
        if job_id in self._misfits:
            self._misfits.discard(job_id)
        else:
            self._clean(self._shelf(job))

    def _clean(self, shelf: Hashable) -> None:
        """Keep a job that waits first on a shelf; take an empty shelf down.

        A key on a shelf is its job's as long as it is the very one in ``_keys``; what leaves from further down is not
        searched for.
        """
        here, keys = self._shelves[shelf], self._keys
        while here and keys.get(here[0][4]) is not here[0]:
            self._shelving.pop(here)
        if not here:
            del self._shelves[shelf]

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        free = cluster.total_free
        # keys differ in the job's id, so that shelves are never compared
        heads = [
            (keys[0], shelf)
            for shelf, keys in self._shelves.items()
            if self._jobs[keys[0][4]].gpus <= free or not self.conserving
        ]
        plan = Plan(cluster)
        starts: list[Decision] = []
        if heads:
            self._start(heads, plan, starts)
        self._last, self._free, self._left = self._first_wait(plan), plan.free, plan
        if self._last is not None:
            starts.append(self._last)
        return starts

    def _start(self, heads: list[tuple[Key, Hashable]], plan: Plan, starts: list[Decision]) -> None:
        """Start what fits, the first of each shelf in turn."""
        heapq.heapify(heads)
        while heads:
            key, shelf = heapq.heappop(heads)
            job = self._jobs[key[4]]
            if plan.over_limit(job):
                continue
            placement = plan.place(job, _MOST_FREE, self.fabric)
            if placement is None:  # nor will any other of this shape fit before GPUs come back
                if not self.conserving:
                    return
                continue
            starts.append(Start(job, placement, key))
            plan.add(job, placement)
            self._forget(job.id)
            keys = self._shelves.get(shelf)
            if keys is not None:
                heapq.heappush(heads, (keys[0], shelf))

    def _first_wait(self, plan: Plan) -> Wait | None:
        """Why the first job in the order does not start."""
        if not self._shelves:
            return None
        if self._first is None:
            self._first = min([keys[0] for keys in self._shelves.values()])
        if self._jobs[self._first[4]].charges:
            return self._first_within_limits(plan)
        job, last = self._jobs[self._first[4]], self._last
        if last is not None and last.job is job and self._free == plan.free and job.request is ANYWHERE:
            return last  # nothing to say that was not said
        return Wait(job, no_room(job, plan))

    def _first_within_limits(self, plan: Plan) -> Wait | None:
        """The same where limits of the site keep jobs back: those delay no other."""
        heads = [keys[0] for keys in self._shelves.values() if not plan.over_limit(self._jobs[keys[0][4]])]
        if not heads:
            return None
        job = self._jobs[min(heads)[4]]
        return Wait(job, no_room(job, plan))

    # what users see, and restarts

    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        order = [key[-1] for key in sorted(self._keys.values())]
        head = next((job_id for job_id in order if job_id not in self._misfits and not self._limited(job_id)), None)
        return [(job_id, self._why(job_id, ahead, head)) for ahead, job_id in enumerate(order)]

    def _why(self, job_id: JobId, ahead: int, head: JobId | None) -> Reason:
        job = self._jobs[job_id]
        if job_id in self._misfits:
            return reason(Phase.WAITING, "capacity", need=job.gpus)
        if self._last is not None and job_id == self._last.job.id:
            return self._last.reason
        limited = self._limited(job_id)
        if limited is not None:
            return limited
        short = lacks_room(job, self._left) if self.conserving and self._last and self._left else None
        return short or behind(job_id, ahead, head)

    def _limited(self, job_id: JobId) -> Reason | None:
        job = self._jobs[job_id]
        return over_limit(job, self._left) if job.charges and self._left is not None else None

    def dump(self) -> dict[str, Any]:
        return {"returns": self._returns, "order": [[key[-1], *key[:3]] for key in sorted(self._keys.values())]}

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        try:
            rows = [(JobId(j), int(rank), float(value), float(sub)) for j, rank, value, sub in state["order"]]
            returns = int(state["returns"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a state of this policy: {error!r}") from error
        for table in (self._jobs, self._keys, self._shelves, self._misfits):
            table.clear()
        self._returns, self._last, self._first = returns, None, None
        for job_id, rank, value, submit in rows:
            if job_id in jobs:
                key = (standing(jobs[job_id], rank), value, submit, id_key(job_id), job_id)
                self._enter(jobs[job_id], key, self._best_alphas.fits(jobs[job_id]))


class Fifo(PriorityQueue):
    """First come, first served; the head blocks."""

    start_key = ("rank", "", "submitted")


class Spjf(PriorityQueue):
    """Shortest predicted job first (MLaaS); the head blocks."""

    start_key = ("rank", "seconds", "submitted")

    def value(self, job: Job, alpha: float) -> float:
        return job.predicted_iterations * alpha


class Spwf(PriorityQueue):
    """Shortest predicted workload, duration x GPUs, first (Tiresias); the head blocks."""

    start_key = ("rank", "gpu_seconds", "submitted")

    def value(self, job: Job, alpha: float) -> float:
        return job.gpus * job.predicted_iterations * alpha


class WcsDuration(Spjf):
    """Work-conserving: of the jobs that fit, the one with the shortest predicted duration."""

    conserving = True


class WcsWorkload(Spwf):
    """Work-conserving: of the jobs that fit, the one with the least predicted workload."""

    conserving = True


class WcsSubtime(Fifo):
    """Work-conserving: of the jobs that fit, the one that was submitted first."""

    conserving = True
