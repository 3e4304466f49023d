"""Hare: rounds per second of the simulator, and GPU groups of the heuristic against the exact ones.

python -m benchmarks.rounds --json runs 300 jobs on 160 GPUs of four types, one policy after another. It then groups the
GPUs of small clusters, for which HiGHS proves the optimum, and of a cluster of 1,000 GPUs.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

from papers.hare.exact_grouping import group_exactly
from papers.hare.models import MODELS, TYPES, switch_s
from papers.hare.workload import RoundOptions, jobs_of
from slurm_asrpt.core.rounds.grouping import gap, group, relative
from slurm_asrpt.sim.rounds import simulate_rounds

POLICIES = ("hlas", "hlas-p", "2d-las", "srtf", "gavel-fifo", "sched-allox", "hare-offline")
SMALL = (((8, 4, 1, 2), 3), ((6, 6, 2, 2), 4), ((10, 10, 10, 10), 7), ((12, 8, 6, 4), 6))
LARGE = ((400, 300, 200, 100), 125)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--gpus", type=int, default=160)
    parser.add_argument("--median", type=float, default=600.0, help="median number of rounds per job")
    parser.add_argument("--policies", default="hlas,hlas-p,2d-las", help=f"policies, from {', '.join(POLICIES)}")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    options = RoundOptions(jobs=args.jobs, gpus=args.gpus, median=args.median, span_s=600.0)
    figures = {
        "jobs": args.jobs,
        "gpus": args.gpus,
        "rounds": sum(job.rounds or 0 for job in jobs_of(options)),
        "policies": {name: _simulated(name, options) for name in args.policies.split(",")},
        "grouping": [_grouped(counts, groups) for counts, groups in SMALL],
        "grouping_large": _large(),
    }
    print(json.dumps(figures) if args.json else json.dumps(figures, indent=1))


def _simulated(policy: str, options: RoundOptions) -> dict[str, Any]:
    jobs = jobs_of(options)
    began = time.perf_counter()
    result = simulate_rounds(policy, options.fleet, jobs, {}, switch_s("hare"))
    seconds = time.perf_counter() - began
    return {
        "seconds": round(seconds, 2),
        "rounds_per_s": round(result.rounds / seconds),
        "mean_jct_s": round(result.mean_jct_s, 1),
    }


def _speeds() -> np.ndarray:
    return np.array([[1 / (model.compute_s(gpu) + model.sync_s()) for gpu in TYPES] for model in MODELS])


def _grouped(counts: tuple[int, ...], groups: int) -> dict[str, Any]:
    speeds = _speeds()
    began = time.perf_counter()
    found = group(counts, speeds, groups)
    between = time.perf_counter()
    exact = group_exactly(counts, speeds, groups)
    ended = time.perf_counter()
    scaled = relative(speeds, counts)
    return {
        "counts": counts,
        "groups": groups,
        "gap": round(gap(found, scaled), 4),
        "gap_exact": round(gap(exact, scaled), 4),
        "ms": round(1000 * (between - began), 1),
        "ms_exact": round(1000 * (ended - between)),
    }


def _large() -> dict[str, Any]:
    counts, groups = LARGE
    speeds = _speeds()
    began = time.perf_counter()
    found = group(counts, speeds, groups)
    seconds = time.perf_counter() - began
    return {
        "counts": counts,
        "groups": groups,
        "gap": round(gap(found, relative(speeds, counts)), 4),
        "seconds": round(seconds, 2),
    }


if __name__ == "__main__":
    main()
