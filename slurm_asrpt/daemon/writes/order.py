"""Mode order: the SiteFactors of pending jobs, so that Slurm's order is the policy's; with few updates.

A SiteFactor is added to the live priority of a job, which is known. So the factors are chosen for the sums, which must
descend along the order whatever the site's weights are. Slurm adds nothing to a priority that an admin has set: such
jobs stay, and the others get priorities above or below them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise

from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.priorities import PriorityWatch
from slurm_asrpt.daemon.jobs.saved_state import UNKNOWN_FACTOR, JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmClient

STEP = 1000
"""Distance of new priorities where there is room, or the site's continuous priorities if they are larger: then these
cannot change the order."""
TOP = 2_000_000_000
"""A SiteFactor has 31 bits."""

IntendedFactor = tuple[ManagedJob, int, int | None]
"""A job, its new factor, and its old one."""


class OrderWriter:
    """Writes the policy's order as site factors."""

    def __init__(self, policy: Policy, jobs: JobTable, priorities: PriorityWatch, client: SlurmClient) -> None:
        self._policy, self._jobs, self._priorities, self._client = policy, jobs, priorities, client

    def intend(self, now: float) -> list[IntendedFactor]:
        """The site factors that change to follow the policy's order; jobs that it would start now come first.

        The factors of these jobs are noted as unknown, which must be saved before the update. If asrptd dies or the
        answer is lost, the factor is written again, or removed when the job is released.
        """
        decided = [job.record.job_id for job in self._jobs.in_state(JobState.PINNED)]
        queued = [str(job_id) for job_id, _ in self._policy.queue(now)]
        order = [self._jobs[job_id] for job_id in sorted(decided + queued, key=self._class) if job_id in self._jobs]
        changes = site_factors(order, max(STEP, self._priorities.continuous))
        moved = [(job, factor, job.site_factor) for job, factor in changes if factor != job.site_factor]
        for job, _, _ in moved:
            job.site_factor_is(UNKNOWN_FACTOR)
        return moved

    def _class(self, job_id: str) -> int:
        job = self._jobs.get(job_id)
        return job.job.band if job is not None and job.job is not None else 0

    def write(self, moved: Sequence[IntendedFactor]) -> None:
        """Write these factors. Raises SlurmError."""
        updates = [writeback.site_factor(job.record.address, factor) for job, factor, _ in moved]
        for (job, factor, before), error in zip(moved, self._client.update(updates), strict=True):
            job.site_factor_is(before if error else factor)


def site_factors(order: Sequence[ManagedJob], step: int) -> list[tuple[ManagedJob, int]]:
    """The factors to write so that the live priorities descend along the order."""
    jobs = {job.record.job_id: job for job in order}
    ids = list(jobs)
    live = {job_id: job.record.priority for job_id, job in jobs.items() if _is_placed(job)}
    fixed = {job_id: job.record.priority for job_id, job in jobs.items() if job.standing.fixed}
    changes = new_priorities(ids, live, fixed, step)
    return [(jobs[job_id], factor_for(jobs[job_id], priority)) for job_id, priority in changes.items()]


def _is_placed(job: ManagedJob) -> bool:
    """Whether its live priority has a factor of asrptd."""
    return job.site_factor is not None and job.site_factor != UNKNOWN_FACTOR and not job.standing.fixed


def factor_for(job: ManagedJob, priority: int) -> int:
    """The SiteFactor with which the job has this priority."""
    factor = priority - round(job.standing.live)
    return factor + 1 if factor == UNKNOWN_FACTOR else factor


def new_priorities(
    order: Sequence[str], live: Mapping[str, int], fixed: Mapping[str, int], step: int, highest: int = TOP
) -> dict[str, int]:
    """The priorities to set so that they descend along ``order``; as few as possible change.

    live: the priorities of jobs that have been placed before. fixed: those that cannot change. step: the distance where
    there is room. highest: the largest priority above all fixed ones. Between two fixed priorities there may be too
    little room: then the last jobs share the lowest one.
    """
    updates: dict[str, int] = {}
    ends = [-1, *(at for at, job_id in enumerate(order) if job_id in fixed), len(order)]
    for first, last in pairwise(ends):
        top = fixed[order[first]] - 1 if first >= 0 else highest
        low = fixed[order[last]] + 1 if last < len(order) else 1
        updates |= _between(order[first + 1 : last], live, min(top, highest), min(low, top), step)
    return updates


def _between(order: Sequence[str], live: Mapping[str, int], top: int, low: int, step: int) -> dict[str, int]:
    """The same for jobs without fixed priorities, which may have priorities from ``low`` to ``top``."""
    last = len(order) - 1
    able = {
        each: live[each] for at, each in enumerate(order) if each in live and low + last - at <= live[each] <= top - at
    }
    kept = _descending(order, able)
    if not kept:
        return _down(order, min(top + 1, max(low + len(order), (top + low) // 2)), low, step)
    updates: dict[str, int] = {}
    above, before = top + 1, -1
    for at in kept:
        jobs, below = order[before + 1 : at], live[order[at]]
        width = (above - below) // (len(jobs) + 1)
        if not width:  # no room: this one moves down, too
            continue
        if before < 0:  # the first ones leave room for others above them
            above, width = below + min(step, width) * (len(jobs) + 1), min(step, width)
        updates |= {job_id: above - width * number for number, job_id in enumerate(jobs, start=1)}
        above, before = below, at
    return updates | _down(order[before + 1 :], above, low, step)


def _down(jobs: Sequence[str], above: int, low: int, step: int) -> dict[str, int]:
    """Priorities below ``above`` in equal steps, ``low`` at least."""
    width = max(1, min(step, (above - low) // (len(jobs) + 1)))
    return {job_id: max(low, above - width * number) for number, job_id in enumerate(jobs, start=1)}


def _descending(order: Sequence[str], live: Mapping[str, int]) -> list[int]:
    """The positions of a longest strictly descending subsequence of the live priorities along the order."""
    tails: list[int] = []  # of the best subsequence of each length, the last priority, negated; ascending
    at_end: list[int] = []  # and its position
    previous: dict[int, int] = {}
    for at, job_id in enumerate(order):
        if job_id not in live:
            continue
        value = -live[job_id]
        length = bisect_left(tails, value)
        previous[at] = at_end[length - 1] if length else -1
        tails[length : length + 1], at_end[length : length + 1] = [value], [at]
    found, at = list[int](), at_end[-1] if at_end else -1
    while at >= 0:
        found.append(at)
        at = previous[at]
    return found[::-1]
