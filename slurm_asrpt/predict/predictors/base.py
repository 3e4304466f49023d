"""What a predictor is: it learns one run after the other and knows a figure for some of the keys that it has met.

A run comes with its chain of keys, narrow to wide (``predict.keys``; a simulation names keys as it likes). A predictor
is the same object in retraining, where all its figures become the hook's table, and in a simulation, which asks it on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self, TypeVar

from slurm_asrpt.predict.table import Entry

Chain = Sequence[tuple[str, str]]
"""(level, key), narrow to wide."""

Features = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Lesson:
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


_known: dict[str, Callable[[], Predictor]] = {}
P = TypeVar("P", bound=Callable[[], Predictor])


def register(name: str) -> Callable[[P], P]:
    """Make a predictor known under a name. Raises ValueError for a name that is taken."""

    def keep(make: P) -> P:
        if name in _known:
            raise ValueError(f"two predictors are called {name!r}")
        _known[name] = make
        return make

    return keep


def make_predictor(name: str) -> Predictor:
    """One that knows nothing yet. Raises ValueError for an unknown name."""
    if name not in _known:
        raise ValueError(f"no predictor is called {name!r}; known: {', '.join(predictor_names())}")
    return _known[name]()


def predictor_names() -> tuple[str, ...]:
    return tuple(sorted(_known))
