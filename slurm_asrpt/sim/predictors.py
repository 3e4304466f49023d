"""Predictions in a simulation, learned only from jobs that have ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.hook.table import answer
from slurm_asrpt.predict.predictors import Chain, Predictor, make_predictor, predictor_names
from slurm_asrpt.predict.predictors.base import Features

Floats = NDArray[np.float64]

PERFECT = "perfect"
PREDICTORS = (PERFECT, *predictor_names())
RETRAIN_S = 3600.0
"""Seconds between retrainings in a simulation; the paper retrains hourly or daily (section IV-C.3)."""

_NOTHING: Features = {}


@dataclass(frozen=True)
class Learning:
    """How predictions are updated during a simulation.

    chains: the keys of each job, shape (n,). known: trained on the runs that ended before the first job; not modified.
    retrain_s: seconds between retrainings; runs that end in between count from the next one on.
    """

    chains: Sequence[Chain]
    known: Predictor
    retrain_s: float = RETRAIN_S


class Learner:
    """Predictions of one simulation in progress."""

    def __init__(self, learning: Learning, begin: float) -> None:
        self._chains, self._predictor = learning.chains, learning.known.copy()
        self._period, self._next = learning.retrain_s, begin + learning.retrain_s
        self._ended: list[tuple[int, float]] = []

    def ended(self, row: int, iterations: float, now: float) -> None:
        """The job in this row has ended."""
        self._retrain(now)
        self._ended.append((row, iterations))

    def predict(self, row: int, now: float) -> float:
        """ñ of the job in this row, from the last retraining."""
        self._retrain(now)
        return answer(self._chains[row], _NOTHING, self._predictor.entry).order

    def _retrain(self, now: float) -> None:
        if now < self._next:
            return
        self._next += self._period * (1 + (now - self._next) // self._period)
        for row, iterations in self._ended:
            self._predictor.learn(self._chains[row], iterations, _NOTHING)
        self._ended.clear()


def chains_of(groups: Sequence[str], users: Sequence[str], gpus: Sequence[int]) -> list[Chain]:
    """The prediction keys of a trace's jobs: like those of the hook, but not hashed."""
    return [
        (("exact", f"e{gpu} {group}"), ("group", f"g{group}"), ("user", f"u{user}"), ("cluster", "c"))
        for group, user, gpu in zip(groups, users, gpus, strict=True)
    ]


def trained(name: str, chains: Sequence[Chain], iterations: Floats) -> Predictor:
    """The predictor ``name``, trained on these runs in the order of their ends. Raises ValueError."""
    predictor = make_predictor(name)
    for chain, value in zip(chains, iterations.tolist(), strict=True):
        predictor.learn(chain, value, _NOTHING)
    return predictor


def predictions(known: Predictor, chains: Sequence[Chain]) -> Floats:
    """ñ for each job; 0 where the predictor has no answer."""
    return np.array([answer(chain, _NOTHING, known.entry).order for chain in chains], dtype=np.float64)
