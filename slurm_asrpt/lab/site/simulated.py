"""The jobs of a window in the simulator: a bound on every schedule, and how close it comes to the real Slurm."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

import numpy as np

from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.core.preemption_costs import PreemptionCosts
from slurm_asrpt.history.store import COMPLETED
from slurm_asrpt.lab.site.figures import SHORT_WAIT_S, distance
from slurm_asrpt.lab.site.jobs import GPUS, Window
from slurm_asrpt.lab.site.sides import FAIR, LINEAR_S, Played, Record, Site
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.engine import SPLIT, simulate_named
from slurm_asrpt.sim.interruptions import interrupting
from slurm_asrpt.sim.metrics import bounds
from slurm_asrpt.sim.scenario import parse_policy
from slurm_asrpt.sim.workload import Workload, build

RESTART_S = 60
"""What loading a checkpoint takes a job."""
DRAWS = 10
DRAWN_S = 10.0
"""By so much jobs take longer on average in draws: the jobs of no two days take the same seconds."""


@dataclass(frozen=True)
class Assumed:
    """What a simulation of asrptd assumes beside the window. predictor: as in asrpt-sim, "perfect" for true run times.

    consenting: the places of the jobs that may be preempted, for which asrptd's policy then interrupts.
    """

    predictor: str = "expected"
    consenting: tuple[int, ...] = ()


AS_IT_IS = Assumed()


def workload(window: Window, predictor: str = AS_IT_IS.predictor) -> Workload:
    """The jobs of the window without models; the default predictor learns as asrptd does."""
    share = (len(window.past) + 0.5) / len(window.trace)
    options = Options("none", history=share, predictor=predictor)
    return build(window.trace, Cluster(servers=window.servers, gpus=GPUS), options)


def bound(window: Window) -> float:
    """Mean completion time that no schedule beats, seconds."""
    made = workload(window)
    return bounds(made.table, made.cluster)["sound"]


def policy_of(site: Site, longest_s: float) -> str:
    """The policy that plays a site in the simulator; "" if none does."""
    fewest = ":nodes=fewest" if site.fewest else ""
    if site.policy:
        return site.policy + fewest
    small = str(site.small_first).lower()
    parameters = (
        f"bf_window_s={longest_s:.0f},bf_resolution_s=300,bf_max_job_test=1000,bf_window_linear_s={LINEAR_S},"
        f"favor_small={small}"
    )
    return "" if site.weights == FAIR else f"slurm-backfill:{parameters}{fewest.replace(':', ',')}"


def play(site: Site, window: Window, longest_s: float, assumed: Assumed = AS_IT_IS) -> Played:
    """Play a side in the simulator, with Slurm's split. assumed: of asrptd's sides."""
    began = time.monotonic()
    assumed = assumed if site.policy else AS_IT_IS
    made, spec = workload(window, assumed.predictor), parse_policy(policy_of(site, longest_s))
    settings = {SPLIT: Split.SLURM, **spec.settings}
    runner = None
    if assumed.consenting:
        settings |= {"interrupts": True}
        runner = interrupting(assumed.consenting, PreemptionCosts(restart_s=RESTART_S))
    result = simulate_named(spec.name, made.cluster.nodes, made.table, made.cluster.fabric, settings, runner=runner)
    times = zip(result.table.submit.tolist(), result.start.tolist(), result.end.tolist(), strict=True)
    records = [Record(submit, submit, start, end, COMPLETED) for submit, start, end in times]
    return Played(site, records, None, time.monotonic() - began)


def play_draws(site: Site, window: Window, longest_s: float, draws: int, assumed: Assumed = AS_IT_IS) -> Played:
    """Play a side several times, each time with other seconds of ``DRAWN_S`` in the run times; the jobs of all draws.

    The draws are the same for each side. With one draw, run times are as they are.
    """
    began = time.monotonic()
    windows = [slower(window, DRAWN_S, np.random.default_rng(draw)) for draw in range(draws)] if draws > 1 else [window]
    records = [record for each in windows for record in play(site, each, longest_s, assumed).records]
    return Played(site, records, None, time.monotonic() - began)


def compare(window: Window, real: Played, longest_s: float) -> dict[str, Any]:
    """mean_ratio: simulated over real mean completion. wait_distance: of the two distributions of waits (1: apart).

    pace_s: what the machine adds to each job. paced_s: least and largest simulated mean of ``DRAWS`` runs in which jobs
    take longer by that on average. Where a chain of short jobs fills the last free GPU, seconds decide whether a long
    job comes between them, and hours of waiting follow.
    """
    if not policy_of(real.site, longest_s) or any(job.profile for job in window.jobs):
        return {}
    found = play(real.site, window, longest_s)
    mean_s, real_s = _mean(found), _mean(real)
    waits = [[max(SHORT_WAIT_S, record.start - record.due) for record in side.records] for side in (found, real)]
    pace_s, rng = pace(window, found, real), np.random.default_rng(window.servers)
    paced = [_mean(play(real.site, slower(window, pace_s, rng), longest_s)) for _ in range(DRAWS)]
    return {
        "policy": policy_of(real.site, longest_s),
        "mean_s": round(mean_s, 1),
        "mean_ratio": round(mean_s / real_s, 4),
        "wait_distance": round(distance(*waits), 4),
        "pace_s": round(pace_s, 1),
        "paced_s": [round(min(paced), 1), round(max(paced), 1)],
    }


def pace(window: Window, found: Played, real: Played) -> float:
    """Seconds of the lab that the machine adds to a job: to its start where GPUs are free, and to its end."""
    both = zip(found.records, real.records, strict=True)
    starts = [record.start - record.due for planned, record in both if planned.start == planned.due]
    ends = [record.end - record.start - job.run_s for job, record in zip(window.jobs, real.records, strict=True)]
    return max(0.0, (median(starts) if starts else 0.0) + median(ends))


def slower(window: Window, pace_s: float, rng: np.random.Generator) -> Window:
    """The window with jobs that take longer by up to twice ``pace_s``."""
    jobs = window.trace.jobs.copy()
    run_s = jobs["duration_s"].to_numpy(copy=True)
    run_s[len(window.past) :] += rng.uniform(0, 2 * pace_s, len(window.jobs))
    jobs["duration_s"] = run_s
    return replace(window, trace=replace(window.trace, jobs=jobs))


def _mean(side: Played) -> float:
    return fmean(record.end - record.due for record in side.records)
