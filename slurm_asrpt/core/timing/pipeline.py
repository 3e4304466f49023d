"""Asynchronous pipeline: one iteration takes as long as its slowest stage (paper, section III-B)."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.job import JobProfile


def iteration_time(profile: JobProfile, ranks: Sequence[int], server_gpus: Sequence[int], fabric: Fabric) -> float:
    """alpha, seconds per iteration (7): the largest comp + comm + all-reduce over stages and servers.

    ranks: the server of each replica, shape (profile.gpus,), values are indexes into server_gpus.
    server_gpus: g of each server, all GPUs it has; a job reserves x/g of a server's NIC.
    Raises ValueError if ranks does not place every replica once.
    """
    if len(ranks) != profile.gpus:
        raise ValueError(f"{len(ranks)} ranks for {profile.gpus} replicas of {profile.name}")
    placed: dict[int, list[int]] = {}
    for stage, server in zip(profile.stage_of, ranks, strict=True):
        placed.setdefault(server, [0] * len(profile.stages))[stage] += 1
    return max(
        _stage_time(profile, stage, counts, fabric.inter / server_gpus[server], fabric.intra)
        for server, counts in placed.items()
        for stage in range(len(counts))
        if counts[stage]
    )


def worst_iteration_time(profile: JobProfile, server_gpus: int, fabric: Fabric) -> float:
    """alpha_max: each replica alone on a server of ``server_gpus`` GPUs, with B_inter/g for itself."""
    return iteration_time(profile, range(profile.gpus), [server_gpus] * profile.gpus, fabric)


def _stage_time(profile: JobProfile, stage: int, counts: Sequence[int], gpu_share: float, intra: float) -> float:
    """beta_s^m: comp (4) + comm (5) + all-reduce (6) of one stage on one server that hosts some of it.

    counts: x_s^m of this server for every stage. gpu_share: B_inter/g, the NIC share of one GPU.
    """
    this = profile.stages[stage]
    outside = inside = 0.0  # bytes per replica that leave the server, and that stay
    for neighbour, size in ((stage - 1, this.bytes_in), (stage + 1, this.bytes_out)):
        if 0 <= neighbour < len(counts):
            near = counts[neighbour] / profile.stages[neighbour].replicas
            outside += 2 * size * (1 - near)
            inside += 2 * size * near
    # (5): the replicas' bytes over their reserved share, x (...) / ((x/g) B_inter): x cancels
    communication = outside / gpu_share + inside / intra
    return this.forward_s + this.backward_s + communication + _allreduce_time(profile, stage, counts, gpu_share, intra)


def _allreduce_time(profile: JobProfile, stage: int, counts: Sequence[int], gpu_share: float, intra: float) -> float:
    """(6): 2 (k-1) h / k over the NIC share x/g B_inter if the stage is split, over B_intra if it is not."""
    this = profile.stages[stage]
    if this.replicas == 1:
        return 0.0
    volume = 2 * (this.replicas - 1) * this.param_bytes / this.replicas
    whole = counts[stage] == this.replicas
    return volume / (intra if whole else counts[stage] * gpu_share)
