"""asrpt-gated on mixed GPUs, aware of their types and blind to them: python -m benchmarks.hetero --json

Cells are three mixes of GPUs, loads 0.8, 1.1 and 1.5, and 70% or none of the jobs on one GPU. There are 250 servers of
8 GPUs at 10 Gbit/s, with types alternating in the node table, and jobs of ``pai-like``. The load weights GPUs by their
speeds, and the runtimes of the trace are those on the reference GPU, so all mixes have the same jobs.

Speeds are relative to an A100: the geometric mean of the ratios of dense FP16 tensor operations and of memory
bandwidth, from NVIDIA's data sheets (H100 SXM 989 TFLOPS and 3.35 TB/s, A100 SXM 80 GB 312 and 2.04, V100 SXM2 125 and
0.90).

blind is asrpt-gated with all GPUs declared as reference GPUs. Its jobs run at the speeds of the GPUs that they get, by
the same formulas. It even learns the true iterations of completed jobs, which it could not infer itself. asrpt and
easy-backfill are aware of the types. All figures are average completion times. Ratios are over those of aware, on the
same jobs, averaged over the seeds; ``won`` counts the seeds in which aware is below blind.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from benchmarks.grid import complete, in_parallel
from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement, with_reference_gpus
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.mapping import placement_on
from slurm_asrpt.core.policies.base import Start
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.engine import PlainRun, Result, Runner, simulate_named
from slurm_asrpt.sim.metrics import bounds
from slurm_asrpt.sim.workload import Workload, build
from slurm_asrpt.traces.synthetic import pai_like

SPEEDS = {"h100": 2.28, "a100": 1.0, "v100": 0.42}
MIXES: Mapping[str, Mapping[str, int]] = {
    "halves": {"h100": 125, "a100": 125},
    "thirds": {"h100": 84, "a100": 83, "v100": 83},
    "few fast": {"h100": 50, "a100": 200},
}
AWARE, BLIND = "asrpt-gated", "blind"
OTHERS = ("asrpt", "easy-backfill")


@dataclass(frozen=True)
class Cell:
    mix: str
    load: float
    single_gpu: float

    @property
    def name(self) -> str:
        return f"{self.mix}, load {self.load:g}, {self.single_gpu:.0%} on one GPU"


def workload(cell: Cell, jobs: int, seed: int) -> Workload:
    types = tuple((servers, name, SPEEDS[name]) for name, servers in MIXES[cell.mix].items())
    cluster = Cluster(sum(MIXES[cell.mix].values()), types=types)
    return build(pai_like(2 * jobs, seed=seed), cluster, Options(load=cell.load, single_gpu=cell.single_gpu, seed=seed))


def really(nodes: Sequence[Node], fabric: Fabric) -> Runner:
    """Jobs run at the speeds of these nodes, whatever speeds the policy was given."""
    real = ClusterView(nodes)

    def placed(job: Job, placement: Placement) -> Placement:
        servers = [real.by_name[name] for name in placement.gpus]
        return placement_on(servers, tuple(placement.gpus.values()), job.profile, fabric)

    class Run(PlainRun):
        def _begin(self, start: Start, now: float) -> None:
            super()._begin(replace(start, placement=placed(start.job, start.placement)), now)

    return Run


def run(made: Workload, policy: str) -> Result:
    nodes, fabric = made.cluster.nodes, made.cluster.fabric
    if policy == BLIND:
        return simulate_named(AWARE, with_reference_gpus(nodes), made.table, fabric, runner=really(nodes, fabric))
    return simulate_named(policy, nodes, made.table, fabric)


def play(cell: Cell, jobs: int, seed: int, policies: Sequence[str]) -> tuple[Cell, dict[str, float]]:
    """Average completion times in seconds, and DESIGN's bound on them."""
    made = workload(cell, jobs, seed)
    found = {"bound": bounds(made.table, made.cluster)["design"]}
    for policy in policies:
        found[policy] = float(complete(run(made, policy), policy).completion_times.mean())
    return cell, found


def row(cell: Cell, runs: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Means over the seeds; a policy's ratio is the mean of its ratios."""
    ratios = {name: round(fmean(run[name] / run[AWARE] for run in runs), 4) for name in runs[0] if name != AWARE}
    return {
        "cell": cell.name,
        "aware_s": round(fmean(run[AWARE] for run in runs), 1),
        "won": sum(run[AWARE] < run[BLIND] for run in runs),
        "over_aware": ratios,
        "aware_over_bound": round(fmean(run[AWARE] / run["bound"] for run in runs), 4),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = [name for name in rows[0]["over_aware"] if name != "bound"]
    lines = [
        "| cell | aware | over the bound | " + " | ".join(names) + " | won |",
        "|---|" + "---:|" * (len(names) + 3),
    ]
    for one in rows:
        ratios = " | ".join(f"{one['over_aware'][name]:.3f}" for name in names)
        bound = one["aware_over_bound"]
        lines.append(f"| {one['cell']} | {one['aware_s'] / 3600:.3f} h | {bound:.3f} | {ratios} | {one['won']} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000, help="simulated jobs, after as many for training")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds that each cell is averaged over")
    parser.add_argument("--mixes", nargs="+", default=list(MIXES), choices=list(MIXES))
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 1.1, 1.5])
    parser.add_argument("--single-gpu", type=float, nargs="+", default=[0.7, 0.0])
    parser.add_argument("--others", nargs="*", default=list(OTHERS), help="policies in addition to aware and blind")
    parser.add_argument("-j", "--processes", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout instead of a table")
    chosen = parser.parse_args()
    grid = [Cell(mix, load, single) for mix in chosen.mixes for load in chosen.loads for single in chosen.single_gpu]
    policies, runs = (AWARE, BLIND, *chosen.others), dict[Cell, list[dict[str, float]]]()
    tasks = [(cell, chosen.jobs, seed, policies) for cell in grid for seed in range(chosen.seeds)]
    for cell, averages in in_parallel(play, tasks, chosen.processes, "runs"):
        runs.setdefault(cell, []).append(averages)
    rows = [row(cell, runs[cell]) for cell in grid]
    lost = [one["cell"] for one in rows if one["won"] < chosen.seeds or one["over_aware"][BLIND] <= 1]
    found = {"jobs": chosen.jobs, "seeds": chosen.seeds, "speeds": SPEEDS, "lost": lost, "rows": rows}
    print(json.dumps(found) if chosen.json else table(rows) + f"\n\nlost: {lost or 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
