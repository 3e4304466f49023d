"""A model of how Slurm splits GPUs over a pinned node list.

Measured on Slurm 22.05 for ``--gpus=K`` and for ``--gpus-per-task=1 -n K`` (gres_select_filter.c
``_set_job_bits1``): Slurm takes all free GPUs of each node in node-table order, but leaves one GPU for every node that
follows.
"""

from __future__ import annotations

from collections.abc import Sequence


def slurm_split(free: Sequence[int], gpus: int) -> tuple[int, ...] | None:
    """GPUs per pinned node, given their free GPUs in node-table order; None if Slurm cannot start the job.

    Every pinned node needs at least one GPU: None if there are more nodes than GPUs, a node without free GPUs, or too
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
