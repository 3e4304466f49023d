"""Jobs as in Hare's evaluation (section VI-A), with what it leaves open as settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.rounds.job import Fleet, RoundJob
from slurm_asrpt.core.rounds.losscurve import curve_for
from slurm_asrpt.sim.rounds.models import GBIT, KINDS, MODELS, TYPES, Model

TASKS = (1, 2, 4, 8)
STOP, START, FLOOR, NOISE = 0.05, 2.0, 0.5, 0.02
"""Losses: within which of the floor training stops, and how far above it it starts; the floor; relative noise."""
USERS = 20
SEARCH = 0.2
"""Share of jobs that are members of a hyper-parameter search, SEARCH_SIZE of them in each."""
SEARCH_SIZE = 8
LEVELS: Mapping[str, tuple[str, ...]] = {"low": ("V100",), "middle": ("V100", "K80"), "high": TYPES}
"""Fig. 18: the types of GPU at each level of heterogeneity, in equal shares."""


@dataclass(frozen=True)
class RoundOptions:
    """jobs, gpus: numbers. level: of heterogeneity. mix: shares of CV, NLP, Speech and Rec. jobs, any sum.

    gbit: NIC, Gbit/s. batch: times the models' own batch sizes. span_s: seconds in which jobs arrive, evenly at random;
    0: all at once. median_s, sigma: of the log-normal time that a job would take on mean GPUs, one for each task.
    weighted: weights 1 to 5 at random, else 1.
    """

    jobs: int = 200
    gpus: int = 160
    level: str = "high"
    mix: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    gbit: float = GBIT
    batch: float = 1.0
    span_s: float = 120.0
    median_s: float = 20.0
    sigma: float = 1.2
    weighted: bool = False
    seed: int = 0

    @property
    def fleet(self) -> Fleet:
        """GPUs of the level's types; where they cannot be equally many, the types named first have one more."""
        types = LEVELS[self.level]
        return Fleet.of({kind: (self.gpus + len(types) - 1 - n) // len(types) for n, kind in enumerate(types)})


def jobs_of(options: RoundOptions) -> list[RoundJob]:
    """The jobs, by arrival. Their rounds depend on the seed alone, so that columns of a figure differ in nothing else.

    Raises KeyError for an unknown level.
    """
    rng = np.random.default_rng(options.seed)
    arrivals = np.sort(rng.random(options.jobs)) * options.span_s
    kinds = rng.choice(len(KINDS), options.jobs, p=np.array(options.mix) / sum(options.mix))
    return [_job(number, float(arrivals[number]), KINDS[kinds[number]], rng, options) for number in range(options.jobs)]


def _job(number: int, arrival_s: float, kind: str, rng: np.random.Generator, options: RoundOptions) -> RoundJob:
    models = [model for model in MODELS if model.kind == kind]
    model = models[int(rng.integers(len(models)))]
    user, tasks = int(rng.integers(USERS)), TASKS[int(rng.integers(len(TASKS)))]
    rounds = _rounds(model, rng, options)
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
        history=f"u{user}",
        search=f"s{number // SEARCH_SIZE}" if searching else "",
        curve=curve_for(rounds, STOP, START, FLOOR, NOISE, options.seed * 100_003 + number),
    )


def _rounds(model: Model, rng: np.random.Generator, options: RoundOptions) -> int:
    """As many as fit the drawn time on the mean of the four types, with the model's own batch and the testbed's NIC."""
    took_s = options.median_s * float(np.exp(options.sigma * rng.standard_normal()))
    round_s = sum(model.compute_s(gpu) for gpu in TYPES) / len(TYPES) + model.sync_s()
    return max(1, round(took_s / round_s))
