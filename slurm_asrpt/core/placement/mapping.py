"""The placement on servers that are chosen already: ranks by Heavy-Edge, and seconds per iteration."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter, itemgetter

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement, Ranks
from slurm_asrpt.core.domains import Layouts
from slurm_asrpt.core.job import JobProfile
from slurm_asrpt.core.placement.heavy_edge import heavy_edge
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.speed import at_speed, slowest
from slurm_asrpt.core.topology import Blocks, blocks_in


def placement_in(
    view: ClusterView, nodes: Sequence[Node], counts: tuple[int, ...], profile: JobProfile, fabric: Fabric
) -> Placement:
    """``placement_on`` with the GPU indexes that the job would get now."""
    if view.indexes is None:
        return placement_on(nodes, counts, profile, fabric)
    gpus = dict(zip(map(_NAME, nodes), counts, strict=True))
    return placement_on(nodes, counts, profile, fabric, view.layouts(gpus, fabric.domain))


def placement_on(
    nodes: Sequence[Node], counts: tuple[int, ...], profile: JobProfile, fabric: Fabric, layouts: Layouts = ()
) -> Placement:
    """The placement by Heavy-Edge on exactly these GPUs per node. layouts: in the NVLink domains of each node."""
    names = tuple(map(_NAME, nodes))
    ranks, alpha, speed = mapping_on(nodes, counts, profile, fabric, layouts)
    return Placement(dict(zip(names, counts, strict=True)), ranks(names), alpha, speed, layouts)


def mapping_on(
    nodes: Sequence[Node], counts: tuple[int, ...], profile: JobProfile, fabric: Fabric, layouts: Layouts = ()
) -> tuple[Ranks, float, float]:
    """The function from the nodes' names to the ranks; alpha; the speed of the slowest GPU."""
    speed = slowest(profile, nodes)
    here = profile if speed == 1.0 else at_speed(profile, speed)
    return *mapped_on(nodes, counts, here, fabric, layouts), speed


_NAME, _GPUS = attrgetter("name"), attrgetter("gpus")


def mapped_on(
    nodes: Sequence[Node], counts: tuple[int, ...], profile: JobProfile, fabric: Fabric, layouts: Layouts = ()
) -> tuple[Ranks, float]:
    """The function from the nodes' names to the ranks, and alpha. profile: at the speed of these GPUs."""
    blocks, sizes = blocks_in(fabric, nodes), tuple(map(_GPUS, nodes))
    if not (blocks or layouts):  # two floats hash faster than a Fabric
        return _mapped(profile, counts, sizes, fabric.inter, fabric.intra)
    return _mapped(profile, counts, sizes, fabric.inter, fabric.intra, fabric, blocks, layouts)


@lru_cache(maxsize=65536)
def _mapped(
    profile: JobProfile,
    counts: tuple[int, ...],
    server_gpus: tuple[int, ...],
    inter: float,
    intra: float,
    fabric: Fabric | None = None,
    blocks: Blocks = (),
    layouts: Layouts = (),
) -> tuple[Ranks, float]:
    """The function from the servers' names to the ranks, and alpha. fabric: only needed with blocks or layouts."""
    ranks = heavy_edge(profile, counts, blocks=blocks) if blocks else heavy_edge(profile, counts)
    alpha = iteration_time(profile, ranks, server_gpus, fabric or Fabric(inter, intra), blocks, layouts)
    return (tuple if ranks == (0,) else itemgetter(*ranks)), alpha
