"""What a waiting job waits for by its owner's will or Slurm's: a hold, a dependency, a begin time.

A lease of ours looks like a begin time, so the two are told apart here.
"""

from __future__ import annotations

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.core.policies.base import Phase, Reason, reason
from slurm_asrpt.daemon.parts import Parts
from slurm_asrpt.daemon.tracked import Tracked
from slurm_asrpt.slurm.records import JobRecord

LEASE_SLACK_S = 1.5  # Slurm counts whole seconds


def waits_for_slurm(record: JobRecord) -> Reason | None:
    """What Slurm itself must decide first: a hold or a dependency. Its reason is "None" after each lease."""
    if record.reason.startswith("JobHeld") or record.priority == 0:
        return reason(Phase.WAITING, "held", slurm_reason=record.reason)
    if record.reason.startswith("Dependency") or record.dependency:
        kind = "dependency-never" if record.reason == "DependencyNeverSatisfied" else "dependency"
        return reason(Phase.WAITING, kind, **({"dependency": record.dependency} if record.dependency else {}))
    return None


def follow_begin(tracked: Tracked, now: float, parts: Parts) -> None:
    """Take over a begin time that is no lease of ours: its owner, or Slurm at a requeue, has set it."""
    shown = tracked.record.eligible_time
    if shown <= now:
        if max(tracked.lease_until, tracked.not_before) > now + LEASE_SLACK_S:  # StartTime=now
            tracked.begin = 0.0
    elif is_lease(tracked, shown, now, parts):
        tracked.lease_until = tracked.lease_until or shown
    else:
        tracked.begin = shown


def is_lease(tracked: Tracked, shown: float, now: float, parts: Parts) -> bool:
    """Whether a begin time in the future is the lease that we or the hook have written."""
    if tracked.lease_until:
        late = tracked.lease_spread + LEASE_SLACK_S
        ours = (tracked.lease_before, tracked.lease_until)
        return any(end - LEASE_SLACK_S <= shown <= end + late for end in ours)
    if tracked.record.restarts:  # Slurm itself defers a requeued job, and no hook has leased it
        return False
    record, lease = tracked.record, parts.settings.daemon.lease_s
    if parts.mode is not Mode.ENFORCE:  # there was no daemon to renew it, so it is the hook's to the second, or none
        tagged = tracked.tag is not None and not tracked.tag.left
        hooked = abs(shown - record.submit_time - lease) <= LEASE_SLACK_S
        return tagged and hooked and shown > tracked.not_before + LEASE_SLACK_S
    since = max(now, tracked.not_before, record.submit_time)  # Slurm may have been read after now
    return shown <= since + lease + LEASE_SLACK_S
