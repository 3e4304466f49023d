"""Correlation of prediction errors in sweeps: python -m benchmarks.alike TRACE... --json

A sweep is a set of jobs that arrive within ``--within`` seconds of each other, such as a job array. The jobs have the
same group, or the same user and size if the trace has no groups. The error of a job is its distance from the median of
the last 50 such jobs before the sweep, in standard deviations of their logarithms. ``alike`` is the correlation of the
errors of neighboring jobs in a sweep, over ``pairs`` pairs. Sweeps with fewer than five earlier jobs do not count.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from statistics import correlation, fmean, median, pstdev
from typing import Any

import numpy as np

from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.sources import load_trace

KEPT, LEAST = 50, 5
LEAST_SPREAD, FARTHEST = 0.3, 4.0
"""The least spread of a logarithm, and the most standard deviations, so that no single error dominates."""
SHORTEST_S = 10.0


@dataclass
class _Group:
    """before: logarithms of the runtimes before the current sweep; sweep: those in it. came: its latest submission."""

    before: list[float] = field(default_factory=list)
    sweep: list[float] = field(default_factory=list)
    came: float = -np.inf

    def add(self, log_s: float, submit: float, within_s: float) -> None:
        if submit > self.came + within_s:
            self.before, self.sweep = [*self.before, *self.sweep][-KEPT:], []
        self.sweep.append(log_s)
        self.came = submit

    def misses(self) -> tuple[float, float] | None:
        """The errors of the last two jobs of the sweep."""
        if len(self.before) < LEAST or len(self.sweep) < 2:
            return None
        usual, spread = median(self.before), max(pstdev(self.before), LEAST_SPREAD)
        first, second = (min(max((log_s - usual) / spread, -FARTHEST), FARTHEST) for log_s in self.sweep[-2:])
        return first, second


def pairs(trace: Trace, within_s: float) -> Iterator[tuple[float, float]]:
    groups: dict[Hashable, _Group] = defaultdict(_Group)
    jobs: Iterable[Any] = trace.jobs.itertuples()
    for job in jobs:
        group = groups[job.user, job.group, job.gpus]
        group.add(float(np.log(max(job.duration_s, SHORTEST_S))), job.submit_s, within_s)
        found = group.misses()
        if found:
            yield found


def figures(trace: Trace, within_s: float) -> dict[str, Any]:
    found = list(pairs(trace, within_s))
    if len(found) < 2:
        return {"jobs": len(trace), "pairs": len(found), "alike": None}
    first, second = zip(*found, strict=True)
    return {"jobs": len(trace), "pairs": len(found), "alike": round(correlation(first, second), 3)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="+", metavar="TRACE", help="traces, as in asrpt-sim")
    parser.add_argument("--within", type=float, default=60.0, help="most seconds between two jobs of a sweep")
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    chosen = parser.parse_args()
    found: dict[str, Any] = {
        name: figures(load_trace(name, processors_as_gpus=True), chosen.within) for name in chosen.traces
    }
    known = [one["alike"] for one in found.values() if one["alike"] is not None]
    found["mean"] = round(fmean(known), 3) if known else None
    print(json.dumps(found, indent=None if chosen.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
