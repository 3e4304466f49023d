"""How a job's GPUs are split over the servers that were selected for it: as in the paper, or as Slurm does.

Measured on Slurm 22.05 for ``--gpus=K`` and for ``--gpus-per-task=1 -n K`` (gres_select_filter.c
``_set_job_bits1``): Slurm takes all free GPUs of each node in node-table order, but leaves one GPU for every node that
follows.

The paper takes the GPUs from the servers in the order of selection (Algorithm 1, lines 9 and 22): the same, in that
order instead of the node table's.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Split(StrEnum):
    """The order of the servers in which a job's GPUs are taken from them."""

    PAPER = "paper"  # the order of selection: the last server selected gets the remainder
    SLURM = "slurm"  # the node table


def fill(free: Sequence[int], gpus: int) -> tuple[int, ...] | None:
    """GPUs per server, given their free GPUs in the order of a split; None if the job cannot start there.

    Every server needs at least one GPU: None if there are more servers than GPUs, a server without free GPUs, or too
    few free GPUs.
    """
    if not free or len(free) > gpus or min(free) < 1 or sum(free) < gpus:
        return None
    given: list[int] = []
    left = gpus
    for position, available in enumerate(free):
        to_come = len(free) - position - 1
        given.append(min(available, left - to_come))
        left -= given[-1]
    return tuple(given) if left == 0 else None


def even_split(nodes: int, per_node: int) -> tuple[int, ...]:
    """The split for ``--gres=gpu:k`` and ``--gpus-per-node=k``: the same on every node."""
    return (per_node,) * nodes
