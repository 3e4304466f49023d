"""Measure the speed of the simulator: python -m benchmarks.simulate --jobs 20000 --policy asrpt --json

The synthetic workload runs on 250 servers of 8 GPUs at 10 Gbit/s: groups of recurrent jobs with log-normal runtimes,
70% of the jobs on one GPU and the others with profiles of Table I, Poisson arrivals at a given load, and predictions
that are the median of the group. Only the simulation is timed, without generating the workload or the lower bound.

--runs 5 repeats it: ``seconds`` is then the median, and ``all_seconds`` has each run.
--times-ten adds the cost of ten times the jobs: ``jobs_tenth``, a tenth of them; ``cpu_s`` and ``cpu_s_tenth``, CPU
seconds of the run and of one with a tenth of the jobs (the median of three); ``times_ten``, the former over the latter.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import resource
import statistics
import sys
import time

import numpy as np

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import JobProfile, unprofiled
from slurm_asrpt.core.policies.registry import policy_class, policy_names
from slurm_asrpt.profile.schema import load_profile
from slurm_asrpt.sim.engine import PERFECT, Result, simulate_named
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.metrics import design_bound, sound_bound

FABRIC = Fabric(inter=1.25e9, intra=300e9)
NODES = tuple(Node(f"n{i:03}", 8, i) for i in range(250))
SINGLE_GPU = 0.7
MULTI = ("vgg19-dp2", "resnet152-dp4", "bert-large-pp2dp2", "bert-large-pp4dp2", "gpt-13b-pp8", "gpt-6.7b-pp4dp4")
MULTI_SHARE = (0.3, 0.3, 0.15, 0.1, 0.1, 0.05)
RUN_MEDIAN_S, RUN_SPREAD, GROUP_SPREAD = 600.0, 0.3, 1.6  # log-normal: sigma within a group, and of the group medians


def workload(jobs: int, load: float, seed: int) -> JobTable:
    """Recurrent log-normal jobs: each belongs to a group with one profile and one median runtime."""
    rng = np.random.default_rng(seed)
    profiles: tuple[JobProfile, ...] = (unprofiled(1), *(load_profile(name, ()) for name in MULTI))
    groups = max(1, jobs // 20)
    weights = (SINGLE_GPU, *((1 - SINGLE_GPU) * share for share in MULTI_SHARE))
    profile_of = rng.choice(len(profiles), groups, p=weights)
    median = RUN_MEDIAN_S * rng.lognormal(0, GROUP_SPREAD, groups)
    group = rng.integers(0, groups, jobs)
    profile = profile_of[group].astype(np.int64)
    seconds = np.minimum(median[group] * rng.lognormal(0, RUN_SPREAD, jobs), 30 * 86400)
    draft = JobTable(profiles, np.zeros(jobs), profile, seconds, median[group])
    alpha = draft.best_alphas(NODES, FABRIC)
    capacity = sum(node.gpus for node in NODES)
    span = float((draft.gpus * seconds).sum()) / (capacity * load)
    submit = np.sort(rng.uniform(0, span, jobs))
    limit = 2 * median[group] * np.ceil(rng.uniform(1, 6, jobs))  # users request far too much
    return JobTable(
        profiles, submit, profile, seconds / alpha, median[group] / alpha, limit, groups=[f"g{g}" for g in group]
    )


def figures(result: Result, seconds: float, bounds: bool) -> dict[str, object]:
    jobs = len(result.table)
    found: dict[str, object] = {
        "jobs": jobs,
        "seconds": round(seconds, 3),
        "jobs_per_s": round(jobs / seconds),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "events": result.events,
        "never_started": len(result.never_started),
        "mean_jct_s": round(float(result.completion_times.mean()), 1) if len(result.ended) else None,
    }
    if bounds and len(result.ended) == jobs:
        submitted = float(result.table.submit.sum())
        total = float(result.completion_times.sum())
        for name, bound in (("design", design_bound), ("sound", sound_bound)):
            found[f"over_{name}_bound"] = round(total / (bound(result.table, NODES, FABRIC) - submitted), 4)
    return found


def timed_run(policy: str, table: JobTable) -> tuple[Result, float, float]:
    """One simulation with its elapsed and its CPU seconds; other work on the machine disturbs the latter less."""
    policy_class(policy.removesuffix(PERFECT))  # imported before the clock runs
    began, cpu_began = time.perf_counter(), time.process_time()
    result = simulate_named(policy, NODES, table, FABRIC)
    return result, time.perf_counter() - began, time.process_time() - cpu_began


def times_ten(policy: str, jobs: int, load: float, seed: int, cpu_s: float) -> dict[str, object]:
    """The cost of a simulation over that of one with a tenth of the jobs."""
    table = workload(jobs // 10, load, seed)
    tenth = statistics.median(timed_run(policy, table)[2] for _ in range(3))
    figures = {"cpu_s": cpu_s, "cpu_s_tenth": tenth, "times_ten": cpu_s / tenth}
    return {"jobs_tenth": len(table), **{name: round(figure, 3) for name, figure in figures.items()}}


def main() -> int:
    names = policy_names()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--policy", default="asrpt", choices=[*names, *(name + PERFECT for name in names)])
    parser.add_argument("--load", type=float, default=0.8, help="GPU-seconds that arrive over those available")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1, help="number of runs; the median counts (timings are noisy)")
    parser.add_argument("--bounds", action="store_true", help="also compare with the lower bounds")
    parser.add_argument("--times-ten", action="store_true", help="compare with the CPU time of a tenth of the jobs")
    parser.add_argument("--profile", action="store_true", help="print a profile to stderr")
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    chosen = parser.parse_args()
    table = workload(chosen.jobs, chosen.load, chosen.seed)
    profiler = cProfile.Profile()
    if chosen.profile:
        profiler.enable()
    timed = [timed_run(chosen.policy, table) for _ in range(max(1, chosen.runs))]
    profiler.disable()
    result = timed[-1][0]
    seconds = statistics.median(seconds for _, seconds, _ in timed)
    cpu_s = statistics.median(cpu_s for _, _, cpu_s in timed)
    if chosen.profile:
        pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(18)
    found = {"policy": chosen.policy, "load": chosen.load, **figures(result, seconds, chosen.bounds)}
    if chosen.runs > 1:
        found["all_seconds"] = [round(run[1], 3) for run in timed]
    if chosen.times_ten:
        found |= times_ten(chosen.policy, chosen.jobs, chosen.load, chosen.seed, cpu_s)
    print(json.dumps(found) if chosen.json else "\n".join(f"{k}: {v}" for k, v in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
