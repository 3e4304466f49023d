"""Measure the cost of worthless predictions: python -m benchmarks.worthless --json

Simulates the jobs of ``benchmarks.replay`` (same options, the shipped sample by default), under EASY backfill with time
limits of twice the runtime, as the replay's users request them, and under the default policy with five kinds of
predictions. Figures are mean completion times over that of EASY backfill, means of ``--seeds`` draws:

``none``: every job is of an unseen group. ``mean``: all jobs of a model look alike. ``noise``: the mean times a factor
whose logarithm is normal with a deviation of 2, so that the 10-90% interval spans a factor of 170. ``others``: each job
is predicted to take as long as another job, whatever its model. ``true``: the actual runtime.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from benchmarks import replay
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.core.cluster import Node
from slurm_asrpt.errors import InputError
from slurm_asrpt.profile.schema import load_profile
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.job_table import JobTable

SPREAD = 2.0
BACKFILL = "easy-backfill"
Numbers = NDArray[np.float64]


def table(planned: replay.Plan) -> JobTable:
    """The jobs as in the lab, with true iterations as predicted ones."""
    names = sorted({job.profile for job in planned.jobs})
    jobs = planned.jobs
    iterations = np.array([job.iterations for job in jobs], dtype=np.float64)
    return JobTable(
        profiles=tuple(load_profile(name, []) for name in names),
        submit=np.array([job.submit_s for job in jobs]),
        profile=np.array([names.index(job.profile) for job in jobs]),
        iterations=iterations,
        predicted=iterations,
        time_limit=np.array([60.0 * max(1, -(-int(2 * job.ideal_s) // 60)) for job in jobs]),
    )


def predictions(kind: str, jobs: JobTable, ideal_s: Numbers, seed: int) -> Numbers:
    """Iterations by the name of the kind. ideal_s: runtimes in the best placement."""
    rng, true = np.random.default_rng(seed), jobs.iterations
    means = np.array([true[jobs.profile == profile].mean() for profile in jobs.profile])
    if kind == "none":
        return np.zeros(len(jobs))
    if kind == "noise":
        return np.asarray(means * np.exp(rng.normal(0.0, SPREAD, len(jobs))))
    if kind == "others":
        return np.asarray(rng.permutation(ideal_s) / (ideal_s / true))
    return means if kind == "mean" else true


def measure(planned: replay.Plan, seeds: int) -> dict[str, object]:
    nodes = [Node(node.name, node.gpus, index) for index, node in enumerate(planned.spec.node_list)]
    jobs, ideal_s = table(planned), np.array([job.ideal_s for job in planned.jobs])

    def mean_jct_s(policy: str, predicted: Numbers) -> float:
        given = JobTable(**{**vars(jobs), "predicted": predicted})
        return float(simulate_named(policy, nodes, given, planned.fabric).completion_times.mean())

    backfill = mean_jct_s(BACKFILL, jobs.predicted)
    ratios: dict[str, float] = {}
    for kind in ("none", "mean", "noise", "others", "true"):
        draws = range(seeds if kind in ("noise", "others") else 1)
        found = [mean_jct_s(DEFAULT_POLICY, predictions(kind, jobs, ideal_s, seed)) / backfill for seed in draws]
        ratios |= {kind: round(fmean(found), 3)} | ({f"{kind}_worst": round(max(found), 3)} if len(draws) > 1 else {})
    return {**planned.sum_up, "backfill_jct_s": round(backfill, 2), **ratios}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    replay.add_selection(parser, "20x8")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    options.port = 28300  # of a lab that is never started
    if not options.trace.is_file():
        print(f"worthless: skipped, {options.trace} does not exist", file=sys.stderr)
        return 0
    try:
        found = measure(replay.plan(options), options.seeds)
    except InputError as error:
        print(f"worthless: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(found, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
