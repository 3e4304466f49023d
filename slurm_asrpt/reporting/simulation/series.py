"""What the pictures show, computed exactly from a result and then thinned: few numbers however many jobs there were."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.sim.recorder import Placements

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 240
"""Points of a curve over time: each is a mean over its bin, not a sample."""
POINTS = 400


@dataclass(frozen=True)
class Steps:
    """Step functions of time. time: shape (k,), seconds, rising. values: by name, each shape (k,), from time[i] on."""

    time: Floats
    values: dict[str, Floats]

    def means(self, edges: Floats) -> dict[str, Floats]:
        """The mean of each function between each two edges, exactly."""
        return {name: np.diff(self._integral(name, edges)) / np.diff(edges) for name in self.values}

    def _integral(self, name: str, at: Floats) -> Floats:
        """Of the function from time[0] on; before that it is 0, and at the end it stays as it is."""
        values = self.values[name]
        total = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(self.time))])
        inside = np.interp(at, self.time, total)
        return np.asarray(inside + np.maximum(at - self.time[-1], 0.0) * values[-1])


def occupancy(jobs: pd.DataFrame, placements: Placements, node_gpus: Sequence[int], clock: float) -> Steps:
    """The cluster's GPUs over time, from first submission to ``clock``; jobs that still ran then count up to it.

    node_gpus: the GPUs of each server, by its number. used: GPUs of jobs. part: free GPUs on servers of which others
    are used. whole: free GPUs on wholly free servers. largest: most free GPUs on any one server.
    """
    sizes = np.asarray(node_gpus, dtype=np.int64)
    total, most = float(sizes.sum()), int(sizes.max(initial=0))
    job = placements.job
    start = jobs["start_s"].to_numpy()[job]
    end = np.fmin(jobs["end_s"].to_numpy()[job], clock)
    changes = _per_server(start, end, placements, sizes)
    order = np.argsort(changes.time, kind="stable")
    time = changes.time[order]
    size, free, before = (column[order] for column in (changes.size, changes.free, changes.before))
    last = np.append(time[1:] != time[:-1], True)  # the state that an instant ends in
    begin = float(jobs["submit_s"].iloc[0]) if len(jobs) else 0.0
    values = {
        "used": _summed(before - free, last),
        "part": _summed(np.where(free < size, free, 0) - np.where(before < size, before, 0), last),
    }
    values["whole"] = total - values["used"] - values["part"]
    values["largest"] = _largest(free, before, sizes, last)
    idle = {"used": 0.0, "part": 0.0, "whole": total, "largest": float(most)}
    return Steps(
        np.concatenate([[min(begin, time[0]) if len(time) else begin], time[last] if len(time) else []]),
        {name: np.concatenate([[idle[name]], found]) for name, found in values.items()},
    )


class _Changes(NamedTuple):
    """Each change of a server, one per server and instant: the server's GPUs, those free after it and before it."""

    time: Floats
    size: Ints
    free: Ints
    before: Ints


def _per_server(start: Floats, end: Floats, placements: Placements, sizes: Ints) -> _Changes:
    time = np.concatenate([start, end])
    node = np.concatenate([placements.node, placements.node]).astype(np.int64)
    change = np.concatenate([-placements.gpus, placements.gpus]).astype(np.int64)
    order = np.lexsort((time, node))
    time, node = time[order], node[order]
    # whatever a server gives it gets back, so that the sum over the servers before it is zero
    free = sizes[node] + np.cumsum(change[order])
    if len(time) == 0:
        return _Changes(time, free, free, free)
    settled = np.append((node[1:] != node[:-1]) | (time[1:] != time[:-1]), True)
    time, node, free = time[settled], node[settled], free[settled]
    first = np.concatenate([[True], node[1:] != node[:-1]])
    before = np.where(first, sizes[node], np.concatenate([[0], free[:-1]]))
    return _Changes(time, sizes[node], free, before)


def _summed(change: Ints, last: NDArray[np.bool_]) -> Floats:
    return np.asarray(np.cumsum(change), dtype=np.float64)[last] if len(change) else np.empty(0)


def _largest(free: Ints, before: Ints, sizes: Ints, last: NDArray[np.bool_]) -> Floats:
    """Most free GPUs on one server, from the number of servers with each number of free GPUs."""
    most = np.zeros(int(last.sum()) if len(free) else 0)
    for count in range(1, int(sizes.max(initial=0)) + 1):
        change = (free == count).astype(np.int64) - (before == count)
        with_it = _summed(change, last) + int((sizes == count).sum())
        most[with_it > 0] = count
    return most


def backlog(jobs: pd.DataFrame, clock: float) -> Steps:
    """Jobs submitted and not ended: its area is the sum of completion times (Little's law)."""
    submit, end = jobs["submit_s"].to_numpy(), jobs["end_s"].dropna().to_numpy()
    submit = submit[submit <= clock]
    time = np.concatenate([submit, end])
    change = np.concatenate([np.ones(len(submit)), -np.ones(len(end))])
    order = np.argsort(time, kind="stable")
    last = np.append(time[order][1:] != time[order][:-1], True)[: len(time)]
    return Steps(time[order][last], {"jobs": np.cumsum(change[order])[last]})


def running_mean(jobs: pd.DataFrame) -> tuple[Floats, Floats]:
    """Mean completion time (s) of the first k jobs, by submission, for some k; only jobs that have ended count."""
    jct = (jobs["end_s"] - jobs["submit_s"]).dropna().to_numpy()
    if len(jct) == 0:
        return np.empty(0), np.empty(0)
    at = np.unique(np.linspace(1, len(jct), POINTS).astype(np.int64))
    return at.astype(np.float64), np.asarray((np.cumsum(jct) / np.arange(1, len(jct) + 1))[at - 1])


def quantiles(values: Floats) -> tuple[Floats, Floats]:
    """Values and the share of all that are at most as large; even over the middle, and fine in the tail."""
    if len(values) == 0:
        return np.empty(0), np.empty(0)
    ordered = np.sort(values)
    tail = 1 - np.geomspace(1.0 / len(values), 0.1, POINTS // 4)
    shares = np.unique(np.concatenate([np.linspace(0, 1, POINTS), tail]))
    rank = np.clip(np.ceil(shares * len(values)).astype(np.int64), 1, len(values))
    return ordered[rank - 1], rank / len(values)


@dataclass(frozen=True)
class SizeClass:
    """Slowdowns of the jobs of some sizes. most: the largest size; quarter, half ...: percentiles 25, 50, 75 and 99."""

    label: str
    most: int
    jobs: int
    quarter: float
    half: float
    three_quarters: float
    p99: float


def by_size(jobs: pd.DataFrame) -> list[SizeClass]:
    """Slowdowns by GPUs, in classes up to 1, 2, 4, 8 ... GPUs."""
    ended = jobs[jobs["end_s"].notna()]
    slow = ((ended["end_s"] - ended["submit_s"]) / (ended["iterations"] * ended["best_alpha_s"])).to_numpy()
    gpus = ended["gpus"].to_numpy()
    power = np.ceil(np.log2(np.maximum(gpus, 1))).astype(np.int64)
    found = []
    for number in np.unique(power):
        mine = power == number
        least, most = int(gpus[mine].min()), int(gpus[mine].max())
        label = str(most) if least == most else f"{least}-{most}"
        found.append(SizeClass(label, 2 ** int(number), int(mine.sum()), *_percentiles(slow[mine])))
    return found


def _percentiles(values: Floats) -> tuple[float, float, float, float]:
    quarter, half, three_quarters, most = (float(p) for p in np.percentile(values, [25, 50, 75, 99]))
    return quarter, half, three_quarters, most
