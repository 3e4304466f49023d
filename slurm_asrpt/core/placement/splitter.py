"""Slurm's own GPU splitter, modelled: which GPU counts a pinned node list will really get.

Measured on Slurm 22.05 for ``--gpus=K`` and for ``--gpus-per-task=1 -n K`` (gres_select_filter.c
``_set_job_bits1``): the nodes are walked in node-table order and each gives what it has free, but one GPU is
kept for every node still to come.
"""

from __future__ import annotations

from collections.abc import Sequence


def slurm_split(free: Sequence[int], gpus: int) -> tuple[int, ...] | None:
    """GPUs per pinned node, given the free GPUs of these nodes in node-table order; None if Slurm cannot start it.

    Every pinned node gets at least one GPU, so more nodes than GPUs, an empty node, or too few free GPUs give None.
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
    """``--gres=gpu:k`` and ``--gpus-per-node=k``: the same on every node."""
    return (per_node,) * nodes
