"""The jobs of a trace as a site's users would submit them with sbatch: a window of consecutive ones, and those before.

Run times are those of the trace. Time limits are, too; where it has none they are drawn as users choose them.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.errors import InputError
from slurm_asrpt.lab.site.models import best_alpha_of, profiles_by_size
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.trace import recurrence_key

if TYPE_CHECKING:
    import pandas as pd

GPUS = 8
"""Of a server."""
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

    load_of_log: of the log's own arrivals on these servers. stretch: how many times as long as in the log the times
    between submissions are.
    """

    log: str
    servers: int
    jobs: tuple[SiteJob, ...]
    past: tuple[SiteJob, ...]
    trace: Trace
    load_of_log: float
    stretch: float = 1.0

    @property
    def load(self) -> float:
        """GPU-seconds of the jobs over those of the cluster between the first and the last submission."""
        return self.load_of_log / self.stretch

    @property
    def known(self) -> tuple[SiteJob, ...]:
        """The past jobs that had ended when the window began."""
        return tuple(job for job in self.past if job.submit_s + job.run_s < 0)


def last_hours(trace: Trace, hours: float, load: float, servers: int, longest_s: float, seed: int) -> Window:
    """The last jobs of a trace, submitted in ``hours``; the jobs before them are the past.

    servers: 0 for as many as give about this load, and at least those of the largest job: the jobs are then those of
    the trace's last hours, at its own times. With a number of servers they are those whose work is ``load`` of what the
    cluster can do in these hours, with arrivals as in the trace but for one factor.

    Run times are cut to ``longest_s``, as a site's MaxTime does. seed: of the time limits. Raises InputError if the
    trace is too short.
    """
    jobs = fitting(trace, servers, longest_s)
    submit, work = jobs["submit_s"].to_numpy(), (jobs["gpus"] * jobs["duration_s"]).to_numpy()
    if servers:
        wanted = load * servers * GPUS * hours * 3600
        first = len(jobs) - 1 - int(np.searchsorted(np.cumsum(work[::-1]), wanted))
    else:
        first = int(np.searchsorted(submit, submit[-1] - hours * 3600))
    if first < 1 or submit[-1] <= submit[first]:
        raise InputError(f"{trace.name}: too few jobs for {hours:g} hours at load {load:g} and some before them")
    span = float(submit[-1] - submit[first])
    used = float(work[first:].sum()) / span / GPUS
    stretch = hours * 3600 / span if servers else 1.0
    servers = servers or max(math.ceil(jobs["gpus"].max() / GPUS), round(used / load))
    return window(trace.name, jobs, servers, first, stretch, longest_s, np.random.default_rng(seed))


def fitting(trace: Trace, servers: int, longest_s: float) -> pd.DataFrame:
    """The jobs of a trace that fit on so many servers (0: on any), with run times cut to ``longest_s``."""
    jobs = trace.jobs
    found = jobs[jobs["gpus"] <= servers * GPUS] if servers else jobs
    found = found.reset_index(drop=True)
    found["duration_s"] = found["duration_s"].clip(upper=longest_s)
    return found


def window(
    name: str,
    jobs: pd.DataFrame,
    servers: int,
    past: int,
    stretch: float,
    longest_s: float,
    rng: Any,
    share: float = 0.0,
) -> Window:
    """The window of these jobs, of which the first ``past`` are before it. share: of the groups that train a model."""
    submit = jobs["submit_s"].to_numpy()
    span = float(submit[-1] - submit[past])
    work = float((jobs["gpus"] * jobs["duration_s"])[past:].sum())
    made = jobs.assign(submit_s=(submit - submit[past]) * stretch, time_limit_s=_limits(jobs, longest_s, rng))
    submitted = _submissions(made, servers, share)
    load = work / (servers * GPUS * span)
    trace = Trace(name, made, len(made))
    return Window(name, servers, submitted[past:], submitted[:past], trace, load, stretch)


def _limits(jobs: pd.DataFrame, longest_s: float, rng: Any) -> Any:
    """The log's time limits, or drawn ones where it has none; seconds, whole minutes."""
    accuracy = rng.uniform(LEAST_ACCURACY, 1.0, len(jobs))
    known, run = jobs["time_limit_s"].to_numpy(), jobs["duration_s"].to_numpy()
    wanted = np.where(np.isfinite(known), np.maximum(known, run), run / accuracy)
    popular = np.array([*POPULAR_MIN, math.inf]) * 60.0
    drawn = popular[np.searchsorted(popular, wanted)]
    minutes = np.ceil(np.where(np.isfinite(known), wanted, drawn) / 60.0)
    return np.minimum(minutes, math.ceil(longest_s / 60.0)) * 60.0


def _submissions(jobs: pd.DataFrame, servers: int, share: float) -> tuple[SiteJob, ...]:
    owner = jobs["user"].where(jobs["user"] != "", jobs["queue"]).tolist()
    number = {name: place for place, name in enumerate(dict.fromkeys(owner))}
    users = [f"asrpt{number[name] % MOST_USERS + 1}" for name in owner]
    columns = (jobs[name].tolist() for name in ("gpus", "duration_s", "submit_s", "time_limit_s"))
    made = []
    for key, user, gpus, run, submit, limit in zip(recurrence_key(jobs), users, *columns, strict=True):
        profile = _model(key, int(gpus), share)
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
    known = _by_size().get(gpus, [])
    return known[digest[0] % len(known)] if known and digest[1] < share * 256 else ""


_by_size = cache(profiles_by_size)


@cache
def _best(profile: str, servers: int) -> float:
    """Seconds per iteration in the best placement."""
    return best_alpha_of(profile, [Node(f"n{number}", GPUS, number) for number in range(servers)], FABRIC)
