"""Measure the cost of planning: python -m benchmarks.plan --json

Plans a model of 100 identical layers, and each model of the library, on 64 GPUs with 8 per server, 100 Gbit/s and 80 GB
each, for both pipelines. Figures are the elapsed and CPU seconds of profile/planner.py, and the best plan.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import Pipeline
from slurm_asrpt.profile.blocks import UncutFile
from slurm_asrpt.profile.documents import load_uncut
from slurm_asrpt.profile.plan_costs import Machines
from slurm_asrpt.profile.planner import plans
from slurm_asrpt.profile.schema import uncut_names

FABRIC = Fabric(inter=12.5e9, intra=300e9)
BATCHES = (512, 720)  # few and many divisors, which are the replica counts to try


def layered(layers: int, batch: int) -> UncutFile:
    """``layers`` identical layers of GPT-13B, for a mini-batch of ``batch`` sequences."""
    whole = load_uncut("gpt-13b", ())
    block = whole.blocks[1]
    return UncutFile(replace(whole.head, batch=batch), tuple(replace(block, name=f"l{n}") for n in range(layers)))


def timed(document: UncutFile, machines: Machines, pipeline: Pipeline) -> dict[str, object]:
    begin, cpu = time.perf_counter(), time.process_time()
    found = plans(document, machines, pipeline)
    took = {"s": time.perf_counter() - begin, "cpu_s": time.process_time() - cpu}
    best = {"plan": found[0].cut.suffix, "iteration_s": found[0].iteration_s} if found else {"plan": None}
    return {"model": document.head.name, "blocks": len(document.blocks), "pipeline": pipeline.value} | took | best


def measure(layers: int, gpus: int) -> dict[str, object]:
    machines = Machines(gpus, 8, 80e9, FABRIC)
    models = [layered(layers, batch) for batch in BATCHES] + [load_uncut(name, ()) for name in uncut_names()]
    rows = [timed(document, machines, pipeline) for document in models for pipeline in Pipeline]
    return {
        "layers": layers,
        "gpus": gpus,
        "batches": BATCHES,
        "slowest_s": max(float(str(r["s"])) for r in rows),
        "slowest_cpu_s": max(float(str(r["cpu_s"])) for r in rows),
        "plans": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=100)
    parser.add_argument("--gpus", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = measure(options.layers, options.gpus)
    if options.json:
        print(json.dumps(found))
        return
    for row in found["plans"]:  # type: ignore[attr-defined]
        took = f"{row['s']:6.2f} s {row['cpu_s']:6.2f} s CPU"
        print(f"{row['model']:<14}{row['blocks']:>4} blocks {row['pipeline']:<13}{took}  {row['plan']}")


if __name__ == "__main__":
    main()
