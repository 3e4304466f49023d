"""The default policy against simple ones on random logs: python -m benchmarks.random_logs --json

To find where it loses. Each seed draws a log and a cluster of 1 to 16 servers of 8 GPUs: groups of recurring jobs with
a size and a typical run time each, how much the run times within a group differ, whether jobs fail in their first
minute, whether jobs come one by one, in batches, in waves or by the day, time limits or none, and a load. The first
half of the jobs is there to learn from. ``--laboratory`` draws other logs: one or two servers, a daily cycle, and jobs
that need a whole server among small ones. No setting of a policy was chosen on these logs; other seeds are other logs.

Ratios are those of the policy under test over the best by mean completion time of the others, whose jobs request their
fewest nodes: ``mean_ratio``, ``p99_wait_ratio`` (waits below a minute count as one), and ``size_ratio``: the largest of
the size classes of at least 20 jobs of the mean completion time over that of easy-backfill. Jobs have no profiles.
``shuffled`` gives each job the run time of another one.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.real_windows import GPUS, SHUFFLED, measure, shuffled
from benchmarks.reallogs import BACKFILL, BASELINES, FEWEST, LEAST_CLASS, SHORT_WAIT_S
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.errors import InputError, one_line
from slurm_asrpt.sim.description import PERFECT, Cluster, Options
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.scenario import parse_policy
from slurm_asrpt.sim.workload import Workload, build
from slurm_asrpt.traces.trace import Trace, clean

Rng = np.random.Generator
PREDICTORS = ("expected", PERFECT, SHUFFLED)
KEYS = ("mean_ratio", "p99_wait_ratio", "size_ratio")
GOALS = {"mean_ratio": 1.02, "p99_wait_ratio": 1.2, "size_ratio": 1.1}
LONGEST_S = 5 * 86_400.0
LABORATORIES = 10_000
"""Added to their seeds, so that they are no others' seeds."""
SHARES = {
    "many whole": [0.4, 0.15, 0.15, 0.3],
    "some whole": [0.55, 0.15, 0.15, 0.15],
    "few whole": [0.8, 0.08, 0.07, 0.05],
}
"""Of the groups of a laboratory, those with 1, 2, 4 and 8 GPUs."""


def draw(seed: int) -> tuple[Trace, dict[str, Any]]:
    """A log, and what it is like."""
    rng = np.random.default_rng(seed)
    about: dict[str, Any] = {
        "seed": seed,
        "servers": int(rng.choice([1, 2, 4, 8, 16])),
        "jobs": int(rng.choice([400, 1000, 2000])),
        "groups": int(rng.choice([5, 30, 200])),
        "sizes": str(rng.choice(["mostly small", "even", "mostly large", "odd"])),
        "spread": float(rng.choice([0.05, 0.5, 1.2])),
        "failing": float(rng.choice([0.0, 0.3])),
        "arrivals": str(rng.choice(["single", "batches", "waves", "days"])),
        "limits": bool(rng.random() < 0.5),
        "load": float(rng.choice([0.7, 0.9, 1.0, 1.3])),
    }
    return _trace(rng, about, *_groups(rng, about)), about


def draw_laboratory(seed: int) -> tuple[Trace, dict[str, Any]]:
    """A log of one or two servers of 8 GPUs, some of whose groups need all of one, and what it is like."""
    rng = np.random.default_rng(LABORATORIES + seed)
    groups = 30
    about: dict[str, Any] = {
        "seed": seed,
        "servers": int(rng.choice([1, 2])),
        "jobs": 600,
        "groups": groups,
        "sizes": str(rng.choice([*SHARES])),
        "spread": float(rng.choice([0.3, 0.8])),
        "failing": float(rng.choice([0.0, 0.25])),
        "arrivals": "days",
        "limits": bool(rng.random() < 0.5),
        "load": float(rng.choice([0.7, 0.85, 1.0])),
    }
    gpus = rng.choice([1, 2, 4, GPUS], groups, p=SHARES[about["sizes"]])
    seconds = np.exp(rng.normal(np.log(rng.choice([600, 3600, 10800])), rng.choice([0.8, 1.5]), groups))
    return _trace(rng, about, gpus, seconds), about


def _trace(rng: Rng, about: Mapping[str, Any], gpus: Any, seconds: Any) -> Trace:
    """The jobs of groups with these GPUs and typical seconds."""
    count = 2 * about["jobs"]
    submit, group = _arrivals(rng, about, count)
    lasts = seconds[group] * np.exp(rng.normal(0, about["spread"], count))
    lasts = np.where(rng.random(count) < about["failing"], rng.uniform(1, 60, count), lasts)
    jobs = pd.DataFrame(
        {
            "job_id": [str(number) for number in range(count)],
            "submit_s": submit.round(2),
            "gpus": gpus[group],
            "duration_s": np.clip(lasts, 1.0, LONGEST_S).round(),
            "user": [f"user{number % 7}" for number in group],
            "group": [f"group{number}" for number in group],
        }
    )
    if about["limits"]:
        jobs["time_limit_s"] = 60 * np.ceil(jobs["duration_s"] / rng.uniform(0.05, 1, count) / 60)
    return clean(f"random-{about['seed']}", jobs)


def _groups(rng: Rng, about: Mapping[str, Any]) -> tuple[Any, Any]:
    """GPUs and typical seconds of each group; in some logs larger jobs are longer, in some shorter."""
    most, groups = GPUS * about["servers"], about["groups"]
    sizes = 2 ** np.arange(int(np.log2(most)) + 1)
    weights = {"mostly small": 0.5, "mostly large": 1.3}.get(about["sizes"], 1.0) ** np.arange(len(sizes))
    if about["sizes"] == "odd":
        sizes = np.minimum(most, np.array([1, 2, 3, 5, 6, 7, 12, 16, 20, 24][: len(sizes) + 1]))
        weights = np.ones(len(sizes))
    gpus = rng.choice(sizes, groups, p=weights / weights.sum())
    seconds = np.exp(rng.normal(np.log(rng.choice([60, 600, 3600, 14400])), rng.choice([0.5, 1.5, 2.5]), groups))
    return gpus, seconds * gpus ** rng.choice([0.0, 0.0, 0.7, -1.0])


def _arrivals(rng: Rng, about: Mapping[str, Any], count: int) -> tuple[Any, Any]:
    """Times of submission in any unit, since the load stretches them, and the group of each job."""
    popularity = rng.dirichlet(np.full(about["groups"], rng.choice([0.2, 1.0])))
    group = rng.choice(about["groups"], count, p=popularity)
    gaps = rng.exponential(100.0, count)
    if about["arrivals"] == "batches":  # each of one group
        gaps = np.where(rng.random(count) < 0.05, 20 * gaps, 0.0)
        batch = np.cumsum(gaps > 0)
        group = group[np.searchsorted(batch, batch)]
    submit = np.cumsum(gaps)
    span = submit[-1]
    if about["arrivals"] == "waves":
        submit += np.floor(8 * submit / span) * span / 4
    if about["arrivals"] == "days":
        submit += 0.8 * np.sin(20 * np.pi * submit / span) * span / (20 * np.pi)
    return submit, group


def workload(trace: Trace, about: Mapping[str, Any], predictor: str) -> Workload:
    options = Options(
        models="none",
        load=about["load"],
        history=0.5,
        predictor=PERFECT if predictor == SHUFFLED else predictor,
        seed=about["seed"],
    )
    made = build(trace, Cluster(servers=about["servers"], gpus=GPUS), options)
    return replace(made, table=shuffled(made, about["seed"])) if predictor == SHUFFLED else made


def play(seed: int, laboratory: bool, under_test: str, predictors: Sequence[str]) -> list[dict[str, Any]]:
    """The cells of a log: one for each kind of predictions."""
    warnings.simplefilter("ignore")
    trace, about = draw_laboratory(seed) if laboratory else draw(seed)
    others = [name + FEWEST for name in BASELINES]
    cells = []
    for predictor in predictors:
        made = workload(trace, about, predictor)
        found = {text: _figures(made, text) for text in dict.fromkeys([under_test, *others])}
        best = min(others, key=lambda text: float(found[text]["mean_s"]))
        ours, theirs = found[under_test], found[best]
        cells.append(
            {
                **about,
                "predictor": predictor,
                "best": best,
                "mean_ratio": ours["mean_s"] / theirs["mean_s"],
                "p99_wait_ratio": max(SHORT_WAIT_S, ours["p99_wait_s"]) / max(SHORT_WAIT_S, theirs["p99_wait_s"]),
                "size_ratio": _size_ratio(ours["sizes"], found[BACKFILL]["sizes"]),
            }
        )
    return cells


def _figures(made: Workload, text: str) -> dict[str, Any]:
    spec = parse_policy(text)
    result = simulate_named(spec.name, made.cluster.nodes, made.table, made.cluster.fabric, spec.settings)
    return measure(result, made.cluster)


def _size_ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    large = [name for name, one in ours.items() if one["jobs"] >= LEAST_CLASS]
    return max((ours[name]["mean_s"] / theirs[name]["mean_s"] for name in large), default=1.0)


def summary(cells: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of each kind of predictions and each ratio: geometric mean, worst, and in how many cells the goal is kept."""
    found: dict[str, Any] = {}
    for predictor in dict.fromkeys(cell["predictor"] for cell in cells):
        for key in KEYS:
            ratios = [cell[key] for cell in cells if cell["predictor"] == predictor]
            found.setdefault(predictor, {})[key] = {
                "average": geometric_mean(ratios),
                "worst": max(ratios),
                "kept": sum(ratio <= GOALS[key] for ratio in ratios),
                "cells": len(ratios),
            }
    return found


def table(found: Mapping[str, Any]) -> Table:
    shown = Table("predictions", "over the best simple policy", "average", "worst", "goal", "cells that keep it")
    for predictor, keys in found.items():
        for key, row in keys.items():
            kept = f"{row['kept']} of {row['cells']}"
            shown.add_row(predictor, key, f"{row['average']:.3f}", f"{row['worst']:.2f}", f"{GOALS[key]:g}", kept)
    return shown


def worst(cells: Sequence[Mapping[str, Any]], most: int = 8) -> Table:
    names = ("seed", "predictor", "servers", "sizes", "arrivals", "load", "best")
    shown = Table(*names, "mean", "p99 wait", "size", title="Worst by mean")
    for cell in sorted(cells, key=lambda one: -one["mean_ratio"])[:most]:
        shown.add_row(*(str(cell[name]).removesuffix(FEWEST) for name in names), *(f"{cell[key]:.2f}" for key in KEYS))
    return shown


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default=DEFAULT_POLICY, help="under test, such as asrpt-gated:KEY=VALUE")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=60, help="logs (default %(default)s: five minutes on two cores)")
    parser.add_argument(
        "--laboratory", action="store_true", help="one or two servers, whose largest jobs need a whole one"
    )
    parser.add_argument("--predictors", nargs="+", choices=PREDICTORS, default=PREDICTORS)
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    chosen = parser.parse_args(arguments)
    if chosen.seeds < 1:
        parser.error("--seeds: at least 1")
    try:
        text = parse_policy(chosen.policy).text
    except InputError as error:
        parser.error(one_line(error))
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    work = Parallel(chosen.workers, return_as="generator")(
        delayed(play)(one, chosen.laboratory, text, chosen.predictors) for one in seeds
    )
    shown = track(work, "simulating", total=len(seeds), console=Console(stderr=True))
    cells = [cell for found in shown for cell in found]
    if chosen.json:
        print(json.dumps({"policy": text, "summary": summary(cells), "cells": cells}))
    else:
        console = Console()
        console.print(table(summary(cells)))
        console.print(worst(cells))
    return 0


if __name__ == "__main__":
    from benchmarks import random_logs  # workers find the functions of a module by its name

    sys.exit(random_logs.main())
