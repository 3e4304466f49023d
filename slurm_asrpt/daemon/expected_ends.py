"""When running and starting jobs free their CPUs and memory, by their time limits."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from slurm_asrpt.core.cluster import host_of
from slurm_asrpt.core.cpu_jobs import ExpectedEnd, Room, share_of
from slurm_asrpt.daemon.cluster import ClusterState, may_start_jobs
from slurm_asrpt.daemon.held_rooms import running_rooms
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.slurm.records import NodeRecord


@dataclass
class _Held:
    """What known jobs hold on a node. last: when the last of them ends. running: the CPUs of those that run.

    uneven: one has several nodes, so its part here is only about right.
    """

    last: float = 0.0
    running: float = 0.0
    uneven: bool = False


@dataclass
class _Ends:
    """The ends of jobs, and what is held on each node."""

    found: list[ExpectedEnd] = field(default_factory=list)
    held: dict[str, _Held] = field(default_factory=lambda: defaultdict(_Held))

    def add(self, end: float, rooms: Mapping[str, Room], shares: Mapping[str, Room], running: bool) -> None:
        self.found.append(ExpectedEnd(end, {**rooms, **shares}))
        for name, room in rooms.items():
            held = self.held[name]
            held.last = max(held.last, end)
            held.running += room.cpus if running else 0.0
            held.uneven = held.uneven or len(rooms) > 1


def expected_ends(jobs: JobTable, cluster: ClusterState, now: float) -> list[ExpectedEnd]:
    """What becomes free when jobs reach their time limits, soonest first; nothing of jobs without a limit.

    A job beyond its limit is expected to end at any moment. Jobs that asrptd does not know hold their nodes for good.
    """
    ends = _Ends()
    for job in jobs.in_state(JobState.RUNNING, JobState.PINNED):
        running = job.state is JobState.RUNNING
        began = job.record.start_time if running else now
        end = max(now, began + (job.record.time_limit or math.inf))
        rooms = rooms_of(job)
        ends.add(end, rooms, dict(_shares(job, rooms, cluster)), running)
    cleaning = [ExpectedEnd(now, {n.name: _free(n)}) for n in _cleaning(cluster.usable)]
    idle = (_idle(n, ends.held[n.name], cluster.room_of(n), now) for n in cluster.usable)
    found = [*cleaning, *ends.found, *(each for each in idle if each is not None)]
    return sorted((each for each in found if each.time < math.inf), key=lambda each: each.time)


def _cleaning(nodes: Iterable[NodeRecord]) -> Iterator[NodeRecord]:
    """The nodes that clean up after a job: Slurm shows what is free there, but starts no jobs yet."""
    return (n for n in nodes if n.completing and not n.powering_down)


def _free(node: NodeRecord) -> Room:
    return Room(node.cpus - node.cpus_used, node.memory - node.memory_used)


def _idle(node: NodeRecord, held: _Held, room: Room, now: float) -> ExpectedEnd | None:
    """When the node has no more jobs; None if it has none now, or others than those that are known. room: all of it."""
    unknown = node.cpus_used - held.running
    if node.powering_down or (unknown >= 1 and not held.uneven):
        return None
    if not held.last and may_start_jobs(node):
        return None
    return ExpectedEnd(max(now, held.last), {}, {node.name: room})


def rooms_of(job: ManagedJob) -> dict[str, Room]:
    """What a job that runs or is about to start holds on each node."""
    return running_rooms(job.record) if job.state is JobState.RUNNING else dict(_planned_rooms(job))


def _shares(job: ManagedJob, rooms: Mapping[str, Room], cluster: ClusterState) -> Iterator[tuple[str, Room]]:
    """The same of its partition's shares, if it has MaxCPUsPerNode."""
    partition = job.record.partition
    if partition in cluster.cpu_caps:
        yield from ((share_of(name, partition), room) for name, room in rooms.items())


def shares_held(jobs: JobTable, cluster: ClusterState) -> Mapping[str, float]:
    """The CPUs that jobs use of the shares of partitions with MaxCPUsPerNode."""
    held: dict[str, float] = defaultdict(float)
    for job in jobs.in_state(JobState.RUNNING, JobState.PINNED) if cluster.cpu_caps else ():
        for name, room in _shares(job, rooms_of(job), cluster):
            held[name] += room.cpus
    return held


def _planned_rooms(job: ManagedJob) -> Iterator[tuple[str, Room]]:
    """What a job will hold on each node on which it is about to start."""
    if job.pin is None:
        return
    if job.cpu_job is not None:
        yield from dict.fromkeys(job.pin.gpus, job.cpu_job.share(len(job.pin.gpus))).items()
    elif job.job is not None:
        request, rooms = job.job.request, dict[str, Room]()
        for name, gpus in job.pin.gpus.items():
            here = Room(gpus * request.cpus_per_gpu, gpus * request.memory_per_gpu + request.memory_per_node)
            rooms[host_of(name)] = rooms.get(host_of(name), Room(0.0, 0.0)).plus(here)
        yield from rooms.items()
