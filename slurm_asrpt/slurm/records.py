"""Jobs and nodes as Slurm reports them, reduced to what the daemon uses. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

PENDING = "PENDING"
RUNNING_STATES = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"}
)
# states that squeue shows for a pending job between two runs
REQUEUED_STATES = frozenset({"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})


@dataclass(frozen=True)
class JobRecord:
    """One job of ``squeue --json``. 0 stands for "not set" in numbers, "" in texts.

    job_id: Slurm's own spelling, ``12`` or ``12_3``; number: SLURM_JOB_ID inside the job.
    requeue: Slurm lets it be requeued.
    array: a task of an array, or the bare record of tasks not yet split off.
    dependency: what is still to be fulfilled.
    time_limit: seconds, 0 without one. deadline: 0 without one. max_nodes: 0 without an upper bound.
    gpus_by_node: what was really allocated, by node.
    """

    job_id: str
    name: str
    user: str
    uid: int
    partition: str
    state: str
    reason: str
    submit_time: float
    number: int = 0
    eligible_time: float = 0.0
    start_time: float = 0.0
    end_time: float = 0.0
    time_limit: float = 0.0
    deadline: float = 0.0
    priority: int = 0
    dependency: str = ""
    exit_code: int = 0
    restarts: int = 0
    requeue: bool = False
    array: bool = False
    het: bool = False
    min_nodes: int = 1
    max_nodes: int = 0
    tasks: int = 1
    tasks_per_node: int = 0
    cpus: int = 0
    memory_per_cpu: float = 0.0
    memory_per_node: float = 0.0
    memory_per_gpu: float = 0.0
    tres_per_job: str = ""
    tres_per_node: str = ""
    tres_per_task: str = ""
    tres_per_socket: str = ""
    required_nodes: str = ""
    excluded_nodes: str = ""
    features: str = ""
    reservation: str = ""
    account: str = ""
    qos: str = ""
    exclusive: bool = False
    contiguous: bool = False
    admin_comment: str = ""
    nodes: str = ""
    gpus_by_node: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return self.state != PENDING and self.state not in RUNNING_STATES


_WORKING = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_HARMLESS = frozenset({"COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM"})
# not among them: RESERVED and MAINTENANCE, where Slurm decides who gets in, and whatever ends in * (not responding)


@dataclass(frozen=True)
class NodeRecord:
    """One node of ``scontrol show node``, in node-table order (``index``). Memory in MiB.

    other_gres: it has GPUs that are not all alike or not whole: several types, MIG instances, shards, MPS.
    """

    name: str
    index: int
    gpus: int
    gpus_used: int
    gpu_type: str
    cpus: int
    cpus_used: int
    memory: int
    memory_used: int
    state: str
    partitions: frozenset[str]
    other_gres: bool = False

    @property
    def usable(self) -> bool:
        """Whether Slurm would start a job there. A state or flag that we do not know counts as no."""
        base, *flags = self.state.split("+")
        return base in _WORKING and _HARMLESS.issuperset(flags)

    @property
    def completing(self) -> bool:
        return "COMPLETING" in self.state


@dataclass(frozen=True)
class Reservation:
    """One of ``scontrol show reservation`` that keeps whole nodes for others."""

    name: str
    start: float
    end: float
    nodes: frozenset[str]


@dataclass(frozen=True)
class Update:
    """One ``scontrol update``: the fields of one job, written in one go."""

    job_id: str
    fields: Mapping[str, str]
