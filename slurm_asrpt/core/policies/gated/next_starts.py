"""Which waiting jobs of asrpt-gated Slurm could start by itself as the policy would (docs/decisions/0036)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import takewhile
from operator import or_

from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.limits import Charges
from slurm_asrpt.core.placement.best_alpha import candidate_nodes
from slurm_asrpt.core.policies.gated.decision import OneDecision
from slurm_asrpt.core.policies.gated.gpu_types import able_mask
from slurm_asrpt.core.policies.gated.jobs import Jobs
from slurm_asrpt.core.policies.gated.larger_first import larger_ahead
from slurm_asrpt.core.policies.gated.order import line_heads, rank_of, ranks_of
from slurm_asrpt.core.policies.gated.queue import FirstBySize, Waiting
from slurm_asrpt.core.policies.gated.servers import Reservation, bits

OVER_LIMIT = 2
"""So many jobs that a limit holds, and that count the same against limits, are named as the next to start."""


@dataclass
class Room:
    """What one server, or all of a pool, have for a job.

    free: GPUs that are free now. always, ever: the least and the most that are free once a job there has ended; 0
    without jobs. largest: GPUs of the largest job named so far.
    """

    free: int
    always: int
    ever: int
    largest: int = 0


@dataclass
class Pool:
    """Servers that are equally good for the same jobs.

    single: the most room that one of them has. together: the room on all, for jobs that may be scattered; None if none
    may.
    """

    single: Room
    together: Room | None = None

    def admits(self, job: Job, idle: bool, scattered: bool) -> bool:
        """Whether Slurm would start the job, behind those named so far, where and when the policy does.

        idle: whether the job may use GPUs that are free now.
        """
        room, larger = self._room(scattered), [self.single.largest > max(self.single.always, job.gpus)]
        if self.together is not None:
            larger += [
                self.together.largest > max(self.together.always, job.gpus),
                scattered and self.single.largest > self.single.always,  # it might fit where no single server has room
            ]
        return not any(larger) and (room.free < job.gpus <= room.ever or idle)

    def name(self, job: Job, scattered: bool) -> None:
        """Note that the job has been named."""
        room = self._room(scattered)
        room.largest = max(room.largest, job.gpus)

    def _room(self, scattered: bool) -> Room:
        return self.together if scattered and self.together is not None else self.single


def next_starts(jobs: Jobs, last: OneDecision, held: Reservation | None, most: int) -> Sequence[JobId]:
    """As ``Policy.next_starts``: the first jobs by work that fit on any server of their pool after an end there.

    Or only the job whose turn it is, if servers are kept for it alone. last: the last decision. held: its reservation,
    if that job still waits.
    """
    if jobs.contention is not None or _may_preempt(jobs, last):
        return ()
    if jobs.interruptions.claims or jobs.interruptions.fillers.running:
        return ()
    if held is not None and held.exclusive and held.job.turn is not None:
        return (held.job.id,)[:most]
    if jobs.queue.any_late:
        return ()
    order = _certain_order(jobs)
    waiting = ((entry, last.servers.plan.over_limit(entry.job) is not None) for entry in order)
    every = (1 << len(jobs.hardware.nodes)) - 1
    return _named(waiting, most, held is None, every, lambda mask: _pool(jobs, last, mask), jobs.scatters)


def _may_preempt(jobs: Jobs, last: OneDecision) -> bool:
    """Whether a waiting job may preempt a running one: if it were released, Slurm would choose the nodes."""
    kinds = last.running_kinds
    waiting = jobs.queue.entries.values()
    return bool(kinds) and any(entry.choices and not entry.job.preempts.isdisjoint(kinds) for entry in waiting)


def _certain_order(jobs: Jobs) -> Iterable[Waiting]:
    """The jobs in the order in which they are considered, up to the first that may have to wait for a larger one."""
    entries = [entry for entry in jobs.queue.entries.values() if entry.choices]
    ranks = ranks_of(entries) if jobs.any_preempts else {}
    if ranks and not ranks.items() >= ranks_of(line_heads(jobs.queue)).items():
        return ()  # the order changes when a limit holds jobs no more
    order = sorted(entries, key=lambda one: (rank_of(one, ranks), one.key))
    sizes, largest = FirstBySize(jobs.queue), jobs.hardware.largest
    return takewhile(lambda entry: larger_ahead(entry, jobs.queue, sizes, largest) is None, order)


def _pool(jobs: Jobs, last: OneDecision, mask: int) -> Pool:
    """The pool of these servers, a mask."""
    free, running = last.servers.view.free, jobs.running
    here = {node.name: free[node.name] for node in map(jobs.hardware.nodes.__getitem__, bits(mask))}
    together = Room(sum(here.values()), *running.freed_in_all(here)) if jobs.scatter else None
    return Pool(Room(max(here.values(), default=0), *running.freed(here)), together)


def _named(
    waiting: Iterable[tuple[Waiting, bool]],
    most: int,
    idle: bool,
    every: int,
    pool: Callable[[int], Pool],
    scatters: Callable[[Job], bool],
) -> list[JobId]:
    """The first jobs that fit on any server of their pool once a job there has ended.

    The servers of different pools are different ones. scatters: whether a job may start on any number of them.

    waiting: the waiting jobs in the order of the policy, and whether a limit holds them. idle: no job waits for room.
    every: all servers, a mask. pool: makes the pool of the servers of a mask.

    If not each end in a pool makes room for one of its jobs, no smaller job follows it: Slurm might start that instead.
    A job that needs several servers, or some rather than others, ends the lists of all pools that it touches.

    At most ``most`` jobs, and as many that a limit holds, ``OVER_LIMIT`` of those that count the same: the end of a job
    may free their limit. If no other job waits for room, they may use what is free already.
    """
    pools, closed = dict[int, Pool](), 0
    found, held, over = list[JobId](), 0, Counter[Charges]()
    for entry, limited in waiting:
        job, scattered = entry.job, scatters(entry.job)
        mask = _whole_mask(entry) if scattered else able_mask(entry.choices, job)
        others = [other for other in pools if mask & other and mask != other]
        if others:
            closed = reduce(or_, others, closed | mask)
        here = pools[mask] if mask in pools else pools.setdefault(mask, pool(mask))
        able = not mask & closed and _is_simple(entry, scattered) and here.admits(job, limited and idle, scattered)
        if limited:
            if able and held < most and over[job.charges] < OVER_LIMIT:
                over[job.charges] += 1
                held += 1
                found.append(job.id)
            continue
        if len(found) - held == most or closed == every:
            break
        if able:
            here.name(job, scattered)
            found.append(job.id)
        else:
            closed |= mask
    return found


def _whole_mask(entry: Waiting) -> int:
    """The servers that a job could use some GPUs of, as a mask."""
    able = 0
    for group in {choice.group.mask: choice.group for choice in entry.choices}.values():
        names = {node.name for node in candidate_nodes(group.nodes, entry.job.request)}
        able |= sum([1 << at for at, node in zip(bits(group.mask), group.nodes, strict=True) if node.name in names])
    return able


def _is_simple(entry: Waiting, scattered: bool) -> bool:
    """Whether a job needs one server or may be scattered, and all servers that it could use are equally good for it."""
    if len(entry.choices) != 1:
        return False
    group = entry.choices[0].group
    needs = group.free_times.needs(entry.job)
    return not group.mixed and (scattered or needs.servers == 1)
