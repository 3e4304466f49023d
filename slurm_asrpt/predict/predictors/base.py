"""What a predictor is: it learns one run after the other and knows a figure for some of the keys that it has met.

A run comes with its chain of keys, narrow to wide (``predict.keys``; a simulation names keys as it likes). A predictor
is the same object in retraining, where all its figures become the hook's table, and in a simulation, which asks it on.
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
    """What one run teaches."""

    chain: Chain
    iterations: float
    features: Features = field(default_factory=dict)


class Predictor(Protocol):
    def learn(self, chain: Chain, iterations: float, features: Features) -> None:
        """A run has ended; runs come in the order of their ends."""

    def entry(self, key: str) -> Entry | None:
        """What is predicted under a key; None if this predictor does not answer under it. Without an interval."""

    def entries(self) -> dict[str, Entry]:
        """All keys that are answered."""

    def copy(self) -> Self:
        """One that knows the same and learns on its own."""


_REGISTRY = Registry[Predictor]("predictor")
register, make_predictor, predictor_names = _REGISTRY.register, _REGISTRY.make, _REGISTRY.names
