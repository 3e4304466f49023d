"""The way back to Slurm: what an enforcing or ordering daemon has left on waiting jobs is undone.

Done in every cycle that does not enforce, so it makes no difference whether asrptd was disabled, its mode changed, or
it died in mode enforce and came back in another one. Running jobs are not touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from slurm_asrpt.config.settings import Mode
from slurm_asrpt.daemon.jobs.admission import LEASE_SLACK_S, is_lease
from slurm_asrpt.daemon.jobs.managed_job import Tracked
from slurm_asrpt.daemon.writes.starts import Writer
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.records import Update

DONE, REFUSED = "handed-back", "hand-back-refused"
"""Events of the audit trail."""


def hand_back(writer: Writer, now: float) -> None:
    """Take node lists, priorities, leases and places in the order off the waiting jobs. Raises SlurmError.

    A job whose pin Slurm will not let us take off keeps its lease: the next cycle tries again.
    """
    pinned = writer.take_pins_off(writer.world.carrying_pins(now), now)
    for tracked in pinned:
        tracked.mapped = False
        if tracked.original is not None:
            writer.audit.record(now, REFUSED, tracked.record.job_id, error="its node list could not be taken off")
    wanted = [(t, _marks(writer, t, now)) for t in writer.world.pending() if t.original is None]
    ours = [(t, marks) for t, marks in wanted if marks]
    errors = writer.client.update([Update(t.record.address, marks) for t, marks in ours])
    for (tracked, marks), error in zip(ours, errors, strict=True):
        if writeback.waits_no_more(error):
            continue  # it has begun meanwhile, or was cancelled: there is nothing to hand back
        if error:
            writer.audit.record(now, REFUSED, tracked.record.job_id, error=error)
        else:
            writer.audit.record(now, DONE, tracked.record.job_id, pinned=tracked in pinned)
            _forget(tracked, marks, now)


def _marks(writer: Writer, tracked: Tracked, now: float) -> Mapping[str, str]:
    """The fields of a job that undo what we have written to it; none for a job that bears nothing of ours."""
    job_id, shown, fields = tracked.record.address, tracked.record.eligible_time, dict[str, str]()
    if shown > max(now, tracked.not_before + LEASE_SLACK_S) and is_lease(tracked, shown, now, writer.world.parts):
        fields |= writeback.hand_over(job_id, tracked.not_before - now).fields
    if tracked.site_factor is not None and writer.parts.mode is not Mode.ORDER:
        fields |= writeback.site_factor(job_id, 0).fields
    return fields


def _forget(tracked: Tracked, marks: Mapping[str, str], now: float) -> None:
    """The record was read before: bring it up to date."""
    if "SiteFactor" in marks:
        tracked.site_factor = None
    if "StartTime" in marks:
        tracked.record = replace(tracked.record, eligible_time=max(now, tracked.not_before))
        tracked.lease_until = 0.0
