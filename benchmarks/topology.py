"""Racks and blocks of servers: asrpt-gated with the topology, without it, and others: python -m benchmarks.topology

Clusters: 250 servers of 8 GPUs in racks of 10, whose switches have 1, 2, 4 or 8 times the bandwidth of the spine; and 4
blocks of 18 servers of 4 GPUs, connected by NVLink within a block (as GB200 NVL72) and by NICs, oversubscribed alike,
beyond it. Jobs of ``pai-like`` with the models of Table I. Predictions learned and perfect.

blind is asrpt-gated without the topology: all servers are under one switch for it. Its jobs run at the speed of the
servers that they get. All other policies ask for the fewest nodes and place by Slurm's rule of topology/tree: under the
lowest switch that can hold the job, of several the one with least room. Ratios are of mean completion times over
asrpt-gated's; in ``sizes``, by GPUs per job, asrpt-gated's over that of easy-backfill.

``--others slurm-backfill`` adds Slurm's own scheduler; it takes many minutes for each cell.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.grid import Size, complete, in_parallel, parse
from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.speed import at_speed, slowest
from slurm_asrpt.core.topology import blocks_of
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.engine import PlainRun, Result, Runner, simulate_named
from slurm_asrpt.sim.workload import Workload, build
from slurm_asrpt.traces.synthetic import pai_like

OURS, BLIND, BACKFILL = "asrpt-gated", "blind", "easy-backfill"
OTHERS = ("wcs-workload", "wcs-subtime", "asrpt")
FEWEST = {"nodes": "fewest"}
SIZES = ((1, 1), (2, 8), (9, 16), (17, 32), (33, 10_000))
NIC_GBIT, NVLINK_GBIT = 10.0, 7200.0
SERVERS = {"racks": 250, "blocks": 72}
FULL = Size(10_000, [0.8, 1.1, 1.5], [0, 1, 2])
QUICK = Size(4000, [1.5], [0])
"""Simulated jobs, after as many for training."""


@dataclass(frozen=True)
class Cell:
    """cluster: racks or blocks. oversubscribed: bandwidth below the first switches over that beyond."""

    cluster: str
    oversubscribed: float
    load: float
    predictor: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.cluster}, {self.oversubscribed:g}:1, load {self.load:g}, {self.predictor}, seed {self.seed}"


def two_levels(kind: str, servers: int, oversubscribed: float) -> Cluster:
    """kind: racks of 10 servers of 8 GPUs, or blocks of 18 of 4. oversubscribed: as in ``Cell``."""
    beyond = (NIC_GBIT / oversubscribed,)
    if kind == "racks":
        return Cluster(servers, 8, nic_gbit=NIC_GBIT, switches=(10,), beyond_gbit=beyond)
    return Cluster(servers, 4, nic_gbit=NVLINK_GBIT, intra_gbyte=900.0, switches=(18,), beyond_gbit=beyond)


def workload(cell: Cell, jobs: int) -> Workload:
    options = Options(load=cell.load, predictor=cell.predictor, single_gpu=0.3, seed=cell.seed)
    cluster = two_levels(cell.cluster, SERVERS[cell.cluster], cell.oversubscribed)
    return build(pai_like(2 * jobs, seed=cell.seed), cluster, options)


def really(nodes: Sequence[Node], fabric: Fabric) -> Runner:
    """Jobs run at the speed of these servers with the ranks that the policy chose."""
    real = ClusterView(nodes)

    class Run(PlainRun):
        def _begin(self, start: Start, now: float) -> None:
            servers = [real.by_name[name] for name in start.placement.gpus]
            places = {server.name: place for place, server in enumerate(servers)}
            ranks = [places[name] for name in start.placement.ranks]
            profile = at_speed(start.job.profile, slowest(start.job.profile, servers))
            alpha = iteration_time(profile, ranks, [each.gpus for each in servers], fabric, blocks_of(servers))
            super()._begin(replace(start, placement=replace(start.placement, alpha=alpha)), now)

    return Run


def run(made: Workload, policy: str) -> Result:
    nodes, fabric = made.cluster.nodes, made.cluster.fabric
    if policy == BLIND:
        flat = [replace(node, switches=()) for node in nodes]
        return simulate_named(OURS, flat, made.table, replace(fabric, beyond=()), runner=really(nodes, fabric))
    return simulate_named(policy, nodes, made.table, fabric, {} if policy == OURS else FEWEST)


def play(cell: Cell, jobs: int, policies: Sequence[str]) -> dict[str, Any]:
    made, began = workload(cell, jobs), time.process_time()
    times = {}
    for policy in policies:
        times[policy] = complete(run(made, policy), policy).completion_times
    means = {policy: float(found.mean()) for policy, found in times.items()}
    ratios = {policy: round(mean / means[OURS], 4) for policy, mean in means.items() if policy != OURS}
    return {
        "cell": cell.name,
        "mean_s": round(means[OURS], 1),
        "over_ours": ratios,
        "sizes": by_size(made.table.gpus, times[OURS], times[BACKFILL]),
        "cpu_s": round(time.process_time() - began, 1),
    }


def by_size(gpus: Any, ours: Any, others: Any) -> dict[str, float]:
    """Mean completion time over that of the others, by GPUs per job."""
    found = {}
    for least, most in SIZES:
        rows = np.flatnonzero((gpus >= least) & (gpus <= most))
        if len(rows):
            found[f"{least}-{most}"] = round(float(ours[rows].mean() / others[rows].mean()), 4)
    return found


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    names, sizes = list(rows[0]["over_ours"]), list(rows[0]["sizes"])
    lines = [
        "| cell | mean | " + " | ".join([*names, *sizes]) + " |",
        "|---|" + "---:|" * (1 + len(names) + len(sizes)),
    ]
    for one in rows:
        figures = [
            *(one["over_ours"][name] for name in names),
            *(one["sizes"].get(size, float("nan")) for size in sizes),
        ]
        lines.append(
            f"| {one['cell']} | {one['mean_s'] / 3600:.2f} h | " + " | ".join(map("{:.3f}".format, figures)) + " |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", nargs="+", default=["racks", "blocks"], choices=["racks", "blocks"])
    parser.add_argument("--oversubscribed", type=float, nargs="+", default=[1.0, 2.0, 4.0, 8.0])
    parser.add_argument("--predictors", nargs="+", default=["forest", "perfect"])
    parser.add_argument("--others", nargs="*", default=list(OTHERS), help="policies beside blind and easy-backfill")
    chosen = parse(parser, FULL, QUICK, "at most 15 minutes on two cores")
    grid = [
        Cell(cluster, times, load, predictor, seed)
        for cluster in chosen.clusters
        for times in chosen.oversubscribed
        for load in chosen.loads
        for predictor in chosen.predictors
        for seed in chosen.seeds
    ]
    policies = (OURS, BLIND, BACKFILL, *chosen.others)
    rows = list(in_parallel(play, [(cell, chosen.jobs, policies) for cell in grid], chosen.processes))
    beaten = [one["cell"] for one in rows if min(one["over_ours"].values()) < 1]
    worse = [f"{one['cell']}: {size}" for one in rows for size, ratio in one["sizes"].items() if ratio > 1]
    found = {"jobs": chosen.jobs, "cells": rows, "beaten_in": beaten, "sizes_worse_than_backfill": worse}
    print(
        json.dumps(found)
        if chosen.json
        else f"{table(rows)}\n\nbeaten in: {beaten or 'none'}\nworse: {worse or 'none'}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
