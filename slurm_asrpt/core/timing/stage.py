"""The cost of a stage on a server: computation, communication and all-reduce, (4)-(6), extended as in section VI."""

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


def stage_cost(
    profile: JobProfile, stage: int, counts: Sequence[int], gpu_share: float, intra: float, hosted: Sequence[int] = ()
) -> StageCost:
    """The cost of one stage on one server that hosts some of its replicas.

    counts: x_s^m of this server for every stage, in replicas. gpu_share: B_inter/g, the NIC share of one GPU, bytes/s.
    intra: B_intra, bytes/s. hosted: the replicas of the stage on this server, 0..k_s-1; only needed with experts.

    The t slices of a replica transfer its bytes in parallel, 1/t each (the scatter/gather of Narayanan et al., SC 2021,
    section 4.1; slice i all-reduces h_s/t with the slices i of the other replicas). A replica therefore has t shares of
    the NIC and t links inside the server. The overlap coefficients multiply p_s^b and (6).
    """
    this = profile.stages[stage]
    replica_share, links = profile.tensor * gpu_share, profile.tensor * intra
    outside, inside = _neighbor_bytes(profile.stages, stage, counts)
    # (5): the replicas' bytes divided by their reserved share, x (...) / ((x/g) B_inter); x cancels out
    communication = outside / replica_share + inside / links
    if this.routing:
        communication += _routing_time(this, hosted, replica_share, links)
    if profile.tensor > 1:
        # ring all-reduce of activations and their gradients between the slices, always inside a server
        communication += 2 * (profile.tensor - 1) / profile.tensor * this.tensor_bytes / intra
    return StageCost(
        forward=this.forward_s,
        backward=profile.overlap.backward * this.backward_s,
        communication=communication,
        allreduce=profile.overlap.allreduce * allreduce_time(this, counts[stage], replica_share, links),
    )


def _neighbor_bytes(stages: Sequence[Stage], stage: int, counts: Sequence[int]) -> tuple[float, float]:
    """Bytes per replica and iteration that leave the server, and those that stay on it: the numerators of (5)."""
    this = stages[stage]
    outside = inside = 0.0
    for neighbor, size in ((stage - 1, this.bytes_in), (stage + 1, this.bytes_out)):
        if 0 <= neighbor < len(counts):
            near = counts[neighbor] / stages[neighbor].replicas
            outside += 2 * size * (1 - near)
            inside += 2 * size * near
    return outside, inside


def allreduce_time(stage: Stage, here: int, replica_share: float, links: float) -> float:
    """(6): 2 (k-1) h / k, over the NIC share of the ``here`` replicas if the stage is split, else over B_intra."""
    if stage.replicas == 1:
        return 0.0
    volume = 2 * (stage.replicas - 1) * stage.param_bytes / stage.replicas
    return volume / (links if here == stage.replicas else here * replica_share)


def _routing_time(stage: Stage, hosted: Sequence[int], replica_share: float, links: float) -> float:
    """Expert parallelism: seconds for the tokens of the busiest replica here (section VI, average routing weights).

    Replica i sends the share w_j of its b bytes of tokens to expert j and receives the results; gradients take the same
    way. This makes 4 b w_j between i and j for i's tokens and 4 b w_i for j's. As in (5), bytes in and out add up.
    Experts compute at a fixed capacity (GShard, Tutel), so the routing does not change p_s^f and p_s^b.
    """
    if not hosted:
        raise ValueError("with experts it matters which replicas are on the server, not only how many")
    here = sum(stage.routing[i] for i in hosted)
    worst = 0.0
    for i in hosted:
        own = stage.routing[i]
        outside = (1 - here) + (stage.replicas - len(hosted)) * own
        inside = (here - own) + (len(hosted) - 1) * own
        worst = max(worst, outside / replica_share + inside / links)
    return 4 * stage.routed_bytes * worst
