"""Mode order: the SiteFactors of pending jobs, so that Slurm's order is the policy's; with few updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import UNKNOWN_FACTOR, JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.client import SlurmClient

STEP = 1000
TOP = 1_000_000_000
ANY = UNKNOWN_FACTOR

IntendedFactor = tuple[ManagedJob, int, int | None]
"""A job, its new factor, and its old one."""


class OrderWriter:
    """Writes the policy's order as site factors."""

    def __init__(self, policy: Policy, jobs: JobTable, client: SlurmClient) -> None:
        self._policy, self._jobs, self._client = policy, jobs, client

    def intend(self, now: float) -> list[IntendedFactor]:
        """The site factors that change to follow the policy's order; jobs that it would start now come first.

        The factors of these jobs are noted as unknown, which must be saved before the update. If asrptd dies or the
        answer is lost, the factor is written again, or removed when the job is released.
        """
        decided = [job.record.job_id for job in self._jobs.in_state(JobState.PINNED)]
        queued = [str(job_id) for job_id, _ in self._policy.queue(now)]
        changes = factors(decided + queued, {job_id: job.site_factor for job_id, job in self._jobs.items()})
        moved = [(self._jobs[job_id], factor, self._jobs[job_id].site_factor) for job_id, factor in changes.items()]
        for job, _, _ in moved:
            job.site_factor_is(ANY)
        return moved

    def write(self, moved: Sequence[IntendedFactor]) -> None:
        """Write these factors. Raises SlurmError."""
        updates = [writeback.site_factor(job.record.job_id, factor) for job, factor, _ in moved]
        for (job, factor, before), error in zip(moved, self._client.update(updates), strict=True):
            job.site_factor_is(before if error else factor)


def factors(order: Sequence[str], written: Mapping[str, int | None]) -> dict[str, int]:
    """The SiteFactors to write so that they descend along ``order``; fitting ones are kept."""
    updates: dict[str, int] = {}
    ceiling = TOP
    for job_id in order:
        current = written.get(job_id)
        if current is not None and current < ceiling:
            ceiling = current
        else:
            ceiling -= STEP
            updates[job_id] = ceiling
    return updates
