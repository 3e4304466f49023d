"""The interface of a predictor: it learns run by run, and has a figure for some of the keys that it has seen.

A run comes with its chain of keys, narrow to wide (``hook.group``; a simulation names keys as it likes). The same class
serves retraining, where all its figures become the hook's table, and simulation, which queries it as it learns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from slurm_asrpt.core.registry import Registry
from slurm_asrpt.hook.table import Entry

Chain = Sequence[tuple[str, str]]
"""(level, key), narrow to wide."""

Features = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Example:
    """A training example: one run."""

    chain: Chain
    iterations: float
    features: Features = field(default_factory=dict)


class Predictor(Protocol):
    def learn(self, chain: Chain, iterations: float, features: Features) -> None:
        """A run has ended; runs come in the order of their ends."""

    def entry(self, key: str) -> Entry | None:
        """The prediction under a key, without an interval; None if this predictor does not answer under it."""

    def entries(self) -> dict[str, Entry]:
        """All keys that have an answer."""

    def copy(self) -> Self:
        """An independent copy."""


_REGISTRY = Registry[Predictor]("predictor")
register, make_predictor, predictor_names = _REGISTRY.register, _REGISTRY.make, _REGISTRY.names
