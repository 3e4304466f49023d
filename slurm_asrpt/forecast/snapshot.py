"""Input of a forecast: the cluster, the policy's state, and the running, waiting and recently arrived jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ConfigDict, TypeAdapter

from slurm_asrpt.core.conformal import IntervalOffsets
from slurm_asrpt.core.job import Job, JobId, Request
from slurm_asrpt.core.limits import Charges
from slurm_asrpt.core.policies.base import Policy
from slurm_asrpt.core.policies.snapshot import PolicySnapshot
from slurm_asrpt.forecast.arrays import PendingTasks
from slurm_asrpt.forecast.conformal import StartConformal
from slurm_asrpt.forecast.preemptions import PreemptionState
from slurm_asrpt.forecast.sampling import UNKNOWN_S, Quantiles
from slurm_asrpt.slurm.gpu_defaults import GpuDefaults
from slurm_asrpt.slurm.partitions import Partition
from slurm_asrpt.slurm.records import NodeRecord

PUBLISHED = "forecast.json"
"""File in the run directory, for asrpt-status --what-if."""
MAX_JOBS = 500
"""Number of jobs at the head of the queue that a snapshot holds; only these get a forecast."""


@dataclass(frozen=True)
class Waiting:
    """A waiting job, or one that arrived recently. span: its iterations. done: those of its earlier runs."""

    job: Job
    span: Quantiles
    done: float = 0.0


@dataclass(frozen=True)
class Running:
    """A job that holds GPUs. span: seconds of the whole run. ran_s: seconds so far. limit_s: seconds left of its time
    limit. indexes: its GPUs on each node, as masks, where these count."""

    job_id: JobId
    gpus: Mapping[str, int]
    request: Request
    ran_s: float
    span: Quantiles
    limit_s: float
    charges: Charges = ()
    indexes: Mapping[str, int] | None = None


@dataclass(frozen=True)
class Snapshot(PolicySnapshot):
    """The state just after a decision of the policy. Free resources exclude all that ``running`` holds. The field
    names are keys in forecast.json.

    arrays: pending array tasks that follow those in ``running`` and ``waiting``.
    recent: jobs that became eligible in the last ``window_s`` seconds, by submit time.
    margins: the conformal adjustment that is applied before estimates are published.
    unknown: runtime, in seconds, of a job without a prediction.
    rates: how much jobs without a profile communicate (``predict.communication.to_rates``); only published.
    moves: current offsets of the intervals of predictions, of every user; only published.
    preemption: the jobs that the policy may preempt, or has.
    slurm_nodes: the nodes as Slurm shows them; only published. gpu_defaults: what partitions give; only published.
    partitions: their own limits; only published.
    rest_s: seconds from the end of a job to the next start on its GPUs, if a job waits for them.
    """

    __pydantic_config__ = ConfigDict(ser_json_inf_nan="constants")

    running: tuple[Running, ...]
    waiting: tuple[Waiting, ...]
    recent: tuple[Waiting, ...] = ()
    window_s: float = 0.0
    margins: StartConformal = field(default_factory=StartConformal)
    unknown: Quantiles = UNKNOWN_S
    rest_s: float = 0.0
    rates: Mapping[str, float] = field(default_factory=dict)
    moves: IntervalOffsets = field(default_factory=IntervalOffsets)
    arrays: tuple[PendingTasks, ...] = ()
    preemption: PreemptionState = field(default_factory=PreemptionState)
    slurm_nodes: tuple[NodeRecord, ...] = ()
    gpu_defaults: Mapping[str, GpuDefaults] = field(default_factory=dict)
    partitions: Mapping[str, Partition] = field(default_factory=dict)

    def make_policy(self) -> Policy:
        """Raises ValueError for an invalid state."""
        return self.policy_with(each.job for each in self.waiting)


_JSON = TypeAdapter(Snapshot)


def to_json(snapshot: Snapshot) -> bytes:
    return _JSON.dump_json(snapshot)


def from_json(data: bytes) -> Snapshot:
    """Raises ValueError for invalid input."""
    return _JSON.validate_json(data)
