"""``expected`` and ``typical``: predict from the runs under the narrowest key that has any.

1. A submission is answered by the most similar runs: those of its group with as many GPUs and the same
   hyper-parameters, else of its group, else of its user and program, else of its user, else of all.
2. Both predict the median of the last 200 runs; the weight of a run halves every 50 runs. The median has the smallest
   error.
3. The median underestimates jobs that may be long. Therefore ``expected`` orders jobs by the mean: shortest expected
   work first gives short completion times. ``typical`` orders them by the median too (docs/predictions.md).
4. If a group's work or iterations are proportional to the epochs or steps that its jobs request, its figure is per
   epoch or step.
5. A user runs different programs, so a user's mean is shrunk towards the mean of all, less so the more runs it has.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, pstdev
from typing import Self

from slurm_asrpt.hook.table import UNIT_FEATURES, Entry, unit_factor
from slurm_asrpt.predict.predictors.base import Chain, Features, register

LONG, SHORT = 1000, 200
"""Number of runs that the mean, and the median, are computed from."""
HALF = 50.0
_WEIGHTS: tuple[float, ...] = tuple(0.5 ** (age / HALF) for age in range(SHORT))
DRAWN = 50.0
"""Weight, in runs, of the overall mean in a user's mean."""
PLAIN = "-"
_PER_UNIT = frozenset({"group", "program"})

Past = deque[tuple[float, Features]]
"""Figures and features of a key's last runs, oldest first. Seconds or iterations, whichever the key counts."""


class BackOff:
    def __init__(self, window: int, averaged: frozenset[str]) -> None:
        """window: number of runs remembered per key; if larger than SHORT, jobs are ordered by their mean.

        averaged: levels whose mean is over all runs, and shrunk.
        """
        self._window, self._averaged = window, averaged
        self._past: dict[str, Past] = {}
        self._per_unit: set[str] = set()  # keys whose figure may be per epoch or step (see 4 above)
        self._totals: dict[str, tuple[int, float]] = {}  # by averaged key: runs, and their sum
        self._group: dict[str, str] = {}  # by exact key
        self._everybody = ""  # the key of all runs
        self._figures: dict[str, Entry] = {}

    def learn(self, chain: Chain, figure: float, features: Features) -> None:
        for level, key in chain:
            if level in self._averaged:
                runs, total = self._totals.get(key, (0, 0.0))
                self._totals[key] = runs + 1, total + figure
            self._past.setdefault(key, deque(maxlen=self._window)).append((figure, features))
            self._figures.pop(key, None)
            if features and level in _PER_UNIT:
                self._per_unit.add(key)
        (_, exact), (_, group), *wider = chain
        self._group[exact] = group
        if wider:
            _, self._everybody = wider[-1]

    def entry(self, key: str) -> Entry | None:
        if key not in self._past:
            return None
        if key not in self._figures:
            self._figures[key] = self._figure(key)
        found = self._figures[key]
        return replace(found, mean=self._drawn(key)) if key in self._totals else found

    def _figure(self, key: str) -> Entry:
        past = self._past[key]
        unit = _unit(past) if key in self._per_unit else PLAIN
        values = _values(past, unit)
        return Entry.plain(_median(values[-SHORT:]), unit, fmean(values) if self._window > SHORT else 0.0)

    def _drawn(self, key: str) -> float:
        """A user's mean, shrunk in logarithms towards the mean of all; for all, that mean itself."""
        (runs, total), (all_runs, everything) = self._totals[key], self._totals[self._everybody]
        own = runs / (runs + DRAWN)
        return math.exp(own * math.log(total / runs) + (1 - own) * math.log(everything / all_runs))

    def entries(self) -> dict[str, Entry]:
        keys = [key for key in self._past if not self._echoes(key)]
        return {key: entry for key in keys if (entry := self.entry(key))}

    def _echoes(self, key: str) -> bool:
        """Whether this is an exact key whose group has no other runs: then the group's entry says the same."""
        return key in self._group and self._past[key] == self._past[self._group[key]]

    def copy(self) -> Self:
        twin = type(self)(self._window, self._averaged)
        twin._past = {key: past.copy() for key, past in self._past.items()}
        twin._per_unit = self._per_unit.copy()
        twin._totals, twin._group, twin._everybody = self._totals.copy(), self._group.copy(), self._everybody
        return twin


def _values(past: Past, unit: str) -> list[float]:
    if unit == PLAIN:
        return [iterations for iterations, _ in past]
    return [iterations / unit_factor(unit, features) for iterations, features in past]


def _median(values: Sequence[float]) -> float:
    """Weighted median: the smallest value at which half of the weight is reached. values: oldest first."""
    half = sum(_WEIGHTS[: len(values)]) / 2
    for value, weight in sorted(zip(reversed(values), _WEIGHTS, strict=False)):
        half -= weight
        if half <= 0:
            return value
    return max(values)


def _unit(past: Past) -> str:
    """The unit of a key's figure: epochs or steps, if its runs differ in them and iterations are proportional to
    them."""
    best, least = PLAIN, 0.5 * _spread([iterations for iterations, _ in past])
    for unit, name in UNIT_FEATURES.items():
        asked = [features.get(name, 0.0) for _, features in past]
        if min(asked) > 0 and min(asked) < max(asked):
            spread = _spread([iterations / value for (iterations, _), value in zip(past, asked, strict=True)])
            if spread < least:
                best, least = unit, spread
    return best


def _spread(values: Sequence[float]) -> float:
    return pstdev([math.log(value) for value in values])


register("expected")(partial(BackOff, LONG, frozenset({"user", "cluster"})))
register("typical")(partial(BackOff, SHORT, frozenset()))
