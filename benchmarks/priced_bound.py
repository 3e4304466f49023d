"""A lower bound on completion times from prices of GPU time; docs/decisions/0006 has the proof.

Whoever must pay a price for each GPU-second, and may otherwise start each job as if it were alone, gets a sum of
completion times and payments that, less the price of all GPU time, no schedule can be below. This holds for any prices.
Good ones are found step by step: where more GPUs than there are would be used, the price rises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.sim.job_table import Floats, JobTable
from slurm_asrpt.sim.metrics import srpt

INTERVALS = 200
"""Number of intervals that a price is constant in, at most; more give larger bounds and cost more time."""
STEPS = 80
_PATIENCE = 6
"""Steps without a larger bound after which steps become shorter."""
_TAIL = 9
"""Breakpoints after the time at which all work would be done if jobs could be split."""


def priced_bound(table: JobTable, nodes: Sequence[Node], fabric: Fabric, possible: float) -> float:
    """No schedule without preemption has a smaller sum of completion times, seconds.

    possible: the sum that some schedule has, which only sets the length of the steps. Jobs that can never run are left
    out. Raises ValueError if the GPUs differ in speed.
    """
    if len({node.speed for node in nodes}) > 1:
        raise ValueError("prices are the same for all GPUs, so these must have the same speed")
    alone = table.iterations * table.best_alphas(nodes, fabric)
    can_run = ~np.isnan(alone)
    if not can_run.any():
        return 0.0
    total = float(sum(node.gpus for node in nodes))
    jobs = _Jobs(table.submit[can_run], alone[can_run], table.gpus[can_run].astype(float), total)
    return _best(jobs, possible)


@dataclass(frozen=True)
class _Jobs:
    """Columns of shape (n,). release, seconds: r_i and p_i, seconds. total: the GPUs of the cluster."""

    release: Floats
    seconds: Floats
    gpus: Floats
    total: float


def _best(jobs: _Jobs, possible: float) -> float:
    """The largest bound of the prices on the way up (a subgradient method with Polyak's steps)."""
    ends = srpt(jobs.release, jobs.gpus * jobs.seconds / jobs.total)
    times = _breakpoints(jobs, ends)
    spans, choices = np.diff(times), _Choices(jobs, times)
    prices = _waiting(jobs.release, ends, times) / jobs.total
    best, best_prices, length, since = -np.inf, prices, 1.0, 0
    for _ in range(STEPS):
        bound, starts = choices.cheapest(prices)
        if bound > best:
            best, best_prices, since = bound, prices, 0
        elif (since := since + 1) >= _PATIENCE:
            length, since, prices = length / 2, 0, best_prices
        excess = _used(jobs, starts, times) / spans - jobs.total
        norm = float((spans * excess**2).sum())
        if norm <= 0 or bound >= possible:
            break
        prices = np.maximum(0.0, prices + length * (possible - bound) / norm * excess)
    return float(best)


def _breakpoints(jobs: _Jobs, ends: Floats) -> Floats:
    """Where prices may change: as many jobs arrive or end in each interval. shape (m + 1,), ascending."""
    events = np.concatenate([jobs.release, ends])
    even = np.quantile(events, np.linspace(0, 1, INTERVALS + 1 - _TAIL))
    return np.unique(np.concatenate([even, events.max() + jobs.seconds.max() * np.linspace(0, 1, _TAIL + 1)]))


def _waiting(release: Floats, ends: Floats, times: Floats) -> Floats:
    """Jobs in the cluster in the middle of each interval if jobs could be split.

    A second of the cluster saves about a second for each of them.
    """
    middle = (times[1:] + times[:-1]) / 2
    arrived, ended = (np.searchsorted(np.sort(column), middle, side="right") for column in (release, ends))
    return np.asarray(arrived - ended, dtype=np.float64)


class _Choices:
    """When each job starts if it alone decides.

    Between two starts at which the job begins or ends at a breakpoint, its cost changes evenly, so that its cheapest
    start is its release or one of these. After the last breakpoint, GPUs cost nothing.
    """

    def __init__(self, jobs: _Jobs, times: Floats) -> None:
        self._jobs, self._times = jobs, times
        release, seconds = jobs.release[:, None], jobs.seconds[:, None]
        self._starts = np.maximum(
            release, np.hstack([np.broadcast_to(times, (len(seconds), len(times))), times - seconds])
        )
        self._begin, self._end = self._located(self._starts), self._located(self._starts + seconds)

    def _located(self, when: Floats) -> tuple[NDArray[np.intp], Floats]:
        """The breakpoint before each time, and the seconds since."""
        place = np.searchsorted(self._times, when, side="right") - 1
        return place, when - self._times[place]

    def cheapest(self, prices: Floats) -> tuple[float, Floats]:
        """The bound with these prices, and each job's start."""
        paid = np.append(0.0, np.cumsum(prices * np.diff(self._times)))
        now = np.append(prices, 0.0)
        (begin, since_begin), (end, since_end) = self._begin, self._end
        bill = paid[end] + now[end] * since_end - paid[begin] - now[begin] * since_begin
        cost = self._starts + self._jobs.gpus[:, None] * bill
        choice = (np.arange(len(cost)), cost.argmin(axis=1))
        return float((cost[choice] + self._jobs.seconds).sum() - self._jobs.total * paid[-1]), self._starts[choice]


def _used(jobs: _Jobs, starts: Floats, times: Floats) -> Floats:
    """GPU-seconds used in each interval."""
    when = np.concatenate([starts, starts + jobs.seconds])
    order = np.argsort(when, kind="stable")
    in_use = np.cumsum(np.concatenate([jobs.gpus, -jobs.gpus])[order])
    used = np.append(0.0, np.cumsum(in_use[:-1] * np.diff(when[order])))
    return np.diff(np.interp(times, when[order], used))
