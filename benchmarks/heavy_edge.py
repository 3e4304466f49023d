"""Quality of placements against the exact optimum: python -m benchmarks.heavy_edge --json

Runs 20 patterns of free GPUs for each of the nine models of Table I, on servers of 8 GPUs at 10 Gbit/s. Figures are
alpha (7) of heavy_edge and of heavy_edge_plus over alpha of the exact placement, and the milliseconds that each takes.
As in the paper's simulation, a case draws one of the model's parallel configurations; as in its Table II, the free GPUs
of the servers vary.

``racks`` are the same cases with three levels, GPUs in servers in racks: the servers of a case are in two or three
racks, and a server has a quarter of its NIC's bandwidth out of its rack. ``random`` are random pipelines there, and
``large`` are the milliseconds for jobs of 64 GPUs on servers drawn from 250.
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
from dataclasses import dataclass, replace

from rich.console import Console
from rich.progress import track

from papers.asrpt.oracle import optimal_placement
from papers.asrpt.refine import heavy_edge_plus
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Stage
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.topology import Blocks
from slurm_asrpt.profile.schema import library_names, load_file

FABRIC = Fabric(inter=1.25e9, intra=300e9)
RACKS = replace(FABRIC, beyond=(FABRIC.inter / 4,))
# For the times of large jobs, without the exact placement.
LARGE_GPUS, LARGE_SERVERS, RACK_SERVERS = 64, 250, 16
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


def racks(servers: int, draw: random.Random) -> Blocks:
    """The rack of each server: two or three racks, if there are as many servers."""
    most = min(servers, draw.choice([2, 3]))
    return numbered([*range(most), *(draw.randrange(most) for _ in range(servers - most))], draw)


def numbered(names: list[int], draw: random.Random) -> Blocks:
    """Blocks of one level in random order, numbered in order of appearance."""
    draw.shuffle(names)
    number = {name: at for at, name in enumerate(dict.fromkeys(names))}
    return (tuple(number[name] for name in names),) if len(number) > 1 else ()


def run_case(model: str, profile: JobProfile, counts: Ranks, time_limit_s: float, blocks: Blocks = ()) -> Outcome:
    servers, fabric = (SERVER_GPUS,) * len(counts), RACKS if blocks else FABRIC
    alpha, ms = {}, {}
    for name, method in methods(profile, counts, blocks).items():
        ranks, ms[name] = timed(method)
        alpha[name] = iteration_time(profile, ranks, servers, fabric, blocks)
    begun = time.perf_counter()
    known = alpha["heavy_edge_plus"]
    exact = optimal_placement(profile, counts, servers, fabric, time_limit_s, at_most=known, blocks=blocks)
    took = (time.perf_counter() - begun) * 1e3
    # without a proof, the bound is used, which can only make our ratios look worse
    least = exact.alpha if exact.proven else exact.bound
    return Outcome(model, profile.name, counts, alpha, ms, least, exact.proven, took)


def methods(profile: JobProfile, counts: Ranks, blocks: Blocks) -> dict[str, Callable[[], Ranks]]:
    servers, fabric = (SERVER_GPUS,) * len(counts), RACKS if blocks else FABRIC
    return {
        "heavy_edge": lambda: heavy_edge(profile, counts, blocks=blocks),
        "heavy_edge_plus": lambda: heavy_edge_plus(profile, counts, servers, fabric, blocks),
    }


def random_cases(patterns: int, seed: int) -> Iterator[tuple[str, JobProfile, Ranks]]:
    """Pipelines of 2 to 6 stages with 1 to 4 replicas. Sizes are log-uniform: transfers of 8 ms to 8 s at 10 Gbit/s."""
    draw = random.Random(f"{seed} random")
    for number in range(patterns):
        stages = []
        for _ in range(draw.randint(2, 6)):
            forward, backward = draw.uniform(0.01, 1), draw.uniform(0.01, 1)
            inward, outward, weights = (10 ** draw.uniform(7, 10) for _ in range(3))
            stages.append(Stage(draw.randint(1, 4), forward, backward, inward, outward, weights))
        profile = JobProfile(f"random-{number}", tuple(stages))
        yield "random", profile, pattern(profile.gpus, draw)


def large_ms(patterns: int, seed: int) -> dict[str, dict[str, float]]:
    """Milliseconds per placement of jobs of 64 GPUs on servers drawn from 250 in racks of 16.

    The jobs are the pipelines of Table I with more replicas of each stage.
    """
    draw, took = random.Random(f"{seed} large"), dict[str, list[float]]()
    for profile in large_profiles():
        for _ in range(patterns):
            counts = pattern(profile.gpus, draw)
            where = numbered([at // RACK_SERVERS for at in draw.sample(range(LARGE_SERVERS), len(counts))], draw)
            for name, method in methods(profile, counts, where).items():
                took.setdefault(name, []).append(timed(method)[1])
    return {
        name: {"ms_median": round(statistics.median(ms), 3), "ms_p95": round(percentile(ms, 0.95), 3)}
        for name, ms in took.items()
    }


def large_profiles() -> list[JobProfile]:
    """The largest pipeline of each model with as many times the replicas as 64 GPUs hold."""
    found = []
    for profiles in models().values():
        able = [one for one in profiles if len(one.stages) > 1 and LARGE_GPUS % one.gpus == 0]
        largest = max(able, key=lambda one: (one.gpus, len(one.stages)))
        times = LARGE_GPUS // largest.gpus
        stages = tuple(replace(stage, replicas=stage.replicas * times) for stage in largest.stages)
        found.append(replace(largest, stages=stages))
    return found


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
            "ratio_max": round(max(ratios), 4),
            "proven_mean": round(statistics.fmean(proven), 4) if proven else None,
            "ratio_of_means": round(sum(o.alpha[method] for o in outcomes) / sum(o.least for o in outcomes), 4),
            "ms_median": round(statistics.median(o.ms[method] for o in outcomes), 4),
        }
        for method in ("heavy_edge", "heavy_edge_plus")
        for ratios, proven in [([o.ratio(method) for o in outcomes], [o.ratio(method) for o in outcomes if o.proven])]
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
    draw, limit = random.Random(f"{options.seed} racks"), options.time_limit
    for name, some in (("racks", todo), ("random", list(random_cases(9 * options.patterns, options.seed)))):
        shown = track(some, f"placing: {name}", console=console, disable=not console.is_terminal)
        found[name] = report([run_case(*case, limit, racks(len(case[2]), draw)) for case in shown])
    found["large"] = large_ms(options.patterns, options.seed)
    if options.json:
        json.dump(found, sys.stdout)
        print()
    else:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
