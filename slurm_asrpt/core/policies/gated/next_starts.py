"""Which waiting jobs of asrpt-gated Slurm could start by itself as the policy would (docs/decisions/0036)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from operator import or_

from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.limits import Charges
from slurm_asrpt.core.policies.gated.queue import Waiting

OVER_LIMIT = 2
"""So many jobs that a limit holds, and that count the same against limits, are named as the next to start."""


@dataclass
class Pool:
    """Servers that are equally good for the same jobs.

    free: the most GPUs that one has free now.
    always, ever: the least and the most that one has free once one of its jobs has ended; 0 without jobs. largest: GPUs
    of the largest job named so far.
    """

    free: int
    always: int
    ever: int
    largest: int = 0

    def admits(self, job: Job, idle: bool) -> bool:
        """Whether Slurm would start the job, behind those named so far, where and when the policy does.

        idle: whether the job may use GPUs that are free now.
        """
        follows = self.largest <= max(self.always, job.gpus)
        return follows and (self.free < job.gpus <= self.ever or idle)


def next_starts(
    waiting: Iterable[tuple[Waiting, bool]], most: int, idle: bool, every: int, pool: Callable[[int], Pool]
) -> list[JobId]:
    """The first jobs that fit on any server of their pool once a job there has ended.

    The servers of different pools are different ones.

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
        job, mask = entry.job, able_mask(entry)
        others = [other for other in pools if mask & other and mask != other]
        if others:
            closed = reduce(or_, others, closed | mask)
        here = pools[mask] if mask in pools else pools.setdefault(mask, pool(mask))
        able = not mask & closed and _is_simple(entry) and here.admits(job, limited and idle)
        if limited:
            if able and held < most and over[job.charges] < OVER_LIMIT:
                over[job.charges] += 1
                held += 1
                found.append(job.id)
            continue
        if len(found) - held == most or closed == every:
            break
        if able:
            here.largest = max(here.largest, job.gpus)
            found.append(job.id)
        else:
            closed |= mask
    return found


def able_mask(entry: Waiting) -> int:
    """The servers that a job could use, as a mask."""
    able = 0
    for choice in entry.choices:
        able |= choice.group.free_times.needs(entry.job).mask
    return able


def _is_simple(entry: Waiting) -> bool:
    """Whether a job needs one server, and all servers that it could use are equally good for it."""
    if len(entry.choices) != 1:
        return False
    group = entry.choices[0].group
    needs = group.free_times.needs(entry.job)
    return not group.mixed and needs.servers == 1
