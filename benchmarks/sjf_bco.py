"""Measure the planning speed of SJF-BCO: python -m benchmarks.sjf_bco --json

Runs the paper's batch (160 jobs on 20 servers with 4 to 32 GPUs each, ``papers/sjf_bco/workload.py``) and larger
batches of the same kind, 8 jobs per server, in one process. Theorem 6 states O(n_g |J| N log N log T).

rows: for each batch, its jobs, servers, GPUs (N), plans evaluated, and CPU seconds, the median of ``--repeat`` runs: of
the whole search, and of placing the jobs for one theta and every kappa that makes a difference, without any makespan.
exponent: growth of the seconds with the jobs, by least squares over the logarithms. |J| and N grow together, so
Theorem 6 allows 2 and its logarithms.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import Any

import numpy as np

from papers.sjf_bco.workload import Batch, paper_batch
from slurm_asrpt.core.policies.sjf_bco.planner import sjf_bco, sjf_bco_plans, thresholds

JOBS_PER_SERVER = 8
HORIZON = 1200.0


def batch(jobs: int, seed: int) -> Batch:
    """A batch of the paper's mix, with an eighth as many servers as jobs."""
    return paper_batch(seed, jobs // JOBS_PER_SERVER, jobs=jobs)


def row(jobs: int, seed: int, repeat: int) -> dict[str, Any]:
    made = batch(jobs, seed)
    whole, placing = [], []
    for _ in range(repeat):
        began = time.process_time()
        found = sjf_bco(made.jobs, made.servers, HORIZON)
        whole.append(time.process_time() - began)
        began = time.process_time()
        for _ in sjf_bco_plans(made.jobs, made.servers, HORIZON / 2, 1.0, thresholds(made.jobs)):
            pass
        placing.append(time.process_time() - began)
    if found is None:
        raise RuntimeError(f"no plan for {jobs} jobs ends within {HORIZON:g} slots")
    return {
        "jobs": jobs,
        "servers": len(made.servers.sizes),
        "gpus": made.servers.gpus,
        "plans": found.tries,
        "seconds": round(statistics.median(whole), 3),
        "placing_s_per_theta": round(statistics.median(placing), 4),
        "makespan_slots": round(found.schedule.makespan, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, nargs="+", default=[160, 320, 640, 1280, 2000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    chosen = parser.parse_args()
    rows = [row(jobs, chosen.seed, chosen.repeat) for jobs in chosen.jobs]
    found: dict[str, Any] = {"rows": rows}
    if len(rows) > 1:
        jobs, seconds = (np.log([one[key] for one in rows]) for key in ("jobs", "seconds"))
        found["exponent"] = round(float(np.polyfit(jobs, seconds, 1)[0]), 2)
    print(json.dumps(found) if chosen.json else "\n".join(map(str, [*rows, found.get("exponent", "")])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
