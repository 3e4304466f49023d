"""Placements from planned or allocated GPUs per node, and what a decided start takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement, host_of
from slurm_asrpt.core.domains import Layouts, layouts_of
from slurm_asrpt.core.job import JobProfile, Request
from slurm_asrpt.core.placement.mapping import placement_on
from slurm_asrpt.core.sensitivity import UNKNOWN, Spread, spread_of
from slurm_asrpt.core.slurm_preemption import take_what_is_free
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.speed import at_speed, slowest
from slurm_asrpt.core.topology import blocks_in
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.profiles import Profiles


def block_order(gpus: Mapping[str, int]) -> tuple[str, ...]:
    """The host of each rank in Slurm's own block distribution: node after node."""
    return tuple(name for name, count in gpus.items() for _ in range(count))


def placement_of(job: ManagedJob, gpus: Mapping[str, int], cluster: ClusterState) -> Placement | None:
    """The Heavy-Edge placement on a managed job's allocated GPUs; None if Slurm has split tensor slices."""
    assert job.job is not None  # noqa: S101  (only admitted jobs are pinned)
    servers = cluster.servers_of(gpus)
    if _splits_slices(job.job.profile, gpus):
        return None
    return placement_on(servers, tuple(gpus[n.name] for n in servers), job.job.profile, cluster.fabric)


def _splits_slices(profile: JobProfile, gpus: Mapping[str, int]) -> bool:
    return any(count % profile.tensor for count in gpus.values())


def by_server(job: ManagedJob, gpus: Mapping[str, int]) -> dict[str, int]:
    """GPUs by node as GPUs by the servers of the job's pin, which has one server on each node."""
    servers = {host_of(name): name for name in (job.pin.gpus if job.pin is not None else ())}
    return {servers.get(name, name): count for name, count in gpus.items()}


def could_be(job: ManagedJob, gpus: Mapping[str, int]) -> bool:
    """Whether these can be the GPUs of the job: scontrol's output also contains text from users."""
    assert job.job is not None  # noqa: S101  (only admitted jobs are pinned)
    return job.pin is not None and gpus.keys() == job.pin.gpus.keys() and sum(gpus.values()) == job.job.gpus


def real_placement(job: ManagedJob, cluster: ClusterState, profiles: Profiles) -> Placement | None:
    """A running job's placement and alpha; None if its nodes no longer exist or alpha cannot be computed.

    Jobs with a rank map run as placed by Heavy-Edge; others have their ranks in Slurm's block order.
    """
    gpus = job.record.gpus_by_node
    servers = cluster.servers_of(gpus)
    if len(servers) != len(gpus):
        return None
    profile = _profile(job, sum(gpus.values()), profiles)
    if _splits_slices(profile, gpus):  # Slurm started it by itself, and no formula covers this
        return None
    counts = {n.name: gpus[n.name] for n in servers}
    layouts = _layouts(counts, job.record.gpu_indexes, cluster.fabric)
    if job.mapped:
        return placement_on(servers, tuple(counts.values()), profile, cluster.fabric, layouts)
    alpha = _block_alpha(profile, servers, counts, cluster.fabric, layouts)
    return Placement(counts, block_order(counts), alpha, slowest(profile, servers), layouts)


def _layouts(gpus: Mapping[str, int], indexes: Mapping[str, int], fabric: Fabric) -> Layouts:
    """How the GPUs of a running job are divided over NVLink domains; () if Slurm does not show which they are."""
    shown = [indexes.get(name, 0) for name in gpus]
    if not fabric.domain or [each.bit_count() for each in shown] != list(gpus.values()):
        return ()
    return layouts_of(shown, fabric.domain)


def block_alpha(job: ManagedJob, cluster: ClusterState, profiles: Profiles) -> float | None:
    """For a job with a rank map: alpha on the same GPUs with the ranks in Slurm's order."""
    if not job.mapped or job.placement is None:
        return None
    counts = dict(job.placement.gpus)
    servers = cluster.servers_of(counts)
    if len(servers) != len(counts):
        return None
    profile = _profile(job, sum(counts.values()), profiles)
    return _block_alpha(profile, servers, counts, cluster.fabric, job.placement.layouts)


def spread(job: ManagedJob, cluster: ClusterState) -> Spread:
    """How far apart the GPUs of a run were; unknown if a node no longer exists."""
    gpus = job.placement.gpus if job.placement else job.allocation or {}
    servers = cluster.servers_of(gpus)
    if len(servers) != len(gpus):
        return UNKNOWN
    layouts = job.placement.layouts if job.placement else ()
    return spread_of(servers, [gpus[node.name] for node in servers], cluster.fabric, layouts)


def _profile(job: ManagedJob, gpus: int, profiles: Profiles) -> JobProfile:
    """The profile that the job was planned with, else the one for its GPUs."""
    if job.job is not None and job.job.gpus == gpus:
        return job.job.profile
    return profiles.of(job.tag, gpus)


def _block_alpha(
    profile: JobProfile, servers: Sequence[Node], counts: Mapping[str, int], fabric: Fabric, layouts: Layouts
) -> float:
    ranks = [server for server, node in enumerate(servers) for _ in range(counts[node.name])]
    here, sizes = at_speed(profile, slowest(profile, servers)), [node.gpus for node in servers]
    return iteration_time(here, ranks, sizes, fabric, blocks_in(fabric, servers), layouts)


def take_for_start(view: ClusterView, job: ManagedJob) -> Mapping[str, int]:
    """Take what a start needs that Slurm does not show yet. Returns by node the GPUs that are not free yet."""
    if job.cpu_job is not None and job.pin is not None:
        need = job.cpu_job.share(len(job.pin.gpus))
        for name in job.pin.gpus:
            view.set_aside(name, *need)
        return {}
    request = job.job.request if job.job is not None else Request()
    return take_what_is_free(view, job.pin.gpus if job.pin is not None else {}, request)
