"""The jobs of a cell: a window of a real log as users would submit it with sbatch."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.real_windows import GPUS, LEAST_JOBS, PARTS, Log
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.errors import InputError
from slurm_asrpt.lab.workload import best_alpha_of, profiles_by_size
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.trace import recurrence_key

ORDER, PLACEMENT, MIXED = "order", "placement", "mixed"
REGIMES = {ORDER: 0.0, PLACEMENT: 1.0, MIXED: 0.5}
"""Share of the recurrence groups that train a model of Table I; the other jobs only take their time."""
MOST_USERS = 12
POPULAR_MIN = (15, 30, 60, 120, 240, 360, 480, 720, 1440, 2880, 4320, 7200, 10080)
"""Time limits that users choose: few round values make up most of the estimates (Tsafrir, Etsion and Feitelson, JSSPP
2005)."""
LEAST_ACCURACY = 0.05
"""Run time over time limit is about uniform between this and 1 (Mu'alem and Feitelson, IEEE TPDS 12(6), 2001)."""
FABRIC = Fabric(inter=1.25e9, intra=300e9)
"""10 Gbit/s between servers, NVLink inside; as in a lab's settings."""


@dataclass(frozen=True)
class SiteJob:
    """A job as its user submits it. run_s: run time in the best placement. submit_s: since the begin of the window.

    nodes: the fewest nodes that it fits on. profile, iterations: of the model that it trains; "" and 0 for none.
    """

    name: str
    user: str
    gpus: int
    nodes: int
    limit_min: int
    run_s: float
    submit_s: float
    profile: str = ""
    iterations: int = 0

    @property
    def script(self) -> str:
        """The same in all runs of a recurring job; what differs is in the environment."""
        work = "exec asrpt-train --profile $SITE_PROFILE --iterations $SITE_ITERATIONS" if self.profile else ""
        return f"#!/bin/sh\n{work or 'exec sleep $SITE_RUN_S'}\n"

    @property
    def variables(self) -> dict[str, str]:
        if self.profile:
            return {"SITE_PROFILE": self.profile, "SITE_ITERATIONS": str(self.iterations)}
        return {"SITE_RUN_S": f"{self.run_s:.0f}"}

    def command(self, fewest: bool) -> list[str]:
        """sbatch with its options. fewest: ask for the fewest nodes."""
        words = ["sbatch", "--parsable", f"--job-name={self.name}", f"--ntasks={self.gpus}", "--cpus-per-task=1"]
        words += ["--gpus-per-task=1", f"--time={self.limit_min}", "--output=/dev/null"]
        words += [f"--nodes={self.nodes}"] if fewest else []
        return words + ([f"--comment=asrpt:profile={self.profile}"] if self.profile else [])


@dataclass(frozen=True)
class Window:
    """A window of a log. past: the jobs before it, to learn from. trace: both, as the simulator reads them.

    load_of_log: of the log's own arrivals on these servers.
    """

    log: str
    servers: int
    first: int
    jobs: tuple[SiteJob, ...]
    past: tuple[SiteJob, ...]
    trace: Trace
    load_of_log: float


def draw(
    log: Log, servers: int, load: float, hours: float, longest_s: float, regime: str, seed: int, held_out: bool
) -> Window:
    """Consecutive jobs whose work is ``load`` of the cluster's over ``hours``, with arrivals as in the log but for one
    factor, and at most as many jobs before them.

    Run times are cut to ``longest_s``, as a site's MaxTime does. Raises InputError if no part of the log is that long.
    """
    whole = log.trace.jobs
    fitting = whole[whole["gpus"] <= servers * GPUS].reset_index(drop=True)
    fitting["duration_s"] = fitting["duration_s"].clip(upper=longest_s)
    rng = np.random.default_rng([seed, int(hashlib.sha256(log.name.encode()).hexdigest()[:8], 16)])
    first, last = _rows(fitting, log, load * servers * GPUS * hours * 3600, rng, held_out)
    begin = max(0, first - (last - first))
    chosen = fitting.iloc[begin:last].reset_index(drop=True)
    past = first - begin
    submit = chosen["submit_s"].to_numpy()
    span = float(submit[-1] - submit[past])
    work = float((chosen["gpus"] * chosen["duration_s"])[past:].sum())
    factor = hours * 3600 / span
    chosen["submit_s"] = (submit - submit[past]) * factor
    chosen["time_limit_s"] = _limits(chosen, longest_s, rng)
    jobs = _submissions(chosen, servers, regime)
    trace = Trace(log.name, chosen, len(chosen))
    return Window(log.name, servers, first, jobs[past:], jobs[:past], trace, work / (servers * GPUS * span))


def _rows(jobs: pd.DataFrame, log: Log, work: float, rng: Any, held_out: bool) -> tuple[int, int]:
    """A random first row in the held-out part of the log, or in the others, and the row after the last."""
    submit = jobs["submit_s"].to_numpy()
    done = np.concatenate([[0.0], np.cumsum(jobs["gpus"] * jobs["duration_s"])])
    last = np.searchsorted(done, done[:-1] + work)
    part = np.searchsorted(np.array(log.edges[1:PARTS]), submit, side="right")
    ends = np.searchsorted(submit, log.edges[1:])[part]
    rows = np.arange(len(jobs))
    able = ((part == log.held_out) == held_out) & (last <= ends) & (last - rows >= LEAST_JOBS) & (rows >= LEAST_JOBS)
    able &= submit[np.minimum(last, len(jobs)) - 1] > submit
    if not able.any():
        raise InputError(f"{log.name}: no window of this length")
    first = int(rng.choice(rows[able]))
    return first, int(last[first])


def _limits(jobs: pd.DataFrame, longest_s: float, rng: Any) -> Any:
    """The log's time limits, or drawn ones where it has none; seconds, whole minutes."""
    accuracy = rng.uniform(LEAST_ACCURACY, 1.0, len(jobs))
    known, run = jobs["time_limit_s"].to_numpy(), jobs["duration_s"].to_numpy()
    wanted = np.where(np.isfinite(known), np.maximum(known, run), run / accuracy)
    popular = np.array([*POPULAR_MIN, math.inf]) * 60.0
    drawn = popular[np.searchsorted(popular, wanted)]
    minutes = np.ceil(np.where(np.isfinite(known), wanted, drawn) / 60.0)
    return np.minimum(minutes, math.ceil(longest_s / 60.0)) * 60.0


def _submissions(jobs: pd.DataFrame, servers: int, regime: str) -> tuple[SiteJob, ...]:
    owner = jobs["user"].where(jobs["user"] != "", jobs["queue"]).tolist()
    number = {name: place for place, name in enumerate(dict.fromkeys(owner))}
    users = [f"asrpt{number[name] % MOST_USERS + 1}" for name in owner]
    columns = (jobs[name].tolist() for name in ("gpus", "duration_s", "submit_s", "time_limit_s"))
    made = []
    for key, user, gpus, run, submit, limit in zip(recurrence_key(jobs), users, *columns, strict=True):
        profile = _model(key, int(gpus), REGIMES[regime])
        alpha = _best(profile, servers) if profile else 0.0
        iterations = max(1, round(run / alpha)) if profile else 0
        minutes = math.ceil(limit / 60.0) + 1  # starting and ending takes some of the lab's time
        name = f"g{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        nodes = -(-int(gpus) // GPUS)
        made.append(SiteJob(name, user, int(gpus), nodes, minutes, run, submit, profile, iterations))
    return tuple(made)


def _model(key: str, gpus: int, share: float) -> str:
    """The model of Table I that a recurrence group trains: one of its size, if it is among the share that trains."""
    digest = hashlib.sha256(key.encode()).digest()
    fitting = _by_size().get(gpus, [])
    return fitting[digest[0] % len(fitting)] if fitting and digest[1] < share * 256 else ""


_by_size = cache(profiles_by_size)


@cache
def _best(profile: str, servers: int) -> float:
    """Seconds per iteration in the best placement."""
    return best_alpha_of(profile, [Node(f"n{number}", GPUS, number) for number in range(servers)], FABRIC)
