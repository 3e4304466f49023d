"""One result made small: what the report keeps of it once its jobs are forgotten."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.reporting.simulation.series import (
    BINS,
    Floats,
    SizeClass,
    Steps,
    backlog,
    by_size,
    occupancy,
    quantiles,
    running_mean,
)
from slurm_asrpt.sim.results import Record
from slurm_asrpt.sim.scenario import Scenario
from slurm_asrpt.text import counted

LONGEST = 10
"""So many of the longest waits are listed."""

_WHY = {
    "gpus": "too few GPUs were free that it may use",
    "shape": "GPUs were free, but not in the shape asked for",
    "resources": "GPUs were free, but too few CPUs or too little memory beside them",
    "capacity": "the cluster has fewer GPUs than it needs",
    "next": "it had not been looked at yet",
    "behind": "other jobs were ahead in the queue",
    "placement": "delayed for a better placement",
    "virtual": "shorter predicted work went first",
}


@dataclass(frozen=True)
class LongWait:
    """A job that waited long. wait: seconds; started: False if it never did, then the wait lasts to the end."""

    job: int
    user: str
    gpus: int
    profile: str
    wait: float
    started: bool
    why: str


@dataclass(frozen=True)
class Digest:
    """A result for the pictures. edges: shape (BINS + 1,), seconds; over time: means per bin, shape (BINS,)."""

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
        """Share of the free GPUs that are on servers not wholly free, per bin; nan where none is free."""
        return ratio(self.gpus["part"], self.gpus["part"] + self.gpus["whole"])


def ratio(part: Floats, whole: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(whole > 1e-9, part / whole, np.nan))


def digest(record: Record, label: str) -> Digest:
    """All that is drawn of a result."""
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
    """The jobs that waited longest, and why."""
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
    """The policy's last reason, and what can be seen from outside: free GPUs, and later jobs that went first."""
    kind = str(row["why"])
    parts = [_WHY.get(kind, kind)] if kind else []
    if row["predicted"] == 0:
        parts.append("no prediction")
    submit = float(row["submit_s"])
    total = steps.values["used"] + steps.values["part"] + steps.values["whole"]
    enough = Steps(steps.time, {"enough": (total - steps.values["used"] >= row["gpus"]).astype(np.float64)})
    share = float(enough.means(np.array([submit, until]))["enough"][0])
    parts.append(f"{_its_gpus(int(row['gpus']))} free somewhere for {100 * share:.0f}% of the wait")
    overtook = int(((jobs["submit_s"] > submit) & (jobs["start_s"] < until)).sum())
    parts.append(f"{counted(overtook, 'later job')} started before it")
    return "; ".join(parts)


def _its_gpus(count: int) -> str:
    return "its GPU was" if count == 1 else f"{count} GPUs were"
