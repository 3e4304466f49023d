"""How much of what profiles gain is recovered if nobody names one: python -m benchmarks.sensitivity

Half of the groups of ``pai-like`` have models of Table I, the others do not communicate. The first half of the trace
teaches, as in mode shadow; the second is played: with profiles, without any, and with what has been learned, which goes
on. Clusters: 60 servers of 8 GPUs in racks of 10, and 4 blocks of 18 servers of 4 GPUs connected by NVLink, both with a
bandwidth of ``--oversubscribed`` less beyond. Policy asrpt-gated, perfect predictions.

reports: iteration times are known, with an error of 5%. runtimes: only runtimes, which differ between the runs of a
group of the trace. noisy: these times exp(N(0, 0.5)). cold: reports, but the first half teaches nothing.
``recovered``: the share of the difference in mean completion time. ``by_runs``: by earlier runs of the group, the share
of the GPU time that distant servers cost jobs of sensitive groups which is no longer lost. ``quiet``: mean completion
of the jobs on several servers that do not communicate, over that with profiles. ``none sensitive``: no group
communicates; mean completion over that without learning.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.grid import Size, complete, in_parallel, parse
from benchmarks.topology import two_levels
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import JobProfile, is_named, unprofiled
from slurm_asrpt.core.sensitivity import slowest_server_s
from slurm_asrpt.predict.sensitivity import Sensitivity
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.engine import Result, simulate_named
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.unnamed import Measured, unnamed, without_profiles
from slurm_asrpt.sim.workload import build
from slurm_asrpt.traces.synthetic import pai_like

Floats = NDArray[np.float64]

POLICY, COLD = "asrpt-gated", "cold"
SERVERS = {"racks": 60, "blocks": 72}
FULL = Size(4000, [0.8, 1.1], [0, 1, 2, 3, 4])
QUICK = Size(2000, [1.1], [0, 1])
"""Played jobs, after as many that teach."""
EVIDENCE: Mapping[str, Mapping[str, Any]] = {
    "reports": {},
    "runtimes": {"reported": False},
    "noisy": {"reported": False, "runtime_noise": 0.5},
    COLD: {},
}
RUNS = (0, 1, 4, 8, 16, 32, 64)
"""Lower bounds of the numbers of earlier runs."""


@dataclass(frozen=True)
class Cell:
    """sensitive: share of the groups that have a model."""

    cluster: str
    oversubscribed: float
    load: float
    sensitive: float
    seed: int

    @property
    def name(self) -> str:
        kind = "" if self.sensitive else ", none sensitive"
        return f"{self.cluster}, {self.oversubscribed:g}:1, load {self.load:g}, seed {self.seed}{kind}"


def jobs_of(cell: Cell, cluster: Cluster, jobs: int) -> JobTable:
    """Twice as many jobs; a share of the groups communicates."""
    options = Options(load=cell.load, predictor="perfect", single_gpu=0.3, seed=cell.seed, history=0.0)
    table = build(pai_like(2 * jobs, seed=cell.seed), cluster, options).table
    groups, rng = sorted(set(table.groups)), np.random.default_rng(cell.seed)
    quiet = {group for group in groups if rng.random() >= cell.sensitive}
    return silenced(table, quiet, cluster.nodes, cluster.fabric)


def silenced(table: JobTable, quiet: set[str], nodes: Sequence[Node], fabric: Fabric) -> JobTable:
    """The jobs of these groups do not communicate, and run as long as in their best placement."""
    plain, profiles = without_profiles(table, nodes, fabric), list(table.profiles)
    numbers: dict[JobProfile, int] = {profile: number for number, profile in enumerate(profiles)}
    mask = np.array([group in quiet for group in table.groups])
    profile = table.profile.copy()
    for row in np.flatnonzero(mask):
        none = unprofiled(profiles[profile[row]].gpus)
        if none not in numbers:
            numbers[none] = len(profiles)
            profiles.append(none)
        profile[row] = numbers[none]
    iterations = np.where(mask, plain.iterations, table.iterations)
    predicted = np.where(mask, plain.predicted, table.predicted)
    return replace(table, profiles=tuple(profiles), profile=profile, iterations=iterations, predicted=predicted)


def part(table: JobTable, rows: slice) -> JobTable:
    columns = ("profile", "iterations", "predicted", "time_limit", "users", "groups")
    submit = table.submit[rows] - table.submit[rows][0]
    return replace(table, submit=submit, **{name: getattr(table, name)[rows] for name in columns})


def play(cell: Cell, jobs: int) -> dict[str, Any]:
    began = time.process_time()
    cluster = two_levels(cell.cluster, SERVERS[cell.cluster], cell.oversubscribed)
    nodes, fabric, table = cluster.nodes, cluster.fabric, jobs_of(cell, cluster, jobs)
    half = len(table) // 2
    before, after = part(table, slice(0, half)), part(table, slice(half, None))
    hidden_before, hidden = (without_profiles(each, nodes, fabric) for each in (before, after))
    named = complete(simulate_named(POLICY, nodes, after, fabric), "named")
    blind = complete(simulate_named(POLICY, nodes, hidden, fabric, runner=unnamed(after, nodes, fabric)), "blind")
    means = {"named": mean(named), "blind": mean(blind)}
    several = np.array([profile.gpus > cluster.gpus and not is_named(profile) for profile in after.profiles])
    rows = np.flatnonzero(several[after.profile])
    by_runs, quiet = dict[str, Any](), {"blind": ratio(blind, named, rows)}
    for name, kind in EVIDENCE.items():
        known, shadow = Sensitivity(slowest_server_s(fabric)), Measured(tell=False, seed=cell.seed, **kind)
        if name != COLD:
            simulate_named(POLICY, nodes, hidden_before, fabric, runner=unnamed(before, nodes, fabric, shadow, known))
        runner = unnamed(after, nodes, fabric, Measured(seed=cell.seed + 1, **kind), copy.deepcopy(known))
        result = complete(simulate_named(POLICY, nodes, hidden, fabric, runner=runner), name)
        means[name] = mean(result)
        by_runs[name] = lost_by_runs(before if name != COLD else None, after, blind, result, cluster)
        quiet[name] = ratio(result, named, rows)
    found: dict[str, Any] = {"cell": cell.name, "mean_s": {name: round(seconds, 1) for name, seconds in means.items()}}
    if cell.sensitive:
        gain = means["blind"] - means["named"]
        shares = {name: round((means["blind"] - means[name]) / gain, 3) for name in EVIDENCE}
        found |= {"blind_over_named": round(means["blind"] / means["named"], 3), "recovered": shares}
        found |= {"quiet": quiet, "by_runs": by_runs}
    else:
        found |= {"over_blind": {name: round(means[name] / means["blind"], 4) for name in EVIDENCE}}
    return {**found, "cpu_s": round(time.process_time() - began, 1)}


def mean(result: Result) -> float:
    return float(result.completion_times.mean())


def ratio(one: Result, other: Result, rows: NDArray[np.int64]) -> float:
    """Mean completion time of these jobs over that in the other simulation."""
    return round(float(one.completion_times[rows].mean() / other.completion_times[rows].mean()), 3)


def lost_by_runs(
    before: JobTable | None, after: JobTable, blind: Result, told: Result, cluster: Cluster
) -> dict[str, Any]:
    """GPU-seconds that distant servers cost, by the earlier runs of the group: without learning, and with it."""
    kinds = np.array([is_named(profile) and profile.gpus > cluster.gpus for profile in after.profiles])
    rows, runs = np.flatnonzero(kinds[after.profile]), earlier_runs(before, after, told)
    work = told.table.iterations * told.table.gpus  # seconds in the best placement
    found = {}
    for least, above in zip(RUNS, (*RUNS[1:], 1 << 30), strict=True):
        some = rows[(runs[rows] >= least) & (runs[rows] < above)]
        losses = [float((work[some] * (result.alpha[some] - 1)).sum()) for result in (blind, told)]
        found[f"{least}"] = {"jobs": len(some), "blind_gpu_h": losses[0] / 3600, "told_gpu_h": losses[1] / 3600}
    return found


def earlier_runs(before: JobTable | None, after: JobTable, result: Result) -> NDArray[np.int64]:
    """How many runs of each job's group had ended when it was submitted."""
    ends: dict[str, list[float]] = {}
    for group in before.groups if before is not None else ():
        ends.setdefault(group, []).append(-1.0)
    for group, end in zip(after.groups, result.end.tolist(), strict=True):
        ends.setdefault(group, []).append(end)
    columns = {group: np.sort(np.array(times)) for group, times in ends.items()}
    pairs = zip(after.groups, after.submit.tolist(), strict=True)
    return np.array([np.searchsorted(columns[group], now, side="right") for group, now in pairs])


def by_runs(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Over all cells: the share of the GPU time that is no longer lost, by evidence and earlier runs."""
    found: dict[str, dict[str, Any]] = {}
    for name in EVIDENCE:
        for least in map(str, RUNS):
            cells = [row["by_runs"][name][least] for row in rows if "by_runs" in row]
            lost, left = (sum(cell[key] for cell in cells) for key in ("blind_gpu_h", "told_gpu_h"))
            share = round(1 - left / lost, 3) if lost else None
            found.setdefault(name, {})[least] = {"jobs": sum(cell["jobs"] for cell in cells), "recovered": share}
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| cell | with profiles | without, over with | " + " | ".join(EVIDENCE) + " |",
        "|---" + "|---:" * 6 + "|",
    ]
    for row in rows:
        shares = row.get("recovered") or row["over_blind"]
        ratio = f"{row['blind_over_named']:.2f}" if "recovered" in row else ""
        cells = " | ".join(f"{shares[name]:.2f}" if ratio else f"{shares[name]:.4f}" for name in EVIDENCE)
        lines.append(f"| {row['cell']} | {row['mean_s']['named'] / 3600:.2f} h | {ratio} | {cells} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", nargs="+", default=["racks", "blocks"], choices=["racks", "blocks"])
    parser.add_argument("--oversubscribed", type=float, default=8.0)
    chosen = parse(parser, FULL, QUICK, "at most 5 minutes on two cores")
    grid = [
        Cell(cluster, chosen.oversubscribed, load, sensitive, seed)
        for sensitive in (0.5, 0.0)
        for cluster in chosen.clusters
        for load in chosen.loads
        for seed in chosen.seeds
    ]
    rows = list(in_parallel(play, [(cell, chosen.jobs) for cell in grid], chosen.processes))
    found = {"jobs": chosen.jobs, "cells": rows, "by_runs": by_runs(rows)}
    print(json.dumps(found) if chosen.json else f"{table(rows)}\n\n{found['by_runs']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
