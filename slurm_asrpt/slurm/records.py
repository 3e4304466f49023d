"""Jobs and nodes as Slurm reports them, reduced to what the daemon uses. Times are seconds since the epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_asrpt.slurm.array_tasks import read_tasks

PENDING = "PENDING"
RUNNING_STATES = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"}
)
# states that squeue shows for a pending job between two runs
REQUEUED_STATES = frozenset({"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
LONGEST_TASKS = 4000
"""Characters. Tasks that users have cancelled here and there make a list long, and an update is one line."""


@dataclass(frozen=True)
class JobRecord:
    """One job of ``squeue --json``. 0 stands for "not set" in numbers, "" in texts.

    job_id: Slurm's own spelling, ``12`` or ``12_3``; number: SLURM_JOB_ID inside the job.
    requeue: Slurm lets it be requeued.
    array_tasks: of the one record in which several tasks of array ``12`` wait, such as ``0-3,7`` or ``1-19:3``.
    array_most: so many tasks of its array may run at once, 0 without a bound.
    dependency: what is still to be fulfilled.
    time_limit: seconds, 0 without one. deadline: 0 without one. max_nodes: 0 without an upper bound.
    exclusive: whom it shares its nodes with: "node" with nobody, "user", "mcs" or "topo" with some; "" with all.
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
    array_tasks: str = ""
    array_most: int = 0
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
    exclusive: str = ""
    contiguous: bool = False
    admin_comment: str = ""
    nodes: str = ""
    gpus_by_node: Mapping[str, int] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        return self.state != PENDING and self.state not in RUNNING_STATES

    @property
    def array_id(self) -> str:
        """Of the array that it is of; its own id where it is of none."""
        return self.job_id.partition("_")[0]

    @property
    def can_be_parted(self) -> bool:
        """Whether all tasks of an array that wait in this record can be read, and named in one line."""
        return len(self.array_tasks) <= LONGEST_TASKS and bool(read_tasks(self.array_tasks))

    @property
    def address(self) -> str:
        """What to call it in an update: the bare id of an array means every task, those that run as well."""
        return f"{self.job_id}_[{self.array_tasks}]" if self.array_tasks and self.can_be_parted else self.job_id


_WORKING = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_HARMLESS = frozenset({"COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM"})
# not among them: RESERVED and MAINTENANCE, where Slurm decides who gets in, and whatever ends in * (not responding)


@dataclass(frozen=True)
class NodeRecord:
    """One node of ``scontrol show node``, in node-table order (``index``). Memory in MiB.

    other_gres: it has GPUs that are not all alike or not whole: several types, MIG instances, shards, MPS.
    features: the active ones.
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
    features: frozenset[str] = frozenset()

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
