"""The simulations of Hare's paper (section VI), over several seeds. ``page`` compares the results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from papers.hare.engine import RoundResult, simulate_rounds
from papers.hare.models import KINDS, switch_s
from papers.hare.workload import RoundOptions, jobs_of
from papers.seeded import Seeds

SEEDS, QUICK_SEEDS = 10, 2
QUICK = 4
"""--quick: 1/4 of the jobs on 1/4 of the GPUs."""
OFFLINE = ("hare-offline", "gavel-fifo", "srtf", "sched-homo", "sched-allox")
ONLINE = ("hlas", "gavel-fifo", "sched-homo-unit", "sched-allox-unit", "2d-las")
PREDICTING = ("hlas-p", "hlas-l", "hlas", "gavel-fifo")
KNOWN = "hlas-known"
"""Not in the paper: HLAS with true sizes, for comparison with predictions."""
GPUS = (100, 120, 140, 160, 180)
JOBS = (100, 150, 200, 250, 300)
GROUPS = (10, 20, 40, 80, 160)
BANDWIDTHS = (10.0, 15.0, 20.0, 25.0)
BATCHES = (0.5, 1.0, 2.0)
MORE = 3.0
"""Fig. 19: the share of one kind of job divided by that of each other kind."""


@dataclass(frozen=True)
class Cell:
    """One simulation without its seed. groups: of HLAS, 0 for the default. whole: see ``Hlas``."""

    options: RoundOptions
    policy: str
    groups: int = 0
    whole: bool = False

    @property
    def settings(self) -> dict[str, float]:
        return {"groups": self.groups, "whole": self.whole} if self.policy.startswith("hlas") else {}

    @property
    def label(self) -> str:
        return self.policy

    def measure(self, seed: int) -> tuple[float, float, float, tuple[float, ...]]:
        """The values of an ``Outcome`` for one seed."""
        options = replace(self.options, seed=seed)
        jobs, fleet = jobs_of(options), options.fleet
        began = time.perf_counter()
        result: RoundResult = simulate_rounds(self.policy, fleet, jobs, self.settings, switch_s("hare"))
        took = time.perf_counter() - began
        if result.interrupted:
            raise KeyboardInterrupt
        return result.mean_jct_s, result.weighted_jct_s, took, tuple(result.jct_s.tolist())


@dataclass(frozen=True)
class Outcome:
    """One value for each seed. mean: completion time, seconds; weighted: total weighted, seconds.

    took_s: seconds that the simulation took. each: completion times of the jobs, seconds.
    """

    mean: tuple[float, ...]
    weighted: tuple[float, ...]
    took_s: tuple[float, ...]
    each: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A figure. columns: options by label on the x axis. weighted: total weighted completion time, else the mean."""

    name: str
    columns: Mapping[str, RoundOptions]
    policies: tuple[str, ...]
    weighted: bool
    groups: Mapping[str, int] | None = None

    def cell(self, column: str, policy: str, whole: bool = False) -> Cell:
        groups = (self.groups or {}).get(column, 0)
        return Cell(self.columns[column], policy, groups, whole)

    @property
    def cells(self) -> list[Cell]:
        """All simulations, including those of KNOWN and of HLAS with whole groups where they are shown."""
        policies = (*self.policies, KNOWN) if self.shows_known else self.policies
        found = [self.cell(column, policy) for column in self.columns for policy in policies]
        return found + [self.cell(column, "hlas", whole=True) for column in self.columns if self.shows_whole]

    @property
    def shows_whole(self) -> bool:
        return self.policies == ONLINE or self.groups is not None

    @property
    def shows_known(self) -> bool:
        return self.policies == PREDICTING


def figures(divide: int = 1) -> dict[str, Figure]:
    """All figures by name. divide: divisor of the paper's numbers of jobs and GPUs."""
    offline, online = RoundOptions(weighted=True), RoundOptions()
    testbed = {"testbed": replace(offline, jobs=40, level="testbed", gpus=15)}
    levels = {name: replace(offline, level=name) for name in ("low", "middle", "high")}
    nics = {f"{rate:g} Gbit/s": replace(offline, gbit=rate) for rate in BANDWIDTHS}
    batches = {f"{times:g} B0": replace(offline, batch=times) for times in BATCHES}
    groups = {f"{number} groups": max(1, number // divide) for number in GROUPS}
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
        Figure("hare-fig24", _small(dict.fromkeys(groups, online), divide), ("hlas",), weighted=False, groups=groups),
        Figure("hare-fig25", _small(_jobs(replace(online, span_s=0.0)), divide), ("hlas",), weighted=False),
        Figure("hare-fig26", _small(_gpus(online), divide), PREDICTING, weighted=False),
        Figure("hare-fig27", _small(_jobs(online), divide), PREDICTING, weighted=False),
    ]
    return {figure.name: figure for figure in made}


Columns = Mapping[str, RoundOptions]


def _gpus(base: RoundOptions) -> Columns:
    return {f"{number} GPUs": replace(base, gpus=number) for number in GPUS}


def _jobs(base: RoundOptions) -> Columns:
    return {f"{number} jobs": replace(base, jobs=number) for number in JOBS}


def _mixes(base: RoundOptions) -> Columns:
    """Equal shares, and each kind in turn MORE times as frequent as the others."""
    more = {f"more {kind}": tuple(MORE if other == kind else 1.0 for other in KINDS) for kind in KINDS}
    return {"equal": base, **{name: replace(base, mix=mix) for name, mix in more.items()}}


def _small(columns: Columns, divide: int) -> Columns:
    return {
        name: replace(options, jobs=max(1, options.jobs // divide), gpus=max(8, options.gpus // divide))
        for name, options in columns.items()
    }


FIGURES = tuple(figures())
Outcomes = Mapping[Cell, Outcome]


def run(asked: Sequence[str], seeds: Seeds, divide: int = 1) -> Outcomes:
    """Run every cell of the figures with every seed. Raises KeyError for an unknown figure."""
    known = figures(divide)
    found = seeds.run(cell for name in asked for cell in known[name].cells)
    return {cell: Outcome(*zip(*rows, strict=True)) for cell, rows in found.items()}
