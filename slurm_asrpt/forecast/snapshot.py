"""What a forecast is made from: the cluster, the policy's state and what runs, waits and has lately arrived."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ConfigDict, TypeAdapter

from slurm_asrpt.core.conformal import Moves
from slurm_asrpt.core.job import Job, JobId, Request
from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.core.policies.snapshot import PolicySnapshot
from slurm_asrpt.forecast.arrays import Rest
from slurm_asrpt.forecast.conformal import Margins
from slurm_asrpt.forecast.sampling import UNKNOWN_S, Span

PUBLISHED = "forecast.json"
"""In the run folder, for asrpt-status --what-if."""
MOST_JOBS = 500
"""So many of the first in line are in it, and get a forecast."""


@dataclass(frozen=True)
class Waiting:
    """A job that waits, or one that came lately. span: its iterations."""

    job: Job
    span: Span


@dataclass(frozen=True)
class Running:
    """A job that holds GPUs. span: of the whole run, seconds; ran_s of it are over. limit_s: what its limit leaves."""

    job_id: JobId
    gpus: Mapping[str, int]
    request: Request
    ran_s: float
    span: Span
    limit_s: float


@dataclass(frozen=True)
class Snapshot(PolicySnapshot):
    """Just after a decision of the policy. What is free is so beside all that ``running`` holds.

    arrays: tasks of arrays that follow those of ``running`` and ``waiting``.
    recent: the jobs that became eligible in the last ``window_s`` seconds, by their submit times.
    margins: what estimates are moved by before anybody sees them.
    unknown: seconds that a job runs of which nothing is predicted.
    moves: by what the intervals of predictions are moved, of every user; published only.
    rest_s: seconds from the end of a job to the next start on its GPUs, if somebody waits for them.
    """

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")

    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]
    recent: tuple[Waiting, ...] = ()
    window_s: float = 0.0
    margins: Margins = field(default_factory=Margins)
    unknown: Span = UNKNOWN_S
    rest_s: float = 0.0
    moves: Moves = field(default_factory=Moves)
    arrays: tuple[Rest, ...] = ()

    def make_policy(self) -> Policy:
        """Raises ValueError for a state that is none."""
        return self.policy_with(each.job for each in self.waiting)


_JSON = TypeAdapter(Snapshot)


def to_json(snapshot: Snapshot) -> bytes:
    return _JSON.dump_json(snapshot)


def from_json(data: bytes) -> Snapshot:
    """Raises ValueError for anything else."""
    return _JSON.validate_json(data)
