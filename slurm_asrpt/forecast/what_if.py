"""What would happen to a job that is submitted now: whether and where it would start, or when, and why not earlier."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from slurm_asrpt.core.cluster import Placement
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.placement.best_alpha import best_alpha, fits
from slurm_asrpt.core.policies.base import Reason
from slurm_asrpt.core.policies.base import Start as Decided
from slurm_asrpt.forecast.conformal import StartInterval
from slurm_asrpt.forecast.estimate import FIRST_NUMBER, SAMPLES, forecast
from slurm_asrpt.forecast.sampling import Quantiles
from slurm_asrpt.forecast.snapshot import Snapshot, Waiting

WHAT_IF_ID = JobId(str(FIRST_NUMBER - 1))
"""ID of the submitted job: after all real jobs, before simulated arrivals."""


@dataclass(frozen=True)
class WhatIfResult:
    """placement: the placement if the job would start at once; else None, with the reason and its queue position.

    alpha_min: seconds per iteration in the best placement; None if no set of nodes can hold the job.
    start: 5, 50 and 90% quantiles, seconds since the epoch, inf beyond the horizon; None if there is no estimate.
    """

    placement: Placement | None
    reason: Reason | None
    rank: int | None
    alpha_min: float | None
    start: StartInterval | None


def simulate_submission(
    snapshot: Snapshot,
    job: Job,
    span_for: Callable[[float], Quantiles],
    budget_s: float = math.inf,
    progress: Callable[[int], object] = lambda drawn: None,
) -> WhatIfResult:
    """Let the policy decide about the job as if it was submitted at the snapshot's time.

    span_for: iterations of the job, given the seconds per iteration (a job without a prediction has a typical runtime).
    """
    bands = Counter(each.job.band for each in snapshot.waiting)
    usual = bands.most_common(1)[0][0] if bands else 0  # the priority of most jobs
    job = replace(job, id=WHAT_IF_ID, submit_time=snapshot.now, band=usual)
    best = best_alpha(job, snapshot.nodes, snapshot.fabric) if fits(job, snapshot.nodes) else None
    placement, reason, rank = _decided(snapshot, job)
    start = None
    if placement is None and best is not None:
        new_job = Waiting(job, span_for(best))
        found = forecast(snapshot, 0, SAMPLES, budget_s=budget_s, new_job=new_job, progress=progress).get(WHAT_IF_ID)
        start = snapshot.margins.adjusted(found, snapshot.now) if found else None
    return WhatIfResult(placement, reason, rank, best, start)


def _decided(snapshot: Snapshot, job: Job) -> tuple[Placement | None, Reason | None, int | None]:
    """The placement if the job starts now; else the reason and its position in the queue."""
    policy = snapshot.make_policy()
    policy.submitted(job, snapshot.now)
    for decision in policy.decide(snapshot.view(), snapshot.now):
        if isinstance(decision, Decided) and decision.job.id == job.id:
            return decision.placement, None, None
    positions = enumerate(policy.queue(snapshot.now), start=1)
    return next(((None, why, rank) for rank, (job_id, why) in positions if job_id == job.id), (None, None, None))
