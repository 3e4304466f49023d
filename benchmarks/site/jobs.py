"""The jobs of a cell: a window drawn from a real log."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.real_windows import LEAST_JOBS, PARTS, Log
from slurm_asrpt.errors import InputError
from slurm_asrpt.lab.site.jobs import GPUS, Window, fitting, window

ORDER, PLACEMENT, MIXED = "order", "placement", "mixed"
REGIMES = {ORDER: 0.0, PLACEMENT: 1.0, MIXED: 0.5}
"""Share of the recurrence groups that train a model of Table I; the other jobs only take their time."""


def draw(
    log: Log, servers: int, load: float, hours: float, longest_s: float, regime: str, seed: int, held_out: bool
) -> Window:
    """Consecutive jobs whose work is ``load`` of the cluster's over ``hours``, with arrivals as in the log but for one
    factor, and at most as many jobs before them.

    Run times are cut to ``longest_s``, as a site's MaxTime does. Raises InputError if no part of the log is that long.
    """
    able = fitting(log.trace, servers, longest_s)
    rng = np.random.default_rng([seed, int(hashlib.sha256(log.name.encode()).hexdigest()[:8], 16)])
    first, last = rows(able, log, load * servers * GPUS * hours * 3600, rng, held_out)
    begin = max(0, first - (last - first))
    chosen = able.iloc[begin:last].reset_index(drop=True)
    submit = chosen["submit_s"].to_numpy()
    stretch = hours * 3600 / float(submit[-1] - submit[first - begin])
    return window(log.name, chosen, servers, first - begin, stretch, longest_s, rng, REGIMES[regime])


def rows(jobs: pd.DataFrame, log: Log, work: float, rng: Any, held_out: bool) -> tuple[int, int]:
    """A random first row in the held-out part of the log, or in the others, and the row after the last."""
    submit = jobs["submit_s"].to_numpy()
    done = np.concatenate([[0.0], np.cumsum(jobs["gpus"] * jobs["duration_s"])])
    last = np.searchsorted(done, done[:-1] + work)
    part = np.searchsorted(np.array(log.edges[1:PARTS]), submit, side="right")
    ends = np.searchsorted(submit, log.edges[1:])[part]
    numbers = np.arange(len(jobs))
    able = ((part == log.held_out) == held_out) & (last <= ends)
    able &= (last - numbers >= LEAST_JOBS) & (numbers >= LEAST_JOBS)
    able &= submit[np.minimum(last, len(jobs)) - 1] > submit
    if not able.any():
        raise InputError(f"{log.name}: no window of this length")
    first = int(rng.choice(numbers[able]))
    return first, int(last[first])


def consents(window: Window, share: float, seed: int) -> Any:
    """Which of its jobs may be preempted: this share of them, drawn by seed."""
    return np.random.default_rng(seed).random(len(window.jobs)) < share
