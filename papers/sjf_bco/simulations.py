"""The simulations of the SJF-BCO paper (section 7), over many seeds. ``page`` compares the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from papers.seeded import Seeds, spread
from papers.sjf_bco import idle, planners
from papers.sjf_bco.workload import EXTRA, Batch, paper_batch
from slurm_asrpt.core.policies.sjf_bco.planner import BestPlan, sjf_bco

FIGURES = ("bco-fig4", "bco-fig5", "bco-fig6", "bco-fig7")
OURS = "sjf-bco"
PLANNED, IDLE = "planned", "idle"
"""The readings of Algorithms 2 and 3: a plan has GPUs that may be in use; or a job waits for idle GPUs (``idle``)."""
PLANNERS: Mapping[str, Mapping[str, Callable[..., BestPlan | None]]] = {
    OURS: {PLANNED: sjf_bco, IDLE: idle.sjf_bco},
    "ff": {PLANNED: planners.first_fit, IDLE: idle.first_fit},
    "ls": {PLANNED: planners.list_scheduling, IDLE: idle.list_scheduling},
    "rand": {PLANNED: planners.at_random, IDLE: idle.at_random},
}
READINGS = (PLANNED, IDLE)
COMPETITORS = tuple((name, by_size) for by_size in (False, True) for name in PLANNERS if name != OURS)
"""The other planners, with the jobs in the order of the batch, which is random, and by size, as SJF-BCO has them."""
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
    """A point of a figure. horizon: T, slots. kappa: None for the best. factor: lambda. extra: see ``paper_batch``.

    reading: one of READINGS. by_size: the planner gets the smallest jobs first.
    """

    planner: str = OURS
    servers: int = 20
    horizon: float = 1200.0
    kappa: int | None = None
    factor: float = 1.0
    extra: float = EXTRA
    reading: str = PLANNED
    by_size: bool = False

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
    return [one for row in rows(figure).values() for one in row]


def rows(figure: str) -> dict[str, list[Setting]]:
    """The rows of a figure by name, along its axis. Raises KeyError for an unknown figure."""
    return {"bco-fig4": _fig4, "bco-fig5": _fig5, "bco-fig6": _fig6, "bco-fig7": _fig7}[figure]()


def row(reading: str, extra: float) -> str:
    """The name of a row with this reading and share of contention and overhead."""
    return f"{reading}, {extra:.0%}"


def _both() -> list[tuple[str, float]]:
    return [(reading, extra) for reading in READINGS for extra in (EXTRA, MORE)]


def _fig4() -> dict[str, list[Setting]]:
    return {
        row(reading, extra): [
            Setting(extra=extra, reading=reading),
            *(Setting(name, extra=extra, reading=reading, by_size=by_size) for name, by_size in COMPETITORS),
        ]
        for reading, extra in _both()
    }


def _fig5() -> dict[str, list[Setting]]:
    return {
        row(reading, extra): [Setting(kappa=kappa, extra=extra, reading=reading) for kappa in KAPPAS]
        for reading, extra in _both()
    }


def _fig6() -> dict[str, list[Setting]]:
    return {
        f"{name}, {reading}": [Setting(name, number, 1500.0, reading=reading) for number in SERVERS]
        for reading in READINGS
        for name in (OURS, "ff", "ls")
    }


def _fig7() -> dict[str, list[Setting]]:
    return {
        row(reading, extra): [Setting(kappa=1, factor=factor, extra=extra, reading=reading) for factor in LAMBDAS]
        for reading, extra in _both()
    }


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
    jobs = sorted(batch.jobs, key=lambda job: job.gpus) if one.by_size else batch.jobs
    while True:
        found = PLANNERS[one.planner][one.reading](jobs, batch.servers, horizon, slot=SLOT, **more)
        if found is not None:
            return found
        horizon *= 2
