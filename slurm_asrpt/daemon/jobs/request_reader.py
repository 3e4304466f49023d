"""Reads what pending jobs request of the nodes.

Each request costs a look at all nodes: 5 ms on 1,000 nodes. Jobs that ask for the same share what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from slurm_asrpt.core.cpu_jobs import CpuJob
from slurm_asrpt.core.job import JobId
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.jobs.job_record import shape_values
from slurm_asrpt.slurm.chosen_by_slurm import read_any_request, read_beyond_shown, read_het_request
from slurm_asrpt.slurm.records import JobRecord, NodeRecord
from slurm_asrpt.slurm.request import JobRequest, LeftToSlurm, read_cpu_request, read_request

MOST = 10_000
"""So many different requests are kept; users choose what they ask for."""

T = TypeVar("T")


def read_gpu_request(
    components: Sequence[JobRecord],
    left: str,
    by_slurm: bool,
    nodes: Sequence[NodeRecord],
    partitions: Sequence[str],
    estimated: bool = False,
) -> JobRequest:
    """The request of a job with GPUs, from the record of each component; most jobs have one. Raises LeftToSlurm.

    left: the hook's mark, why Slurm must choose its nodes. by_slurm: also read requests whose nodes Slurm must choose.
    estimated: a limit of nodes may be Slurm's estimate.
    """
    if not by_slurm:
        return read_request(components[0], nodes, partitions)
    if components[0].het:
        return read_het_request(components, nodes, partitions)
    found = read_any_request(components[0], nodes, partitions, "" if left == "off" else left)
    return read_beyond_shown(components[0], found, nodes, partitions) if estimated else found


class RequestReader:
    """Reads requests for GPUs, and for CPUs alone."""

    def __init__(self, cluster: ClusterState, partitions: Sequence[str], estimated: bool = False) -> None:
        """partitions: the managed ones. estimated: a job's limit of nodes may be Slurm's estimate."""
        self._cluster, self._partitions, self._estimated = cluster, partitions, estimated
        self._known: dict[Hashable, Any] = {}
        self._table: object = None

    def gpus(
        self, components: Sequence[JobRecord], left: str, by_slurm: bool, within: frozenset[str] | None
    ) -> JobRequest:
        """The request of a job with GPUs, from the record of each component; most jobs have one. Raises LeftToSlurm.

        As ``read_gpu_request``. within: the nodes to which the job is confined.
        """
        cap = self._cap(components)
        key = (left, by_slurm, within, cap, *map(shape_values, components))
        return self._once(key, lambda: self._read_gpus(components, left, by_slurm, within, cap))

    def _read_gpus(
        self, components: Sequence[JobRecord], left: str, by_slurm: bool, within: frozenset[str] | None, cap: float
    ) -> JobRequest:
        nodes = [replace(n, cpus=min(n.cpus, int(cap))) for n in self._nodes(within)] if cap else self._nodes(within)
        found = read_gpu_request(components, left, by_slurm, nodes, self._partitions, self._estimated)
        if not cap:
            return found
        return replace(found, request=self._cluster.with_shares(found.request, components[0].partition))

    def _cap(self, components: Sequence[JobRecord]) -> float:
        """MaxCPUsPerNode, where the job's partition has it; 0 for jobs that Slurm must divide over nodes by itself."""
        first, *others = components
        return 0.0 if others or first.exclusive else self._cluster.cpu_caps.get(first.partition, 0.0)

    def cpus(self, components: Sequence[JobRecord], within: frozenset[str] | None) -> CpuJob:
        """The request of a job without GPUs, as ``gpus``. Raises LeftToSlurm."""
        key = (within, *((each.time_limit, *shape_values(each)) for each in components))
        found = self._once(key, lambda: read_cpu_request(components, self._nodes(within), self._partitions))
        return replace(found, id=JobId(components[0].job_id), submit_time=components[0].submit_time)

    def _nodes(self, within: frozenset[str] | None) -> Sequence[NodeRecord]:
        """The nodes; those to which a job is not confined are in no partition."""
        nodes = self._cluster.nodes
        if within is None:
            return nodes
        return [node if node.name in within else replace(node, partitions=frozenset()) for node in nodes]

    def _once(self, key: Hashable, read: Callable[[], T]) -> T:
        if self._cluster.table is not self._table or len(self._known) >= MOST:
            self._known.clear()
            self._table = self._cluster.table
        if key not in self._known:
            self._known[key] = _outcome(read)
        found: T | LeftToSlurm = self._known[key]
        if isinstance(found, LeftToSlurm):
            raise LeftToSlurm(found.why)
        return found


def _outcome(read: Callable[[], T]) -> T | LeftToSlurm:
    try:
        return read()
    except LeftToSlurm as verdict:
        return verdict.with_traceback(None)
