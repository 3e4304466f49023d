"""The jobs of Hare's evaluation (section VI-A). What the paper does not specify is an option."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from papers.hare.models import GBIT, KINDS, MODELS, TESTBED, TYPES
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.loss_curve import Curve, LossCurve
from slurm_asrpt.core.rounds.jobs import Fleet, RoundJob

TASKS = (1, 2, 4, 8)
STOP, START, FLOOR, NOISE = 0.05, 2.0, 0.5, 0.02
"""Loss curves: training starts START above the floor and stops STOP above it; the floor; relative noise."""
NAMES = 20
WITHIN = 0.3
"""Jobs have NAMES names; a job's size is log-normal with this sigma around the size of its name."""
SEARCH = 0.2
"""Share of jobs in a hyper-parameter search; a search has up to SEARCH_SIZE jobs."""
SEARCH_SIZE = 8
LEVELS: Mapping[str, Mapping[str, int]] = {
    "low": {"V100": 1},
    "middle": {"V100": 1, "K80": 1},
    "high": dict.fromkeys(TYPES, 1),
    "testbed": TESTBED,
}
"""Shares of GPU types by level of heterogeneity (Fig. 18), and on the testbed (Fig. 14)."""


@dataclass(frozen=True)
class NoisyCurve:
    """Losses times (1 + noise e_k), with standard normal e_k that depend on the seed only."""

    exact: Curve
    noise: float
    seed: int

    @property
    def stop(self) -> float:
        return self.exact.stop

    def loss(self, done: int) -> float:
        draw = random.Random(self.seed * 1_000_003 + done).gauss(0, 1)  # noqa: S311 (nothing secret)
        return self.exact.loss(done) * (1 + self.noise * draw)


@dataclass(frozen=True)
class ExponentialCurve:
    """loss(k) = floor + start (stop/start)^(k/rounds)."""

    rounds: int
    stop: float
    start: float
    floor: float

    def loss(self, done: int) -> float:
        return self.floor + self.start * math.pow(self.stop / self.start, done / self.rounds)


@dataclass(frozen=True)
class PowerCurve:
    """loss(k) = floor + start (k + 1)^-a, with the a of ``stop`` after so many rounds."""

    rounds: int
    stop: float
    start: float
    floor: float

    def loss(self, done: int) -> float:
        power = math.log(self.start / self.stop) / math.log(self.rounds + 1)
        return self.floor + self.start * math.pow(done + 1, -power)


def _fitted_curve(rounds: int, stop: float, start: float, floor: float) -> LossCurve:
    return LossCurve((1 / stop - 1 / start) / rounds, 1 / start, floor, stop)


FAMILIES: Mapping[str, Callable[[int, float, float, float], Curve]] = {
    "fitted": _fitted_curve,
    "exponential": ExponentialCurve,
    "power": PowerCurve,
}
"""Families of loss curves. "fitted": the family that predictors fit (``LossCurve``); they do not know the others."""


def curve_for(
    rounds: int, stop: float, start: float, floor: float, noise: float, seed: int, family: str = "fitted"
) -> Curve:
    """The curve that starts ``start`` above its floor and reaches ``stop`` above it after ``rounds`` rounds.

    Raises ValueError unless 0 < stop < start, KeyError for an unknown family.
    """
    if not 0 < stop < start:
        raise ValueError(f"start {start} and stop {stop} of a loss curve: use 0 < stop < start")
    exact = FAMILIES[family](rounds, stop, start, floor)
    return NoisyCurve(exact, noise, seed) if noise else exact


@dataclass(frozen=True)
class RoundOptions:
    """A workload. jobs, gpus: how many. level: of heterogeneity. mix: shares of CV, NLP, Speech and Rec. jobs, any sum.

    gbit: NIC, Gbit/s. batch: factor on the models' batch sizes. span_s: seconds in which the jobs arrive at random (0:
    all at once). median, sigma: of the log-normal number of rounds; larger batches need fewer. weighted: random weights
    from 1 to 5, else 1. curves: the family of the loss curves, see FAMILIES.
    """

    jobs: int = 200
    gpus: int = 160
    level: str = "high"
    mix: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    gbit: float = GBIT
    batch: float = 1.0
    span_s: float = 40.0
    median: float = 40.0
    sigma: float = 1.2
    weighted: bool = False
    curves: str = "fitted"
    seed: int = 0

    @property
    def fleet(self) -> Fleet:
        """GPUs of the level's types by their shares; the first types get the remainder."""
        shares = LEVELS[self.level]
        whole = {kind: self.gpus * share // sum(shares.values()) for kind, share in shares.items()}
        over = self.gpus - sum(whole.values())
        return Fleet.of({kind: number + (n < over) for n, (kind, number) in enumerate(whole.items())})


def jobs_of(options: RoundOptions) -> list[RoundJob]:
    """The jobs by arrival. Their rounds depend on the seed only, so that the columns of a figure are comparable.

    Raises KeyError for an unknown level.
    """
    rng = np.random.default_rng(options.seed)
    arrivals = np.sort(rng.random(options.jobs)) * options.span_s
    kinds = rng.choice(len(KINDS), options.jobs, p=np.array(options.mix) / sum(options.mix))
    names = options.median * np.exp(math.sqrt(options.sigma**2 - WITHIN**2) * rng.standard_normal(NAMES))
    return [_job(n, float(arrivals[n]), KINDS[kinds[n]], names, rng, options) for n in range(options.jobs)]


def _job(
    number: int, arrival_s: float, kind: str, names: np.ndarray, rng: np.random.Generator, options: RoundOptions
) -> RoundJob:
    models = [model for model in MODELS if model.kind == kind]
    model = models[int(rng.integers(len(models)))]
    name, tasks = int(rng.integers(NAMES)), TASKS[int(rng.integers(len(TASKS)))]
    drawn = names[name] * float(np.exp(WITHIN * rng.standard_normal()))
    rounds = max(1, round(drawn / options.batch))
    searching, weight = rng.random() < SEARCH, float(rng.integers(1, 6))
    types = LEVELS[options.level]
    return RoundJob(
        JobId(str(number)),
        arrival_s,
        tasks,
        tuple(model.compute_s(gpu, options.batch) for gpu in types),
        (model.sync_s(options.gbit),) * len(types),
        rounds,
        weight if options.weighted else 1.0,
        model.name,
        history=f"name{name}",
        search=f"s{number // SEARCH_SIZE}" if searching else "",
        curve=curve_for(rounds, STOP, START, FLOOR, NOISE, options.seed * 100_003 + number, options.curves),
    )
