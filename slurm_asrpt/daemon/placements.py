"""From GPUs per node, planned or really given, to placements; and what pinned jobs keep from others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.job import JobProfile, Request
from slurm_asrpt.core.placement.selection import placement_on
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.speed import at_speed, slowest
from slurm_asrpt.daemon.jobs.admission import Profiles
from slurm_asrpt.daemon.jobs.managed_job import Tracked
from slurm_asrpt.daemon.writes.rank_maps import block_order
from slurm_asrpt.slurm.records import JobRecord, NodeRecord


def is_ours(record: NodeRecord, managed: set[str]) -> bool:
    """Whether jobs of these partitions may be placed there. Whose GPUs are split or shared is Slurm's alone."""
    return bool(record.gpus and record.partitions & managed and not record.other_gres)


def server(record: NodeRecord, speeds: Mapping[str, float]) -> Node:
    """A node as policies see it. speeds: of types of GPU, as the site says."""
    return Node(record.name, record.gpus, record.index, record.gpu_type, speeds.get(record.gpu_type, 1.0))


def _servers(gpus: Mapping[str, int], nodes: Sequence[Node]) -> list[Node]:
    """The nodes of an allocation in node-table order."""
    return [node for node in nodes if node.name in gpus]


def placement_of(tracked: Tracked, gpus: Mapping[str, int], nodes: Sequence[Node], fabric: Fabric) -> Placement | None:
    """Heavy-Edge on the GPUs that were really given to a job of ours; None where Slurm has parted tensor slices."""
    assert tracked.job is not None  # noqa: S101  (only admitted jobs are pinned)
    servers = _servers(gpus, nodes)
    if _parts_slices(tracked.job.profile, gpus):
        return None
    return placement_on(servers, tuple(gpus[n.name] for n in servers), tracked.job.profile, fabric)


def _parts_slices(profile: JobProfile, gpus: Mapping[str, int]) -> bool:
    return any(count % profile.tensor for count in gpus.values())


def could_be(tracked: Tracked, gpus: Mapping[str, int]) -> bool:
    """Whether these may be the GPUs of a start of ours: scontrol's text holds what users have written, too."""
    assert tracked.job is not None  # noqa: S101  (only admitted jobs are pinned)
    return tracked.pin is not None and gpus.keys() == tracked.pin.gpus.keys() and sum(gpus.values()) == tracked.job.gpus


def real_placement(tracked: Tracked, nodes: Sequence[Node], fabric: Fabric, profiles: Profiles) -> Placement | None:
    """Where a running job is and its alpha there; None where its nodes are no longer known, or no alpha is.

    A job with a rank map runs as Heavy-Edge says; any other has its ranks in Slurm's block order.
    """
    gpus = tracked.record.gpus_by_node
    servers = _servers(gpus, nodes)
    if len(servers) != len(gpus):
        return None
    profile = _profile(tracked, sum(gpus.values()), profiles)
    if _parts_slices(profile, gpus):  # Slurm started it itself: no formula says how fast that is
        return None
    counts = {n.name: gpus[n.name] for n in servers}
    if tracked.mapped:
        return placement_on(servers, tuple(counts.values()), profile, fabric)
    alpha = _block_alpha(profile, servers, counts, fabric)
    return Placement(counts, block_order(counts), alpha, slowest(profile, servers))


def block_alpha(tracked: Tracked, nodes: Sequence[Node], fabric: Fabric, profiles: Profiles) -> float | None:
    """Of a job with a rank map: its alpha on the same GPUs with the ranks in Slurm's own order."""
    if not tracked.mapped or tracked.real is None:
        return None
    counts = dict(tracked.real.gpus)
    servers = _servers(counts, nodes)
    if len(servers) != len(counts):
        return None
    return _block_alpha(_profile(tracked, sum(counts.values()), profiles), servers, counts, fabric)


def _profile(tracked: Tracked, gpus: int, profiles: Profiles) -> JobProfile:
    """That with which the job was planned, if it was."""
    if tracked.job is not None and tracked.job.gpus == gpus:
        return tracked.job.profile
    return profiles.of(tracked.tag, gpus)


def _block_alpha(profile: JobProfile, servers: Sequence[Node], counts: Mapping[str, int], fabric: Fabric) -> float:
    ranks = [server for server, node in enumerate(servers) for _ in range(counts[node.name])]
    return iteration_time(at_speed(profile, slowest(profile, servers)), ranks, [node.gpus for node in servers], fabric)


def reserve(view: ClusterView, tracked: Tracked) -> None:
    """Keep the GPUs of a start that Slurm does not show yet; never below zero, the world may have moved."""
    request = tracked.job.request if tracked.job is not None else Request()
    for name, count in (tracked.pin.gpus if tracked.pin is not None else {}).items():
        if name in view.free:
            view.take({name: min(count, view.free[name])}, request)


def held(record: JobRecord, gpus: int) -> Request:
    """The CPUs and memory that a job gives back."""
    memory = record.memory_per_gpu or record.memory_per_cpu * record.cpus / max(gpus, 1)
    return Request(
        cpus_per_gpu=record.cpus / max(gpus, 1), memory_per_gpu=memory, memory_per_node=record.memory_per_node
    )
