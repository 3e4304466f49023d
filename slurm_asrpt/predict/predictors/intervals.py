"""The 10-90% interval of every entry: as wide as what its runs and its likes have really done.

A key's own interval is that of its last WINDOW runs. With few runs it is too narrow, and groups drift; so it is moved
on either side by what would have caught nine in ten of the latest runs, each judged by what had been known for a while
(split conformal prediction: Vovk et al. 2005, section 4.2; on quantiles: Romano et al. 2019), separately for every
level, and for keys with few and with many runs. All in logarithms: a run is wrong by a factor, not by a number.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slurm_asrpt.core.conformal import quantile
from slurm_asrpt.hook.table import Entry, unit_factor
from slurm_asrpt.predict.predictors.base import Example

LOW, HIGH = 0.1, 0.9
WINDOW = 64
TAIL, MOST = 0.25, 20_000
"""Which of the examples the intervals are judged by: this share, the latest, and no more than so many."""
STALE = 0.2
"""They are judged in parts, this share of them each, by what was known before the part: predictions are of some age."""
MIN_SCORES = 50
"""With fewer judged runs a kind takes the margins of all."""

Margins = tuple[float, float]
Kind = tuple[str, int]
"""Level, and 1 for keys with one run, 2 for those with 2-3, 3 for 4-7, and so on."""


def with_intervals(entries: Mapping[str, Entry], examples: Sequence[Example]) -> dict[str, Entry]:
    """The entries with their intervals. examples: what they were learned from, in the order of the runs' ends."""
    ranges = _ConformalRanges(entries)
    judged = min(math.ceil(TAIL * len(examples)), MOST)
    part = math.ceil(STALE * judged)
    for example in examples[: len(examples) - judged]:
        ranges.learn(example)
    for first in range(len(examples) - judged, len(examples), max(part, 1)):
        for example in examples[first : first + part]:
            ranges.judge(example)
        for example in examples[first : first + part]:
            ranges.learn(example)
    return {key: ranges.adjusted(key, entry) for key, entry in entries.items()}


class _ConformalRanges:
    """The last runs of every key, and by how much their ranges have missed what came next."""

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._units = {key: entry.unit for key, entry in entries.items()}
        self._runs: dict[str, deque[float]] = {}
        self._misses: defaultdict[Kind, list[Margins]] = defaultdict(list)
        self._margins: dict[Kind, Margins] = {}
        self._level: dict[str, str] = {}

    def learn(self, example: Example) -> None:
        for level, key in example.chain:
            value = self._value(key, example)
            if value > 0:
                self._level[key] = level
                self._runs.setdefault(key, deque(maxlen=WINDOW)).append(value)

    def judge(self, example: Example) -> None:
        """By how much the range of the key that would have answered misses this run, below and above."""
        for _, key in example.chain:
            runs, value = self._runs.get(key), self._value(key, example)
            if runs and value > 0:
                low, high = _range(runs)
                self._misses[self._kind(key)].append((math.log(low / value), math.log(value / high)))
                return

    def _value(self, key: str, example: Example) -> float:
        """The run in the unit of the key's entry; 0 where the key has none."""
        unit = self._units.get(key)
        if unit is None:
            return 0.0
        factor = unit_factor(unit, example.features)
        return example.iterations / factor if factor > 0 else 0.0

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
            misses = self._misses[kind]
            if len(misses) < MIN_SCORES:
                misses = [miss for some in self._misses.values() for miss in some]
            below, above = zip(*misses, strict=True) if misses else ((0.0,), (0.0,))
            self._margins[kind] = quantile(sorted(below), HIGH), quantile(sorted(above), HIGH)
        return self._margins[kind]


def _range(runs: deque[float]) -> tuple[float, float]:
    ordered = sorted(runs)
    return quantile(ordered, LOW), quantile(ordered, HIGH)
