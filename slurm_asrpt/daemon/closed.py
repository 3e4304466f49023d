"""Why a job waits that a reservation of Slurm's keeps from nodes."""

from __future__ import annotations

from slurm_asrpt.core.placement.selection import has_room
from slurm_asrpt.core.policies.base import Phase, Reason, reason
from slurm_asrpt.daemon.tracked import Place, Tracked
from slurm_asrpt.daemon.world import World


def explained(world: World, tracked: Tracked, why: Reason, now: float) -> Reason:
    """The policy's reason; or the reservation, where the job could start but for it, or ever."""
    job, open_job = tracked.job, tracked.open
    if tracked.place is not Place.QUEUED or job is None or open_job is None:
        return why
    if world.best_alpha(job) is None:
        kept = world.best_alpha(open_job) is not None
    else:
        kept = why.kind in ("gpus", "shape", "resources") and has_room(world.view, open_job)
    names = open_job.request.candidates or frozenset[str]()
    ahead = next((each for each in tracked.ahead if not names.isdisjoint(each.nodes)), None)
    if not kept or ahead is None:
        return why
    return reason(Phase.WAITING, "ahead", reservation=ahead.name, in_s=ahead.start - now)
