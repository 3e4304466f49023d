"""A result reduced to what a report shows: exact means and percentiles, of fixed size however many jobs there were."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.sim.recorder import Placements, Stays
from slurm_asrpt.sim.results import Record
from slurm_asrpt.sim.scenario import Scenario
from slurm_asrpt.text import counted

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BINS = 240
"""Points of a curve over time; each is the mean over its bin."""
POINTS = 400
"""Points of any other curve."""


@dataclass(frozen=True)
class Steps:
    """Step functions of time. time: seconds, rising, shape (k,). values: by name, each shape (k,); value i holds from
    time[i] on."""

    time: Floats
    values: dict[str, Floats]

    def means(self, edges: Floats) -> dict[str, Floats]:
        """The exact mean of each function between adjacent edges."""
        return {name: np.diff(self._integral(name, edges)) / np.diff(edges) for name in self.values}

    def _integral(self, name: str, at: Floats) -> Floats:
        """Integral from time[0] on. The function is 0 before, and keeps its last value."""
        values = self.values[name]
        total = np.concatenate([[0.0], np.cumsum(values[:-1] * np.diff(self.time))])
        inside = np.interp(at, self.time, total)
        return np.asarray(inside + np.maximum(at - self.time[-1], 0.0) * values[-1])


def occupancy(jobs: pd.DataFrame, placements: Placements, node_gpus: Sequence[int], clock: float) -> Steps:
    """The cluster's GPUs over time, from the first submission to ``clock`` (seconds).

    node_gpus: GPUs of each server. The functions: ``used``, GPUs of jobs; ``part``, free GPUs on partly used servers;
    ``whole``, free GPUs on idle servers; ``largest``, the most free GPUs on any server.
    """
    sizes = np.asarray(node_gpus, dtype=np.int64)
    total, most = float(sizes.sum()), int(sizes.max(initial=0))
    changes = _per_server(placements.stays(jobs["start_s"].to_numpy(), jobs["end_s"].to_numpy()), clock, sizes)
    order = np.argsort(changes.time, kind="stable")
    time = changes.time[order]
    size, free, before = (column[order] for column in (changes.size, changes.free, changes.before))
    last = np.append(time[1:] != time[:-1], True)  # the state at the end of each instant
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
    """Changes of servers, one per server and instant: the server's GPUs, and those free after and before."""

    time: Floats
    size: Ints
    free: Ints
    before: Ints


def _per_server(stays: Stays, clock: float, sizes: Ints) -> _Changes:
    time = np.concatenate([stays.begin, np.fmin(stays.end, clock)])
    node = np.concatenate([stays.node, stays.node]).astype(np.int64)
    change = np.concatenate([-stays.gpus, stays.gpus]).astype(np.int64)
    order = np.lexsort((time, node))
    time, node = time[order], node[order]
    # every server gets back what it gave, so that the sum over earlier servers is zero
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
    """The most free GPUs on one server at each instant, from the number of servers with each count of free GPUs."""
    most = np.zeros(int(last.sum()) if len(free) else 0)
    for count in range(1, int(sizes.max(initial=0)) + 1):
        change = (free == count).astype(np.int64) - (before == count)
        with_it = _summed(change, last) + int((sizes == count).sum())
        most[with_it > 0] = count
    return most


def backlog(jobs: pd.DataFrame, clock: float) -> Steps:
    """Jobs submitted and not ended. The area is the sum of completion times (Little's law)."""
    submit, end = jobs["submit_s"].to_numpy(), jobs["end_s"].dropna().to_numpy()
    submit = submit[submit <= clock]
    time = np.concatenate([submit, end])
    change = np.concatenate([np.ones(len(submit)), -np.ones(len(end))])
    order = np.argsort(time, kind="stable")
    last = np.append(time[order][1:] != time[order][:-1], True)[: len(time)]
    return Steps(time[order][last], {"jobs": np.cumsum(change[order])[last]})


def running_mean(jobs: pd.DataFrame) -> tuple[Floats, Floats]:
    """Some k, and the mean completion time in seconds of the first k jobs to be submitted that have ended."""
    jct = (jobs["end_s"] - jobs["submit_s"]).dropna().to_numpy()
    if len(jct) == 0:
        return np.empty(0), np.empty(0)
    at = np.unique(np.linspace(1, len(jct), POINTS).astype(np.int64))
    return at.astype(np.float64), np.asarray((np.cumsum(jct) / np.arange(1, len(jct) + 1))[at - 1])


def quantiles(values: Floats) -> tuple[Floats, Floats]:
    """Values, and the share of all values that are no larger: evenly spaced, with more points in the tail."""
    if len(values) == 0:
        return np.empty(0), np.empty(0)
    ordered = np.sort(values)
    tail = 1 - np.geomspace(1.0 / len(values), 0.1, POINTS // 4)
    shares = np.unique(np.concatenate([np.linspace(0, 1, POINTS), tail]))
    rank = np.clip(np.ceil(shares * len(values)).astype(np.int64), 1, len(values))
    return ordered[rank - 1], rank / len(values)


@dataclass(frozen=True)
class SizeClass:
    """Slowdowns of jobs in a range of sizes. most: the largest size; quarter, half ...: percentiles 25, 50, 75, 99."""

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


LONGEST = 10
"""Number of longest waits listed."""

_WHY = {
    "gpus": "too few eligible GPUs were free",
    "shape": "GPUs were free, but not in the requested shape",
    "resources": "GPUs were free, but not enough CPUs or memory with them",
    "gres": "GPUs were free, but not enough other generic resources with them",
    "capacity": "it needs more GPUs than the cluster has",
    "next": "it had not been considered yet",
    "behind": "other jobs were ahead in the queue",
    "placement": "delayed for a better placement",
    "virtual": "jobs with less predicted work went first",
}


@dataclass(frozen=True)
class LongWait:
    """A job with a long wait. wait: seconds, up to the end of the simulation if the job never started."""

    job: int
    user: str
    gpus: int
    profile: str
    wait: float
    started: bool
    why: str


@dataclass(frozen=True)
class Digest:
    """What a report shows of a result. edges: of the bins, seconds, shape (BINS + 1,); functions of time: means per
    bin, shape (BINS,)."""

    label: str
    scenario: Scenario
    meta: Mapping[str, Any]
    edges: Floats
    gpus: dict[str, Floats]
    jobs_in_system: Floats
    curve: tuple[Floats, Floats]
    jct: tuple[Floats, Floats]
    sizes: list[SizeClass]
    waits: list[LongWait]
    mean_fragmentation: float | None
    mean_largest: float

    @property
    def summary(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.meta["summary"]
        return found

    @property
    def fragmentation(self) -> Floats:
        """Share of free GPUs on partly used servers, per bin; nan where no GPU is free."""
        return ratio(self.gpus["part"], self.gpus["part"] + self.gpus["whole"])


def ratio(part: Floats, whole: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(whole > 1e-9, part / whole, np.nan))


def digest(record: Record, label: str) -> Digest:
    """Reduce a result. label: its name in tables and plots."""
    jobs, cluster = record.jobs, record.scenario.cluster
    clock = float(record.meta["clock_s"])
    steps = occupancy(jobs, record.placements, [node.gpus for node in cluster.nodes], clock)
    begin = float(jobs["submit_s"].iloc[0]) if len(jobs) else 0.0
    edges = np.linspace(begin, max(clock, begin + 1.0), BINS + 1)
    whole = steps.means(edges[[0, -1]])
    free = float(whole["part"][0] + whole["whole"][0])
    jct = (jobs["end_s"] - jobs["submit_s"]).dropna().to_numpy()
    return Digest(
        label=label,
        scenario=record.scenario,
        meta=record.meta,
        edges=edges,
        gpus=steps.means(edges),
        jobs_in_system=backlog(jobs, clock).means(edges)["jobs"] if len(jobs) else np.zeros(BINS),
        curve=running_mean(jobs),
        jct=quantiles(jct),
        sizes=by_size(jobs),
        waits=longest_waits(jobs, steps, clock),
        mean_fragmentation=float(whole["part"][0]) / free if free > 1e-9 else None,
        mean_largest=float(whole["largest"][0]),
    )


def longest_waits(jobs: pd.DataFrame, steps: Steps, clock: float) -> list[LongWait]:
    """The jobs with the longest waits, and why they waited."""
    came = jobs[jobs["submit_s"] <= clock]
    until = came["start_s"].fillna(clock)
    wait = (until - came["submit_s"]).nlargest(LONGEST)
    longest = came.loc[wait[wait > 0].index]
    return [
        LongWait(
            job=int(row["job"]),
            user=str(row["user"]),
            gpus=int(row["gpus"]),
            profile=str(row["profile"]),
            wait=seconds,
            started=bool(pd.notna(row["start_s"])),
            why=_why(row, jobs, steps, float(row["submit_s"]) + seconds),
        )
        for row, seconds in zip(longest.to_dict("records"), wait.tolist(), strict=False)
    ]


def _why(row: Mapping[Hashable, Any], jobs: pd.DataFrame, steps: Steps, until: float) -> str:
    """The policy's last reason, then what the schedule shows: free GPUs, and later jobs that started first."""
    kind = str(row["why"])
    parts = [_WHY.get(kind, kind)] if kind else []
    if row["predicted"] == 0:
        parts.append("no prediction")
    submit = float(row["submit_s"])
    total = steps.values["used"] + steps.values["part"] + steps.values["whole"]
    enough = Steps(steps.time, {"enough": (total - steps.values["used"] >= row["gpus"]).astype(np.float64)})
    share = float(enough.means(np.array([submit, until]))["enough"][0])
    parts.append(f"{_its_gpus(int(row['gpus']))} free in the cluster for {100 * share:.0f}% of the wait")
    overtook = int(((jobs["submit_s"] > submit) & (jobs["start_s"] < until)).sum())
    parts.append(f"{counted(overtook, 'later job')} started before it")
    return "; ".join(parts)


def _its_gpus(count: int) -> str:
    return "its GPU was" if count == 1 else f"{count} GPUs were"
