"""Seconds per iteration: the slowest stage of an asynchronous pipeline, fill and drain of a synchronous one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.domains import Layouts, divided
from slurm_asrpt.core.job import JobProfile, Pipeline
from slurm_asrpt.core.timing.stage import Block, StageCost, stage_cost
from slurm_asrpt.core.topology import Blocks


def iteration_time(
    profile: JobProfile,
    ranks: Sequence[int],
    server_gpus: Sequence[float],
    fabric: Fabric,
    blocks: Blocks = (),
    layouts: Layouts = (),
) -> float:
    """alpha, seconds per iteration (7): the largest comp + comm + all-reduce over stages and servers.

    ranks: the server of each GPU, shape (profile.gpus,), values are indexes into server_gpus.
    server_gpus: g of each server, all GPUs it has; a job reserves x/g of a server's NIC.
    blocks: the switch of each server at the levels above (``blocks_of``); () for the paper's fabric.
    layouts: the GPUs in each NVLink domain of each server; on a server, the ranks have them in this order.
    Raises ValueError if ranks does not place every GPU once, or splits the tensor slices of a replica.
    """
    costs = _all_costs(profile, ranks, server_gpus, fabric, blocks, layouts)
    if profile.pipeline is Pipeline.ASYNCHRONOUS:
        return max(cost.total for _, cost in costs)
    return fill_and_drain(_worst_per_stage(len(profile.stages), costs), profile.micro_batches)


def stage_costs(
    profile: JobProfile,
    ranks: Sequence[int],
    server_gpus: Sequence[int],
    fabric: Fabric,
    blocks: Blocks = (),
    layouts: Layouts = (),
) -> list[StageCost]:
    """The cost of each stage on its slowest server. Arguments and errors as in ``iteration_time``."""
    costs = _all_costs(profile, ranks, server_gpus, fabric, blocks, layouts)
    return _worst_per_stage(len(profile.stages), costs)


def worst_iteration_time(profile: JobProfile, server_gpus: int, fabric: Fabric, levels: int = 1) -> float:
    """alpha_max: each replica alone on a server of ``server_gpus`` GPUs, with B_inter/g for each of its slices.

    levels: how many levels of switches connect the cluster; the bandwidth is that through the slowest of them. If a
    server has several NVLink domains, the slices of a replica are in several.
    """
    inter = min([fabric.through(level) for level in range(1, levels + 1)])
    ranks = [replica for replica in range(profile.replicas) for _ in range(profile.tensor)]
    divisible = profile.tensor > 1 and 0 < fabric.domain < server_gpus
    layouts = ((1,) * profile.tensor,) * profile.replicas if divisible else ()
    slowest = replace(fabric, inter=inter, beyond=())
    return iteration_time(profile, ranks, [server_gpus] * profile.replicas, slowest, layouts=layouts)


def _replica_servers(profile: JobProfile, ranks: Sequence[int]) -> Sequence[int]:
    if len(ranks) != profile.gpus:
        raise ValueError(f"{len(ranks)} ranks for {profile.gpus} replicas of {profile.name}")
    if profile.tensor == 1:
        return ranks
    groups = [ranks[i : i + profile.tensor] for i in range(0, len(ranks), profile.tensor)]
    if any(len(set(group)) > 1 for group in groups):
        raise ValueError(f"the {profile.tensor} tensor slices of a replica of {profile.name} are on several servers")
    return [group[0] for group in groups]


class _Domains(NamedTuple):
    """The NVLink domains that a job uses, each as a server of its own.

    places: the domain of each replica; one whose slices are in several has a place for itself. apart: these places.
    server_gpus: g of the server of each place. blocks: of each place, with its server as the lowest level.
    """

    places: Sequence[int]
    server_gpus: Sequence[float]
    blocks: Blocks
    apart: frozenset[int]


def _all_costs(
    profile: JobProfile,
    ranks: Sequence[int],
    server_gpus: Sequence[float],
    fabric: Fabric,
    blocks: Blocks,
    layouts: Layouts,
) -> Iterator[tuple[int, StageCost]]:
    """(stage, cost) for each stage and each of its servers or NVLink domains."""
    servers = _replica_servers(profile, ranks)
    if not divided(layouts):
        return _costs(profile, servers, server_gpus, fabric, blocks)
    found = _domains(profile, servers, server_gpus, blocks, layouts)
    return _costs(profile, found.places, found.server_gpus, fabric, found.blocks, found.apart)


def _domains(
    profile: JobProfile, servers: Sequence[int], server_gpus: Sequence[float], blocks: Blocks, layouts: Layouts
) -> _Domains:
    """The domain of each replica, if the ranks on a server have its GPUs in the order of their indexes."""
    left = [[at for at, gpus in enumerate(layout) for _ in range(gpus)] for layout in layouts]
    if [len(each) for each in left] != [profile.tensor * servers.count(server) for server in range(len(left))]:
        raise ValueError(f"the layouts {layouts} do not hold the {profile.gpus} GPUs of {profile.name}")
    number: dict[tuple[int, object], int] = {}
    places, apart = list[int](), set[int]()
    for replica, server in enumerate(servers):
        slices, left[server] = left[server][: profile.tensor], left[server][profile.tensor :]
        together = len(set(slices)) == 1
        places.append(number.setdefault((server, slices[0] if together else f"replica {replica}"), len(number)))
        if not together:
            apart.add(places[-1])
    of = [server for server, _ in number]
    levels = (tuple(of), *[tuple([switches[server] for server in of]) for switches in blocks])
    return _Domains(places, [server_gpus[server] for server in of], levels, frozenset(apart))


def _costs(
    profile: JobProfile,
    servers: Sequence[int],
    server_gpus: Sequence[float],
    fabric: Fabric,
    blocks: Blocks,
    apart: frozenset[int] | None = None,
) -> Iterator[tuple[int, StageCost]]:
    """(stage, cost) for each stage and each of its servers.

    apart: None; if the "servers" are NVLink domains, those between whose slices the bandwidth is A.
    """
    placed: dict[int, list[int]] = {}
    for stage, server in zip(profile.stage_of_replica, servers, strict=True):
        placed.setdefault(server, [0] * len(profile.stages))[stage] += 1
    experts = any(stage.routing for stage in profile.stages)
    across = 0.0 if apart is None else fabric.across
    around = _around(placed, server_gpus, fabric, blocks, first=2 if apart is None else 1) if blocks else {}
    for server, counts in placed.items():
        share = across or fabric.inter / server_gpus[server]
        intra = fabric.across if apart and server in apart else fabric.intra
        for stage, here in enumerate(counts):
            if here:
                hosted = _hosted(profile, stage, server, servers) if experts else ()
                near = around[server] if around else ()
                if experts and blocks:
                    near = _with_hosted(near, profile, stage, server, servers, blocks)
                yield stage, stage_cost(profile, stage, counts, share, intra, hosted, near, across)


def _around(
    placed: dict[int, list[int]], server_gpus: Sequence[float], fabric: Fabric, blocks: Blocks, first: int
) -> dict[int, list[Block]]:
    """The blocks of each server, from the lowest. placed: replicas of every stage by server.

    first: the level of the switch that connects the lowest blocks.
    """
    found: dict[int, list[Block]] = {server: [] for server in placed}
    for level, switches in enumerate(blocks, start=first):
        speed = fabric.through(level)
        members: dict[int, list[int]] = {}
        for server in placed:
            members.setdefault(switches[server], []).append(server)
        for some in members.values():
            shares = {server: speed / server_gpus[server] for server in some}
            counts = [sum(column) for column in zip(*[placed[server] for server in some], strict=True)]
            # x/g of each server's bandwidth, as for the NIC in (6)
            reserved = [[shares[server] * here for here in placed[server]] for server in some]
            out = [sum(column) for column in zip(*reserved, strict=True)]
            for server in some:
                found[server].append(Block(counts, shares[server], out))
    return found


def _with_hosted(
    near: Sequence[Block], profile: JobProfile, stage: int, server: int, servers: Sequence[int], blocks: Blocks
) -> list[Block]:
    """The blocks of a server with the replicas of the stage in each."""
    places = ((switches[server], [switches[m] for m in servers]) for switches in blocks)
    return [block._replace(hosted=_hosted(profile, stage, *place)) for block, place in zip(near, places, strict=True)]


def _hosted(profile: JobProfile, stage: int, place: int, places: Sequence[int]) -> list[int]:
    """Which replicas of the stage are on the server (or under the switch), 0..k_s-1. places: of every replica."""
    first = profile.stage_of_replica.index(stage)
    return [i for i in range(profile.stages[stage].replicas) if places[first + i] == place]


def _worst_per_stage(stages: int, costs: Iterator[tuple[int, StageCost]]) -> list[StageCost]:
    """The largest communication and all-reduce of each stage: a barrier waits for the slowest server."""
    worst: list[StageCost | None] = [None] * stages
    for stage, cost in costs:
        other = worst[stage] or cost
        worst[stage] = StageCost(
            forward=cost.forward,
            backward=cost.backward,
            communication=max(cost.communication, other.communication),
            allreduce=max(cost.allreduce, other.allreduce),
        )
    return [cost for cost in worst if cost is not None]


def fill_and_drain(stages: Sequence[StageCost], micro_batches: int) -> float:
    """Seconds per iteration of GPipe's schedule: all micro-batches forward, then all backward, then the all-reduces.

    stages: the cost of each stage per mini-batch, on its slowest server. micro_batches: q.

    The model is Huang et al.'s GPipe (NeurIPS 2019, [19]), as a flow shop of q equal jobs. With
    f_s = (p_s^f + comm_s/2) / q and b_s = (p_s^b + comm_s/2) / q, as half of (5) belongs to each direction:

        forward    = sum_s f_s + (q-1) max_s f_s
        backward_s = sum_{r>=s} b_r + (q-1) max_{r>=s} b_r      when stage s finishes its last backward
        alpha      = forward + max_s (backward_s + allreduce_s)

    A stage starts its all-reduce (6) after its own last backward, while earlier stages still drain. A transfer keeps
    its stage busy: in this model, transfers between stages do not overlap computation.
    """
    forwards = [(cost.forward + cost.communication / 2) / micro_batches for cost in stages]
    forward = sum(forwards) + (micro_batches - 1) * max(forwards)
    last = total = slowest = 0.0
    for cost in reversed(stages):
        backward = (cost.backward + cost.communication / 2) / micro_batches
        total += backward
        slowest = max(slowest, backward)
        last = max(last, total + (micro_batches - 1) * slowest + cost.allreduce)
    return forward + last
