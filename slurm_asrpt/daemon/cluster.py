"""The state of the cluster: nodes, resources that are free for asrptd's jobs, and the best alpha of jobs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from operator import attrgetter
from typing import Any

from pydantic import TypeAdapter

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.cluster import ClusterView, Gres, Node, host_of, with_reference_gpus
from slurm_asrpt.core.cpu_jobs import CpuJob, CpuStock, Room, share_of
from slurm_asrpt.core.domains import lowest
from slurm_asrpt.core.job import Job, Request
from slurm_asrpt.core.placement.best_alpha import BestAlphas, alpha_by_type, fits
from slurm_asrpt.daemon.held_rooms import cpus_by_partition
from slurm_asrpt.slurm.records import JobRecord, NodeRecord
from slurm_asrpt.slurm.topology import Topology

CLEANING_S = 300.0
"""Nobody waits longer for a node to clean up, instead of preempting others: it may hang."""


@dataclass(frozen=True)
class ClusterChange:
    """What an update has changed. usable: the nodes that may run jobs now. table: what jobs can request of nodes."""

    usable: bool
    table: bool


_OFFERED = attrgetter(
    *("name", "index", "gpus", "gpu_type", "other_gres", "gres", "cpus", "threads", "memory", "tmp_disk"),
    *("partitions", "features"),
)
"""What jobs can request of a node or its part."""
AVERAGED = 10
"""The running average is over about so many of the latest starts."""


@dataclass
class StartupDelay:
    """Seconds from the allocation of nodes that are powered down until the job runs, averaged.

    default_s: as long as no job has been seen. seen: how many have.
    """

    default_s: float
    average_s: float = 0.0
    seen: int = 0

    @property
    def seconds(self) -> float:
        return self.average_s if self.seen else self.default_s

    def observed(self, seconds: float) -> None:
        """A job has waited so long for its nodes."""
        self.seen = min(self.seen + 1, AVERAGED)
        self.average_s += (seconds - self.average_s) / self.seen

    def dump(self) -> dict[str, Any]:
        return asdict(self)

    def load(self, saved: Any) -> None:
        """Continue from what ``dump`` returned; from nothing if it is damaged."""
        try:
            before = _DELAY.validate_python(saved)
        except ValueError:
            return
        if before.seen and math.isfinite(before.average_s) and before.average_s >= 0:
            self.average_s, self.seen = before.average_s, before.seen


_DELAY = TypeAdapter(StartupDelay)


class ClusterState:
    """nodes: in node-table order. parts: the same, and a part for each GPU type of nodes with several.

    servers: the parts as policies see them. view: what is free for managed jobs.
    """

    def __init__(
        self, settings: Settings, memory_consumed: bool, resume_timeout_s: float = 60.0, whole_cores: bool = True
    ) -> None:
        """memory_consumed, whole_cores: as in ``SlurmConfig``. resume_timeout_s: Slurm's ResumeTimeout."""
        self.fabric = settings.fabric.to_core()
        self.topology = Topology()
        """Slurm's, as last read; in use from the next ``update`` on."""
        self.cpu_caps: Mapping[str, float] = {}
        """MaxCPUsPerNode of partitions that have one, as last read."""
        self._held_shares: Mapping[str, Mapping[str, float]] = {}
        self.islands: tuple[frozenset[str], ...] = ()
        """Sets of nodes beyond which no node list may reach (``Topology.islands``); empty if there are none."""
        self.nodes: list[NodeRecord] = []
        self.parts: list[NodeRecord] = []
        self.servers: list[Node] = []
        self.view = ClusterView(())
        self.usable: list[NodeRecord] = []
        """The nodes that may run jobs now, of all partitions."""
        self.not_up = frozenset[str]()
        """Nodes of the view that are powered down, or on their way up or down."""
        self.has_mixed = False
        """Whether there are nodes with shared GPUs, on which asrptd starts no job by itself."""
        self.has_several_types = False
        """Whether there are nodes with several GPU types, on which asrptd pins only jobs that name a type."""
        self.startup_delay = StartupDelay(resume_timeout_s)
        self.other_rooms: dict[str, Room] = {}
        """What is free on usable nodes of managed partitions where policies place no jobs."""
        self.cleaning: dict[str, tuple[int, Request]] = {}
        """The GPUs of nodes that clean up after a job, by node, and what CPUs will be free with each."""
        self.idle: frozenset[str] = frozenset()
        """The usable nodes without any job."""
        self.powered_down: frozenset[str] = frozenset()
        """Those of them that are powered down."""
        self._managed, self._speeds = set(settings.slurm.partitions), settings.gpu.speeds
        self._memory_consumed, self._whole_cores = memory_consumed, whole_cores
        self.table: tuple[Any, ...] | None = None
        """What jobs can request of the nodes, whatever their states: the same object until it changes."""
        self._best: dict[Any, Mapping[str, float]] = {}
        self._reference: BestAlphas | None = None
        self._able: frozenset[str] = frozenset()  # servers that managed jobs may use, now or later
        self._ours: frozenset[str] = frozenset()  # nodes that they may use now
        self._split: dict[str, frozenset[str]] = {}  # the parts of nodes with several GPU types
        self._requests: dict[Request, Request] = {}
        self._when_idle: CpuStock | None = None  # what the usable nodes have for jobs without GPUs, if asked
        self._shares: dict[str, Room] = {}
        self._could_hold: dict[CpuJob, bool] = {}  # by shape

    def update(self, records: list[NodeRecord], reserved: frozenset[str] = frozenset()) -> ClusterChange:
        """Set the current nodes. reserved: those in reservations in which asrptd starts jobs."""
        if not self._whole_cores:
            records = [replace(n, threads=1) if n.threads > 1 else n for n in records]
        self.nodes = records
        self.usable = [n for n in records if (n.usable_in_reservation if n.name in reserved else n.usable)]
        self._when_idle = None
        self._could_hold.clear()
        self._shares = dict(self._whole_shares())
        self._set_servers(records)
        ours = [n for n in self.usable if self._is_ours(n)]
        self._ours = frozenset(n.name for n in ours)
        places = [part for n in ours for part in n.parts]
        names = {part.name for part in places}
        nodes = [node for node in self.servers if node.name in names]
        change = self._change(nodes)
        self.view = ClusterView(
            nodes,
            {n.name: max(0, n.gpus - n.gpus_used) if may_start_jobs(n) else 0 for n in places},
            {n.name: n.cpus - n.cpus_used if may_start_jobs(n) else 0 for n in ours},
            {n.name: n.memory - n.memory_used for n in ours} if self._memory_consumed else None,
            indexes={n.name: _free_indexes(n) for n in places} if self.fabric.domain else None,
            free_gres={**_free_gres(ours), **self._free_shares(ours)} or None,
        )
        self.not_up = frozenset(n.name for n in places if n.powered_down or n.powering_down)
        self._set_rooms(ours)
        return change

    def follow_cpu_caps(self, caps: Mapping[str, float], records: Iterable[JobRecord]) -> None:
        """MaxCPUsPerNode of partitions, and what the jobs that run use of it; before ``update``. records: all jobs."""
        self.cpu_caps = caps
        self._held_shares = cpus_by_partition([job for job in records if job.partition in caps]) if caps else {}

    def _free_shares(self, ours: Sequence[NodeRecord]) -> Gres:
        """The CPUs that partitions with MaxCPUsPerNode may still use on each node."""
        return {
            _share_name(partition): {
                n.name: cap - self._held_shares.get(partition, {}).get(n.name, 0.0)
                for n in ours
                if partition in n.partitions
            }
            for partition, cap in self.cpu_caps.items()
        }

    def with_shares(self, request: Request, partition: str) -> Request:
        """The request of a job in this partition, with what it uses of the partition's share of CPUs, if it has one."""
        if partition not in self.cpu_caps or not request.cpus_per_gpu:
            return request
        return replace(request, shares_per_gpu=((_share_name(partition), request.cpus_per_gpu),))

    def _set_servers(self, records: list[NodeRecord]) -> None:
        """The nodes as policies see them, whatever their states."""
        self.parts = [part for n in records for part in n.parts]
        self._split = {n.name: frozenset(part.name for part in n.parts) for n in records if n.types}
        switches = self.topology.switches
        self.servers = [_server(n, self._speeds, switches.get(host_of(n.name), ())) for n in self.parts]
        self.islands = tuple(map(self.with_parts, self.topology.islands(n.name for n in records)))

    def _change(self, nodes: list[Node]) -> ClusterChange:
        """What has changed, and drops what was computed for the nodes before. nodes: those that may run jobs now."""
        table = (tuple(map(_OFFERED, self.parts)), self.islands)
        change = ClusterChange(tuple(nodes) != self.view.nodes or self.table is None, table != self.table)
        if change.usable:
            self._best.clear()
            self._reference = None
        if change.table:
            self.table = table
            self._able = frozenset(part.name for part in self.parts if self._is_ours(part))
            self._requests.clear()
        return change

    def _set_rooms(self, ours: list[NodeRecord]) -> None:
        """What matters to jobs without GPUs and to preemption. ours: the nodes on which managed jobs may be placed."""
        self.has_mixed = any(n.other_gres and n.partitions & self._managed for n in self.usable)
        self.has_several_types = any(n.types for n in ours)
        free = [n for n in self.usable if n.partitions & self._managed and not n.powering_down]
        others = [n for n in free if n.name not in self._ours]
        unused = [n for n in (*ours, *others) if not n.cpus_used and may_start_jobs(n)]
        self.other_rooms = {n.name: self._room(n) for n in others}
        self.cleaning = dict(each for n in ours if n.completing and not n.powering_down for each in _free_soon(n))
        self.idle = frozenset([n.name for n in unused])
        self.powered_down = frozenset([n.name for n in unused if n.powered_down])

    def shares_beside(self, held: Mapping[str, float]) -> dict[str, Room]:
        """What partitions with MaxCPUsPerNode may still use on each node. held: CPUs of their jobs (``share_of``)."""
        return {name: Room(room.cpus - held.get(name, 0.0), math.inf) for name, room in self._shares.items()}

    def _room(self, record: NodeRecord) -> Room:
        if not may_start_jobs(record):
            return Room(0, 0)
        memory = record.memory - record.memory_used if self._memory_consumed else math.inf
        return Room(record.cpus - record.cpus_used, memory)

    def room_of(self, record: NodeRecord) -> Room:
        """What an idle node has for jobs without GPUs."""
        return Room(record.cpus, record.memory if self._memory_consumed else math.inf)

    def _whole_shares(self) -> Iterator[tuple[str, Room]]:
        for partition, cpus in self.cpu_caps.items():
            yield from ((share_of(n.name, partition), Room(cpus, math.inf)) for n in self.usable)

    def could_hold(self, job: CpuJob) -> bool:
        """Whether the usable nodes could run a job without GPUs if they were idle."""
        shape = job.shape
        if shape not in self._could_hold:
            if self._when_idle is None:
                rooms = {n.name: self.room_of(n) for n in self.usable}
                idle, capped = frozenset(rooms), frozenset(self.cpu_caps)
                self._when_idle = CpuStock({**rooms, **self._shares}, {}, idle, capped=capped)
            self._could_hold[shape] = bool(self._when_idle.nodes_for(job))
        return self._could_hold[shape]

    def is_usable(self, name: str) -> bool:
        """Whether jobs of managed partitions may start on this node."""
        return name in self.view.free or name in self._ours or name in self.other_rooms

    def _is_ours(self, record: NodeRecord) -> bool:
        """Whether managed jobs may be placed there. Nodes with shared GPUs are left to Slurm."""
        return bool(record.gpus and record.partitions & self._managed and not record.other_gres)

    def with_parts(self, names: frozenset[str]) -> frozenset[str]:
        """These nodes, and the parts of those that have several GPU types."""
        return names.union(*(self._split[name] for name in names & self._split.keys())) if self._split else names

    def best_alpha(self, job: Job | None) -> float | None:
        """α̃_min of a job on the current nodes, None if they cannot hold it."""
        return None if job is None else min(self.alpha_by_type(job).values(), default=None)

    def reference_alpha(self, job: Job) -> float | None:
        """α̃_min of a job if all GPUs were reference GPUs: converts its iterations into work and back."""
        return self.reference_alpha_of(job) if job.profiled else 1.0

    def reference_alpha_of(self, job: Job) -> float | None:
        """The same by its profile, whatever its iterations are."""
        if self._reference is None:
            self._reference = BestAlphas(with_reference_gpus(self.view.nodes), self.fabric)
        return self._reference.alpha(job)

    def alpha_by_type(self, job: Job) -> Mapping[str, float]:
        """The same for each GPU type that can hold the job alone, else for all types together; empty if none can."""
        key = (job.profile, job.request)
        if key not in self._best:
            nodes = self.view.nodes
            self._best[key] = alpha_by_type(job, nodes, self.fabric) if fits(job, nodes) else {}
        return self._best[key]

    def share(self, request: Request) -> Request:
        """One object for all equal requests. If the candidates are all nodes, they are not listed."""
        if request.candidates is not None and self._able <= request.candidates:
            request = replace(request, candidates=None)
        return self._requests.setdefault(request, request)

    def servers_of(self, gpus: Mapping[str, int]) -> list[Node]:
        """The nodes of an allocation, in node-table order, without nodes that no longer exist."""
        return [node for node in self.servers if node.name in gpus]

    def takes_whole_servers(self, gpus: Mapping[str, int]) -> bool:
        """Whether these are all GPUs of these nodes."""
        sizes = self.view.by_name
        return all(name in sizes and sizes[name].gpus == count for name, count in gpus.items())


def may_start_jobs(record: NodeRecord) -> bool:
    """A completing node shows its GPUs and CPUs as free, but Slurm does not start jobs there yet."""
    return not (record.completing or record.powering_down)


def _share_name(partition: str) -> str:
    return f"CPUs of partition {partition}"


def _free_gres(records: Iterable[NodeRecord]) -> Gres:
    """What is free of other generic resources."""
    free: Gres = {}
    for record in records:
        for name, count in record.gres.items():
            free.setdefault(name, {})[record.name] = count - record.gres_used.get(name, 0)
    return free


def _free_soon(record: NodeRecord) -> Iterator[tuple[str, tuple[int, Request]]]:
    """The GPUs that will be free on each part of a completing node."""
    free = {part.name: part.gpus - part.gpus_used for part in record.parts if part.gpus > part.gpus_used}
    for name, gpus in free.items():
        yield name, (gpus, Request(cpus_per_gpu=(record.cpus - record.cpus_used) / sum(free.values())))


def _free_indexes(record: NodeRecord) -> int:
    """The free GPUs, as a mask. If Slurm does not show which are in use, they count as the lowest ones."""
    if not may_start_jobs(record):
        return 0
    whole, used = (1 << record.gpus) - 1, record.indexes_used
    return whole & ~(used if used.bit_count() == record.gpus_used else lowest(whole, record.gpus_used))


def _server(record: NodeRecord, speeds: Mapping[str, float], switches: tuple[str, ...]) -> Node:
    """A node as policies see it. speeds: by GPU type, from the settings."""
    speed = speeds.get(record.gpu_type, 1.0)
    return Node(record.name, record.gpus, record.index, record.gpu_type, speed, switches, record.weight)
