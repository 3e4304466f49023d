"""Why nodes cannot hold a job: only those that it may use count."""

from __future__ import annotations

from slurm_asrpt.core.capacity import too_large
from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.job import Job, JobId, Request, unprofiled

NODES = [Node(f"n{i}", 4, i) for i in range(1, 4)]


def job(gpus: int, *names: str) -> Job:
    request = Request(candidates=frozenset(names)) if names else Request()
    return Job(JobId("1"), "ann", gpus, unprofiled(gpus), request=request)


def test_only_nodes_that_the_job_may_use_count() -> None:
    found = too_large(job(9, "n1", "n2"), NODES, NODES)
    assert (found["lacks"], found["able"], found["have"], found["returns"]) == ("gpus", 2, 8, False)


def test_nodes_that_are_down_may_return() -> None:
    found = too_large(job(9), NODES[:2], NODES)
    assert (found["lacks"], found["have"], found["returns"]) == ("gpus", 8, True)
    assert too_large(job(1, NODES[2].name), NODES[:2], NODES)["lacks"] == "any"
    assert too_large(job(1, "n9"), NODES, NODES)["lacks"] == "all"
