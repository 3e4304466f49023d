"""Translates a Slurm job's request for the policy: GPUs and shape, or why the job is left to Slurm."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from slurm_asrpt.core.cluster import host_of
from slurm_asrpt.core.cpu_jobs import CpuJob
from slurm_asrpt.core.job import GresAmounts, JobId, Request
from slurm_asrpt.core.placement.selection import ROUNDING
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.features import alternatives, satisfies
from slurm_asrpt.slurm.gres import SHARED, others_of, parse_gres
from slurm_asrpt.slurm.limits import parse_tres
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.records import PENDING, JobRecord, NodeRecord
from slurm_asrpt.status.reason_texts import LEFT_WORDS

Nodes = Sequence[NodeRecord]


@dataclass(frozen=True)
class JobRequest:
    """What a job requests: its GPUs and the allocations that satisfy it.

    one_task_per_gpu: each rank has one GPU. by_slurm: why Slurm must choose its nodes, a key of LEFT_WORDS; "" if
    asrptd may. The request is then at least as large as what Slurm needs.
    """

    gpus: int
    request: Request
    one_task_per_gpu: bool
    by_slurm: str = ""


class LeftToSlurm(Exception):  # noqa: N818  (a verdict, not a failure)
    """asrptd does not schedule this job; ``why`` is a key of LEFT_WORDS."""

    def __init__(self, why: str) -> None:
        super().__init__(LEFT_WORDS[why])
        self.why = why


def read_request(job: JobRecord, nodes: Sequence[NodeRecord], partitions: Sequence[str]) -> JobRequest:
    """The job's request. Raises LeftToSlurm for requests that asrptd cannot place as the user expects."""
    _refuse_what_slurm_keeps(job, partitions)
    job = on_enough_nodes(job, [n for n in nodes if n.gpus])
    kind, gpus, per_node, unit = _gpus(job)
    if job.min_nodes > gpus // unit:
        raise LeftToSlurm("shape")  # more nodes than GPUs: some would have none
    offers = _offers(job, nodes, kind, gpus)
    able, asked = _union(offers), job.cpus_for(gpus)
    cpus = job.in_cores(asked, _threads(able))
    request = Request(
        per_node=per_node,
        unit=unit,
        min_nodes=job.min_nodes,
        max_nodes=job.max_nodes or None,
        cpus_per_gpu=cpus / gpus,
        memory_per_gpu=job.memory_per_gpu or job.memory_per_cpu * (asked if job.one_thread else cpus) / gpus,
        memory_per_node=memory_per_node(job),
        gres_per_node=gres_per_node(job),
        candidates=frozenset(n.name for n in able),
        within=tuple(frozenset(n.name for n in offer) for offer in offers) if len(offers) > 1 else (),
    )
    request = on_able_nodes(request, gpus, able)
    if job.required_nodes:
        request = _on_its_nodes(job, gpus, request, able)
    if job.exclusive:
        gpus, request = _whole_nodes(job, gpus, request, able)
    return JobRequest(gpus, request, one_task_per_gpu=job.tasks == gpus and bool(job.tres_per_task))


def on_able_nodes(request: Request, gpus: int, able: Nodes) -> Request:
    """The request with at least as many nodes as the CPUs and the memory for its GPUs need, as in Slurm."""
    most = max([node.gpus for node in able], default=0)
    served = max([served_gpus(node, request) for node in able], default=0)
    if request.per_node is not None or not request.unit <= served < most:
        return request
    least = -(-gpus // (served - served % request.unit))
    if not request.min_nodes < least <= min(len(able), request.max_nodes or least):
        return request
    return replace(request, min_nodes=least)


def served_gpus(node: NodeRecord, request: Request) -> int:
    """For how many GPUs of the request an idle node has the CPUs and the memory, too."""
    amounts = (
        (node.cpus, request.cpus_per_gpu),
        (node.memory - request.memory_per_node, request.memory_per_gpu),
    )
    return min([node.gpus, *(int(amount / per_gpu + ROUNDING) for amount, per_gpu in amounts if per_gpu)])


def _threads(nodes: Nodes) -> int:
    """CPUs of a core, the most of these nodes."""
    return max((node.threads for node in nodes), default=1)


def memory_per_node(job: JobRecord) -> float:
    """MiB. A job that asks for no memory, or with ``--mem=0`` for all, gets what Slurm has counted for it."""
    if job.memory_per_node or job.memory_per_cpu or job.memory_per_gpu:
        return job.memory_per_node
    counted = parse_tres(job.tres)
    return counted.get("mem", 0.0) / max(1.0, counted.get("node", 1.0))


def gres_per_node(job: JobRecord) -> GresAmounts:
    """Generic resources beside GPUs that a job takes on each node. Raises LeftToSlurm for those of tasks or sockets."""
    try:
        elsewhere = [parse_gres(text) for text in (job.tres_per_job, job.tres_per_task, job.tres_per_socket)]
        asked = others_of(parse_gres(job.tres_per_node))
    except SlurmError:
        raise LeftToSlurm("gres") from None
    if any(map(others_of, elsewhere)):
        raise LeftToSlurm("gres")
    return tuple(sorted(asked.items()))


def on_enough_nodes(job: JobRecord, nodes: Nodes) -> JobRecord:
    """The job with at least as many nodes as its tasks need: for their CPUs and memory, and by --ntasks-per-node."""
    if job.tasks == 1 or job.min_nodes == job.max_nodes:
        return job
    memory = job.memory_per_cpu * max(1, job.cpus // job.tasks)
    fit = [
        min(n.cpus // job.task_cpus(n.threads), int(n.memory // memory) if memory else job.tasks)
        for n in nodes
        if not set(job.partition.split(",")).isdisjoint(n.partitions)
    ]
    most = min(max(fit, default=0), job.tasks_per_node or job.tasks)
    least = -(-job.tasks // most) if most else 1
    return replace(job, min_nodes=max(job.min_nodes, min(least, job.max_nodes or least)))


def _offers(job: JobRecord, nodes: Sequence[NodeRecord], kind: str, gpus: int) -> list[Nodes]:
    """The sets of nodes, one of which must hold the job: a set per partition and feature of ``[a|b]``.

    A job on one node gets a single set; with -w or whole nodes, only the set with most GPUs counts.
    """
    names = job.partition.split(",")
    able = [part for n in _allowed(job, nodes) if n.gpus for part in _serving(n, kind, bool(job.exclusive))]
    sets = [_with(able, name, feature) for name in names for feature in alternatives(job.features)]
    if gpus == 1 or job.max_nodes == 1:
        sets = [_union(sets)]
    plain = [[n for n in some if not (n.other_gres or n.types)] for some in sets]
    most = max(plain, key=_total)
    if _total(most) < gpus <= max(_total(some) for some in sets):
        raise LeftToSlurm("mixed")
    if _total(most) < gpus and job.features:
        raise LeftToSlurm("features")  # Slurm may know of a node that has them after a reboot
    if job.required_nodes or job.exclusive or _total(most) < gpus:
        return [most]
    found = _largest([some for some in plain if _total(some) >= gpus])
    return [some for some in _preferred(job, able) if _total(some) >= gpus and some not in found] + found


def _preferred(job: JobRecord, able: Nodes) -> list[Nodes]:
    """The sets with the features of ``--prefer``, which Slurm tries before ``-C``; none if they cannot be read."""
    if not job.prefer:
        return []
    with suppress(LeftToSlurm):
        return [
            [n for n in _with(able, name, job.prefer) if not (n.other_gres or n.types)]
            for name in job.partition.split(",")
        ]
    return []


def _serving(node: NodeRecord, kind: str, whole: bool) -> Nodes:
    """What of a node could serve a job of this GPU type ("": any): the node, or its part with GPUs of this type.

    whole: the job gets all GPUs of its nodes, and so the node.
    """
    if node.other_gres or not kind:
        return [node]
    parts = [part for part in node.parts if part.gpu_type == kind]
    return [node] if whole and parts else parts


def _with(nodes: Nodes, partition: str, features: str) -> Nodes:
    """The nodes of this partition with these features."""
    try:
        return [n for n in nodes if partition in n.partitions and (not features or satisfies(n.features, features))]
    except ValueError:
        raise LeftToSlurm("features") from None


def _union(sets: Sequence[Nodes]) -> Nodes:
    return list({n.name: n for some in sets for n in some}.values())


def _largest(sets: Sequence[Nodes]) -> list[Nodes]:
    """The sets that are not contained in another set."""
    by_names = {frozenset(n.name for n in some): some for some in sets}
    return [some for names, some in by_names.items() if not any(names < other for other in by_names)]


def _allowed(job: JobRecord, nodes: Nodes) -> Nodes:
    """The nodes of -w, or all nodes, without those of -x, and those with less than --tmp or fewer other GRES."""
    if job.required_nodes:
        required = _names(job.required_nodes, "nodelist")
        nodes = [n for n in nodes if host_of(n.name) in required]
    if job.excluded_nodes:
        excluded = _names(job.excluded_nodes, "exclude")
        nodes = [n for n in nodes if host_of(n.name) not in excluded]
    if job.tmp_disk:
        nodes = [n for n in nodes if n.tmp_disk >= job.tmp_disk]
    gres = gres_per_node(job)
    return [n for n in nodes if all(n.gres.get(name, 0) >= count for name, count in gres)] if gres else nodes


def _names(nodes: str, why: str) -> frozenset[str]:
    try:
        return frozenset(expand(nodes))
    except SlurmError:
        raise LeftToSlurm(why) from None


def _on_its_nodes(job: JobRecord, gpus: int, request: Request, able: Sequence[NodeRecord]) -> Request:
    """The request for exactly the nodes of -w. Left to Slurm if they cannot hold it: Slurm would add nodes."""
    count = len(_names(job.required_nodes, "nodelist"))
    all_there = len(able) == count and job.min_nodes <= count <= (job.max_nodes or count)
    uneven = request.per_node is not None and request.per_node * count != gpus
    if not all_there or uneven or not count <= gpus <= _total(able):
        raise LeftToSlurm("nodelist")
    return replace(request, min_nodes=count, max_nodes=count)


def _whole_nodes(job: JobRecord, gpus: int, request: Request, able: Sequence[NodeRecord]) -> tuple[int, Request]:
    """GPUs and request of an exclusive job: Slurm allocates all GPUs and CPUs of its nodes.

    If nodes differ in size, those of the size with most GPUs in total count.
    """
    if job.exclusive != "node":
        raise LeftToSlurm("exclusive")
    sizes: dict[tuple[int, int], list[NodeRecord]] = {}
    for node in able:
        if node.gpus >= (request.per_node or request.unit):
            sizes.setdefault((node.gpus, node.cpus), []).append(node)
    if not sizes:
        raise LeftToSlurm("shape")
    (size, cpus), alike = max(sizes.items(), key=lambda item: _total(item[1]))
    each = request.per_node or size - size % request.unit
    count = max(request.min_nodes, -(-gpus // each))
    if count > min(len(alike), request.max_nodes or count):
        raise LeftToSlurm("shape")  # a mix of node sizes may hold it
    whole = replace(
        request,
        per_node=size,
        unit=1,
        min_nodes=count,
        max_nodes=count,
        cpus_per_gpu=cpus / size,
        memory_per_gpu=job.memory_per_gpu or job.memory_per_cpu * cpus / size,
        candidates=frozenset(n.name for n in alike),
    )
    return count * size, whole


def _total(nodes: Sequence[NodeRecord]) -> int:
    return sum(n.gpus for n in nodes)


def _refuse_what_slurm_keeps(job: JobRecord, partitions: Sequence[str]) -> None:
    checks = {
        "partition": not set(job.partition.split(",")) <= set(partitions),
        "het": job.het,
        "federation": job.federated,
        "scrontab": job.scrontab,
        "reservation": bool(job.reservation),
        "contiguous": job.contiguous,
        "segment": bool(job.segment),
        "socket": bool(job.tres_per_socket or job.tasks_per_socket),
        "deadline": bool(job.deadline),
        "tasks": 0 < job.max_nodes < job.min_nodes,
    }
    for why, applies in checks.items():
        if applies:
            raise LeftToSlurm(why)


def asks_for_no_gpus(job: JobRecord) -> bool:
    """Whether a job requests neither GPUs nor parts of them."""
    texts = (job.tres_per_job, job.tres_per_node, job.tres_per_task, job.tres_per_socket)
    return not any(re.search(r"\b(gpu|shard|mps)\b", text) for text in texts) and not _by_tasks(job)


def counted_gpus(job: JobRecord) -> int:
    """As Slurm counts them; 0 where it shows none."""
    found = re.search(r"\bgres/gpu=([0-9]{1,6})", job.tres)
    return int(found[1]) if found else 0


def _by_tasks(job: JobRecord) -> int:
    """The GPUs of a pending job that asks for them by --ntasks and --ntasks-per-gpu only.

    Slurm shows them nowhere but in what it counts, if AccountingStorageTRES has gres/gpu. For a job that runs, its
    allocation counts.
    """
    return counted_gpus(job) if job.state == PENDING else 0


def read_cpu_request(components: Sequence[JobRecord], nodes: Nodes, partitions: Sequence[str]) -> CpuJob:
    """The request of a job without GPUs. Raises LeftToSlurm for requests that asrptd cannot place.

    Of several components, each counts as if it had nodes of its own, and needed on each what the largest needs.
    """
    each = [_cpu_request(replace(part, het=False), nodes, partitions) for part in components]
    if len(each) == 1:
        return each[0]
    needs = [one.share(one.min_nodes) for one in each]
    count, most = sum(one.min_nodes for one in each), max(need.cpus for need in needs)
    return replace(
        each[0],
        cpus=int(count * most),
        min_nodes=count,
        max_nodes=count,
        memory_per_cpu=0.0,
        memory_per_node=max(need.memory for need in needs),
        candidates=frozenset.intersection(*(one.candidates for one in each)),
        whole_nodes=any(one.whole_nodes for one in each),
    )


def _cpu_request(job: JobRecord, nodes: Nodes, partitions: Sequence[str]) -> CpuJob:
    _refuse_what_slurm_keeps(job, partitions)
    if job.exclusive not in ("", "node"):
        raise LeftToSlurm("exclusive")
    if gres_per_node(job):
        raise LeftToSlurm("gres")
    in_each = {name: _with(_allowed(job, nodes), name, job.features) for name in job.partition.split(",")}
    able = _union(list(in_each.values()))
    job = on_enough_nodes(job, able)
    least, most = job.min_nodes, job.max_nodes
    if job.required_nodes:
        count = len(_names(job.required_nodes, "nodelist"))
        if len(able) < count or not least <= count <= (most or count):
            raise LeftToSlurm("nodelist")
        least = most = count
    return CpuJob(
        id=JobId(job.job_id),
        submit_time=job.submit_time,
        cpus=job.in_cores(job.cpus_for(0), _threads(able)),
        min_nodes=least,
        max_nodes=max(least, min(most or job.tasks, job.tasks)),
        memory_per_cpu=job.memory_per_cpu,
        memory_per_node=memory_per_node(job),
        candidates=frozenset(n.name for n in able),
        whole_nodes=bool(job.exclusive),
        partitions=tuple((name, frozenset(n.name for n in found)) for name, found in in_each.items()),
        time_limit=job.time_limit or math.inf,
    )


def gpus_of(job: JobRecord) -> int:
    """Allocated or requested GPUs of a job; 0 if its request is left to Slurm."""
    try:
        return sum(job.gpus_by_node.values()) or _gpus(job)[1]
    except LeftToSlurm:
        return 0


def asked_gpus(job: JobRecord) -> int:
    """The GPUs that its owner asked for, which are fewer than it gets with --exclusive; 0 if that is left to Slurm."""
    try:
        return _gpus(job)[1]
    except LeftToSlurm:
        return 0


def type_of(job: JobRecord) -> str:
    """The GPU type that a job names; "" if it names none, or its request is left to Slurm."""
    try:
        return _gpus(job)[0]
    except LeftToSlurm:
        return ""


def _gpus(job: JobRecord) -> tuple[str, int, int | None, int]:
    """GPU type, number of GPUs, GPUs per node if fixed, and the unit in which they are allocated."""
    per_job, per_node, per_task = (one_kind(t) for t in (job.tres_per_job, job.tres_per_node, job.tres_per_task))
    kind = next((k for k, _ in (per_job, per_node, per_task) if k), "")
    if per_node[1]:
        if not per_job[1] and job.max_nodes > job.min_nodes and job.max_nodes != job.tasks:
            # a range: Slurm allocates as many nodes as it can. 26.05 shows the tasks as maximum where there is none
            raise LeftToSlurm("shape")
        total = per_job[1] or per_node[1] * job.min_nodes
        return _even(kind, total, per_node[1])
    if per_task[1]:
        total = per_task[1] * job.tasks
        if job.tasks_per_node:
            return _even(kind, total, per_task[1] * job.tasks_per_node)
        return kind, total, None, per_task[1]
    if per_job[1]:
        if job.tasks_per_node:  # Slurm spreads tasks, and GPUs with them, evenly only if the node count is fixed
            if job.min_nodes != job.max_nodes:
                raise LeftToSlurm("shape")
            return _even(kind, per_job[1], per_job[1] // job.min_nodes)
        return kind, per_job[1], None, 1
    if counted := _by_tasks(job):
        return "", counted, None, 1
    raise LeftToSlurm("nogpu")


def _even(kind: str, total: int, per_node: int) -> tuple[str, int, int | None, int]:
    if per_node < 1 or total % per_node:
        raise LeftToSlurm("shape")
    return kind, total, per_node, 1


def one_kind(tres: str) -> tuple[str, int]:
    """(type, count) of the GPUs in a tres_per_* text; ("", 0) without any."""
    try:
        counts = parse_gres(tres)
    except SlurmError:
        raise LeftToSlurm("gres") from None
    if any(name in SHARED for name, _ in counts):
        raise LeftToSlurm("gres")
    gpus = [(kind, count) for (name, kind), count in counts.items() if name == "gpu"]
    if len(gpus) > 1:
        raise LeftToSlurm("gres")
    return gpus[0] if gpus else ("", 0)


def resources_of(record: JobRecord, gpus: int) -> Request:
    """The CPUs, the memory and the other generic resources that a job releases at its end."""
    memory = record.memory_per_gpu or record.memory_per_cpu * record.cpus / max(gpus, 1)
    gres = GresAmounts()
    with suppress(LeftToSlurm):
        gres = gres_per_node(record)
    return Request(
        cpus_per_gpu=record.cpus / max(gpus, 1),
        memory_per_gpu=memory,
        memory_per_node=memory_per_node(record),
        gres_per_node=gres,
    )
