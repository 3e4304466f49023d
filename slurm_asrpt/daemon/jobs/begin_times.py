"""Begin times of pending jobs: which are leases, and which the owner has set.

asrptd and the hook hold jobs by leases, and a lease is a begin time in the future, too.
"""

from __future__ import annotations

from slurm_asrpt.daemon.jobs.managed_job import ManagedJob

LEASE_SLACK_S = 1.5  # Slurm counts whole seconds


def follow_begin_time(job: ManagedJob, now: float, lease_s: float, enforcing: bool) -> None:
    """Adopt a begin time that is not a lease: the owner has set it, or Slurm at a requeue."""
    shown = job.record.eligible_time
    if shown <= now:
        if max(job.lease_until, job.not_before) > now + LEASE_SLACK_S:  # StartTime=now
            job.begin_time_set(0.0)
    elif is_lease(job, shown, now, lease_s, enforcing):
        job.lease_seen(shown)
    elif abs(shown - job.not_before) > LEASE_SLACK_S:  # else it is the one that asrptd gave back
        job.begin_time_set(shown)


def is_lease(job: ManagedJob, shown: float, now: float, lease_s: float, enforcing: bool) -> bool:
    """Whether a begin time in the future is a lease, written by asrptd or the hook.

    Slurm's pause after a preemption by asrptd (two minutes, decision 18) counts as one.
    """
    if job.lease_until:
        late = job.lease_spread + LEASE_SLACK_S
        # without an answer, Slurm may have read the last one at any time until now
        latest = max(job.lease_until, now + lease_s) if job.lease_before else job.lease_until
        ours = ((job.lease_before, job.lease_before), (job.lease_until, latest))
        return any(first - LEASE_SLACK_S <= shown <= last + late for first, last in ours)
    if job.record.restarts:  # Slurm itself delays a requeued job, and the hook does not lease it
        return enforcing and bool(job.service.head) and job.begin_time is None
    record = job.record
    if not enforcing:  # no daemon renews leases then, so it equals the hook's lease or is not a lease
        tagged = job.tag is not None and not job.tag.unleased
        hooked = abs(shown - record.submit_time - lease_s) <= LEASE_SLACK_S
        return tagged and hooked and shown > job.not_before + LEASE_SLACK_S
    since = max(now, job.not_before, record.submit_time)  # Slurm may be read after now
    return shown <= since + lease_s + LEASE_SLACK_S


def lost_its_tag(job: ManagedJob, lease_s: float) -> bool:
    """Whether the begin time of a job without a tag is a lease: something else has overwritten its AdminComment."""
    record = job.record
    hooked = abs(record.eligible_time - record.submit_time - lease_s) <= LEASE_SLACK_S
    ours = abs(record.eligible_time - job.lease_until) <= job.lease_spread + LEASE_SLACK_S
    return bool(record.admin_comment) and (hooked or ours)
