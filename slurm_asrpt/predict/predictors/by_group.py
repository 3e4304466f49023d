"""One statistic per group, over all its runs; groups that have not run yet have none, as in the paper."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
        runs = self._runs.get(key)
        if runs is None:
            return None
        if key not in self._figures:
            self._figures[key] = Entry.plain(self._statistic(runs))
        return self._figures[key]

    def entries(self) -> dict[str, Entry]:
        return {key: Entry.plain(self._statistic(runs)) for key, runs in self._runs.items()}

    def copy(self) -> Self:
        twin = type(self)(self._statistic)
        twin._runs = {key: runs.copy() for key, runs in self._runs.items()}
        return twin


def _last(runs: Sequence[float]) -> float:
    return runs[-1]


register("mean")(partial(ByGroup, fmean))
register("median")(partial(ByGroup, median))
register("last")(partial(ByGroup, _last))
# The forest on group and user is the mean of a group's runs, apart from the noise of its bootstraps. So this is its
# answer where a predictor must learn run by run (docs/decisions/0005); ``fit`` draws the bootstraps.
register("forest")(partial(ByGroup, fmean))
register("forest-sklearn")(partial(ByGroup, fmean))
