"""Measure the training speed of the forest: python -m benchmarks.retrain --rows 700000 --json

Rows are jobs of `pai-like`; the later jobs of groups in these rows are predicted. One run on the same rows gives:
``seconds`` from columns of names to the finished table, and ``sklearn_seconds`` of scikit-learn's RandomForestRegressor
for ``fit`` alone, on ranked features and ``--cores`` cores. ``mae_ratio`` is our mean absolute error over that of
scikit-learn's ``predict``. If ``--sklearn-trees`` is less than ``--trees``, ``sklearn_seconds`` is scaled up to
``--trees``, and ``sklearn_trees`` shows the number used. ``render_seconds`` is for the hook's table of ``--groups``
keys. Groups of `pai-like` have one user each, so a group is a cell.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from slurm_asrpt.hook.table import Entry, render_table
from slurm_asrpt.predict.predictors.forest import Forest, ranks
from slurm_asrpt.traces.synthetic import pai_like

HELD_OUT = 0.2


def compare(rows: int, trees: int, sklearn_trees: int, cores: int, seed: int) -> dict[str, object]:
    jobs = pai_like(round(rows / (1 - HELD_OUT)), seed=seed).jobs.assign(
        iterations=lambda frame: np.maximum(1.0, np.rint(frame["duration_s"]))
    )
    past, later = jobs.iloc[:rows], jobs.iloc[rows:]
    later = later[later["group"].isin(set(past["group"]))]
    began = time.perf_counter()
    forest = Forest(trees, seed)
    for group, figure in zip(past["group"].tolist(), past["iterations"].tolist(), strict=True):
        forest.learn((("group", group),), figure, {})
    table = {group: entry.iterations for group, entry in forest.entries().items()}
    seconds = time.perf_counter() - began
    theirs = RandomForestRegressor(sklearn_trees, n_jobs=cores, random_state=seed)
    features = ranks(past, past)
    began = time.perf_counter()
    theirs.fit(features, past["iterations"])
    sklearn_seconds = (time.perf_counter() - began) * trees / sklearn_trees
    truth = later["iterations"].to_numpy()
    ours = float(np.abs(later["group"].map(table).to_numpy() - truth).mean())
    plain = float(np.abs(theirs.predict(ranks(past, later)) - truth).mean())
    return {
        "rows": rows,
        "cells": len(past[["group", "user"]].drop_duplicates()),
        "trees": trees,
        "sklearn_trees": sklearn_trees,
        "seconds": round(seconds, 3),
        "sklearn_seconds": round(sklearn_seconds, 3),
        "speedup": round(sklearn_seconds / seconds, 2),
        "predicted": len(later),
        "mae": round(ours, 1),
        "sklearn_mae": round(plain, 1),
        "mae_ratio": round(ours / plain, 5),
    }


def render(groups: int, seed: int) -> dict[str, object]:
    """Render the hook's table of this many groups, from entries to bytes."""
    draw = random.Random(seed)
    entries = {f"{draw.getrandbits(64):016x}": Entry(draw.random() * 1e6, 50, 2e6) for _ in range(groups)}
    began = time.perf_counter()
    size = len(render_table(entries))
    return {"groups": groups, "render_seconds": round(time.perf_counter() - began, 3), "table_bytes": size}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=700_000)
    parser.add_argument("--groups", type=int, default=1_000_000, help="number of groups in the rendered table")
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--sklearn-trees", type=int, help="fewer trees, to save time; the default is --trees")
    parser.add_argument("--cores", type=int, default=2, help="cores for scikit-learn; ours uses one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    chosen = parser.parse_args()
    found = compare(chosen.rows, chosen.trees, chosen.sklearn_trees or chosen.trees, chosen.cores, chosen.seed)
    found |= render(chosen.groups, chosen.seed)
    print(json.dumps(found) if chosen.json else "\n".join(f"{k}: {v}" for k, v in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
