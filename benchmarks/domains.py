"""Servers with several NVLink domains: asrpt-gated that knows of them, or does not: python -m benchmarks.domains

60 servers of 8 GPUs in two groups of four, or in pairs, with 25 or 12.5 GB/s from GPU to GPU between groups, and 300
GB/s inside. Jobs of ``pai-like`` with the models of Table I, perfect predictions. Each server gives the lowest free
indexes, as Slurm does. blind takes a server for one domain; its jobs run at the speed of the GPUs that they get.

over: mean completion time of blind over that with domains. lost: GPU time that jobs needed beyond that in their best
placement, in percent, with and without. divided: jobs of 2 to d GPUs that ran in several domains, in percent of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from benchmarks.grid import Size, complete, in_parallel, parse
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.domains import DomainRun
from slurm_asrpt.sim.engine import Result, simulate_named
from slurm_asrpt.sim.workload import Workload, build
from slurm_asrpt.traces.synthetic import pai_like

POLICY = "asrpt-gated"
FULL = Size(4000, [0.8, 1.1], [0, 1, 2, 3, 4])
QUICK = Size(2000, [1.1], [0, 1])


@dataclass(frozen=True)
class Cell:
    """domain: GPUs. across: GB/s between domains."""

    domain: int
    across: float
    load: float
    seed: int

    @property
    def name(self) -> str:
        return f"domains of {self.domain}, {self.across:g} GB/s, load {self.load:g}, seed {self.seed}"


def workload(cell: Cell, jobs: int) -> Workload:
    cluster = Cluster(60, 8, domain=cell.domain, across_gbyte=cell.across)
    options = Options(load=cell.load, predictor="perfect", single_gpu=0.3, seed=cell.seed, history=0.0)
    return build(pai_like(jobs, seed=cell.seed), cluster, options)


def played(made: Workload, told: bool) -> tuple[Result, set[int]]:
    """The result, and the rows of the jobs that ran in more domains than they need."""
    cluster, divided = made.cluster, set[int]()
    real = cluster.fabric

    class Run(DomainRun):
        def _begin(self, start: Start, now: float) -> None:
            layouts = self.view.layouts(start.placement.gpus, real.domain)
            if 1 < start.job.gpus <= real.domain and layouts:
                divided.add(int(start.job.id))
            super()._begin(start, now)

    seen = real if told else replace(real, domain=0, across=0.0)
    return simulate_named(POLICY, cluster.nodes, made.table, seen, runner=partial(Run, fabric=real)), divided


def play(cell: Cell, jobs: int) -> dict[str, Any]:
    made = workload(cell, jobs)
    gpus, nodes, fabric = made.table.gpus, made.cluster.nodes, made.cluster.fabric
    small = int(((gpus > 1) & (gpus <= cell.domain)).sum())
    best, found = made.table.best_alphas(nodes, fabric), dict[str, Any]()
    for name, told in (("told", True), ("blind", False)):
        result, divided = played(made, told)
        complete(result, name)
        needed = float((made.table.iterations * best * gpus).sum())
        used = float((made.table.iterations * result.alpha * gpus).sum())
        found[name] = {
            "mean_s": round(float(result.completion_times.mean()), 1),
            "lost": round(100 * (used / needed - 1), 2),
            "divided": round(100 * len(divided) / small, 1),
        }
    return {"cell": cell.name, "over": round(found["blind"]["mean_s"] / found["told"]["mean_s"], 3), **found}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    lines = ["| cell | over | lost: told, blind | divided: told, blind |", "|---|---:|---:|---:|"]
    for row in rows:
        pairs = [f"{row['told'][key]:g}%, {row['blind'][key]:g}%" for key in ("lost", "divided")]
        lines.append(f"| {row['cell']} | {row['over']:.3f} | {pairs[0]} | {pairs[1]} |")
    overs = [row["over"] for row in rows]
    return "\n".join([*lines, "", f"over: mean {np.mean(overs):.3f}, {min(overs):.3f} to {max(overs):.3f}"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parse(parser, FULL, QUICK, "a minute on two cores")
    grid = [
        Cell(domain, across, load, seed)
        for domain in (4, 2)
        for across in (25.0, 12.5)
        for load in chosen.loads
        for seed in chosen.seeds
    ]
    rows = list(in_parallel(play, [(cell, chosen.jobs) for cell in grid], chosen.processes))
    print(json.dumps({"jobs": chosen.jobs, "cells": rows}) if chosen.json else table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
