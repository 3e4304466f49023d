"""The experiments of the A-SRPT paper (section V) as simulations over several seeds, and two of our own.

``map``: where A-SRPT beats the baselines. ``steps``: what each rule between A-SRPT and asrpt-gated gains. ``page``
compares the results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from papers.asrpt.models import LIBRARY, TABLE2, TENTH, heaviness
from papers.asrpt.steps import STEPS
from papers.asrpt.workload import PRIOR, TESTBED_SETS, TRACE_JOBS, ZERO, Jobs, make, shares
from papers.seeded import Seeds
from slurm_asrpt.sim.engine import Result, simulate, simulate_named
from slurm_asrpt.sim.metrics import bounds, summary
from slurm_asrpt.sim.workload import Workload

SEEDS, QUICK_SEEDS = 5, 2
DIVIDE = 20
"""1/20 of the jobs on 1/20 of the servers in the same time, for about the same load and queues."""
BASELINES = ("spjf", "spwf", "wcs-duration", "wcs-workload", "wcs-subtime")
CONSERVING = BASELINES[2:]
ASRPT, IDEAL, GATED = "asrpt", "asrpt-perfect", "asrpt-gated"
TAUS = (0.0, 1.0, 100.0, 1000.0)
FIXED_TAU = 1.0
FEW = 37_500
"""Jobs of the map and of the steps."""
FIG6_JOBS = (FEW, 75_000, 112_500, 150_000)
FIG7_SINGLE = (0.8, 0.6, 0.4, 0.2, 0.0)
FIG8_NIC = (1.0, 5.0, 10.0, 25.0, 50.0)
FIG9_PREDICTORS = ("forest", "median", "mean")
MAP_LOADS, MAP_MODELS = (0.5, 1.0, 2.0), (LIBRARY, TENTH, TABLE2)
MAP_UNSEEN = ((0.0, ZERO), (0.1, ZERO), (0.3, ZERO), (0.3, PRIOR))
"""Shares of jobs in unseen groups, and their treatment."""
STEP_LOADS, STEP_NICS, STEP_TAU = (0.8, 1.1, 1.5), (10.0, 100.0), 100.0
COLUMNED = ("fig6", "fig7", "fig8", "fig9", "map")
FIGURES = ("fig4", "fig5", "fig6", "fig7", "fig8", "fig9", "map", "steps")

Settings = tuple[tuple[str, Any], ...]
Figures = Mapping[str, Any]
"""The results of one simulation: JSON values by name."""
Runs = Sequence[Figures]
"""The results of a simulation, one for each seed."""


@dataclass(frozen=True)
class Sim:
    """One simulation without its seed: a workload and a policy, one of ``asrpt-sim`` or of STEPS, with settings."""

    workload: Jobs
    policy: str
    settings: Settings = ()

    @property
    def label(self) -> str:
        return f"{self.workload.jobs // self.workload.divide:,} jobs, {self.policy}"

    @property
    def tau(self) -> float:
        return float(dict(self.settings).get("tau", 0.0))

    def measure(self, seed: int) -> dict[str, Any]:
        """Simulate: ``metrics.summary``, the sound bound, the load, unseen jobs, heaviness and prediction errors."""
        workload = make(self.workload, seed)
        result = _simulated(self.policy, workload, dict(self.settings))
        if result.interrupted:
            raise KeyboardInterrupt
        unseen, unseen_work = shares(result.table, workload.cluster)  # A-SRPT-Perfect has its own predictions
        return {
            **summary(result, workload.cluster),
            **_facts(self.workload, seed),
            "unseen": unseen,
            "unseen_work": unseen_work,
            **errors(result.table.iterations, result.table.predicted),
        }


@lru_cache(maxsize=1)
def _facts(jobs: Jobs, seed: int) -> dict[str, Any]:
    """What is true of a workload under all policies: load, sizes, the median heaviness, the sound bound."""
    workload = make(jobs, seed)
    heavy = heaviness(workload.table, workload.cluster)
    return {
        "load": workload.notes["load"],
        "single_gpu": float((workload.table.gpus == 1).mean()),
        "heaviness": float(np.median(heavy)) if len(heavy) else 1.0,
        "sound_s": bounds(workload.table, workload.cluster)["sound"],
    }


def _simulated(name: str, workload: Workload, settings: Mapping[str, Any]) -> Result:
    nodes, fabric = workload.cluster.nodes, workload.cluster.fabric
    if name not in STEPS:
        return simulate_named(name, nodes, workload.table, fabric, settings)
    made = STEPS[name]
    return simulate(made(fabric, made.Options(**settings)), nodes, workload.table)


def errors(actual: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """The errors of predictions: in iterations, over all iterations, and the shares of jobs within some relative error.

    within_10 and so on do not count unseen jobs as right: their prediction is 0.
    """
    error = np.abs(actual - predicted)
    return {
        "mean_error": float(error.mean()),
        "relative_error": float(error.sum() / actual.sum()),
        **{f"within_{most}": float((error <= most / 100 * actual).mean()) for most in (1, 10, 25, 50)},
    }


@dataclass(frozen=True)
class Errors:
    """The errors of a predictor on all jobs after the history, without a simulation (Fig. 4)."""

    predictor: str
    divide: int

    @property
    def label(self) -> str:
        return f"errors of {self.predictor}"

    @property
    def workload(self) -> Jobs:
        return Jobs(jobs=TRACE_JOBS, predictor=self.predictor, divide=self.divide)

    def measure(self, seed: int) -> dict[str, Any]:
        table = make(self.workload, seed).table
        return {**errors(table.iterations, table.predicted), "unseen": float((table.predicted == 0).mean())}


Cell = Sim | Errors
Results = Mapping[Cell, Runs]


@dataclass(frozen=True)
class Column:
    """A point on a figure's x axis: A-SRPT with each τ (ours), and the policies that it is compared with."""

    x: str
    workload: Jobs
    ours: tuple[Sim, ...]
    others: tuple[Sim, ...] = ()

    @property
    def sims(self) -> tuple[Sim, ...]:
        return (*self.ours, *self.others)


def columns(figure: str, base: Jobs) -> list[Column]:
    """The columns of a figure of COLUMNED. base: their scale, load and retraining. Raises KeyError for others."""
    return {
        "fig6": lambda: [_column(f"{n:,} jobs", replace(base, jobs=n)) for n in FIG6_JOBS],
        "fig7": lambda: [_column(f"{100 * s:.0f}% on one GPU", replace(base, single=s)) for s in FIG7_SINGLE],
        "fig8": lambda: [_column(f"{b:g} Gbit/s", replace(base, single=0.0, nic=b)) for b in FIG8_NIC],
        "fig9": lambda: _fig9(base),
        "map": lambda: [_map_column(base, *point) for point in product(MAP_LOADS, MAP_MODELS, MAP_UNSEEN)],
    }[figure]()


def _grid(policy: str, workload: Jobs) -> tuple[Sim, ...]:
    """The paper does not state its τ."""
    return tuple(Sim(workload, policy, (("tau", tau),)) for tau in TAUS)


def _others(workload: Jobs, names: Sequence[str]) -> tuple[Sim, ...]:
    return tuple(Sim(workload, name) for name in names)


def _column(x: str, workload: Jobs) -> Column:
    return Column(x, workload, _grid(ASRPT, workload), _others(workload, (*BASELINES, GATED)))


def _fig9(base: Jobs) -> list[Column]:
    forest, *learned = [replace(base, predictor=name) for name in FIG9_PREDICTORS]
    made = [Column(each.predictor, each, _grid(ASRPT, each)) for each in learned]
    return [Column("perfect", base, _grid(IDEAL, base)), _column(forest.predictor, forest), *made]


def _map_column(base: Jobs, load: float, models: str, unseen: tuple[float, str]) -> Column:
    share, treatment = unseen
    workload = replace(base, jobs=FEW, load=load, models=models, unseen_share=share, unseen=treatment)
    known = " with a prior" if treatment == PRIOR else ""
    x = f"load {load:g}, {models}, {100 * share:.0f}% unseen{known}"
    return Column(x, workload, _grid(ASRPT, workload), _others(workload, BASELINES))


def testbed(base: Jobs) -> Mapping[str, tuple[Sim, ...]]:
    """Fig. 5: the simulations of each policy, one for each set of jobs. τ = 0, as in the paper."""
    sets = [replace(base, testbed=number) for number in range(TESTBED_SETS)]
    policies: dict[str, Settings] = {IDEAL: (("tau", 0.0),), ASRPT: (("tau", 0.0),)}
    policies.update(dict.fromkeys((*BASELINES, GATED), ()))
    return {name: tuple(Sim(jobs, name, settings) for jobs in sets) for name, settings in policies.items()}


def steps(base: Jobs) -> Mapping[tuple[float, float], Mapping[str, Sim]]:
    """The ablation, by network and load: A-SRPT, then each rule of asrpt-gated in turn, up to asrpt-gated itself."""
    return {
        (nic, load): _steps(replace(base, jobs=FEW, nic=nic, load=load)) for nic, load in product(STEP_NICS, STEP_LOADS)
    }


def _steps(jobs: Jobs) -> dict[str, Sim]:
    tau, known = (("tau", STEP_TAU),), replace(jobs, unseen=PRIOR)
    return {
        "A-SRPT": Sim(jobs, ASRPT, tau),
        "+ a prior for unseen jobs": Sim(known, ASRPT, tau),
        "+ work conservation": Sim(known, "asrpt-conserving", tau),
        "+ re-sorting": Sim(known, "asrpt-resorting", tau),
        "+ the gate": Sim(known, "asrpt-unreserved"),
        "+ the reservation": Sim(known, GATED),
        "asrpt-gated, ñ = 0": Sim(jobs, GATED),
    }


def cells(figure: str, base: Jobs) -> list[Cell]:
    """All that a figure needs. Raises KeyError for an unknown figure."""
    if figure == "fig4":
        return [Errors(name, base.divide) for name in FIG9_PREDICTORS]
    if figure == "fig5":
        return [sim for sims in testbed(base).values() for sim in sims]
    if figure == "steps":
        return [sim for row in steps(base).values() for sim in row.values()]
    return [sim for column in columns(figure, base) for sim in column.sims]


def run(asked: Iterable[str], base: Jobs, seeds: Seeds) -> Results:
    """Run every cell of the figures with every seed."""
    wanted = [cell for name in asked for cell in cells(name, base)]
    # by workload: a process keeps the last one in memory
    return seeds.run(sorted(wanted, key=lambda cell: repr(cell.workload)))


# a figure with its results


@dataclass(frozen=True)
class View:
    """A column with its results. tau: of A-SRPT's least mean over the seeds (best). fixed: with FIXED_TAU."""

    x: str
    workload: Jobs
    tau: float
    best: Runs
    fixed: Runs
    others: Mapping[str, Runs]

    @property
    def baselines(self) -> dict[str, Runs]:
        return {name: self.others[name] for name in BASELINES if name in self.others}

    @property
    def rival(self) -> str:
        """The best baseline, by its mean over the seeds."""
        return min(self.baselines, key=lambda name: mean(self.baselines[name]))

    @property
    def worst(self) -> str:
        return max(self.baselines, key=lambda name: mean(self.baselines[name]))

    def over(self, name: str) -> list[float]:
        """A-SRPT's mean completion time over that of another policy, by seed."""
        return over(self.best, self.others[name])

    @property
    def wins(self) -> int:
        """The seeds in which A-SRPT is below every baseline."""
        return sum(max(row) < 1 for row in zip(*(self.over(name) for name in self.baselines), strict=True))


def seconds(runs: Runs) -> list[float]:
    """Mean completion times by seed."""
    return [float(figures["mean_jct_s"]) for figures in runs]


def mean(runs: Runs) -> float:
    return float(np.mean(seconds(runs)))


def over(ours: Runs, theirs: Runs) -> list[float]:
    return [a / b for a, b in zip(seconds(ours), seconds(theirs), strict=True)]


def views(figure: str, base: Jobs, results: Results) -> list[View]:
    """The figure's columns with their results. Raises KeyError for simulations that were not run."""
    return [view(column, results) for column in columns(figure, base)]


def view(column: Column, results: Results) -> View:
    best = min(column.ours, key=lambda sim: mean(results[sim]))
    fixed = next(sim for sim in column.ours if sim.tau == FIXED_TAU)
    others = {sim.policy: results[sim] for sim in column.others}
    return View(column.x, column.workload, best.tau, results[best], results[fixed], others)
