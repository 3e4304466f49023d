"""Requests of jobs whose nodes Slurm must choose: such that asrptd can plan them, and at least as large as in Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from slurm_asrpt.core.job import GresAmounts, Request
from slurm_asrpt.slurm.gres import without_gpus
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.request import (
    JobRequest,
    LeftToSlurm,
    Nodes,
    asks_for_no_gpus,
    counted_gpus,
    on_able_nodes,
    on_enough_nodes,
    one_kind,
    read_request,
    served_gpus,
)

MOST_RUNS = 64
"""For a job on contiguous nodes, asrptd plans with so many runs of nodes; Slurm may choose another one."""


def read_any_request(job: JobRecord, nodes: Nodes, partitions: Sequence[str], why: str = "") -> JobRequest:
    """As ``read_request``, also for jobs whose nodes Slurm must choose. why: Slurm must for this reason.

    Raises LeftToSlurm for requests of which not even the size is known.
    """
    job = on_enough_nodes(job, nodes)
    try:
        exact = read_request(job, nodes, partitions)
        why = why or ("mincpus" if _is_spoilt_by_pins(job, exact, nodes) else "")
        return replace(exact, by_slurm=why, one_task_per_gpu=exact.one_task_per_gpu and not why)
    except LeftToSlurm as verdict:
        if verdict.why == "mixed":
            return replace(_on_one_type(job, nodes, partitions), by_slurm=why or "mixed", one_task_per_gpu=False)
        relaxed = _relaxed(job, verdict.why)
        if relaxed is None:
            raise
        reason = "" if verdict.why == "deadline" else verdict.why  # asrptd may choose the nodes of these
        found = read_any_request(relaxed, nodes, partitions, why or reason)
    if job.contiguous:
        return replace(found, request=_contiguous(found, nodes))
    return found


def read_beyond_shown(job: JobRecord, found: JobRequest, nodes: Nodes, partitions: Sequence[str]) -> JobRequest:
    """The request without its limit of nodes, if so few could never hold the job: Slurm may show an estimate there.

    If its owner set that limit, Slurm does not start the job. found: as read with the limit. Raises LeftToSlurm.
    """
    if job.min_nodes != job.max_nodes or job.required_nodes or _hold(job.max_nodes, found, nodes):
        return found
    free = read_any_request(replace(job, max_nodes=0), nodes, partitions, "bound")
    return free if _hold(len(nodes), free, nodes) else found


def _hold(count: int, found: JobRequest, nodes: Nodes) -> bool:
    """Whether so many of the nodes can hold the job when they are idle."""
    names = found.request.candidates or frozenset()
    served = [served_gpus(part, found.request) for node in nodes for part in node.parts if part.name in names]
    return sum(sorted(served, reverse=True)[:count]) >= found.gpus


def _is_spoilt_by_pins(job: JobRecord, found: JobRequest, nodes: Nodes) -> bool:
    """Whether a pin raises the tasks of a job with --mincpus: when they are lowered again, Slurm never starts it."""
    names = found.request.candidates or frozenset()
    largest = max((part.gpus for node in nodes for part in node.parts if part.name in names), default=1)
    return job.min_cpus_per_node > 1 and job.tasks * largest < found.gpus


def read_het_request(components: Sequence[JobRecord], nodes: Nodes, partitions: Sequence[str]) -> JobRequest:
    """The request of a heterogeneous job, as if each component had nodes of its own.

    Raises LeftToSlurm if asrptd cannot plan one of the components, or none has GPUs.
    """
    with_gpus = [n for n in nodes if n.gpus]
    each = [on_enough_nodes(replace(part, het=False), with_gpus) for part in components if not asks_for_no_gpus(part)]
    if not each:
        raise LeftToSlurm("het")
    found = [read_any_request(part, nodes, partitions) for part in each]
    names = [one.request.candidates or frozenset[str]() for one in found]
    gpus = sum([one.gpus for one in found])
    request = Request(
        min_nodes=sum([part.min_nodes for part in each]),
        cpus_per_gpu=max([one.request.cpus_per_gpu for one in found]),
        memory_per_gpu=max([one.request.memory_per_gpu for one in found]),
        memory_per_node=max([one.request.memory_per_node for one in found]),
        candidates=frozenset[str]().union(*names),
        gres_per_node=_most_of([one.request.gres_per_node for one in found]),
    )
    able = [part for node in nodes for part in node.parts if part.name in (request.candidates or ())]
    if sum([served_gpus(node, request) for node in able]) < gpus:
        request = request.bare  # components differ too much: Slurm alone knows whether there is room
    request = on_able_nodes(request, gpus, able)
    return JobRequest(gpus, request, one_task_per_gpu=False, by_slurm="het")


def _most_of(amounts: Iterable[GresAmounts]) -> GresAmounts:
    """The largest amount of each resource."""
    found: dict[str, int] = {}
    for name, count in (each for some in amounts for each in some):
        found[name] = max(found.get(name, 0), count)
    return tuple(sorted(found.items()))


def _relaxed(job: JobRecord, why: str) -> JobRecord | None:
    """The request without what asrptd cannot place; None if there is no such request."""
    if why == "deadline":
        return replace(job, deadline=0.0)
    if why == "contiguous":
        return replace(job, contiguous=False)
    if why == "segment":
        return replace(job, segment=0)
    if why == "exclusive" and job.exclusive != "node":
        return replace(job, exclusive="node")
    if why == "features" and job.features:
        return replace(job, features="")
    if why == "nodelist" and job.required_nodes:
        return replace(job, required_nodes="")
    if why == "socket" and job.tasks_per_socket:
        return replace(job, tasks_per_socket=0)
    if why in ("shape", "socket") and (job.tres_per_node or job.tres_per_task or job.tres_per_socket):
        gpus = max(_requested_gpus(job), job.min_nodes)
        others = without_gpus(job.tres_per_node)
        plain = replace(job, tres_per_node=others, tres_per_task="", tres_per_socket="", tasks_per_node=0)
        return replace(plain, tres_per_job=f"gres:gpu:{gpus}")
    return None


def _on_one_type(job: JobRecord, nodes: Nodes, partitions: Sequence[str]) -> JobRequest:
    """The request of a job that only nodes with several GPU types could hold, as if its GPUs were all of one type.

    Raises LeftToSlurm if no type has enough GPUs.
    """
    found = []
    for kind in sorted({kind.name for node in nodes for kind in node.types}):
        parts = [part for node in nodes for part in node.parts if not node.types or part.gpu_type == kind]
        with suppress(LeftToSlurm):
            found.append(read_request(job, parts, partitions))
    if not found:
        raise LeftToSlurm("mixed")
    first = max(found, key=lambda one: one.gpus)  # they differ for jobs with whole nodes
    alike = [one.request for one in found if one.gpus == first.gpus]
    sets = [names for one in alike for names in one.within or (one.candidates or frozenset(),)]
    request = replace(first.request, candidates=frozenset().union(*sets), within=tuple(sets) if len(sets) > 1 else ())
    return replace(first, request=request)


def _requested_gpus(job: JobRecord) -> int:
    """How many GPUs a job may need in an unusual form of request."""
    if counted := counted_gpus(job):
        return counted
    per_node = one_kind(job.tres_per_node)[1] + one_kind(job.tres_per_socket)[1]
    per_task = one_kind(job.tres_per_task)[1]
    return max(one_kind(job.tres_per_job)[1], per_node * job.min_nodes, per_task * job.tasks)


def _contiguous(found: JobRequest, nodes: Nodes) -> Request:
    """The request with one of the runs of consecutive nodes that could hold the job; at most MOST_RUNS of them."""
    request, names = found.request, found.request.candidates or frozenset()
    table = [[part for part in n.parts if part.name in names] for n in sorted(nodes, key=lambda n: n.index)]
    largest = max([part.gpus for parts in table for part in parts], default=1)
    width = max(request.min_nodes, found.gpus // request.per_node if request.per_node else -(-found.gpus // largest))
    firsts = [at for at in range(len(table) - width + 1) if all(table[at : at + width])]
    some = firsts[:: -(-len(firsts) // MOST_RUNS)] if firsts else []
    runs = [frozenset(part.name for parts in table[at : at + width] for part in parts) for at in some]
    return replace(request, within=tuple(runs))
