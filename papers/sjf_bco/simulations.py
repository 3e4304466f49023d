"""The simulations of the SJF-BCO paper (section 7), over many seeds. ``page`` compares the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from papers.seeded import Seeds, spread
from papers.sjf_bco import planners
from papers.sjf_bco.workload import EXTRA, Batch, paper_batch
from slurm_asrpt.core.policies.sjf_bco.planner import BestPlan, sjf_bco

FIGURES = ("bco-fig4", "bco-fig5", "bco-fig6", "bco-fig7")
OURS = "sjf-bco"
PLANNERS: Mapping[str, Callable[..., BestPlan | None]] = {
    OURS: sjf_bco,
    "ff": planners.first_fit,
    "ls": planners.list_scheduling,
    "rand": planners.at_random,
}
SEEDS, QUICK_SEEDS = 24, 3
KAPPAS = (1, 2, 4, 8, 16, 32)
"""The job sizes. Any other kappa up to 32 gives the same plans as the next smaller one of these."""
SERVERS = (10, 12, 14, 16, 18, 20)
LAMBDAS = (1.0, 2.0, 4.0, 8.0)
MORE = 0.6
"""A larger share of contention and overhead than the paper's, at which they matter."""
SLOT = 1.0


@dataclass(frozen=True)
class Setting:
    """A point of a figure. horizon: T, slots. kappa: None for the best. factor: lambda. extra: see ``paper_batch``."""

    planner: str = OURS
    servers: int = 20
    horizon: float = 1200.0
    kappa: int | None = None
    factor: float = 1.0
    extra: float = EXTRA

    @property
    def label(self) -> str:
        return self.planner

    def measure(self, seed: int) -> tuple[float, float, float, int]:
        """Makespan, mean completion, theta_u and kappa of the best plan, in slots."""
        found = plan(self, paper_batch(seed, self.servers, self.extra), seed)
        return found.schedule.makespan, planners.mean_completion(found.schedule), found.theta, found.kappa or 0


@dataclass(frozen=True)
class Point:
    """The results of a setting, one for each seed, in slots. theta: theta_u; kappa: 0 for planners without it."""

    makespan: tuple[float, ...]
    mean: tuple[float, ...]
    theta: tuple[float, ...]
    kappa: tuple[int, ...]

    @property
    def text(self) -> str:
        return f"{spread(self.makespan)}"


def settings(figure: str) -> list[Setting]:
    """The points of a figure. Raises KeyError for an unknown figure."""
    return {
        "bco-fig4": lambda: [Setting(name, extra=extra) for extra in (EXTRA, MORE) for name in PLANNERS],
        "bco-fig5": lambda: [Setting(kappa=kappa, extra=extra) for extra in (EXTRA, MORE) for kappa in KAPPAS],
        "bco-fig6": lambda: [
            Setting(name, number, 1500.0) for name in (OURS, "ff", "ls") for number in SERVERS
        ],
        "bco-fig7": lambda: [
            Setting(kappa=1, factor=factor, extra=extra) for extra in (EXTRA, MORE) for factor in LAMBDAS
        ],
    }[figure]()  # fmt: skip


Points = Mapping[Setting, Point]


def run(figures: Sequence[str], seeds: Seeds) -> Points:
    """Run every setting of the figures with every seed."""
    found = seeds.run(one for figure in figures for one in settings(figure))
    return {one: Point(*zip(*rows, strict=True)) for one, rows in found.items()}


def plan(one: Setting, batch: Batch, seed: int) -> BestPlan:
    """The best plan. The horizon is doubled until one ends within it."""
    more: dict[str, Any] = {}
    if one.planner == OURS:
        more = {"factor": one.factor, "kappas": None if one.kappa is None else [one.kappa]}
    elif one.planner == "rand":
        more = {"seed": seed}
    horizon = one.horizon
    while True:
        found = PLANNERS[one.planner](batch.jobs, batch.servers, horizon, slot=SLOT, **more)
        if found is not None:
            return found
        horizon *= 2
