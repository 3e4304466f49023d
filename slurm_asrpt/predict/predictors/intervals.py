"""The 10-90% interval of each entry, calibrated on what its runs and similar runs actually did.

A key's own interval comes from its last WINDOW runs. With few runs it is too narrow, and groups drift. Therefore each
end is moved by the margin that would have covered nine in ten of the latest runs, each scored with what was known some
time before (split conformal prediction: Vovk et al. 2005, section 4.2; on quantiles: Romano et al. 2019). Margins are
computed per level, and separately for keys with few and with many runs. All in logarithms: the error of a prediction is
a factor, not a difference.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_asrpt.core.conformal import quantile
from slurm_asrpt.hook.table import Entry, unit_factor
from slurm_asrpt.predict.predictors.base import Lesson

LOW, HIGH = 0.1, 0.9
WINDOW = 64
TAIL, MOST = 0.25, 20_000
"""The calibration set: this share of the examples, the latest, and at most MOST of them."""
STALE = 0.2
"""Calibration goes in parts of this share, each scored with what was known before it: real predictions are of some age.
"""
MIN_SCORES = 50
"""A kind with fewer scores gets the margins of all."""

Margins = tuple[float, float]
Kind = tuple[str, int]
"""Level, and 1 for keys with one run, 2 for those with 2-3, 3 for 4-7, and so on."""


def with_intervals(entries: Mapping[str, Entry], lessons: Sequence[Lesson]) -> dict[str, Entry]:
    """The entries with their intervals. lessons: what they were learned from, in the order of the runs' ends."""
    ranges = _ConformalRanges(entries)
    judged = min(math.ceil(TAIL * len(lessons)), MOST)
    part = math.ceil(STALE * judged)
    for lesson in lessons[: len(lessons) - judged]:
        ranges.learn(lesson)
    for first in range(len(lessons) - judged, len(lessons), max(part, 1)):
        for lesson in lessons[first : first + part]:
            ranges.score(lesson)
        for lesson in lessons[first : first + part]:
            ranges.learn(lesson)
    return {key: ranges.adjusted(key, entry) for key, entry in entries.items()}


class _ConformalRanges:
    """The last runs of every key, and the conformity scores of their ranges."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._units = {key: entry.unit for key, entry in entries.items()}
        self._runs: dict[str, deque[float]] = {}
        self._scores: defaultdict[Kind, list[Margins]] = defaultdict(list)
        self._margins: dict[Kind, Margins] = {}
        self._level: dict[str, str] = {}

    def learn(self, lesson: Lesson) -> None:
        for level, key in lesson.chain:
            value = self._value(key, lesson)
            if value > 0:
                self._level[key] = level
                self._runs.setdefault(key, deque(maxlen=WINDOW)).append(value)

    def score(self, lesson: Lesson) -> None:
        """Score this run, below and above, against the range of the key that would have answered."""
        for _, key in lesson.chain:
            runs, value = self._runs.get(key), self._value(key, lesson)
            if runs and value > 0:
                low, high = _range(runs)
                self._scores[self._kind(key)].append((math.log(low / value), math.log(value / high)))
                return

    def _value(self, key: str, lesson: Lesson) -> float:
        """The run in the unit of the key's entry; 0 if the key has none."""
        unit = self._units.get(key)
        if unit is None:
            return 0.0
        factor = unit_factor(unit, lesson.features)
        return lesson.figure / factor if factor > 0 else 0.0

    def adjusted(self, key: str, entry: Entry) -> Entry:
        runs = self._runs[key]
        below, above = self._margin(self._kind(key))
        low, high = _range(runs)
        low, high = low * math.exp(-below), high * math.exp(above)
        return replace(entry, low=min(low, entry.iterations), high=max(high, entry.iterations))

    def _kind(self, key: str) -> Kind:
        return self._level[key], len(self._runs[key]).bit_length()

    def _margin(self, kind: Kind) -> Margins:
        if kind not in self._margins:
            scores = self._scores[kind]
            if len(scores) < MIN_SCORES:
                scores = [score for some in self._scores.values() for score in some]
            below, above = zip(*scores, strict=True) if scores else ((0.0,), (0.0,))
            self._margins[kind] = quantile(sorted(below), HIGH), quantile(sorted(above), HIGH)
        return self._margins[kind]


def _range(runs: deque[float]) -> tuple[float, float]:
    ordered = sorted(runs)
    return quantile(ordered, LOW), quantile(ordered, HIGH)
