"""Predictions in a simulation, learned only from jobs that have ended.

As in the product, keys that jobs of different profiles share learn seconds of work, and keys that contain the profile
learn its iterations (docs/decisions/0010).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.units import Iterations, Seconds, Unit, whole_iterations
from slurm_asrpt.hook.table import answer
from slurm_asrpt.predict.predictors import Chain, Example, Predictor, make_predictor
from slurm_asrpt.predict.predictors.base import Features
from slurm_asrpt.sim.description import RETRAIN_S

Floats = NDArray[np.float64]

_NOTHING: Features = {}


class JobKeys(NamedTuple):
    """The prediction keys of one job: like those of the hook, but not hashed.

    chain: the keys that jobs of all profiles share; they learn seconds of work. profiled: the keys of jobs of its group
    and profile; they learn iterations, and are asked first. Without a profile there are none.
    alpha: seconds of work per iteration, in the best placement on reference GPUs; 1 without a profile.
    """

    chain: Chain
    profiled: Chain = ()
    alpha: float = 1.0

    def example(self, iterations: float) -> Example:
        """What a run of this job teaches. iterations: those that it took."""
        return Example(self.chain, Seconds(iterations * self.alpha), _NOTHING, self.profiled, Iterations(iterations))

    def predicted(self, predictor: Predictor) -> float:
        """ñ, iterations of the job's own profile; 0 if the predictor has no answer."""
        found = answer(self.chain, _NOTHING, predictor.entry, self.profiled)
        return found.order if found.unit is Unit.ITERATIONS else whole_iterations(found.order, self.alpha)


@dataclass(frozen=True)
class Learning:
    """How predictions are updated during a simulation.

    keys: of each job, shape (n,). known: trained on the runs that ended before the first job; not modified.
    retrain_s: seconds between retrainings; runs that end in between count from the next one on.
    """

    keys: Sequence[JobKeys]
    known: Predictor
    retrain_s: float = RETRAIN_S


class Learner:
    """Predictions of one simulation in progress."""

    def __init__(self, learning: Learning, begin: float) -> None:
        self._keys, self._predictor = learning.keys, learning.known.copy()
        self._period, self._next = learning.retrain_s, begin + learning.retrain_s
        self._ended: list[tuple[int, float]] = []

    def ended(self, row: int, iterations: float, now: float) -> None:
        """The job in this row has ended."""
        self._retrain(now)
        self._ended.append((row, iterations))

    def predict(self, row: int, now: float) -> float:
        """ñ of the job in this row, from the last retraining."""
        self._retrain(now)
        return self._keys[row].predicted(self._predictor)

    def _retrain(self, now: float) -> None:
        if now < self._next:
            return
        self._next += self._period * (1 + (now - self._next) // self._period)
        for row, iterations in self._ended:
            _learn(self._predictor, self._keys[row].example(iterations))
        self._ended.clear()


def chains_of(groups: Sequence[str], users: Sequence[str], gpus: Sequence[int]) -> list[Chain]:
    """The keys of a trace's jobs that jobs of all profiles share. As in the hook, all but the last are one user's."""
    return [
        (("exact", f"e{gpu} {group} {user}"), ("group", f"g{group} {user}"), ("user", f"u{user}"), ("cluster", "c"))
        for group, user, gpu in zip(groups, users, gpus, strict=True)
    ]


def keys_of_jobs(chains: Sequence[Chain], profiles: Sequence[str], alphas: Sequence[float]) -> list[JobKeys]:
    """The keys of a trace's jobs. profiles: names, "" without one. alphas: seconds per iteration; 1 without one."""
    return [
        JobKeys(chain, _with_profile(chain, profile) if profile else (), alpha)
        for chain, profile, alpha in zip(chains, profiles, alphas, strict=True)
    ]


def _with_profile(chain: Chain, profile: str) -> Chain:
    """The two narrowest keys, for the jobs of one profile only."""
    return tuple((level, f"{key} {profile}") for level, key in chain[:2])


def trained(name: str, examples: Iterable[Example]) -> Predictor:
    """The predictor ``name``, trained on these runs in the order of their ends. Raises ValueError."""
    predictor = make_predictor(name)
    for example in examples:
        _learn(predictor, example)
    return predictor


def _learn(predictor: Predictor, example: Example) -> None:
    for lesson in example.lessons:
        predictor.learn(*lesson)


def predictions(known: Predictor, keys: Sequence[JobKeys]) -> Floats:
    """ñ for each job; 0 where the predictor has no answer."""
    return np.array([each.predicted(known) for each in keys], dtype=np.float64)
