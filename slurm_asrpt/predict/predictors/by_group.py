"""One statistic per group, over all its runs; groups that have not run yet have none, as in the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import partial
from statistics import fmean, median
from typing import Self

from slurm_asrpt.hook.table import Entry
from slurm_asrpt.predict.predictors.base import Chain, Features, register


class ByGroup:
    """A statistic of all runs of a group."""

    def __init__(self, statistic: Callable[[Sequence[float]], float]) -> None:
        self._statistic = statistic
        self._runs: dict[str, list[float]] = {}
        self._figures: dict[str, Entry] = {}

    def learn(self, chain: Chain, figure: float, features: Features) -> None:
        group = dict(chain)["group"]
        self._runs.setdefault(group, []).append(figure)
        self._figures.pop(group, None)

    def entry(self, key: str) -> Entry | None:
        if key not in self._runs:
            return None
        if key not in self._figures:
            self._figures[key] = Entry.plain(self._figure(key))
        return self._figures[key]

    def _figure(self, key: str) -> float:
        return self._statistic(self._runs[key])

    def entries(self) -> dict[str, Entry]:
        return {key: Entry.plain(self._figure(key)) for key in self._runs}

    def copy(self) -> Self:
        twin = copy(self)
        twin._runs, twin._figures = {key: runs.copy() for key, runs in self._runs.items()}, self._figures.copy()
        return twin


def _last(runs: Sequence[float]) -> float:
    return runs[-1]


register("mean")(partial(ByGroup, fmean))
register("median")(partial(ByGroup, median))
register("last")(partial(ByGroup, _last))
