"""asrpt-gated and hlas with preemption of the jobs that consent: python -m benchmarks.interrupt --json

Cells are loads 0.8, 1.1 and 1.5, 70% or none of the jobs on one GPU, learned and perfect predictions, with the pai-like
trace on 250 servers of 8 GPUs (10 Gbit/s), as in benchmarks.policies. In each cell, no, a quarter, half or all of the
jobs consent (drawn by seed). A preemption takes 30 s for a checkpoint, 35 s until the job may start again, and 60 s
to restart (--checkpoint, --requeue, --restart).

``over_bound``: mean completion time over a bound that holds for every schedule with preemption. ``consenting_gain``:
mean completion time of the consenting jobs without anybody's consent over that with it; above 1, they gain.
``consenting_p95_gain``: the same for the 95th percentiles. ``others_worse``: that of the others with consent over that
without; above 1, they lose. ``p99_slowdown``: of completion time over runtime in the best placement; ``p99_ratio``:
over that without consent. ``utilisation``: share of GPUs in use until the last submission. ``interrupted``: preemptions
per job. ``lost_share``: GPU time that preempted jobs held without progress, over all GPU time in use.
``over_gated``: mean completion time of hlas over that of asrpt-gated with the same predictions (learned) and consent.
The goals are those of asrpt-gated. ``--quick``: 10,000 jobs, no quarter, without hlas, which takes most of the time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.grid import complete, in_parallel
from slurm_asrpt.core.preemption_costs import PreemptionCosts
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.engine import Result, Simulation, simulate_named
from slurm_asrpt.sim.interruptions import InterruptedRun
from slurm_asrpt.sim.metrics import preemptive_bound, slowdowns, summary
from slurm_asrpt.sim.workload import Workload, build
from slurm_asrpt.traces.synthetic import pai_like

POLICIES = {"learned": "asrpt-gated", "perfect": "asrpt-gated-perfect", "hlas": "hlas"}
"""By the name of their cells."""
NIC_GBIT = 10.0


@dataclass(frozen=True)
class Task:
    """The simulations of one cell: with each share of consenting jobs, the first of which is 0.

    predictor: a key of POLICIES. settings: of asrpt-gated. servers: with 8 GPUs each.
    """

    load: float
    single: float
    predictor: str
    jobs: int
    seed: int
    shares: Sequence[float]
    costs: PreemptionCosts
    settings: Mapping[str, float]
    servers: int = 250


def play(task: Task) -> list[dict[str, Any]]:
    """The figures of a cell, one row per share."""
    where = Cluster(servers=task.servers, nic_gbit=NIC_GBIT)
    how = Options(load=task.load, single_gpu=task.single, seed=task.seed)
    made = build(pai_like(2 * task.jobs, seed=task.seed), where, how)
    cluster, table = made.cluster, made.table
    submitted = float(table.submit.sum())
    bound = (preemptive_bound(table, cluster.nodes, cluster.fabric) - submitted) / len(table)
    draw = np.random.default_rng(task.seed).random(len(table))
    rows, before = [], None
    for share in task.shares:
        result, run = _simulate(task, made, np.flatnonzero(draw < share))
        before = before or result
        names = {"load": task.load, "single": task.single, "predictor": task.predictor, "consent": share}
        used = summary(result, cluster)["utilisation_arriving"]
        mean = {"over_bound": float(result.completion_times.mean()) / bound, "utilisation": used}
        figures = mean | _costs(result, run)
        against = _against(result, before, made, draw < share)
        rows.append({**names, "seed": task.seed, **_rounded({**figures, **against})})
    return rows


def _simulate(task: Task, made: Workload, consenting: Any) -> tuple[Result, InterruptedRun]:
    runs: list[InterruptedRun] = []

    def runner(of: Simulation) -> InterruptedRun:
        runs.append(InterruptedRun(of, consenting.tolist(), task.costs))
        return runs[0]

    settings = {} if task.predictor == "hlas" else {**task.settings, "interrupts": True}
    name, cluster = POLICIES[task.predictor], made.cluster
    result = simulate_named(name, cluster.nodes, made.table, cluster.fabric, settings, runner=runner)
    return complete(result, name), runs[0]


def _costs(result: Result, run: InterruptedRun) -> dict[str, float]:
    table = result.table
    gone = result.preemptions
    lost, between = sum(run.lost_gpu_s.values()), gone.between_gpu_s() if gone else 0.0
    used = float((table.gpus * (result.end - result.start)).sum()) - between
    return {
        "interrupted": sum(run.interruptions.values()) / len(table),
        "lost_gpu_h": lost / 3600.0,
        "lost_share": lost / max(used, 1.0),
    }


def _against(result: Result, before: Result, made: Workload, consents: Any) -> dict[str, float | None]:
    took, took_before = result.completion_times, before.completion_times
    slow, slow_before = (float(np.percentile(slowdowns(one, made.cluster), 99)) for one in (result, before))
    found: dict[str, float | None] = {"p99_slowdown": slow, "p99_ratio": slow / slow_before}
    some, others = consents.any(), not consents.all()
    found["consenting_gain"] = float(took_before[consents].mean() / took[consents].mean()) if some else None
    tails = [float(np.percentile(one[consents], 95)) for one in (took_before, took)] if some else None
    found["consenting_p95_gain"] = tails[0] / tails[1] if tails else None
    found["others_worse"] = float(took[~consents].mean() / took_before[~consents].mean()) if others else None
    return found


def _rounded(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name: None if value is None else float(f"{value:.4g}") for name, value in figures.items()}


def verdicts(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The goals, and the cells that miss them."""
    some = [row for row in rows if row["consent"] > 0 and row["predictor"] != "hlas"]
    half = [row for row in rows if row["consent"] == 0.5 and row["load"] == 1.5 and row["predictor"] == "learned"]
    return {
        "cells": len(some),
        "over_bound_at_1.5_half": {str(row["single"]): row["over_bound"] for row in half},
        "p99_ratio_at_1.5_half": {str(row["single"]): row["p99_ratio"] for row in half},
        "consenting_lose_in": [_name(row) for row in some if row["consenting_gain"] < 1],
        "others_lose_in": [_name(row) for row in some if (row["others_worse"] or 1) > 1.02],
        "most_lost_share": max((row["lost_share"] for row in some), default=0.0),
    }


def over_gated(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By the name of each cell of hlas, if both ran."""
    gated = {_place(row): row["over_bound"] for row in rows if row["predictor"] == "learned"}
    hlas = [row for row in rows if row["predictor"] == "hlas" and _place(row) in gated]
    return {_name(row): round(row["over_bound"] / gated[_place(row)], 4) for row in hlas}


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("load", "single", "consent", "seed"))


def _name(row: Mapping[str, Any]) -> str:
    return f"load {row['load']:g}, {row['single']:.0%} on one GPU, {row['predictor']}, consent {row['consent']:.0%}"


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The figures as a Markdown table."""
    names = ("over_bound", "p99_slowdown", "consenting_gain", "consenting_p95_gain", "others_worse", "lost_share")
    lines = ["| cell | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for row in rows:
        cells = ("" if row[name] is None else f"{row[name]:.4g}" for name in names)
        lines.append(f"| {_name(row)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 1.1, 1.5])
    parser.add_argument("--single-gpu", type=float, nargs="+", default=[0.7, 0.0])
    parser.add_argument("--consent", type=float, nargs="+", default=[0.25, 0.5, 1.0])
    parser.add_argument("--checkpoint", type=float, default=PreemptionCosts.checkpoint_s, help="seconds")
    parser.add_argument("--requeue", type=float, default=PreemptionCosts.requeue_s, help="seconds")
    parser.add_argument("--restart", type=float, default=PreemptionCosts.restart_s, help="seconds")
    parser.add_argument("--policies", nargs="+", choices=POLICIES)
    parser.add_argument("--gain", type=float, help="policy.interruption_gain")
    parser.add_argument("--fills", action="store_true", help="policy.fills")
    parser.add_argument("--servers", type=int, default=Task.servers, help="with 8 GPUs each (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="10,000 jobs, no quarter of consenting jobs, no hlas")
    parser.add_argument("-j", "--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout instead of a table")
    chosen = parser.parse_args()
    jobs, shares = (10_000, [0.5, 1.0]) if chosen.quick else (chosen.jobs, chosen.consent)
    policies = chosen.policies or [name for name in POLICIES if not (chosen.quick and name == "hlas")]
    costs = PreemptionCosts(chosen.checkpoint, chosen.requeue, chosen.restart)
    settings = {"interruption_gain": chosen.gain} if chosen.gain else {}
    settings |= {"fills": True} if chosen.fills else {}
    tasks = [
        Task(load, single, predictor, jobs, chosen.seed, sorted({0.0, *shares}), costs, settings, chosen.servers)
        for load in chosen.loads
        for single in chosen.single_gpu
        for predictor in policies
    ]
    rows = list[dict[str, Any]]()
    for some in in_parallel(play, [(task,) for task in tasks], chosen.processes):
        rows += some
    found = {"goals": verdicts(rows), "over_gated": over_gated(rows)}
    if chosen.json:
        print(json.dumps({"jobs": jobs, "costs": asdict(costs), "cells": rows, **found}))
    else:
        print(text(rows), json.dumps(found, indent=2), sep="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
