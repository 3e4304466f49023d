"""Turns: which jobs go by Slurm's own order, instead of by the policy's (docs/decisions/0031), and deadlines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.site_rules import SiteRules
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.switch import OperatingMode

FIRST = (-math.inf, 0)
"""Before all places in Slurm's own order."""


class Turns:
    """Gives turns to eligible jobs, before each decision."""

    def __init__(self, cluster: ClusterState, rules: SiteRules, mode: OperatingMode) -> None:
        self._cluster, self._rules, self._mode = cluster, rules, mode

    def give(self, eligible: Sequence[ManagedJob], starting: Sequence[ManagedJob], now: float) -> list[ManagedJob]:
        """Give turns to the jobs that go by Slurm's own order, and to those of their bands that it puts before them.

        The first are large jobs whose nodes Slurm chooses, and jobs whose deadlines are near. A job that a limit or a
        lack of nodes keeps out delays nobody. Returns the jobs whose turns have changed.
        """
        last: dict[int, tuple[float, int]] = {}
        by_deadline = self._mode.enforcing
        going = [job for job in eligible if job.in_slurms_order or (by_deadline and deadline_is_near(job.record, now))]
        for job in self._may_start(going, starting):
            last[_band(job)] = max(self._place(job, now), last.get(_band(job), FIRST))
        changed = []
        for job in eligible:
            turn: float | None = None
            if _band(job) in last:
                place = self._place(job, now)
                turn = place[0] if place <= last[_band(job)] else None
            if job.turn_is(turn):
                changed.append(job)
        return changed

    def _place(self, job: ManagedJob, now: float) -> tuple[float, int]:
        """The place of a job in Slurm's own order."""
        return self._rules.priorities.turn(job, now), job.record.number

    def _may_start(self, jobs: Sequence[ManagedJob], starting: Sequence[ManagedJob]) -> list[ManagedJob]:
        """Those of these jobs that no limit and no lack of nodes keeps out."""
        if not jobs:
            return []
        left = self._rules.limits.headroom(starting)
        able = [job for job in jobs if self._cluster.best_alpha(job.job) is not None]
        return [job for job in able if job.job is not None and left.exceeded(job.job.charges) is None]


def deadline_is_near(record: JobRecord, now: float) -> bool:
    """Whether half of the time is over in which a job with a deadline can start."""
    return bool(record.deadline) and now >= (record.submit_time + record.deadline - record.time_limit) / 2


def deadline_is_missed(record: JobRecord, now: float) -> bool:
    """Whether a run of the whole time limit cannot end before the job's deadline.

    Slurm cancels such a job, but not while it has a lease.
    """
    return bool(record.deadline) and now + record.time_limit > record.deadline


def _band(job: ManagedJob) -> int:
    assert job.job is not None  # noqa: S101  (it has been admitted)
    return job.job.band
