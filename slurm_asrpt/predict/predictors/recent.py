"""``recent``: the latest runs under the narrowest key that has any.

1. A submission is answered by the runs most like it: of its group with as many GPUs and the same hyper-parameters, else
   of its group, else of its user and program, else of its user, else of all.
2. A key remembers its last WINDOW runs, and a run weighs half as much as one that came HALF runs later.
3. Exact, group and program answer with the median of these runs: what usually happens. User and all, which mix
   programs, answer with the mean: a job of which nothing is known may be long, and must not pass for a short one. A
   user's mean is drawn towards that of all, the less the more runs it rests on.
4. Where a group's iterations go with the epochs or steps that its jobs ask for, its figure is per epoch or step.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import pstdev
from typing import Self

from slurm_asrpt.predict.predictors.base import Chain, Features, register
from slurm_asrpt.predict.table import UNIT_FEATURES, Entry, unit_factor

WINDOW, HALF = 200, 50.0
_WEIGHTS: tuple[float, ...] = tuple(0.5 ** (age / HALF) for age in range(WINDOW))
DRAWN = 5.0
"""The mean of all counts in a user's as much as so many runs do."""
PLAIN = "-"
_PER_UNIT = frozenset({"group", "program"})

Past = deque[tuple[float, Features]]
"""Iterations and features of a key's last runs, the latest at the end."""


@register("recent")
class Recent:
    def __init__(self) -> None:
        self._past: dict[str, Past] = {}
        self._level: dict[str, str] = {}
        self._figures: dict[str, Entry] = {}
        self._everybody = ""  # the key of all runs

    def learn(self, chain: Chain, iterations: float, features: Features) -> None:
        for level, key in chain:
            past = self._past.get(key)
            if past is None:
                past = self._past[key] = deque(maxlen=WINDOW)
                self._level[key] = level
            past.append((iterations, features))
            self._figures.pop(key, None)
        self._everybody = chain[-1][1]

    def entry(self, key: str) -> Entry | None:
        past = self._past.get(key)
        if past is None:
            return None
        if key not in self._figures:
            self._figures[key] = self._figure(self._level[key], past)
        return self._figures[key]

    def _figure(self, level: str, past: Past) -> Entry:
        if level == "cluster":
            return Entry.plain(_mean(past))
        if level == "user":
            return Entry.plain(self._drawn(_mean(past), len(past)))
        unit = _unit(past) if level in _PER_UNIT else PLAIN
        return Entry.plain(_median([iterations / unit_factor(unit, features) for iterations, features in past]), unit)

    def _drawn(self, mean: float, runs: int) -> float:
        """A user's mean, drawn towards that of all in logarithms."""
        everybody = self.entry(self._everybody)
        assert everybody is not None  # noqa: S101  (for the type checker: who has run is one of all)
        own = runs / (runs + DRAWN)
        return math.exp(own * math.log(mean) + (1 - own) * math.log(everybody.iterations))

    def entries(self) -> dict[str, Entry]:
        return {key: entry for key in self._past if (entry := self.entry(key))}

    def copy(self) -> Self:
        twin = type(self)()
        twin._past = {key: past.copy() for key, past in self._past.items()}
        twin._level, twin._everybody = self._level.copy(), self._everybody
        return twin


def _mean(past: Past) -> float:
    """Of the iterations, the latest weighing most."""
    weighed = zip(reversed(past), _WEIGHTS, strict=False)
    return sum(iterations * weight for (iterations, _), weight in weighed) / sum(_WEIGHTS[: len(past)])


def _median(values: Sequence[float]) -> float:
    """The least value at which half of the weight is reached; the latest stands last and weighs most."""
    half = sum(_WEIGHTS[: len(values)]) / 2
    for value, weight in sorted(zip(reversed(values), _WEIGHTS, strict=False)):
        half -= weight
        if half <= 0:
            return value
    return max(values)


def _unit(past: Past) -> str:
    """What a key's figure is per: epochs or steps, where its runs differ in them and iterations go with them."""
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
