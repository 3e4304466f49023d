"""Seconds per iteration: the slowest stage of an asynchronous pipeline, fill and drain of a synchronous one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile, Pipeline
from slurm_asrpt.core.timing.stage import StageCost, stage_cost


def iteration_time(profile: JobProfile, ranks: Sequence[int], server_gpus: Sequence[float], fabric: Fabric) -> float:
    """alpha, seconds per iteration (7): the largest comp + comm + all-reduce over stages and servers.

    ranks: the server of each GPU, shape (profile.gpus,), values are indexes into server_gpus.
    server_gpus: g of each server, all GPUs it has; a job reserves x/g of a server's NIC.
    Raises ValueError if ranks does not place every GPU once, or splits the tensor slices of a replica.
    """
    costs = _costs(profile, _replica_servers(profile, ranks), server_gpus, fabric)
    if profile.pipeline is Pipeline.ASYNCHRONOUS:
        return max(cost.total for _, cost in costs)
    return fill_and_drain(_worst_per_stage(len(profile.stages), costs), profile.micro_batches)


def stage_costs(
    profile: JobProfile, ranks: Sequence[int], server_gpus: Sequence[int], fabric: Fabric
) -> list[StageCost]:
    """The cost of each stage on its slowest server. Arguments and errors as in ``iteration_time``."""
    return _worst_per_stage(len(profile.stages), _costs(profile, _replica_servers(profile, ranks), server_gpus, fabric))


def worst_iteration_time(profile: JobProfile, server_gpus: int, fabric: Fabric) -> float:
    """alpha_max: each replica alone on a server of ``server_gpus`` GPUs, with B_inter/g for each of its slices."""
    ranks = [replica for replica in range(profile.replicas) for _ in range(profile.tensor)]
    return iteration_time(profile, ranks, [server_gpus] * profile.replicas, fabric)


def _replica_servers(profile: JobProfile, ranks: Sequence[int]) -> Sequence[int]:
    if len(ranks) != profile.gpus:
        raise ValueError(f"{len(ranks)} ranks for {profile.gpus} replicas of {profile.name}")
    if profile.tensor == 1:
        return ranks
    groups = [ranks[i : i + profile.tensor] for i in range(0, len(ranks), profile.tensor)]
    if any(len(set(group)) > 1 for group in groups):
        raise ValueError(f"the {profile.tensor} tensor slices of a replica of {profile.name} are on several servers")
    return [group[0] for group in groups]


def _costs(
    profile: JobProfile, servers: Sequence[int], server_gpus: Sequence[float], fabric: Fabric
) -> Iterator[tuple[int, StageCost]]:
    """(stage, cost) for each stage and each of its servers."""
    placed: dict[int, list[int]] = {}
    for stage, server in zip(profile.stage_of_replica, servers, strict=True):
        placed.setdefault(server, [0] * len(profile.stages))[stage] += 1
    experts = any(stage.routing for stage in profile.stages)
    for server, counts in placed.items():
        share = fabric.inter / server_gpus[server]
        for stage, here in enumerate(counts):
            if here:
                hosted = _hosted(profile, stage, server, servers) if experts else ()
                yield stage, stage_cost(profile, stage, counts, share, fabric.intra, hosted)


def _hosted(profile: JobProfile, stage: int, server: int, servers: Sequence[int]) -> list[int]:
    """Which replicas of the stage are on the server, 0..k_s-1."""
    first = profile.stage_of_replica.index(stage)
    return [i for i in range(profile.stages[stage].replicas) if servers[first + i] == server]


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
