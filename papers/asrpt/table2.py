"""Table II of the A-SRPT paper: Heavy-Edge against the exact placement, on servers with varying free GPUs."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.placement.oracle import optimal_placement
from slurm_asrpt.core.placement.refine import heavy_edge_plus
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.profile.schema import library_names, load_file

FABRIC = Fabric(inter=1.25e9, intra=300e9)
SERVER_GPUS = 8
MAX_GPUS = 32
"""Larger jobs take minutes to place exactly, so GPT-175B on 48 and 96 GPUs is left out."""
MODELS = {"VGG19": "vgg19", "GPT-175B": "gpt-175b"}
CASES = 20


@dataclass(frozen=True)
class Row:
    """One model: means over its cases. alpha: seconds per iteration; took: seconds to place.

    unproven: cases that reached the time limit before the proof; ``exact`` then has the best placement found.
    """

    model: str
    cases: int
    heavy_edge: float
    heavy_edge_took: float
    refined: float
    exact: float
    exact_took: float
    unproven: int


def table2(
    seed: int = 0, cases: int = CASES, limit_s: float = 60.0, on_progress: Callable[[], None] | None = None
) -> list[Row]:
    """Both models of the paper. limit_s: seconds for each exact placement. on_progress: called after each case."""
    return [_row(model, prefix, seed, cases, limit_s, on_progress) for model, prefix in MODELS.items()]


def _row(model: str, prefix: str, seed: int, cases: int, limit_s: float, on_progress: Callable[[], None] | None) -> Row:
    draw = random.Random(f"{seed} {model}")  # noqa: S311  (no secret)
    profiles = _profiles(prefix)
    found = []
    for _ in range(cases):
        profile = draw.choice(profiles)
        found.append(_case(profile, free_gpus(profile.gpus, draw), limit_s))
        if on_progress:
            on_progress()
    alpha, took, refined, exact, exact_took, proven = zip(*found, strict=True)
    mean = statistics.fmean
    placed = (mean(alpha), mean(took), mean(refined), mean(exact), mean(exact_took))
    return Row(model, cases, *placed, len(proven) - sum(proven))


def _profiles(prefix: str) -> list[JobProfile]:
    """The model's configurations of Table I with two GPUs or more, up to MAX_GPUS."""
    found = [load_file(name, ()).profile for name in library_names() if name.startswith(f"{prefix}-")]
    return [profile for profile in found if 2 <= profile.gpus <= MAX_GPUS]


def free_gpus(gpus: int, draw: random.Random) -> tuple[int, ...]:
    """1 to 8 free GPUs per server until the job fits; at least two servers, so that there is a choice."""
    counts: list[int] = []
    while (left := gpus - sum(counts)) > 0:
        counts.append(min(draw.randint(1, SERVER_GPUS), left if counts else gpus - 1))
    return tuple(counts)


def _case(
    profile: JobProfile, counts: tuple[int, ...], limit_s: float
) -> tuple[float, float, float, float, float, bool]:
    servers = (SERVER_GPUS,) * len(counts)
    heavy_edge.cache_clear()
    began = time.perf_counter()
    ranks = heavy_edge(profile, counts)
    took = time.perf_counter() - began
    refined = iteration_time(profile, heavy_edge_plus(profile, counts, servers, FABRIC), servers, FABRIC)
    began = time.perf_counter()
    # a known placement bounds the search; the paper's solver had none
    exact = optimal_placement(profile, counts, servers, FABRIC, limit_s, at_most=refined)
    exact_took = time.perf_counter() - began
    alpha = iteration_time(profile, ranks, servers, FABRIC)
    return alpha, took, refined, exact.alpha, exact_took, exact.proven
