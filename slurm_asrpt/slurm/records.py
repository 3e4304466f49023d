"""Jobs and nodes as Slurm reports them, reduced to what asrptd uses. Times are in seconds since the epoch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from slurm_asrpt.core.cluster import host_of, part_name
from slurm_asrpt.slurm.notation import read_tasks

PENDING = "PENDING"
RUNNING_STATES = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "SIGNALING", "RESIZING", "STOPPED"}
)
# states that squeue shows for a pending job between two runs
REQUEUED_STATES = frozenset({"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
FEDERATED = 1 << 26
"""The least SLURM_JOB_ID of a federation."""
LONGEST_TASKS = 4000
"""Characters. Cancelled tasks can make the list of pending tasks long, and an update is one line."""


@dataclass(frozen=True)
class JobRecord:
    """One job of ``squeue --json``. Unset numbers are 0, unset strings "".

    job_id: as in Slurm, ``12`` or ``12_3``; number: SLURM_JOB_ID inside the job.
    requeue: Slurm may requeue it. signal: the one that ended it, 0 if none did.
    array_tasks: the pending tasks of array ``12`` that share this record, e.g. ``0-3,7`` or ``1-19:3``.
    het_id: of a heterogeneous job, the id of its first component; an update of that one changes all.
    array_most: how many tasks of the array may run at once, 0 without a limit.
    dependency: the unfulfilled part. licenses: as requested. tres: what it was given, or asks for, as Slurm counts it.
    accrue_time: Slurm counts the job's age from then on; 0 if it does not count it. time_limit: seconds, 0 without one.
    time_min: --time-min in seconds, 0 without it.
    tasks_per_socket, tasks_per_gpu: 0 if it does not ask for that. cpus_per_task: 0 if this Slurm does not show it.
    deadline: 0 without one. max_nodes: 0 without an upper bound.
    exclusive: "node": shares its nodes with no job; "user", "mcs" or "topo": with some; "": with all.
    segment: nodes of each of its segments (--segment), 0 if it has none, None if this Slurm does not show it.
    gpus_by_node: the allocated GPUs. gpus_by_type: the same by node and type. After ``in_parts``, gpus_by_node has the
    parts of nodes with several types. gpu_indexes: which GPUs these are, by node, as masks; without those not shown.
    one_thread: it uses one thread of each core (--hint=nomultithread). own_cores: its tasks share no core with each
    other (--ntasks-per-core=1, also as a site's default: CR_ONE_TASK_PER_CORE).
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
    accrue_time: float = 0.0
    start_time: float = 0.0
    end_time: float = 0.0
    time_limit: float = 0.0
    time_min: float = 0.0
    deadline: float = 0.0
    priority: int = 0
    nice: int = 0
    dependency: str = ""
    exit_code: int = 0
    signal: int = 0
    restarts: int = 0
    requeue: bool = False
    array_tasks: str = ""
    array_most: int = 0
    het: bool = False
    het_id: str = ""
    min_nodes: int = 1
    max_nodes: int = 0
    tasks: int = 1
    tasks_per_node: int = 0
    tasks_per_socket: int = 0
    tasks_per_gpu: int = 0
    cpus_per_task: int = 0
    cpus: int = 0
    cpus_per_gpu: int = 0
    min_cpus_per_node: int = 0
    one_thread: bool = False
    tmp_disk: float = 0.0
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
    licenses: str = ""
    tres: str = ""
    exclusive: str = ""
    contiguous: bool = False
    scrontab: bool = False
    prefer: str = ""
    segment: int | None = 0
    admin_comment: str = ""
    nodes: str = ""
    gpus_by_node: Mapping[str, int] = field(default_factory=dict)
    gpus_by_type: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    gpu_indexes: Mapping[str, int] = field(default_factory=dict)
    own_cores: bool = False

    def in_parts(self, several: frozenset[str]) -> JobRecord:
        """The job with GPUs by part (``NodeRecord.parts``) on these nodes, which have several types."""
        if several.isdisjoint(self.gpus_by_type):
            return self
        split = {name: types for name, types in self.gpus_by_type.items() if name in several}
        whole = {name: count for name, count in self.gpus_by_node.items() if name not in split}
        counts = ((part_name(name, kind), count) for name, types in split.items() for kind, count in types.items())
        return replace(self, gpus_by_node=whole | {part: count for part, count in counts if count})

    def cpus_for(self, gpus: int) -> int:
        """Its CPUs. Of a pending job Slurm shows those of its tasks, without ``--cpus-per-gpu`` and ``--mincpus``."""
        if self.state != PENDING:
            return self.cpus
        return max(self.cpus, self.cpus_per_gpu * gpus, self.min_cpus_per_node * self.min_nodes)

    def in_cores(self, cpus: int, threads: int) -> int:
        """The CPUs that Slurm allocates for these: whole cores on each node (``one_thread``: a core for each CPU)."""
        if self.state != PENDING or threads == 1:
            return cpus
        each = -(-cpus // self.min_nodes)
        allocated = self.min_nodes * threads * (each if self.one_thread else -(-each // threads))
        return max(allocated, self.tasks * self.task_cpus(threads)) if self.own_cores else allocated

    def task_cpus(self, threads: int) -> int:
        """The CPUs that a task takes of a node whose cores have so many threads."""
        cpus = max(1, self.cpus // self.tasks)
        if self.one_thread:
            return cpus * threads
        return -(-cpus // threads) * threads if self.own_cores else cpus

    @property
    def federated(self) -> bool:
        """Whether it belongs to a federation: the upper bits of its number are that of the cluster it came from."""
        return self.number >= FEDERATED

    @property
    def hosts(self) -> frozenset[str]:
        """The nodes on which it has GPUs."""
        return frozenset(map(host_of, self.gpus_by_node))

    @property
    def has_ended(self) -> bool:
        return self.state != PENDING and self.state not in RUNNING_STATES

    @property
    def array_id(self) -> str:
        """The id of the job's array; its own id if it is not an array task."""
        return self.job_id.partition("_")[0]

    @property
    def can_be_parted(self) -> bool:
        """Whether the pending tasks in this record can be parsed, and listed in one line."""
        return len(self._tasks_in_full) <= LONGEST_TASKS and bool(read_tasks(self.array_tasks))

    @property
    def address(self) -> str:
        """The id to use in an update: the bare id of an array would mean all tasks, running ones included."""
        return f"{self.job_id}_[{self._tasks_in_full}]" if self.array_tasks and self.can_be_parted else self.job_id

    @property
    def _tasks_in_full(self) -> str:
        """The pending tasks without steps, which updates do not know: ``0,3,6`` for ``0-6:3``."""
        if ":" not in self.array_tasks:
            return self.array_tasks
        return ",".join(str(task) for each in read_tasks(self.array_tasks) for task in each)


_WORKING = frozenset({"IDLE", "MIXED", "ALLOCATED"})
_HARMLESS = frozenset({"COMPLETING", "PLANNED", "CLOUD", "DYNAMIC_NORM", "REBOOT_REQUESTED"})
# not MAINTENANCE, where Slurm decides which jobs may run, nor NOT_RESPONDING of a node that is up
_POWERED_DOWN = frozenset({"POWERED_DOWN", "POWERING_UP", "POWER_UP"})
_POWERING_DOWN = frozenset({"POWERING_DOWN", "POWER_DOWN"})


class GpuType(NamedTuple):
    """The GPUs of one type on a node. A MIG instance is a GPU of its own type, e.g. ``1g.10gb``."""

    name: str
    gpus: int
    used: int


@dataclass(frozen=True)
class NodeRecord:
    """One node of ``scontrol show node``, in node-table order (``index``). Memory in MiB.

    gpu_type: "" if it has several. types: these; empty if all its GPUs are of one type.
    other_gres: it has shards or MPS, or only some of its GPUs have a type.
    features: the active ones. indexes_used: the GPUs in use, as a mask; 0 if they are not shown.
    threads: CPUs of a core, of which Slurm allocates all or none. tmp_disk: MiB. weight: jobs go to the least first.
    gres, gres_used: other generic resources, in all and in use, by name, and by ``name:type`` those with a type.
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
    types: tuple[GpuType, ...] = ()
    indexes_used: int = 0
    threads: int = 1
    tmp_disk: int = 0
    weight: int = 1
    gres: Mapping[str, int] = field(default_factory=dict)
    gres_used: Mapping[str, int] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[NodeRecord, ...]:
        """The servers that policies see: the node, or one for each of its GPU types, which share CPUs and memory."""
        return tuple(map(self._part, self.types)) if self.types else (self,)

    def _part(self, kind: GpuType) -> NodeRecord:
        part = replace(self, name=part_name(self.name, kind.name), gpu_type=kind.name, types=(), indexes_used=0)
        return replace(part, gpus=kind.gpus, gpus_used=kind.used)

    @property
    def usable(self) -> bool:
        """Whether Slurm would start a job there, maybe after powering it up. False for unknown states and flags."""
        return self.usable_with(frozenset())

    @property
    def usable_in_reservation(self) -> bool:
        """The same for a job that its reservation admits."""
        return self.usable_with(frozenset({"RESERVED"}))

    def usable_with(self, also: frozenset[str]) -> bool:
        """Whether it is usable if these flags do no harm."""
        base, *rest = self.state.split("+")
        flags = frozenset(rest) - _POWERED_DOWN - _POWERING_DOWN - also
        if self.powered_down:
            flags -= {"NOT_RESPONDING"}
        return base in _WORKING and flags <= _HARMLESS

    @property
    def powered_down(self) -> bool:
        """Whether a job that is started there waits until the node is up: it is powered down, or powering up."""
        return not _POWERED_DOWN.isdisjoint(self.state.split("+"))

    @property
    def powering_down(self) -> bool:
        """Whether Slurm starts nothing there until it is powered down."""
        return not _POWERING_DOWN.isdisjoint(self.state.split("+"))

    @property
    def completing(self) -> bool:
        return "COMPLETING" in self.state


def with_indexes(nodes: Sequence[NodeRecord], jobs: Iterable[JobRecord]) -> list[NodeRecord]:
    """The nodes with the GPUs that these jobs hold, where Slurm shows none in use, as with GPUs without a type."""
    held: dict[str, int] = {}
    for job in jobs:
        if job.state in RUNNING_STATES:
            for name, indexes in job.gpu_indexes.items():
                held[name] = held.get(name, 0) | indexes
    return [node if node.indexes_used else replace(node, indexes_used=held.get(node.name, 0)) for node in nodes]


def with_parts_and_indexes(
    jobs: list[JobRecord], nodes: list[NodeRecord], domains: bool
) -> tuple[list[JobRecord], list[NodeRecord]]:
    """Jobs with GPUs by part on nodes with several types; and nodes with the GPUs in use, if NVLink domains count."""
    several = frozenset(node.name for node in nodes if node.types)
    if several:
        jobs = [job.in_parts(several) for job in jobs]
    return jobs, with_indexes(nodes, jobs) if domains else nodes


def joined(parts: Iterable[NodeRecord]) -> list[NodeRecord]:
    """The nodes that have these parts: the inverse of ``NodeRecord.parts``."""
    nodes: dict[str, list[NodeRecord]] = {}
    for part in parts:
        nodes.setdefault(host_of(part.name), []).append(part)
    return [_joined(name, each) if len(each) > 1 else each[0] for name, each in nodes.items()]


def _joined(name: str, parts: Sequence[NodeRecord]) -> NodeRecord:
    types = tuple(GpuType(part.gpu_type, part.gpus, part.gpus_used) for part in parts)
    gpus, used = sum(kind.gpus for kind in types), sum(kind.used for kind in types)
    return replace(parts[0], name=name, gpus=gpus, gpus_used=used, gpu_type="", types=types)


@dataclass(frozen=True)
class Reservation:
    """A reservation of whole nodes, or of cores.

    cores: how many on each node; empty for whole nodes.
    magnetic: jobs of its users, accounts, QOS and partitions may run there without naming it. An empty set admits all.
    plain: jobs that name it run on its nodes, and on no others, from its start to its end.
    flex: its jobs may run beyond its nodes and times. maintenance: the nodes are not available to jobs.
    """

    name: str
    start: float
    end: float
    nodes: frozenset[str]
    magnetic: bool = False
    users: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()
    plain: bool = True
    flex: bool = False
    maintenance: bool = False
    cores: tuple[tuple[str, int], ...] = ()
    qos: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()

    def admits(self, job: JobRecord) -> bool:
        """Whether Slurm would start the job in this reservation: the job names it, or is drawn to it."""
        if job.reservation:
            return job.reservation == self.name
        asked = ((self.users, job.user), (self.accounts, job.account), (self.qos, job.qos))
        mine = all(not names or name in names for names, name in asked)
        return self.magnetic and mine and (not self.partitions or self.partitions.issuperset(job.partition.split(",")))


@dataclass(frozen=True)
class Update:
    """One ``scontrol update`` of one job.

    then: fields of a second one, which is made if Slurm accepts the first.
    """

    job_id: str
    fields: Mapping[str, str]
    then: Mapping[str, str] = field(default_factory=dict)
