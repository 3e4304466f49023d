"""Jobs on idle nodes: whether a job fits, its best placement, and the seconds per iteration there, α̃_min."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, kinds_of
from slurm_asrpt.core.domains import packed
from slurm_asrpt.core.job import ANYWHERE, Job, JobProfile, Request
from slurm_asrpt.core.placement.mapping import mapped_on
from slurm_asrpt.core.placement.selection import Strategy, most_nodes, split, split_groups, within_each
from slurm_asrpt.core.placement.splitter import even_split
from slurm_asrpt.core.timing.pipeline import worst_iteration_time
from slurm_asrpt.core.timing.speed import at_speed, fastest, slowest
from slurm_asrpt.core.topology import blocks_in, blocks_of, by_switch


def _best_counts(job: Job, servers: Sequence[Node]) -> tuple[int, ...]:
    """GPUs per server on the fewest servers of an empty cluster; all servers but the last are full."""
    per_node = job.request.per_node
    if per_node is not None:
        needed = job.gpus // per_node
        if needed > len(servers):
            raise ValueError(f"job {job.id} asks for {per_node} GPUs on each of {needed} nodes, of {len(servers)}")
        return even_split(needed, per_node)
    sizes: list[int] = []
    for node in servers:
        sizes.append(node.gpus - node.gpus % job.request.unit)
        if sum(sizes) >= job.gpus and len(sizes) >= job.request.min_nodes:
            break
    counts = split(job.request, sizes, job.gpus)
    if counts is None or not job.request.min_nodes <= len(sizes) <= most_nodes(job):
        raise ValueError(f"job {job.id} asks for {job.gpus} GPUs; {len(sizes)} node(s) of {sum(sizes)} do not hold it")
    return counts


def best_counts(job: Job, nodes: Sequence[Node]) -> tuple[int, ...]:
    """GPUs per server in an empty cluster, as for α̃_min. Raises ValueError if the job does not fit."""
    return _best_counts(job, candidate_nodes(nodes, job.request))


def fewest_servers(job: Job, nodes: Sequence[Node]) -> int:
    """How many servers the job needs in an empty cluster. Raises ValueError if the job does not fit."""
    return len(best_counts(job, nodes))


def candidate_nodes(nodes: Sequence[Node], request: Request) -> tuple[Node, ...]:
    """The nodes that could serve the request in an empty cluster, largest first."""
    allowed = (n for n in nodes if request.candidates is None or n.name in request.candidates)
    fitting = (n for n in allowed if n.gpus >= (request.per_node or request.unit))
    return tuple(sorted(fitting, key=lambda n: (-n.gpus, n.index)))


def fits(job: Job, nodes: Sequence[Node]) -> bool:
    """Whether the job could run on these nodes if all were idle."""
    if job.request.within:
        return any(fits(one, nodes) for one in within_each(job))
    if job.request.step:
        return split_groups(ClusterView(nodes), job, Strategy.TIGHTEST) is not None
    servers = candidate_nodes(nodes, job.request)
    if job.request.per_node is not None:
        return len(servers) >= job.gpus // job.request.per_node
    room = sum(n.gpus - n.gpus % job.request.unit for n in servers[: most_nodes(job)])
    return room >= job.gpus and min(len(servers), most_nodes(job)) >= job.request.min_nodes


def best_alpha(job: Job, nodes: Sequence[Node], fabric: Fabric) -> float:
    """α̃_min: Heavy-Edge on the fewest servers that the request allows, the minimum over the kinds of GPU.

    If no single kind can hold the job, all servers count together. Raises ValueError if the job does not fit.
    """
    return min(packed_alpha(one, some, fabric) for one, some in ways(job, nodes))


_KINDS = 65536  # size of the cache
_NEW = float("nan")  # marks a kind of job that is not in the cache


class BestAlphas:
    """α̃_min by profile and form of request, cached: computed once per kind of job."""

    def __init__(self, nodes: Sequence[Node], fabric: Fabric) -> None:
        self._nodes, self._fabric = tuple(nodes), fabric
        self._known: dict[Hashable, float | None] = {}

    def alpha(self, job: Job) -> float | None:
        """Seconds per iteration, or None for a job that could not run even if all nodes were idle."""
        # hashing a request is slow, and nearly all simulated jobs have this one
        key: Hashable = job.profile if job.request is ANYWHERE else (job.profile, job.request)
        found = self._known.get(key, _NEW)
        if found is _NEW:
            if len(self._known) >= _KINDS:  # a daemon runs for years
                self._known.clear()
            can = fits(job, self._nodes)
            found = self._known[key] = best_alpha(job, self._nodes, self._fabric) if can else None
        return found

    def fits(self, job: Job) -> bool:
        return self.alpha(job) is not None


def alpha_by_type(job: Job, nodes: Sequence[Node], fabric: Fabric) -> dict[str, float]:
    """α̃_min by GPU type, for types that can hold the job alone; if none can, of all together (names joined by +)."""
    found: dict[str, float] = {}
    for one, some in ways(job, nodes):
        name = "+".join(dict.fromkeys(node.gpu_type for node in some))
        found[name] = min(found.get(name, float("inf")), packed_alpha(one, some, fabric))
    return found


def ways(job: Job, nodes: Sequence[Node]) -> list[tuple[Job, Sequence[Node]]]:
    """Where the job could run: the nodes of each kind of GPU, in each set of ``within`` that can hold the job.

    Each comes with a copy of the job limited to that set. Raises ValueError if the job does not fit.
    """
    if not job.request.within:
        return [(job, some) for some in nodes_by_kind(job, nodes)]
    able = [one for one in within_each(job) if fits(one, nodes)]
    if not able:
        raise ValueError(f"job {job.id} asks for {job.gpus} GPUs; none of the sets of nodes allowed for it has them")
    return [way for one in able for way in ways(one, nodes)]


def nodes_by_kind(job: Job, nodes: Sequence[Node]) -> list[Sequence[Node]]:
    """The nodes of each kind of GPU that can hold the job alone, the fastest first; all nodes if none can."""
    kinds = kinds_of(nodes)
    if len(kinds) < 2:
        return [nodes]
    alone = [[node for at, node in enumerate(nodes) if kind >> at & 1] for kind in kinds]
    return [some for some in alone if fits(job, some)] or [nodes]


def packed_alpha(job: Job, nodes: Sequence[Node], fabric: Fabric) -> float:
    """α on the fewest servers, under the lowest switch with so many, at the speed of the slowest that may run the job.

    Raises ValueError if the job does not fit.
    """
    servers = candidate_nodes(nodes, job.request)
    counts = _best_counts(job, servers)
    profile = at_speed(job.profile, slowest(job.profile, servers))
    levels = len(blocks_in(fabric, servers))
    if not levels or len(counts) == 1:
        return _idle_alpha(servers[: len(counts)], counts, profile, fabric)
    for level in range(1, levels + 1):
        under = [_packed_under(job, some, len(counts)) for some in by_switch(servers, level)]
        found = [_idle_alpha(*one, profile, fabric) for one in under if one is not None]
        if found:
            return min(found)
    together = _switches_together(servers, levels)
    return _idle_alpha(together[: len(counts)], _best_counts(job, together), profile, fabric)


def _idle_alpha(servers: Sequence[Node], counts: tuple[int, ...], profile: JobProfile, fabric: Fabric) -> float:
    """α on these servers if they were idle: with their lowest indexes."""
    return mapped_on(servers, counts, profile, fabric, packed(counts, fabric.domain))[1]


def _packed_under(job: Job, servers: Sequence[Node], most: int) -> tuple[Sequence[Node], tuple[int, ...]] | None:
    """The fewest of these servers that hold the job, and the GPUs on each; None if it needs more than ``most``."""
    together = _switches_together(servers, len(blocks_of(servers)))
    try:
        counts = _best_counts(job, together)
    except ValueError:
        return None
    return (together[: len(counts)], counts) if len(counts) <= most else None


def _switches_together(servers: Sequence[Node], levels: int) -> list[Node]:
    """Largest first; of one size, those under the same switch together, those under the largest switch first."""
    found = list(servers)
    for level in range(1, levels + 1):
        found = [node for some in sorted(by_switch(found, level), key=len, reverse=True) for node in some]
    return sorted(found, key=lambda node: -node.gpus)


def worst_alpha(job: Job, nodes: Sequence[Node], fabric: Fabric) -> float:
    """α_max: each replica alone on a server of the largest size, with B_inter/g; GPUs of the fastest kind.

    With several levels, the bandwidth is that of the slowest one.
    """
    servers = candidate_nodes(nodes, job.request)
    profile = at_speed(job.profile, fastest(job.profile, servers))
    levels = len(blocks_in(fabric, servers)) + 1
    return worst_iteration_time(profile, max((n.gpus for n in servers), default=1), fabric, levels)
