"""Every policy against the lower bound: python -m benchmarks.policies --json

Cells are loads 0.8, 1.1 and 1.5, 70% or none of the jobs on one GPU, and NICs of 1, 10 and 50 Gbit/s, with the pai-like
trace on 250 servers of 8 GPUs, and the Philly sample on 16 of them. Each policy gets the same jobs and a forest trained
on the first half of the trace and retrained every hour on the jobs that have ended. A-SRPT uses, in each cell, the best
of several tau with both kinds of delay. Ratios are mean completion times over a lower bound on them, averaged over the
seeds: ``ratio`` uses DESIGN's bound, ``ratio_sound`` the one that holds for every schedule (docs/decisions/0006).
``p999_slowdown`` is the 99.9th percentile of completion time over runtime in the best placement.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from joblib import Parallel, delayed

from slurm_asrpt.core.policies.gated.options import GatedOptions
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.metrics import bounds, latest_starts, slowdowns, summary
from slurm_asrpt.sim.workload import Workload, build
from slurm_asrpt.traces import read_trace
from slurm_asrpt.traces.samples import PHILLY
from slurm_asrpt.traces.synthetic import pai_like

GATED = "asrpt-gated"
POLICIES = (
    GATED,
    GATED + "-perfect",
    "asrpt",
    "wcs-workload",
    "wcs-duration",
    "wcs-subtime",
    "easy-backfill",
    "spwf",
    "spjf",
    "fifo",
)
TAUS = (0.0, 1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0)
TARGETS = {0.8: 1.05, 1.1: 1.3, 1.5: 2.5}
"""The ratio at 10 Gbit/s that asrpt-gated should not exceed, by load."""


@dataclass(frozen=True)
class Cell:
    """One column of the comparison. trace: "pai-like" or "philly"."""

    trace: str
    load: float
    single_gpu: float | None
    nic_gbit: float


def cells(loads: Sequence[float], shares: Sequence[float], nics: Sequence[float]) -> list[Cell]:
    grid = [Cell("pai-like", load, share, nic) for load in loads for share in shares for nic in nics]
    return [*grid, *(Cell("philly", load, None, nic) for load in loads for nic in nics)]


def workload(cell: Cell, jobs: int, seed: int, models: str) -> Workload:
    options = Options(models=models, load=cell.load, single_gpu=cell.single_gpu, seed=seed)
    if cell.trace == "philly":
        return build(read_trace(PHILLY), Cluster(servers=16, nic_gbit=cell.nic_gbit), options)
    return build(pai_like(2 * jobs, seed=seed), Cluster(nic_gbit=cell.nic_gbit), options)


def variants(policy: str) -> list[dict[str, Any]]:
    if policy != "asrpt":
        return [{}]
    return [{"tau": tau, "delay": delay} for tau in TAUS for delay in ("block", "aside")]


def play(cell: Cell, jobs: int, seed: int, policies: Sequence[str], models: str) -> dict[str, Any]:
    """One cell with one seed: the results of each policy with each of its settings."""
    made = workload(cell, jobs, seed, models)
    lower = bounds(made.table, made.cluster)
    figures: dict[str, list[dict[str, Any]]] = {}
    for policy in policies:
        for settings in variants(policy):
            figures.setdefault(policy, []).append(_run(policy, settings, made, lower))
    return {"cell": cell, "seed": seed, "unseen": made.notes["unseen"], "policies": figures}


def _run(policy: str, settings: Mapping[str, Any], made: Workload, lower: Mapping[str, float]) -> dict[str, Any]:
    began = time.perf_counter()
    result = simulate_named(policy, made.cluster.nodes, made.table, made.cluster.fabric, settings)
    seconds = time.perf_counter() - began
    found = summary(result, made.cluster)
    if found["ended"] != found["jobs"]:
        raise RuntimeError(f"{policy} {dict(settings)}: {found['jobs'] - found['ended']} jobs did not end")
    figures = {
        "settings": dict(settings),
        "ratio": found["mean_jct_s"] / lower["design"],
        "ratio_sound": found["mean_jct_s"] / lower["sound"],
        "p999_slowdown": float(np.percentile(slowdowns(result, made.cluster), 99.9)),
        "max_wait_s": found["max_wait_s"],
        "seconds": seconds,
    }
    if policy.removesuffix("-perfect") == GATED:
        options = GatedOptions()
        cluster = made.cluster
        latest = latest_starts(result, options.patience_s, options.late_share, cluster.servers, cluster.gpus)
        late = result.start - latest
        figures["late"] = int((late > 1e-6).sum())
    return figures


def average(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One cell over its seeds: the mean results of each policy with its best setting."""
    figures = {}
    for policy in runs[0]["policies"]:
        by_setting = zip(*(run["policies"][policy] for run in runs), strict=True)
        figures[policy] = min((_mean(same) for same in by_setting), key=lambda found: float(found["ratio"]))
    others = {name: found for name, found in figures.items() if not name.startswith(GATED)}
    cell: Cell = runs[0]["cell"]
    row: dict[str, Any] = {
        "trace": cell.trace,
        "load": cell.load,
        "single_gpu": cell.single_gpu,
        "nic_gbit": cell.nic_gbit,
        "unseen": round(fmean(run["unseen"] for run in runs), 3),
        "policies": figures,
    }
    if GATED in figures and others:
        row |= _against(figures[GATED], others)
    return row


def _mean(same: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = list(same)
    found: dict[str, Any] = {"settings": rows[0]["settings"]} if rows[0]["settings"] else {}
    for key in ("ratio", "ratio_sound", "p999_slowdown", "max_wait_s", "seconds"):
        found[key] = float(f"{fmean(row[key] for row in rows):.5g}")
    if "late" in rows[0]:
        found["late"] = sum(row["late"] for row in rows)
    return found


def _against(gated: Mapping[str, Any], others: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    best = min(others, key=lambda name: float(others[name]["ratio"]))
    tail = min(others, key=lambda name: float(others[name]["p999_slowdown"]))
    return {
        "best_other": best,
        "gated_over_best_other": round(gated["ratio"] / others[best]["ratio"], 4),
        "best_tail": tail,
        "tail_over_best_other": round(gated["p999_slowdown"] / others[tail]["p999_slowdown"], 4),
    }


def verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The goals, and the cells that miss them."""
    compared = [row for row in rows if "best_other" in row]
    missed = [
        f"{_name(row)}: {row['policies'][GATED]['ratio']:.3f} over {TARGETS[row['load']]:g}"
        for row in compared
        if row["trace"] == "pai-like"
        and row["nic_gbit"] == 10
        and row["load"] in TARGETS
        and row["policies"][GATED]["ratio"] > TARGETS[row["load"]]
    ]
    return {
        "cells": len(compared),
        "targets_missed": missed,
        "beaten_in": [f"{_name(row)} by {row['best_other']}" for row in compared if row["gated_over_best_other"] >= 1],
        "worse_tail_in": [
            f"{_name(row)} than {row['best_tail']}" for row in compared if row["tail_over_best_other"] > 1
        ],
        "delayed_beyond_the_bound": sum(row["policies"][GATED]["late"] for row in compared),
    }


def _name(row: Mapping[str, Any]) -> str:
    share = "" if row["single_gpu"] is None else f", {row['single_gpu']:.0%} on one GPU"
    return f"{row['trace']} at load {row['load']:g}{share}, {row['nic_gbit']:g} Gbit/s"


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The ratios as a Markdown table."""
    names = list(rows[0]["policies"])
    lines = ["| cell | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        ratios = (f"{row['policies'][name]['ratio']:.3f}" for name in names)
        lines.append(f"| {_name(row)} | " + " | ".join(ratios) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--jobs", type=int, default=20_000, help="jobs of pai-like to simulate, after as many for training"
    )
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds that each cell is averaged over")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 1.1, 1.5])
    parser.add_argument("--single-gpu", type=float, nargs="+", default=[0.7, 0.0])
    parser.add_argument("--nics", type=float, nargs="+", default=[1.0, 10.0, 50.0], help="NIC speeds in Gbit/s")
    parser.add_argument(
        "--policies", nargs="+", default=POLICIES, help="others take minutes to hours for each of the runs"
    )
    parser.add_argument("--models", choices=("table1", "h100"), default="table1", help="h100: as measured on that GPU")
    parser.add_argument("-j", "--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout instead of a table")
    chosen = parser.parse_args()
    grid = cells(chosen.loads, chosen.single_gpu, chosen.nics)
    tasks = [(cell, seed) for cell in grid for seed in range(chosen.seeds)]
    runs: dict[Cell, list[dict[str, Any]]] = {}
    work = (delayed(play)(cell, chosen.jobs, seed, chosen.policies, chosen.models) for cell, seed in tasks)
    for done, run in enumerate(Parallel(chosen.processes, return_as="generator")(work), start=1):
        runs.setdefault(run["cell"], []).append(run)
        print(f"\r{done} of {len(tasks)} runs", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    rows = [average(runs[cell]) for cell in grid]
    found = {"jobs": chosen.jobs, "seeds": chosen.seeds, "models": chosen.models, **verdicts(rows), "rows": rows}
    print(json.dumps(found) if chosen.json else table(rows) + "\n\n" + json.dumps(verdicts(rows), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
