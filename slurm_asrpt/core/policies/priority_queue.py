"""The paper's baselines (section V-A.1-d) and FIFO: jobs in priority order, strict or work-conserving.

All use Heavy-Edge on the most-free servers. Strict: the first job that does not fit blocks all jobs behind it.
Work-conserving: the first job that fits starts, repeatedly.

Whether a job fits depends only on its shape (GPUs and form of request). There is a bucket of jobs for each shape, and a
decision considers the first job of each bucket: O(shapes + starts log n) for any length of the queue.
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
from slurm_asrpt.core.limits import Held
from slurm_asrpt.core.placement.best_alpha import BestAlphas
from slurm_asrpt.core.placement.selection import Strategy
from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.core.policies.base import (
    Decision,
    Phase,
    Policy,
    Reason,
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
from slurm_asrpt.core.policies.options import PolicyOptions

Key = tuple[float, float, float, tuple[int, ...], JobId]
"""Rank (the band; just before it for a returned job), the policy's value, submission, numeric ID, ID: least first."""

_MOST_FREE = Strategy.MOST_FREE  # lookups of enum members are slow


Bucket = MutableSequence[Key]
"""Keys of jobs of one shape, the least first: a heap, or a sorted deque."""


class BucketType(NamedTuple):
    """How keys are added to a bucket and removed from it, the least first."""

    empty: Callable[[], Bucket]
    push: Callable[[Any, Key], None]
    pop: Callable[[Any], Key]


def _insert(row: deque[Key], key: Key) -> None:
    if not row or row[-1] < key:
        row.append(key)
    else:
        insort(row, key)


_HEAPS = BucketType(list, heapq.heappush, heapq.heappop)
_DEQUES = BucketType(deque, _insert, deque.popleft)  # faster if jobs arrive nearly in order


class PriorityQueue(Policy):
    """A queue with one order of jobs: start from the head only (strict), or any job that fits (conserving)."""

    bands = True
    split = Split.PAPER
    conserving: ClassVar[bool] = False

    def __init__(self, fabric: Fabric, options: PolicyOptions) -> None:
        super().__init__(fabric, options)
        self._best_alphas = BestAlphas((), fabric)
        self._jobs: dict[JobId, Job] = {}
        self._keys: dict[JobId, Key] = {}
        in_order = type(self).value is PriorityQueue.value  # jobs arrive in the order in which they start
        self._bucket_type = _DEQUES if in_order else _HEAPS
        self._buckets: dict[Hashable, Bucket] = {}  # the first job of each is always pending; others may have left
        self._held: Held[Hashable] = Held()  # buckets over a limit of the site: these
        self._held_buckets: dict[Hashable, Bucket] = {}
        self._too_large: set[JobId] = set()  # too large for the cluster: they do not block other jobs
        self._returns = 0
        self._first: Key | None = None  # cache of the least key in the buckets
        self._free = 0  # GPUs left by the last decision
        self._left: Plan | None = None  # the cluster after the last decision
        self._last: Wait | None = None  # the first job that did not fit then

    def value(self, job: Job, alpha: float) -> float:
        """The sort key of a job, least first. alpha: its α̃_min, seconds per iteration.

        Ties are broken by submission, then by ID: with equal values, jobs start in the order of submission.
        """
        return 0.0

    # events

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self._best_alphas = BestAlphas(nodes, self.fabric)
        ranks = {job_id: key[0] for job_id, key in self._keys.items()}
        self._clear()
        for job_id, rank in ranks.items():
            self._add(self._jobs[job_id], rank)

    def _clear(self) -> None:
        """Forget the order of the jobs."""
        self._buckets.clear()
        self._held_buckets.clear()
        self._held.clear()
        self._too_large.clear()
        self._first = None

    def submitted(self, job: Job, now: float) -> bool:
        self._add(job, job.band)
        if job.charges and self._bucket_of(job) in self._held:
            return True
        if self._first is None:  # no other job was waiting
            return False
        return job.gpus > self._free if self.conserving else self._first[4] != job.id

    def returned(self, job: Job, now: float) -> None:
        self._returns += 1
        self._add(job, head_rank(job, self._returns))

    def changed(self, job: Job, now: float) -> None:
        key = self._keys.get(job.id)
        if key is None:
            return
        before, rank, fits = self._jobs[job.id], updated_rank(job, key[0]), self._best_alphas.fits(job)
        in_place = rank == key[0] and self._bucket_of(job) == self._bucket_of(before)
        if in_place and fits is (job.id not in self._too_large):  # so that outdated keys do not pile up
            self._jobs[job.id] = job
        else:
            self._forget(job.id)
            self._enter(job, (rank, *key[1:]), fits)  # always a new tuple: see _clean

    def finished(self, job_id: JobId, now: float) -> None:
        if job_id in self._jobs:
            self._forget(job_id)

    def _add(self, job: Job, rank: float) -> None:
        alpha = self._best_alphas.alpha(job)
        value = self.value(job, 1.0 if alpha is None else alpha)
        self._enter(job, (rank, value, job.submit_time, id_key(job.id), job.id), alpha is not None)

    def _enter(self, job: Job, key: Key, fits: bool) -> None:
        self._jobs[job.id], self._keys[job.id] = job, key
        if not fits:
            self._too_large.add(job.id)
            return
        bucket = self._bucket_of(job)
        keys = self._buckets.get(bucket)
        if keys is None:
            held = self._held_buckets.get(bucket)
            if held is not None:
                self._bucket_type.push(held, key)
                return
            keys = self._buckets[bucket] = self._bucket_type.empty()
        self._bucket_type.push(keys, key)
        if self._first is not None and key < self._first:
            self._first = key

    def _bucket_of(self, job: Job) -> Hashable:
        """The bucket of a job; strict orders have a single one for all jobs that count against the same limits."""
        if job.charges:
            return (job.charges, job.gpus, job.request) if self.conserving else job.charges
        if not self.conserving:
            return None
        return job.gpus if job.request is ANYWHERE else (job.gpus, job.request)  # hashing a request is slow

    def _forget(self, job_id: JobId) -> None:
        """Remove a waiting job."""
        job, key = self._jobs.pop(job_id), self._keys.pop(job_id)
        if key is self._first:
            self._first = None
        if job_id in self._too_large:
            self._too_large.discard(job_id)
        else:
            self._clean(self._bucket_of(job))

    def _clean(self, bucket: Hashable) -> None:
        """Drop outdated keys from the front of a bucket, and delete an empty bucket.

        A key is valid as long as it is the same object as in ``_keys``. Keys of jobs that leave from further down stay
        until they reach the front.
        """
        keys, buckets = self._keys, self._buckets
        here = buckets.get(bucket)
        if here is None:
            buckets = self._held_buckets
            here = buckets[bucket]
        while here and keys.get(here[0][4]) is not here[0]:
            self._bucket_type.pop(here)
        if not here:
            del buckets[bucket]
            if buckets is self._held_buckets:
                self._held.drop(bucket)

    def _hold(self, bucket: Hashable, job: Job, limit: str) -> None:
        """Take a bucket out of the decisions. job: its first, which exceeds the limit."""
        self._held.hold(bucket, job.charges, limit)
        keys = self._held_buckets[bucket] = self._buckets.pop(bucket)
        if keys[0] is self._first:
            self._first = None

    def _release(self, cluster: ClusterView) -> None:
        """Put the buckets back whose limits have room again."""
        for bucket in self._held.released(cluster.headroom):
            keys = self._buckets[bucket] = self._held_buckets.pop(bucket)
            if self._first is not None and keys[0] < self._first:
                self._first = keys[0]

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        if self._held_buckets:
            self._release(cluster)
        plan = Plan(cluster)
        starts: list[Decision] = []
        heads = self._heads(plan)
        if heads:
            self._start(heads, plan, starts)
        self._last, self._free, self._left = self._first_wait(plan), plan.free, plan
        if self._last is not None:
            starts.append(self._last)
        return starts

    def _heads(self, plan: Plan) -> list[tuple[Key, Hashable]]:
        """The first job of each bucket, as far as one may start."""
        if len(self._buckets) > 1 and not self.conserving:
            first = self._first_job(plan)
            if first is None or first.gpus > plan.free:
                return []
        # keys differ by job ID, so buckets are never compared
        return [
            (keys[0], bucket)
            for bucket, keys in self._buckets.items()
            if self._jobs[keys[0][4]].gpus <= plan.free or not self.conserving
        ]

    def _start(self, heads: list[tuple[Key, Hashable]], plan: Plan, starts: list[Decision]) -> None:
        """Start the jobs that fit, in the order of the first keys of the buckets."""
        heapq.heapify(heads)
        while heads:
            key, bucket = heapq.heappop(heads)
            job = self._jobs[key[4]]
            if job.charges and (limit := plan.over_limit(job)):
                self._hold(bucket, job, limit)
                continue
            placement = plan.place(job, _MOST_FREE, self.fabric)
            if placement is None:  # no other job of this shape fits either
                if not self.conserving:
                    return
                continue
            starts.append(Start(job, placement, key))
            plan.add(job, placement)
            self._forget(job.id)
            keys = self._buckets.get(bucket)
            if keys is not None:
                heapq.heappush(heads, (keys[0], bucket))

    def _first_wait(self, plan: Plan) -> Wait | None:
        """The reason why the first waiting job does not start."""
        job, last = self._first_job(plan), self._last
        if job is None:
            return None
        if last is not None and last.job is job and self._free == plan.free and job.request is ANYWHERE:
            return last  # the reason has not changed
        return Wait(job, no_room(job, plan))

    def _first_job(self, plan: Plan) -> Job | None:
        """The first waiting job that fits the cluster and that no limit of the site holds."""
        while self._buckets:
            if self._first is None:
                self._first = min([keys[0] for keys in self._buckets.values()])
            job = self._jobs[self._first[4]]
            limit = plan.over_limit(job) if job.charges else None
            if limit is None:
                return job
            self._hold(self._bucket_of(job), job, limit)
        return None

    # what users see, and restarts

    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        order = [key[-1] for key in self._shown_order()]
        able = (job_id for job_id in order if job_id not in self._too_large and not self._limited(job_id))
        head = next(able, None)
        higher = before_band([self._jobs[job_id] for job_id in order])
        return [(job_id, self._why(job_id, ahead, head, higher[ahead])) for ahead, job_id in enumerate(order)]

    def _shown_order(self) -> Sequence[Key]:
        return sorted(self._keys.values())

    def _why(self, job_id: JobId, ahead: int, head: JobId | None, higher: int) -> Reason:
        job = self._jobs[job_id]
        if job_id in self._too_large:
            return reason(Phase.WAITING, "capacity", need=job.gpus)
        if self._last is not None and job_id == self._last.job.id:
            return self._last.reason
        limited = self._limited(job_id)
        if limited is not None:
            return limited
        short = lacks_room(job, self._left) if self.conserving and self._last and self._left else None
        return short or behind(job_id, ahead, head, higher)

    def _limited(self, job_id: JobId) -> Reason | None:
        job = self._jobs[job_id]
        return over_limit(job, self._left) if job.charges and self._left is not None else None

    def dump(self) -> dict[str, Any]:
        return {"returns": self._returns, "order": [[key[-1], *key[:3]] for key in sorted(self._keys.values())]}

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        try:
            rows = [(JobId(j), float(rank), float(value), float(sub)) for j, rank, value, sub in state["order"]]
            returns = int(state["returns"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not a state of this policy: {error!r}") from error
        self._jobs.clear()
        self._keys.clear()
        self._clear()
        self._returns, self._last = returns, None
        for job_id, rank, value, submit in rows:
            if job_id in jobs:
                key = (updated_rank(jobs[job_id], rank), value, submit, id_key(job_id), job_id)
                self._enter(jobs[job_id], key, self._best_alphas.fits(jobs[job_id]))


class Fifo(PriorityQueue):
    """First come, first served; the head of the queue blocks."""

    start_key = ("rank", "", "submitted")


class Spjf(PriorityQueue):
    """Shortest predicted job first (MLaaS); the head of the queue blocks."""

    start_key = ("rank", "seconds", "submitted")

    def value(self, job: Job, alpha: float) -> float:
        return job.predicted_iterations * alpha / job.weight


class Spwf(PriorityQueue):
    """Smallest predicted workload, duration x GPUs, first (Tiresias); the head of the queue blocks."""

    start_key = ("rank", "gpu_seconds", "submitted")

    def value(self, job: Job, alpha: float) -> float:
        return job.gpus * job.predicted_iterations * alpha / job.weight


class WcsDuration(Spjf):
    """Work-conserving: of the jobs that fit, the shortest predicted duration first."""

    conserving = True


class WcsWorkload(Spwf):
    """Work-conserving: of the jobs that fit, the smallest predicted workload first."""

    conserving = True


class WcsSubtime(Fifo):
    """Work-conserving: of the jobs that fit, the earliest submission first."""

    conserving = True
