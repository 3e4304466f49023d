"""The jobs of a window in the simulator: a bound on every schedule, and how close it comes to the real Slurm."""

from __future__ import annotations

import time
from statistics import fmean
from typing import Any

from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.history.store import COMPLETED
from slurm_asrpt.lab.site.figures import SHORT_WAIT_S, distance
from slurm_asrpt.lab.site.jobs import GPUS, Window
from slurm_asrpt.lab.site.sides import FAIR, Played, Record, Site
from slurm_asrpt.sim.engine import SPLIT, simulate_named
from slurm_asrpt.sim.metrics import bounds
from slurm_asrpt.sim.scenario import parse_policy
from slurm_asrpt.sim.workload import Cluster, Options, Workload, build


def workload(window: Window) -> Workload:
    """The jobs of the window without models: with the default predictor, which learns as asrptd does."""
    share = (len(window.past) + 0.5) / len(window.trace)
    options = Options("none", history=share, predictor="expected")
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
    parameters = f"bf_window_s={longest_s:.0f},bf_resolution_s=300,bf_max_job_test=1000,favor_small={small}"
    return "" if site.weights == FAIR else f"slurm-backfill:{parameters}{fewest.replace(':', ',')}"


def play(site: Site, window: Window, longest_s: float) -> Played:
    """Play a side in the simulator, with Slurm's split."""
    began = time.monotonic()
    made, spec = workload(window), parse_policy(policy_of(site, longest_s))
    settings = {SPLIT: Split.SLURM, **spec.settings}
    result = simulate_named(spec.name, made.cluster.nodes, made.table, made.cluster.fabric, settings)
    times = zip(result.table.submit.tolist(), result.start.tolist(), result.end.tolist(), strict=True)
    records = [Record(submit, submit, start, end, COMPLETED) for submit, start, end in times]
    return Played(site, records, None, time.monotonic() - began)


def compare(window: Window, real: Played, longest_s: float) -> dict[str, Any]:
    """mean_ratio: simulated over real mean completion. wait_distance: of the two distributions of waits (1: apart)."""
    if not policy_of(real.site, longest_s) or any(job.profile for job in window.jobs):
        return {}
    found = play(real.site, window, longest_s)
    mean_s, real_s = (fmean(record.end - record.due for record in side.records) for side in (found, real))
    waits = [[max(SHORT_WAIT_S, record.start - record.due) for record in side.records] for side in (found, real)]
    return {
        "policy": policy_of(real.site, longest_s),
        "mean_s": round(mean_s, 1),
        "mean_ratio": round(mean_s / real_s, 4),
        "wait_distance": round(distance(*waits), 4),
    }
