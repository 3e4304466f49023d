"""How a job without a profile depends on its placement: one number, which its runs can teach (docs/decisions/0042).

Such a job counts as one stage whose replicas all-reduce in a ring (6). r is what they send: gigabytes that each GPU
sends and receives for each second of its computation. In a placement where a gigabyte takes t seconds, an iteration
takes 1 + r t times as long as its computation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.domains import Layouts
from slurm_asrpt.core.job import LEARNED, Job, JobProfile, Stage
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.topology import Blocks, blocks_in, blocks_of

GIGABYTE = 1e9


@lru_cache(maxsize=4096)
def ring(gpus: int, compute_s: float, gigabytes: float) -> JobProfile:
    """A job whose GPUs compute and then each send and receive so many gigabytes, in every iteration."""
    parameters = gigabytes * GIGABYTE * gpus / (2 * (gpus - 1)) if gpus > 1 else 0.0
    return JobProfile(LEARNED, (Stage(gpus, compute_s, 0.0, param_bytes=parameters),))


class Spread(NamedTuple):
    """How far apart the GPUs of a run were. link_s: ``seconds_per_gigabyte``; 0 for one GPU, or if unknown.

    switches: the switches of level 1 above its servers, 0 if unknown.
    """

    link_s: float = 0.0
    switches: int = 0


UNKNOWN = Spread()


def spread_of(servers: Sequence[Node], counts: Sequence[int], fabric: Fabric, layouts: Layouts = ()) -> Spread:
    """The spread of a placement: ``counts`` GPUs on these servers. layouts: in their NVLink domains."""
    if not servers or any(count > node.gpus for node, count in zip(servers, counts, strict=True)):
        return UNKNOWN
    levels = blocks_of(servers)
    return Spread(seconds_per_gigabyte(servers, counts, fabric, layouts), len(set(levels[0])) if levels else 1)


def seconds_per_gigabyte(
    servers: Sequence[Node], counts: Sequence[int], fabric: Fabric, layouts: Layouts = ()
) -> float:
    """t of a placement: seconds in which each GPU of a ring all-reduce has sent a gigabyte; 0 for a single GPU.

    counts, layouts: the GPUs on each of these servers, and in their NVLink domains; shape of servers.
    """
    sizes = tuple([node.gpus for node in servers])
    return _seconds(tuple(counts), sizes, fabric, blocks_in(fabric, servers), layouts)


@lru_cache(maxsize=65536)
def _seconds(
    counts: tuple[int, ...], sizes: tuple[int, ...], fabric: Fabric, blocks: Blocks, layouts: Layouts
) -> float:
    ranks = [server for server, count in enumerate(counts) for _ in range(count)]
    return iteration_time(ring(len(ranks), 0.0, 1.0), ranks, sizes, fabric, blocks, layouts)


def slowest_server_s(fabric: Fabric) -> float:
    """t between whole servers through the slowest switches of the fabric: a scale for r."""
    return GIGABYTE / min([fabric.inter, *fabric.beyond])


def communicating(job: Job, rate: float) -> Job:
    """The job with a profile of r = ``rate``, whose computation takes a second per iteration."""
    return replace(job, profile=ring(job.gpus, 1.0, rate))


def planned(job: Job, rate: float, best_of: Callable[[Job], float | None]) -> Job:
    """A job without a profile as it is planned: with r = ``rate``; unchanged for 0, unknown or too little.

    best_of: α̃_min of a job on reference GPUs, None if it fits nowhere.
    """
    if not rate or job.gpus == 1 or job.profiled:
        return job
    best = best_of(communicating(job, rate))
    return job if best is None else in_seconds(job, rate, best)


def in_seconds(job: Job, rate: float, best: float) -> Job:
    """The same, with one iteration per second in its best placement, as for any job without a profile.

    best: α̃_min of ``communicating``.
    """
    return replace(job, profile=ring(job.gpus, 1.0 / best, rate / best))
