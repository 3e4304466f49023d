"""The interface of a predictor: it learns run by run, and has a figure for some of the keys that it has seen.

A run comes with its chain of keys, narrow to wide (``hook.group``; a simulation names keys as it likes). The same class
serves retraining, where all its figures become the hook's table, and simulation, which queries it as it learns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Self

from slurm_asrpt.core.registry import Registry
from slurm_asrpt.core.units import Iterations, Seconds
from slurm_asrpt.hook.table import Entry

Chain = Sequence[tuple[str, str]]
"""(level, key), narrow to wide."""

Features = Mapping[str, float]
_NO_ITERATIONS = Iterations(0.0)


class Lesson(NamedTuple):
    """What keys learn of a run: a figure in the unit of these keys."""

    chain: Chain
    figure: float
    features: Features


@dataclass(frozen=True, slots=True)
class Example:
    """A training example: one run.

    chain: the keys that all jobs share; they learn the work. profiled: the keys of jobs with its profile; they learn
    the iterations. Without a profile there are none.
    """

    chain: Chain
    work: Seconds
    features: Features = field(default_factory=dict)
    profiled: Chain = ()
    iterations: Iterations = _NO_ITERATIONS

    @property
    def lessons(self) -> Iterator[Lesson]:
        if self.profiled:
            yield Lesson(self.profiled, self.iterations, self.features)
        yield Lesson(self.chain, self.work, self.features)

    @property
    def alpha(self) -> float:
        """Seconds of work per iteration."""
        return self.work / self.iterations if self.profiled else 1.0


class Predictor(Protocol):
    def learn(self, chain: Chain, figure: float, features: Features) -> None:
        """A run has ended; runs come in the order of their ends. figure: in the unit of these keys."""

    def entry(self, key: str) -> Entry | None:
        """The prediction under a key, without an interval; None if this predictor does not answer under it."""

    def entries(self) -> dict[str, Entry]:
        """All keys that have an answer."""

    def copy(self) -> Self:
        """An independent copy."""


_REGISTRY = Registry[Predictor]("predictor")
register, make_predictor, predictor_names = _REGISTRY.register, _REGISTRY.make, _REGISTRY.names
