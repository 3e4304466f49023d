"""What running jobs take beside their GPUs, in saved states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_asrpt.core.job import ANYWHERE, Request

NO_GRES: Mapping[str, int] = {}


def amounts_of(request: Request) -> list[Any]:
    """CPUs and memory per GPU, memory per node, other generic resources, and shares; [] if it takes none of them."""
    row: list[Any] = [request.cpus_per_gpu, request.memory_per_gpu, request.memory_per_node]
    if request.shares_per_gpu:
        return [*row, dict(request.gres_per_node), dict(request.shares_per_gpu)]
    if request.gres_per_node:
        return [*row, dict(request.gres_per_node)]
    return row if any(row) else []


def read_amounts(row: Sequence[Any]) -> Request:
    """The inverse. Raises TypeError, ValueError, AttributeError."""
    if not row:
        return ANYWHERE
    cpus, per_gpu, per_node, *others = row
    counts, shares, *_ = *map(dict, others), NO_GRES, NO_GRES
    return Request(
        cpus_per_gpu=float(cpus),
        memory_per_gpu=float(per_gpu),
        memory_per_node=float(per_node),
        gres_per_node=tuple(sorted((str(name), int(count)) for name, count in counts.items())),
        shares_per_gpu=tuple(sorted((str(name), float(count)) for name, count in shares.items())),
    )
