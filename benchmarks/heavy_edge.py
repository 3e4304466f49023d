"""Quality of placements against the exact optimum: python -m benchmarks.heavy_edge --json

Runs 20 patterns of free GPUs for each of the nine models of Table I, on servers of 8 GPUs at 10 Gbit/s. Figures are
alpha (7) of heavy_edge and of heavy_edge_plus over alpha of the exact placement, and the milliseconds that each takes.
As in the paper's simulation, a case draws one of the model's parallel configurations; as in its Table II, the free GPUs
of the servers vary.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.progress import track

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.placement.oracle import optimal_placement
from slurm_asrpt.core.placement.refine import heavy_edge_plus
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.profile.schema import library_names, load_file

FABRIC = Fabric(inter=1.25e9, intra=300e9)
SERVER_GPUS = 8
# Beyond this size, the exact placement takes minutes, so GPT-175B on 48 and 96 GPUs is left out.
MAX_GPUS = 32
REPEATS = 5  # timings per placement, of which the median counts

Ranks = tuple[int, ...]


@dataclass(frozen=True)
class Outcome:
    """One case. alpha: seconds per iteration of each method. ms: its time. least: exact alpha, or its lower bound."""

    model: str
    profile: str
    counts: Ranks
    alpha: dict[str, float]
    ms: dict[str, float]
    least: float
    proven: bool
    exact_ms: float

    def ratio(self, method: str) -> float:
        return self.alpha[method] / self.least


def models() -> dict[str, list[JobProfile]]:
    """The configurations of each model of Table I that the oracle can solve, with at least two GPUs."""
    found: dict[str, list[JobProfile]] = {}
    for name in library_names():
        document = load_file(name, ())
        if 2 <= document.profile.gpus <= MAX_GPUS:
            found.setdefault(document.head.model, []).append(document.profile)
    return found


def pattern(gpus: int, draw: random.Random) -> Ranks:
    """The free GPUs of consecutive servers, 1 to 8 each, until they hold the job; the last server has the remainder.

    Always at least two servers: on one server there is nothing to decide.
    """
    counts: list[int] = []
    while (left := gpus - sum(counts)) > 0:
        free = draw.randint(1, SERVER_GPUS)
        counts.append(min(free, left if counts else gpus - 1))
    return tuple(counts)


def cases(patterns: int, seed: int) -> Iterator[tuple[str, JobProfile, Ranks]]:
    for model, profiles in models().items():
        draw = random.Random(f"{seed} {model}")
        for _ in range(patterns):
            profile = draw.choice(profiles)
            yield model, profile, pattern(profile.gpus, draw)


def run_case(model: str, profile: JobProfile, counts: Ranks, time_limit_s: float) -> Outcome:
    servers = (SERVER_GPUS,) * len(counts)
    methods: dict[str, Callable[[], Ranks]] = {
        "heavy_edge": lambda: heavy_edge(profile, counts),
        "heavy_edge_plus": lambda: heavy_edge_plus(profile, counts, servers, FABRIC),
    }
    alpha, ms = {}, {}
    for name, method in methods.items():
        ranks, ms[name] = timed(method)
        alpha[name] = iteration_time(profile, ranks, servers, FABRIC)
    begun = time.perf_counter()
    exact = optimal_placement(profile, counts, servers, FABRIC, time_limit_s, at_most=alpha["heavy_edge_plus"])
    took = (time.perf_counter() - begun) * 1e3
    # without a proof, the bound is used, which can only make our ratios look worse
    least = exact.alpha if exact.proven else exact.bound
    return Outcome(model, profile.name, counts, alpha, ms, least, exact.proven, took)


def timed(method: Callable[[], Ranks]) -> tuple[Ranks, float]:
    """The placement and its median milliseconds: computed from scratch each time, on an existing job graph."""
    ranks, took = method(), []
    for _ in range(REPEATS):
        heavy_edge.cache_clear()
        heavy_edge_plus.cache_clear()
        begun = time.perf_counter()
        ranks = method()
        took.append((time.perf_counter() - begun) * 1e3)
    return ranks, statistics.median(took)


def figures(outcomes: Sequence[Outcome]) -> dict[str, object]:
    found: dict[str, object] = {
        method: {
            "ratio_mean": round(statistics.fmean(ratios), 4),
            "ratio_p95": round(percentile(ratios, 0.95), 4),
            "ratio_of_means": round(sum(o.alpha[method] for o in outcomes) / sum(o.least for o in outcomes), 4),
            "ms_median": round(statistics.median(o.ms[method] for o in outcomes), 4),
        }
        for method in ("heavy_edge", "heavy_edge_plus")
        for ratios in [[o.ratio(method) for o in outcomes]]
    }
    exact = {"ms_median": round(statistics.median(o.exact_ms for o in outcomes), 1)}
    return found | {"cases": len(outcomes), "unproven": sum(not o.proven for o in outcomes), "exact": exact}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value v such that at least this share of the values is at most v."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def report(outcomes: Sequence[Outcome]) -> dict[str, object]:
    names = sorted({outcome.model for outcome in outcomes})
    per_model = {name: figures([outcome for outcome in outcomes if outcome.model == name]) for name in names}
    return {**figures(outcomes), "models": per_model}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    parser.add_argument("--patterns", type=int, default=20, help="free-GPU patterns per model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="S", help="seconds for each exact placement")
    options = parser.parse_args(arguments)
    todo = list(cases(options.patterns, options.seed))
    console = Console(stderr=True)
    shown = track(todo, "placing", console=console, disable=not console.is_terminal)
    found = report([run_case(*case, options.time_limit) for case in shown])
    if options.json:
        json.dump(found, sys.stdout)
        print()
    else:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
