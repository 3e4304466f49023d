"""The simulations of the A-SRPT paper (section V-B): which there are, and what is measured.

The paper's trace is no longer available with group ids, so the jobs are generated (``pai_like``) from what is published
about PAI, at the original rate of 758,223 jobs in 60 days. As in the paper, the predictors learn from the first 80%,
and the jobs that follow are simulated, with the trace's arrival times. ``page`` compares the results.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from papers.seeded import Kept, OnProgress, digest
from slurm_asrpt.core.policies import policy_names
from slurm_asrpt.sim.engine import simulate_named
from slurm_asrpt.sim.metrics import bounds, summary
from slurm_asrpt.sim.workload import Cluster, Options, Workload, build
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.synthetic import DAYS, pai_like

TRACE_JOBS = 758_223
HISTORY = 0.8
QUICK = 20
"""--quick: 1/20 of the jobs on 1/20 of the servers in the same time, for about the same load and queues."""
SERVERS = 250
BASELINES = ("spjf", "spwf", "wcs-duration", "wcs-workload", "wcs-subtime")
GATED = "asrpt-gated"
TAUS = (1.0, 10.0, 100.0, 1000.0)
DELAYS = ("block", "aside")
FIGURES = ("fig6", "fig7", "fig8", "fig9")
FIG6_JOBS = (37_500, 75_000, 112_500, 150_000)
FIG7_SINGLE = (0.8, 0.6, 0.4, 0.2, 0.0)
FIG8_NIC = (1.0, 5.0, 10.0, 25.0, 50.0)
SKLEARN = "forest-sklearn"
FIG9_PREDICTORS = ("forest", "median", "mean", SKLEARN)
JOBS = 75_000
MODEL = 2
"""Counts the changes of policies and predictors that make earlier results incomparable."""

Figures = Mapping[str, Any]
"""The results of one simulation: JSON values by name, from ``measure``."""


@dataclass(frozen=True)
class Jobs:
    """A workload. divide: divisor of the paper's numbers of jobs and servers. nic: Gbit/s.

    single: share of single-GPU jobs, None for that of the trace. load: None keeps the arrival times.
    retrain_s: seconds between retrainings, 0 for never; the paper trains once (section V-A.1-c).
    """

    jobs: int = JOBS
    single: float | None = None
    nic: float = 10.0
    predictor: str = "forest"
    seed: int = 0
    divide: int = 1
    load: float | None = None
    retrain_s: float = 0.0

    @property
    def cluster(self) -> Cluster:
        return Cluster(servers=max(1, round(SERVERS / self.divide)), nic_gbit=self.nic)


@dataclass(frozen=True)
class Sim:
    """One simulation: a workload and a policy with settings."""

    workload: Jobs
    policy: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        pairs = ", ".join(f"{key} {value:g}" if key == "tau" else str(value) for key, value in self.settings)
        return f"{self.policy} ({pairs})" if pairs else self.policy

    @property
    def digest(self) -> str:
        return digest(json.dumps([MODEL, asdict(self.workload), self.policy, list(self.settings)], sort_keys=True))


@dataclass(frozen=True)
class Column:
    """One point on a figure's x axis: A-SRPT with several settings (ours), and the policies it is compared with."""

    x: str
    workload: Jobs
    ours: tuple[Sim, ...]
    others: tuple[Sim, ...] = ()


@dataclass
class Results:
    """Results by simulation."""

    kept: Kept = field(default_factory=Kept)
    found: dict[Sim, Figures] = field(default_factory=dict)

    def best(self, sims: Iterable[Sim]) -> Sim:
        """The simulation with the smallest mean completion time."""
        return min(sims, key=lambda sim: float(self.found[sim]["mean_jct_s"]))

    def load(self, sim: Sim) -> bool:
        """Whether the results are in memory or in the directory."""
        if sim in self.found:
            return True
        try:
            self.found[sim] = self.kept.load(sim.digest)["figures"]
        except (KeyError, TypeError):
            return False
        return True

    def put(self, sim: Sim, figures: Figures) -> None:
        self.found[sim] = figures
        self.kept.put(sim.digest, {"workload": asdict(sim.workload), "policy": sim.label, "figures": figures})


def columns(figure: str, base: Jobs) -> list[Column]:
    """The columns of a figure. base: their seed, scale and load. Raises KeyError for an unknown figure."""
    return {
        "fig6": lambda: [_column(f"{n:,} jobs", replace(base, jobs=n)) for n in FIG6_JOBS],
        "fig7": lambda: [_column(f"{100 * s:.0f}% on one GPU", replace(base, single=s)) for s in FIG7_SINGLE],
        "fig8": lambda: [_column(f"{b:g} Gbit/s", replace(base, single=0.0, nic=b)) for b in FIG8_NIC],
        "fig9": lambda: _fig9(base),
    }[figure]()


def _column(x: str, workload: Jobs) -> Column:
    gated = [GATED] if GATED in policy_names() else []
    return Column(x, workload, _grid("asrpt", workload), tuple(Sim(workload, name) for name in (*BASELINES, *gated)))


def _grid(policy: str, workload: Jobs) -> tuple[Sim, ...]:
    """The paper states neither tau nor the kind of delay. With tau = 0 nothing is delayed, so both kinds are one."""
    settings = [(("tau", 0.0),), *((("tau", tau), ("delay", delay)) for tau in TAUS for delay in DELAYS)]
    return tuple(Sim(workload, policy, pairs) for pairs in settings)


def _fig9(base: Jobs) -> list[Column]:
    learned = [_column(name, replace(base, predictor=name)) for name in FIG9_PREDICTORS]
    plain = [replace(column, others=column.others if column.x == "forest" else ()) for column in learned]
    return [Column("perfect", base, _grid("asrpt-perfect", base)), *plain]


def second(figure: str, found: Sequence[Column], results: Results) -> list[Sim]:
    """Simulations that depend on A-SRPT's best settings: A-SRPT-Perfect with them (Fig. 9 has it as a column)."""
    return [] if figure == "fig9" else [perfect(column, results) for column in found]


def perfect(column: Column, results: Results) -> Sim:
    """A-SRPT-Perfect with A-SRPT's best settings in this column."""
    return replace(results.best(column.ours), policy="asrpt-perfect")


@dataclass(frozen=True)
class View:
    """A column with its results. best: with A-SRPT's best settings; tau1: with tau = 1 and a delay that blocks.

    perfect: of A-SRPT-Perfect; None in Fig. 9, where it is a column.
    """

    x: str
    setting: str
    best: Figures
    tau1: Figures
    perfect: Figures | None
    others: Mapping[str, Figures]

    @property
    def baselines(self) -> dict[str, Figures]:
        return {name: self.others[name] for name in BASELINES if name in self.others}

    @property
    def rival(self) -> str:
        """The best baseline."""
        return min(self.baselines, key=lambda name: mean(self.baselines[name]))

    @property
    def worst(self) -> str:
        return max(self.baselines, key=lambda name: mean(self.baselines[name]))

    @property
    def gain(self) -> float:
        """Share by which A-SRPT is below the best baseline; negative if it is above."""
        return gain(self.best, self.baselines[self.rival])


def mean(figures: Figures) -> float:
    return float(figures["mean_jct_s"])


def gain(ours: Figures, theirs: Figures) -> float:
    return 1 - mean(ours) / mean(theirs)


def views(figure: str, base: Jobs, results: Results) -> list[View]:
    """The figure's columns with their results. Raises KeyError for simulations that were not run."""
    return [_view(column, results, figure) for column in columns(figure, base)]


def _view(column: Column, results: Results, figure: str) -> View:
    best = results.best(column.ours)
    tau1 = next(sim for sim in column.ours if sim.settings == (("tau", 1.0), ("delay", "block")))
    ideal = None if figure == "fig9" else results.found.get(perfect(column, results))
    others = {sim.policy: results.found[sim] for sim in column.others}
    pairs = ", ".join(f"τ = {value:g}" if key == "tau" else str(value) for key, value in best.settings)
    return View(column.x, pairs, results.found[best], results.found[tau1], ideal, others)


def run(
    figures: Sequence[str], base: Jobs, results: Results, processes: int = 1, on_progress: OnProgress | None = None
) -> None:
    """Run what is not in ``results`` yet. Ctrl-C raises KeyboardInterrupt; finished simulations are kept there."""
    planned = {figure: columns(figure, base) for figure in figures}
    first = [sim for found in planned.values() for column in found for sim in (*column.ours, *column.others)]
    expected = sum(len(found) for figure, found in planned.items() if figure != "fig9")
    _run(first, results, processes, on_progress, expected)
    _run(
        [sim for figure, found in planned.items() for sim in second(figure, found, results)],
        results,
        processes,
        on_progress,
    )


def _run(sims: Iterable[Sim], results: Results, processes: int, on_progress: OnProgress | None, later: int = 0) -> None:
    from joblib import Parallel, delayed  # slow to import, and only this needs it

    unique = list(dict.fromkeys(sims))
    # by workload: a process keeps the last one in memory
    todo = sorted((sim for sim in unique if not results.load(sim)), key=lambda sim: repr(sim.workload))
    done = len(unique) - len(todo)
    ran = Parallel(n_jobs=processes, return_as="generator", pre_dispatch="n_jobs", batch_size=1)(
        delayed(_numbered)(sim) for sim in todo
    )
    for sim, figures in ran:
        results.put(sim, figures)
        done += 1
        if on_progress:
            on_progress(done, len(unique) + later, f"{sim.workload.jobs // sim.workload.divide:,} jobs, {sim.label}")


def _numbered(sim: Sim) -> tuple[Sim, Figures]:
    return sim, measure(sim)


def measure(sim: Sim) -> dict[str, Any]:
    """Simulate and return the results: ``metrics.summary``, the bounds, the load and the prediction errors."""
    workload = make(sim.workload)
    began = time.perf_counter()
    result = simulate_named(
        sim.policy, workload.cluster.nodes, workload.table, workload.cluster.fabric, dict(sim.settings)
    )
    if result.interrupted:
        raise KeyboardInterrupt
    took = time.perf_counter() - began
    table = result.table  # A-SRPT-Perfect has its own predictions
    error = np.abs(table.iterations - table.predicted)
    return {
        **summary(result, workload.cluster),
        "total_completion_s": float(result.end[result.ended].sum()),
        "load": workload.notes["load"],
        "single_gpu": workload.notes["single_gpu"],
        "unseen": float((table.predicted == 0).mean()),
        "sound_s": bounds(table, workload.cluster)["sound"],
        "mean_error": float(error.mean()),
        "relative_error": float(error.sum() / table.iterations.sum()),
        "within_10_percent": float((error <= 0.1 * table.iterations).mean()),
        "seconds": took,
    }


@lru_cache(maxsize=1)
def make(workload: Jobs) -> Workload:
    """The jobs; cached for one workload."""
    trace = _trace(round(TRACE_JOBS / workload.divide), workload.seed)
    options = Options(
        single_gpu=workload.single,
        load=workload.load,
        jobs=max(1, workload.jobs // workload.divide),
        history=HISTORY,
        predictor=workload.predictor,
        retrain_s=workload.retrain_s,
        seed=workload.seed,
    )
    return build(trace, workload.cluster, options)


@lru_cache(maxsize=1)
def _trace(jobs: int, seed: int) -> Trace:
    return pai_like(jobs, DAYS, seed)
