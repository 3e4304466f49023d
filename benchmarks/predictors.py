"""Effect of predictors on completion times: python -m benchmarks.predictors --json

Simulates the jobs of `pai-like` (several seeds), or of `--trace FILE` (several parts of it), without profiles, on a
small cluster at several loads. Each predictor learns from the jobs before the simulated ones and, every hour, from the
jobs that have ended. In each cell, the mean completion time of a predictor is divided by that of the forest. `ratio` is
the geometric mean over the cells, and `error` its standard error in logarithms. `mae` is the same for the mean absolute
errors of the predictions that the simulated jobs got.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from slurm_asrpt.predict.predictors import predictor_names
from slurm_asrpt.sim.description import PERFECT, Cluster, Options
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.predictor_evaluation import GPUS, POLICIES
from slurm_asrpt.sim.workload import build
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.sources import load_trace

PAI_GPUS = 400
PARTS = (0.2, 0.4, 0.6, 0.8)
"""Shares of a trace used for training before a part is simulated."""
Cell = tuple[Trace, Cluster, dict[str, Any]]


def pai_cells(seeds: int, jobs: int, loads: Sequence[float]) -> Iterator[Cell]:
    for seed in range(seeds):
        trace = load_trace(f"pai-like:{2 * jobs}:{jobs / 1500:g}", seed)
        for load in loads:
            yield trace, Cluster(PAI_GPUS // GPUS, GPUS), {"load": load, "history": 0.5, "seed": seed}


def trace_cells(path: str, loads: Sequence[float]) -> Iterator[Cell]:
    trace = load_trace(path, processors_as_gpus=True)
    cluster = Cluster(math.ceil(trace.jobs["gpus"].max() / GPUS), GPUS)
    for part in PARTS:
        for load in loads:
            yield trace, cluster, {"load": load, "history": part, "jobs": int(0.2 * len(trace))}


def play(cell: Cell, predictor: str) -> dict[str, float]:
    """Mean completion time in seconds by policy, and the error of the predictions."""
    trace, cluster, options = cell
    table = build(trace, cluster, Options(models="none", predictor=predictor, **options)).table
    found: dict[str, float] = {}
    for policy in POLICIES:
        result = simulate_named(policy, cluster.nodes, table, cluster.fabric)
        found[policy] = float(result.completion_times.mean())
        found["mae"] = float(np.abs(result.table.predicted - result.table.iterations).mean())
    return found


def compare(cells: Sequence[Cell], names: Sequence[str]) -> dict[str, Any]:
    played: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number, cell in enumerate(cells, start=1):
        for name in names:
            played[name].append(play(cell, name))
        print(f"{number} of {len(cells)} cells", file=sys.stderr)
    return {name: {what: _ratio(found, played["forest"], what) for what in found[0]} for name, found in played.items()}


def _ratio(ours: Sequence[dict[str, float]], forest: Sequence[dict[str, float]], what: str) -> dict[str, float]:
    ratios = [mine[what] / theirs[what] for mine, theirs in zip(ours, forest, strict=True)]
    if min(ratios) <= 0:  # perfect predictions have no error
        return {"ratio": 0.0, "error": 0.0}
    logs = np.log(ratios)
    return {"ratio": round(float(np.exp(logs.mean())), 4), "error": round(float(logs.std() / len(logs) ** 0.5), 4)}


def main() -> int:
    names = ("forest", PERFECT, *(name for name in predictor_names() if not name.startswith("forest")))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", help="use parts of this trace instead of pai-like")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument(
        "--jobs", type=int, default=6000, help="jobs of pai-like to simulate, after as many for training"
    )
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 0.9, 1.0, 1.1])
    parser.add_argument(
        "--predictors", nargs="+", default=list(names), metavar="NAME", help="forest is always included"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    chosen = parser.parse_args()
    cells = list(
        trace_cells(chosen.trace, chosen.loads) if chosen.trace else pai_cells(chosen.seeds, chosen.jobs, chosen.loads)
    )
    found = {"cells": len(cells), **compare(cells, list(dict.fromkeys(["forest", *chosen.predictors])))}
    print(json.dumps(found) if chosen.json else "\n".join(f"{k}: {v}" for k, v in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
