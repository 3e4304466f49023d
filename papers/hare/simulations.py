"""The simulations of Hare's paper (section VI), over several seeds. ``page`` compares the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from papers.hare.models import FREE, KINDS, switch_s
from papers.hare.workload import RoundOptions, jobs_of
from papers.seeded import Seeds
from slurm_asrpt.sim.rounds import RoundResult, simulate_rounds

SEEDS, QUICK_SEEDS = 5, 2
QUICK = 4
"""--quick: 1/4 of the jobs on 1/4 of the GPUs."""
OFFLINE = ("hare-offline", "gavel-fifo", "srtf", "sched-homo", "sched-allox")
ONLINE = ("hlas", "gavel-fifo", "sched-homo-unit", "sched-allox-unit", "2d-las")
PREDICTING = ("hlas-p", "hlas-l", "hlas", "gavel-fifo")
KNOWN = "hlas-known"
"""Not in the paper: HLAS with true sizes, for comparison with predictions."""
RELEASED = "2d-las-released"
"""Not in the paper: 2D-LAS whose GPUs become free one by one, as those of HLAS."""
GPUS = (100, 120, 140, 160, 180)
JOBS = (100, 150, 200, 250, 300)
GROUPS = (10, 20, 40, 80, 160)
BANDWIDTHS = (10.0, 15.0, 20.0, 25.0)
BATCHES = (0.5, 1.0, 2.0)
LOADED = (10, 20, 40, 80)
"""GPUs of "hare-load", for 100 jobs: the paper has 160, where a job rarely waits."""
SWITCHED = ("hlas", "2d-las", "srtf", "gavel-fifo")
WAYS = {
    "none": FREE,
    "Hare": "hare",
    "PipeSwitch": "pipeswitch",
    "pool, warm": "pool-warm",
    "pool, process": "pool-process",
    "default": "default",
}
"""Ways to switch by column; those of pools have been measured on an H200."""
MORE = 3.0
"""Fig. 19: the share of one kind of job divided by that of each other kind."""


Settings = tuple[tuple[str, float], ...]
WHOLE: Settings = (("whole", True),)
FINER: Settings = (("queues", 16), ("factor", 2.0))
"""Each queue begins at 2 instead of 4 times the size of the previous one."""


@dataclass(frozen=True)
class Cell:
    """One simulation without its seed. settings: of ``Hlas``, where they are not the defaults. switching: its costs."""

    options: RoundOptions
    policy: str
    settings: Settings = ()
    switching: str = "hare"

    @property
    def label(self) -> str:
        return self.policy

    def measure(self, seed: int) -> tuple[float, float, float, float, tuple[float, ...]]:
        """The values of an ``Outcome`` for one seed."""
        options = replace(self.options, seed=seed)
        jobs, fleet = jobs_of(options), options.fleet
        result: RoundResult = simulate_rounds(self.policy, fleet, jobs, dict(self.settings), switch_s(self.switching))
        if result.interrupted:
            raise KeyboardInterrupt
        jct_s = tuple(result.jct_s.tolist())
        return result.mean_jct_s, result.weighted_jct_s, result.policy_s, result.first_s, jct_s


@dataclass(frozen=True)
class Outcome:
    """One value for each seed. mean: completion time, seconds; weighted: total weighted, seconds.

    policy_s, first_s: CPU seconds of the algorithm, as in ``RoundResult``. each: completion times of the jobs, seconds.
    """

    mean: tuple[float, ...]
    weighted: tuple[float, ...]
    policy_s: tuple[float, ...]
    first_s: tuple[float, ...]
    each: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A figure. columns: options by label on the x axis. weighted: total weighted completion time, else the mean.

    settings: of HLAS, by column. switching: by column, Hare's if not named.
    """

    name: str
    columns: Mapping[str, RoundOptions]
    policies: tuple[str, ...]
    weighted: bool
    settings: Mapping[str, Settings] = field(default_factory=dict)
    switching: Mapping[str, str] = field(default_factory=dict)

    def cell(self, column: str, policy: str, more: Settings = ()) -> Cell:
        hlas = policy.startswith("hlas")
        settings = (*self.settings.get(column, ()), *more) if hlas else ()
        return Cell(self.columns[column], policy, settings, self.switching.get(column, "hare"))

    @property
    def rows(self) -> Mapping[str, tuple[str, Settings]]:
        """The rows by name: the paper's policies, and those that we add for comparison."""
        more: dict[str, tuple[str, Settings]] = {}
        if self.policies == ONLINE:
            more = {RELEASED: (RELEASED, ())}
        if self.policies == PREDICTING:
            more = {KNOWN: (KNOWN, ())}
        if self.policies == ONLINE or self.name == "hare-fig24":
            more["hlas, whole"] = ("hlas", WHOLE)
        return {**{policy: (policy, ()) for policy in self.policies}, **more}

    @property
    def cells(self) -> list[Cell]:
        """All simulations."""
        return [self.cell(column, *row) for column in self.columns for row in self.rows.values()]


def figures(divide: int = 1) -> dict[str, Figure]:
    """All figures by name. divide: divisor of the paper's numbers of jobs and GPUs."""
    offline, online = RoundOptions(weighted=True), RoundOptions()
    testbed = {"testbed": replace(offline, jobs=40, level="testbed", gpus=15)}
    levels = {name: replace(offline, level=name) for name in ("low", "middle", "high")}
    nics = {f"{rate:g} Gbit/s": replace(offline, gbit=rate) for rate in BANDWIDTHS}
    batches = {f"{times:g} B0": replace(offline, batch=times) for times in BATCHES}
    groups: dict[str, Settings] = {f"{number} groups": (("groups", max(1, number // divide)),) for number in GROUPS}
    made = [
        Figure("hare-fig14", testbed, OFFLINE, weighted=True),
        Figure("hare-fig15", testbed, OFFLINE, weighted=False),
        Figure("hare-fig16", _small(_gpus(offline), divide), OFFLINE, weighted=True),
        Figure("hare-fig17", _small(_jobs(offline), divide), OFFLINE, weighted=True),
        Figure("hare-fig18", _small(levels, divide), OFFLINE, weighted=True),
        Figure("hare-fig19", _small(_mixes(offline), divide), OFFLINE, weighted=True),
        Figure("hare-fig20", _small(nics, divide), OFFLINE, weighted=True),
        Figure("hare-fig21", _small(batches, divide), OFFLINE, weighted=True),
        Figure("hare-fig22", _small(_gpus(online), divide), ONLINE, weighted=False),
        Figure("hare-fig23", _small(_jobs(online), divide), ONLINE, weighted=False),
        Figure("hare-abstract", _small({**_gpus(online), **_jobs(online)}, divide), ONLINE, weighted=False),
        Figure("hare-fig24", _small(dict.fromkeys(groups, online), divide), ("hlas",), weighted=False, settings=groups),
        Figure("hare-fig25", _small(_jobs(replace(online, span_s=0.0)), divide), ("hlas",), weighted=False),
        Figure("hare-fig26", _small(_gpus(online), divide), PREDICTING, weighted=False),
        Figure("hare-fig27", _small(_jobs(online), divide), PREDICTING, weighted=False),
        _load(replace(online, jobs=100), divide),
        _switching(replace(online, jobs=100, gpus=20), divide),
    ]
    return {figure.name: figure for figure in made}


Columns = Mapping[str, RoundOptions]


def _gpus(base: RoundOptions) -> Columns:
    return {f"{number} GPUs": replace(base, gpus=number) for number in GPUS}


def _jobs(base: RoundOptions) -> Columns:
    return {f"{number} jobs": replace(base, jobs=number) for number in JOBS}


def _load(base: RoundOptions, divide: int) -> Figure:
    """HLAS-P by load; on a loaded cluster by the family of loss curves, and with finer queues."""
    loads = {f"{number} GPUs": replace(base, gpus=number) for number in LOADED}
    loaded = replace(base, gpus=20)
    families = {family: replace(loaded, curves=family) for family in ("exponential", "power")}
    finer = {"finer": loaded, "exponential, finer": families["exponential"]}
    columns = {**loads, **{f"20, {name}": options for name, options in {**families, **finer}.items()}}
    settings: dict[str, Settings] = {name: FINER for name in columns if "finer" in name}
    return Figure("hare-load", _small(columns, divide), PREDICTING, weighted=False, settings=settings)


def _switching(base: RoundOptions, divide: int) -> Figure:
    """The ways to switch of Table III and of asrpt-pool, on a loaded cluster: a GPU turns to another job often."""
    columns = dict.fromkeys(WAYS, base)
    return Figure("hare-switching", _small(columns, divide), SWITCHED, weighted=False, switching=WAYS)


def _mixes(base: RoundOptions) -> Columns:
    """Equal shares, and each kind in turn MORE times as frequent as the others."""
    more = {f"more {kind}": tuple(MORE if other == kind else 1.0 for other in KINDS) for kind in KINDS}
    return {"equal": base, **{name: replace(base, mix=mix) for name, mix in more.items()}}


def _small(columns: Columns, divide: int) -> Columns:
    return {
        name: replace(options, jobs=max(1, options.jobs // divide), gpus=max(8, options.gpus // divide))
        for name, options in columns.items()
    }


INTRODUCTION = "hare-intro"
"""Figs. 1 to 4, 7 and 8, which need no seeds (``introduction``)."""
FIGURES = (INTRODUCTION, *figures())
Outcomes = Mapping[Cell, Outcome]


def run(asked: Sequence[str], seeds: Seeds, divide: int = 1) -> Outcomes:
    """Run every cell of the figures with every seed. Raises KeyError for an unknown figure."""
    known = figures(divide)
    found = seeds.run(cell for name in asked if name != INTRODUCTION for cell in known[name].cells)
    return {cell: Outcome(*zip(*rows, strict=True)) for cell, rows in found.items()}
