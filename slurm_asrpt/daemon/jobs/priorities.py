"""The site's priorities as asrptd follows them: the class and weight of each pending job (docs/priorities.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_asrpt.core.priorities import Standing, ranked
from slurm_asrpt.core.reasons import Reason
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import UNKNOWN_FACTOR
from slurm_asrpt.daemon.jobs.site_reader import SiteReader
from slurm_asrpt.slurm.priorities import standing, turn, turn_slack_s

AGE_S = 60.0
"""Seconds between two updates of a job's age."""


class PriorityWatch:
    """Follows priorities. What they are made of is read rarely, and when an admin seems to have set one."""

    def __init__(self, reader: SiteReader) -> None:
        self._reader = reader
        self._site, self._changes = reader.site.priorities, 0
        self._reads = 0  # of the reader, when jobs were last ranked
        self._known: dict[str, tuple[object, ...]] = {}  # what the standings of the jobs were made from
        self._shared: dict[Standing, Standing] = {}  # one object for equal ones
        self._ranks: dict[str, tuple[int, float]] = {}
        self._fixed: set[tuple[str, float]] = set()  # jobs with priorities set by an admin

    def follow(self, jobs: Sequence[ManagedJob], now: float) -> None:
        """Rank the pending jobs."""
        if self._reader.due:
            self._reader.read()
        fixed = self._rank(jobs, now)
        if self._reads == self._reader.reads and not fixed <= self._fixed:  # or have the fair shares changed?
            self._reader.read()
            fixed = self._rank(jobs, now)
        self._fixed, self._reads = fixed, self._reader.reads

    def _rank(self, jobs: Sequence[ManagedJob], now: float) -> set[tuple[str, float]]:
        """Rank the jobs. Returns those whose priority an admin has set, with the priority."""
        if self._reader.site.priorities != self._site:
            self._site, self._changes = self._reader.site.priorities, self._changes + 1
        for job in jobs:
            job.standing_is(self._standing(job, now))
        if len(self._known) > 2 * len(jobs):
            self._known = {job.record.job_id: self._known[job.record.job_id] for job in jobs}
        if len(self._shared) > 2 * len(jobs):
            self._shared = {job.standing: job.standing for job in jobs}
        found = ranked([job.standing for job in jobs], self.continuous)
        self._ranks = {job.record.job_id: each for job, each in zip(jobs, found, strict=True)}
        return {(job.record.job_id, job.standing.live) for job in jobs if job.standing.fixed}

    def _standing(self, job: ManagedJob, now: float) -> Standing:
        """The standing of a job; computed once a minute unless something changes, because that takes 20 us."""
        weights = self._site.weights
        minute = now // AGE_S if weights is not None and weights.age else 0.0
        made_from = (job.record, job.original, job.confined, job.site_factor, self._changes, minute)
        known = self._known.get(job.record.job_id)
        if known is not None and known == made_from:
            return job.standing
        self._known[job.record.job_id] = made_from
        record = job.record if job.confined else job.unpinned
        job.priority_seen(record.priority)
        factor = job.site_factor or 0
        known_factor = None if factor == UNKNOWN_FACTOR else factor
        found = standing(record, self._site, known_factor, job.first_priority, now)
        return self._shared.setdefault(found, found)

    @property
    def continuous(self) -> int:
        """The most that fair share, age and the like add to a live priority."""
        weights = self._site.weights
        return 0 if weights is None else round(weights.continuous)

    def rank(self, job: ManagedJob) -> tuple[int, float]:
        """The class of a pending job, 0 for the highest, and its weight."""
        return self._ranks.get(job.record.job_id, (0, 1.0))

    def turn(self, job: ManagedJob, now: float) -> float:
        """When it is its turn by Slurm's own order: the least first. The same while nothing changes."""
        assert job.job is not None  # noqa: S101  (it is in the queue)
        weights, before = self._site.weights, job.job.turn
        found = turn(job.standing, weights, job.job.submit_time, job.record.accrue_time, now)
        return found if before is None or abs(found - before) > turn_slack_s(weights) else before


def with_cause(why: Reason, jobs: Mapping[str, ManagedJob]) -> Reason:
    """The reason; if it is a higher priority, with what gave the next job that priority."""
    head = jobs.get(str(why.facts.get("head"))) if why.kind == "priority" else None
    return why if head is None else Reason(why.phase, why.kind, {**why.facts, "by": head.standing.why})
