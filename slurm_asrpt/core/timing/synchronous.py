"""Synchronous pipeline: the pipeline fills and drains in every iteration (paper, section III-B, citing [19], [20])."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_asrpt.core.timing.stage import StageCost


def fill_and_drain(stages: Sequence[StageCost], micro_batches: int) -> float:
    """Seconds per iteration of GPipe's schedule: all micro-batches forward, then all backward, then the all-reduces.

    stages: for each stage its cost per mini-batch, the worst of its servers. micro_batches: q.

    The model is Huang et al.'s GPipe (NeurIPS 2019, [19]), read as a flow shop of q equal jobs. With
    f_s = (p_s^f + comm_s/2) / q and b_s = (p_s^b + comm_s/2) / q, as half of (5) belongs to each direction:

        forward    = sum_s f_s + (q-1) max_s f_s
        backward_s = sum_{r>=s} b_r + (q-1) max_{r>=s} b_r      when stage s has done its last backward
        alpha      = forward + max_s (backward_s + allreduce_s)

    A stage all-reduces (6) when its own last backward is done, while earlier stages still drain. A transfer keeps its
    stage busy: this model hides no transfer between stages behind computation.
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
