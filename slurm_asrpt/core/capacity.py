"""Why nodes cannot hold a job, even if all of them were idle: the facts of the reason ``capacity``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm_asrpt.core.cluster import Node, host_of
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.best_alpha import fits


def too_large(job: Job, usable: Sequence[Node], known: Sequence[Node]) -> dict[str, Any]:
    """What a job lacks on these nodes: all, any, nodes, gpus or their shape; and what it asks for and may use there.

    usable: nodes where jobs can start; known: also those that are down, draining or reserved. returns: whether these
    could hold it together. all: it may use none of these, in service or not; any: none of those in service.
    """
    request = job.request
    asked = job.gpus // request.per_node if request.per_node else request.min_nodes
    allowed = [node for node in usable if request.candidates is None or node.name in request.candidates]
    able, have = len({host_of(node.name) for node in allowed}), sum(node.gpus for node in allowed)
    none = "any" if any(request.candidates is None or node.name in request.candidates for node in known) else "all"
    return {
        "need": job.gpus,
        "lacks": none if not able else "nodes" if asked > able else "gpus" if job.gpus > have else "shape",
        "asked": asked,
        "able": able,
        "have": have,
        "shape": request.shape(job.gpus),
        "returns": fits(job, known),
    }
