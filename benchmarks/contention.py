"""Cost of contention for policies that ignore it: python -m benchmarks.contention --json

No bandwidth is reserved: each of k jobs that use the NIC of a server gets 1/f(k) of its 10 Gbit/s, f(k) = k + a (k-1).
The jobs are those of pai-like, on about 2,000 GPUs in servers of 8, 6 or 12 GPUs. Where job sizes do not divide the
server size, parts of several jobs share servers. In these simulations, the speed of a job changes whenever a neighbor
starts or ends (``sim/contention.py``).

rows: for each cell and policy, ``over_bound``, the average completion time over DESIGN's lower bound, with α̃_min of a
job that does not share NICs, and ``makespan_s``; means over the seeds. asrpt: the better of tau = 1 and 1000.
contention-gate is asrpt-gated with contention = true, contention-asrpt is asrpt with it. gate_best_in: cells in which
no other policy has a lower average. gate_beaten_in: the other cells, with the better policy and its margin.

rings: simulations of ``--rings`` concurrent rings of 4 GPUs on two servers of 3 GPUs each, each ring followed by
another. Figures are simulated jobs per second, with and without contention, for a hundredth, a tenth and all of the
rings. event_cost is the cost of a job with the most rings over that with the fewest.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.nic_contention import NicContention
from slurm_asrpt.core.timing.ring import Linear
from slurm_asrpt.sim.contention import sharing
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.engine import simulate, simulate_named
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.metrics import bounds, summary
from slurm_asrpt.sim.workload import Workload, build
from slurm_asrpt.traces.synthetic import pai_like

GATE = "contention-gate"
POLICIES: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]] = {
    "asrpt": [("asrpt", {"tau": tau}) for tau in (1.0, 1000.0)],
    "contention-asrpt": [("asrpt", {"tau": tau, "contention": True}) for tau in (1.0, 1000.0)],
    "asrpt-gated": [("asrpt-gated", {})],
    GATE: [("asrpt-gated", {"contention": True})],
}
TOTAL_GPUS, NIC_GBIT = 2000, 10.0


@dataclass(frozen=True)
class Cell:
    """gpus: of a server. degradation: a of f."""

    gpus: int
    load: float
    single_gpu: float
    degradation: float

    @property
    def name(self) -> str:
        return f"{self.gpus} GPUs, load {self.load:g}, {self.single_gpu:.0%} single, a = {self.degradation:g}"


def workload(cell: Cell, jobs: int, seed: int) -> Workload:
    cluster = Cluster(TOTAL_GPUS // cell.gpus, cell.gpus, NIC_GBIT)
    return build(pai_like(2 * jobs, seed=seed), cluster, Options(load=cell.load, single_gpu=cell.single_gpu, seed=seed))


def lower_bound(made: Workload) -> float:
    """DESIGN's bound on the mean completion time in seconds, with α̃_min of jobs that do not share NICs."""
    alone = NicContention(made.cluster.fabric)
    nodes, table = made.cluster.nodes, made.table
    rows = {int(kind): row for row, kind in enumerate(table.profile)}
    best = np.ones(len(table.profiles))
    for kind, row in rows.items():
        best[kind] = alone.best_alpha(table.job(row), nodes)
    reserved = table.best_alphas(nodes, made.cluster.fabric)
    return bounds(replace(table, iterations=table.iterations * best[table.profile] / reserved), made.cluster)["design"]


def play(cell: Cell, jobs: int, seed: int, policies: Sequence[str]) -> dict[str, dict[str, float]]:
    """Results of each policy; for policies with several settings, the best one."""
    made = workload(cell, jobs, seed)
    lower = lower_bound(made)
    found = {}
    for policy in policies:
        runs = [_run(made, cell, *setting) for setting in POLICIES[policy]]
        best = min(runs, key=lambda run: float(run["mean_jct_s"]))
        found[policy] = {"over_bound": best["mean_jct_s"] / lower, "makespan_s": best["makespan_s"]}
    return found


def _run(made: Workload, cell: Cell, name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    fabric = made.cluster.fabric
    runner = sharing(fabric, Linear(cell.degradation))
    result = simulate_named(name, made.cluster.nodes, made.table, fabric, settings, runner=runner)
    found = summary(result, made.cluster)
    if found["ended"] != found["jobs"]:
        raise RuntimeError(f"{name} {dict(settings)}: {found['jobs'] - found['ended']} jobs did not end")
    return found


def row(cell: Cell, jobs: int, seeds: int, policies: Sequence[str]) -> dict[str, Any]:
    runs = [play(cell, jobs, seed, policies) for seed in range(seeds)]
    figures = {
        policy: {key: float(f"{fmean(run[policy][key] for run in runs):.5g}") for key in ("over_bound", "makespan_s")}
        for policy in policies
    }
    return {"cell": cell.name, "policies": figures}


def verdict(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    best, beaten = [], []
    for one in rows:
        figures = {name: found["over_bound"] for name, found in one["policies"].items()}
        if GATE in figures:
            first = min(figures, key=lambda name: (figures[name], name != GATE))
            if first == GATE:
                best.append(one["cell"])
            else:
                beaten.append(f"{one['cell']}: {first} by {figures[GATE] / figures[first] - 1:.2%}")
    return {"gate_best_in": best, "gate_beaten_in": beaten}


def rings(number: int) -> dict[str, Any]:
    """The speed of the simulator with this number of concurrent rings."""
    profile = JobProfile("ring", (Stage(4, 0.5, 0.5, param_bytes=1e8),))
    jobs, servers = 2 * number, -(-4 * number // 3)
    rng = np.random.default_rng(0)
    iterations = rng.uniform(500, 1500, jobs)
    table = JobTable((profile,), np.zeros(jobs), np.zeros(jobs, dtype=np.int64), iterations, iterations)
    nodes, fabric = [Node(f"n{i}", 3, i) for i in range(servers)], Cluster().fabric
    speed = {}
    for name, runner in (("contention", sharing(fabric, Linear())), ("reserved", None)):
        began = time.process_time()
        result = simulate(make_policy("fifo", fabric=fabric), nodes, table, runner=runner)
        speed[name] = round(len(result.ended) / (time.process_time() - began))
    return {"rings": number, "jobs": jobs, "jobs_per_s": speed["contention"], "jobs_per_s_reserved": speed["reserved"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=3000, help="simulated jobs, after as many for training")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 6, 12], help="GPUs of a server")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 1.1])
    parser.add_argument("--single-gpu", type=float, nargs="+", default=[0.7, 0.0])
    parser.add_argument("--degradation", type=float, nargs="+", default=[0.0, 0.5])
    parser.add_argument("--policies", nargs="+", default=list(POLICIES), choices=list(POLICIES))
    parser.add_argument("--rings", type=int, default=10_000, help="maximum of concurrent rings; 0: none")
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    chosen = parser.parse_args()
    cells = [
        Cell(gpus, load, single, a)
        for gpus in chosen.gpus
        for load in chosen.loads
        for single in chosen.single_gpu
        for a in chosen.degradation
    ]
    rows = []
    for done, cell in enumerate(cells, start=1):
        rows.append(row(cell, chosen.jobs, chosen.seeds, chosen.policies))
        print(f"\r{done} of {len(cells)} cells", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    found: dict[str, Any] = {"jobs": chosen.jobs, "seeds": chosen.seeds, **verdict(rows), "rows": rows}
    if chosen.rings:
        found["rings"] = [rings(max(1, chosen.rings // part)) for part in (100, 10, 1)]
        speeds = [one["jobs_per_s"] for one in found["rings"]]
        found["event_cost"] = round(speeds[0] / speeds[-1], 2)
    print(json.dumps(found) if chosen.json else json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
