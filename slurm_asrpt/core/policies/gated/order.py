"""Who is considered next in a decision of asrpt-gated: by preemption and band, late jobs by age, others by workload."""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator, Hashable, Iterable, Iterator, Mapping, Sequence

from slurm_asrpt.core.job import PreemptionClass
from slurm_asrpt.core.policies.gated.decision import OneDecision
from slurm_asrpt.core.policies.gated.queue import Key, Line, Waiting, Waitlist
from slurm_asrpt.core.slurm_preemption import precedence

Ranks = Mapping[PreemptionClass | None, int]
Head = tuple[Key, bool, Hashable, Line]
"""A key, whether it is the job's second place, its kind and line. Keys differ by job ID: the rest is never compared."""
_INF = float("inf")


class Order:
    """The jobs to consider, each behind those that may preempt it, by band: late jobs by age, then by workload.

    If a job does not start, no job of its shape with the same or a longer runtime is considered: during a decision,
    free servers only decrease. Jobs that need more GPUs than are free are considered only until one has a reservation.
    """

    def __init__(self, decision: OneDecision) -> None:
        self._decision, self._queue, self._servers = decision, decision.jobs.queue, decision.servers
        self._ranks: Ranks = {}
        self._failed: dict[Hashable, float] = {}  # by shape: the runtime of the shortest job that did not start

    def __iter__(self) -> Iterator[Waiting]:
        late = list(self._queue.late(self._decision.now))
        if self._decision.jobs.any_preempts:
            self._ranks = ranks_of([*late, *line_heads(self._queue)])
        for rank in sorted(set(self._ranks.values())) or [0]:
            aged = [entry for entry in late if rank_of(entry, self._ranks) == rank]
            for band in sorted({entry.job.band for entry in aged}):
                yield from self._by_work(rank, band)
                if not (yield from self._by_age([entry for entry in aged if entry.job.band == band])):
                    break
            yield from self._by_work(rank, _INF)

    def _by_age(self, late: Iterable[Waiting]) -> Generator[Waiting, None, bool]:
        """The jobs that go before their turn by work. Returns whether the share of late jobs has room for all."""
        for entry in late:
            if not self._decision.goes_first(entry):
                return False
            if self._may_start(entry, self._failed):
                yield entry
                if entry.job.id in self._queue.entries:
                    self._failed[entry.shape] = entry.seconds
                elif entry.job.turn is None:
                    self._decision.jobs.late.running[entry.job.id] = entry.job.gpus
        return True

    def _by_work(self, rank: int, before: float) -> Iterator[Waiting]:
        """The jobs of this rank in the bands below ``before``, by workload.

        A job that is put back comes a second time, if no other has a reservation by then; one that lets a larger job go
        first, in any case.
        """
        decision, servers, failed, entries = self._decision, self._servers, self._failed, self._queue.entries
        heads = self._heads(rank, before) if servers.room else []
        while heads and servers.room:
            key, again, kind, line = heapq.heappop(heads)
            entry = entries[key[-1]]
            if again and decision.reservation is not None and entry.job.id not in decision.yielding:
                continue
            if self._may_start(entry, {} if again else failed):
                yield entry
                following = line.heads.get(kind)
                waits = following == entry.key  # it could not start
                if waits:
                    failed[entry.shape] = entry.seconds
                    following = None if again else decision.second_place(entry.job.id)
                elif again:
                    failed.pop(entry.shape, None)
                if following is not None:
                    heapq.heappush(heads, (following, waits, kind, line))

    def _heads(self, rank: int, before: float) -> list[Head]:
        """The first job of each kind, of this rank and in the bands below ``before``, as a heap."""
        lines = self._queue.lines.values()
        heads = [
            (key, False, kind, line) for line in lines for kind, key in line.heads.items() if math.ceil(key[0]) < before
        ]
        if self._ranks:
            entries = self._queue.entries
            heads = [head for head in heads if rank_of(entries[head[0][-1]], self._ranks) == rank]
        heapq.heapify(heads)
        return heads

    def _may_start(self, entry: Waiting, failed: Mapping[Hashable, float]) -> bool:
        job, servers = entry.job, self._servers
        if job.charges and (limit := servers.plan.over_limit(job)):
            self._queue.hold(job.charges, limit)
            return False
        if job.charges and self._decision.limit_kept_from(job):
            return False
        if job.gpus > servers.room_for(job) and self._decision.reservation is not None:
            return False
        return entry.seconds < failed.get(entry.shape, _INF)


def ranks_of(waiting: Sequence[Waiting]) -> Ranks:
    """The rank of each class of these jobs: behind those of the jobs that may preempt it."""
    classes = {entry.job.preemption for entry in waiting}
    order = precedence(classes)
    return {each: order[each.kind] if each else 0 for each in classes}


def rank_of(entry: Waiting, ranks: Ranks) -> int:
    """The rank of a job among these."""
    return ranks.get(entry.job.preemption, 0) if ranks else 0


def line_heads(queue: Waitlist) -> list[Waiting]:
    """The first job of each kind of those that could start, but for those that a limit holds."""
    return [queue.entries[key[-1]] for line in queue.lines.values() for key in line.heads.values()]
