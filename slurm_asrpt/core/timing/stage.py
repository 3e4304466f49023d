"""The cost of a stage on a server: computation, communication and all-reduce, (4)-(6), extended as in section VI.

With levels of the fabric above the server, bytes take the bandwidth of the level that they cross
(docs/decisions/0038). NVLink domains smaller than a server are one more level (0046).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slurm_asrpt.core.job import JobProfile, Stage


class StageCost(NamedTuple):  # half the cost of a frozen dataclass; placement creates thousands
    """Seconds per iteration of one stage on one server: p_s^f, p_s^b, (5) and (6)."""

    forward: float
    backward: float
    communication: float
    allreduce: float

    @property
    def total(self) -> float:
        """beta_s^m, the sum in (7)."""
        return self.forward + self.backward + self.communication + self.allreduce


class Block(NamedTuple):
    """A server's surroundings: all servers under its switch of one level, and the way out of there, the next level.

    Of an NVLink domain, the first is its server.

    counts: replicas of each stage in the block. gpu_share: bandwidth of a GPU of this server on the way out, bytes/s.
    out: the bandwidths of all GPUs of each stage in the block on the way out, divided by t.
    hosted: the replicas of the stage in the block, 0..k_s-1; only needed with experts.
    """

    counts: Sequence[int]
    gpu_share: float
    out: Sequence[float]
    hosted: Sequence[int] = ()


def stage_cost(
    profile: JobProfile,
    stage: int,
    counts: Sequence[int],
    gpu_share: float,
    intra: float,
    hosted: Sequence[int] = (),
    around: Sequence[Block] = (),
    across: float = 0.0,
) -> StageCost:
    """The cost of one stage on one server, or in one NVLink domain, that hosts some of its replicas.

    counts: x_s^m of this server for every stage, in replicas. gpu_share: B_inter/g, the NIC share of one GPU, bytes/s.
    intra: B_intra, bytes/s. hosted: the replicas of the stage on this server, 0..k_s-1; only needed with experts.
    around: the blocks of this server from level 1, if the job's servers are under several switches.
    across: A, bytes/s, in an NVLink domain; then gpu_share is A, too, and ``around`` begins with the server.

    The t slices of a replica transfer its bytes in parallel, 1/t each (the scatter/gather of Narayanan et al., SC 2021,
    section 4.1; slice i all-reduces h_s/t with the slices i of the other replicas). A replica therefore has t shares of
    the NIC and t links inside the server. The overlap coefficients multiply p_s^b and (6).
    """
    this = profile.stages[stage]
    replica_share, links = profile.tensor * gpu_share, profile.tensor * intra
    outside, inside = _neighbor_bytes(profile.stages, stage, counts)
    # (5): the replicas' bytes divided by their reserved share, x (...) / ((x/g) B_inter); x cancels out
    communication = outside / replica_share + inside / links
    if across:
        allreduce = _domain_allreduce_time(this, counts[stage], around[0].counts[stage], replica_share, links)
    else:
        allreduce = allreduce_time(this, counts[stage], replica_share, links)
    shares = [replica_share]  # of a replica, by level
    for block in around:
        shares.append(profile.tensor * block.gpu_share)
        outside, _ = _neighbor_bytes(profile.stages, stage, block.counts)
        communication += outside / shares[-1] - outside / shares[-2]
        if block.counts[stage] < this.replicas:
            allreduce = max(allreduce, allreduce_bytes(this) / (profile.tensor * block.out[stage]))
    if this.routing:
        communication += _routing_time(this, (hosted, *[block.hosted for block in around]), shares, links)
    if profile.tensor > 1:
        # ring all-reduce of activations and their gradients between the slices, always inside a server
        communication += 2 * (profile.tensor - 1) / profile.tensor * this.tensor_bytes / intra
    return StageCost(
        forward=this.forward_s,
        backward=profile.overlap.backward * this.backward_s,
        communication=communication,
        allreduce=profile.overlap.allreduce * allreduce,
    )


def _neighbor_bytes(stages: Sequence[Stage], stage: int, counts: Sequence[int]) -> tuple[float, float]:
    """Bytes per replica and iteration that leave the server or block, and those that stay: the numerators of (5)."""
    this = stages[stage]
    outside = inside = 0.0
    for neighbor, size in ((stage - 1, this.bytes_in), (stage + 1, this.bytes_out)):
        if 0 <= neighbor < len(counts):
            near = counts[neighbor] / stages[neighbor].replicas
            outside += 2 * size * (1 - near)
            inside += 2 * size * near
    return outside, inside


def allreduce_bytes(stage: Stage) -> float:
    """2 (k-1) h / k: what each replica sends and receives in a ring all-reduce."""
    return 2 * (stage.replicas - 1) * stage.param_bytes / stage.replicas


def allreduce_time(stage: Stage, here: int, replica_share: float, links: float) -> float:
    """(6): 2 (k-1) h / k, over the NIC share of the ``here`` replicas if the stage is split, else over B_intra."""
    if stage.replicas == 1:
        return 0.0
    return allreduce_bytes(stage) / (links if here == stage.replicas else here * replica_share)


def _domain_allreduce_time(stage: Stage, here: int, on_server: int, across: float, links: float) -> float:
    """(6) inside the server: of a ring in several domains, each link between two GPUs may be one between domains.

    here, on_server: replicas in the domain and on its server. across, links: of a replica, between domains and inside.
    """
    if here < on_server:
        return allreduce_bytes(stage) / across
    return allreduce_bytes(stage) / links if here == stage.replicas else 0.0


def _routing_time(stage: Stage, near: Sequence[Sequence[int]], shares: Sequence[float], links: float) -> float:
    """Expert parallelism: seconds for the tokens of the busiest replica here (section VI, average routing weights).

    near: the replicas of the stage on the server, then in its block of each level. shares: of a replica, by level.

    Replica i sends the share w_j of its b bytes of tokens to expert j and receives the results; gradients take the same
    way. This makes 4 b w_j between i and j for i's tokens and 4 b w_i for j's. As in (5), bytes in and out add up.
    Experts compute at a fixed capacity (GShard, Tutel), so the routing does not change p_s^f and p_s^b.
    """
    hosted = near[0]
    if not hosted:
        raise ValueError("with experts it matters which replicas are on the server, not only how many")
    here = sum(stage.routing[i] for i in hosted)
    within = [(sum(stage.routing[i] for i in some), len(some)) for some in near] + [(1.0, stage.replicas)]
    worst = 0.0
    for i in hosted:
        own = stage.routing[i]
        seconds = ((here - own) + (len(hosted) - 1) * own) / links
        for share, (nearer, few), (weight, many) in zip(shares, within, within[1:], strict=False):
            seconds += ((weight - nearer) + (many - few) * own) / share
        worst = max(worst, seconds)
    return 4 * stage.routed_bytes * worst
