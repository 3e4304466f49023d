"""The updates that asrptd writes: leases, pins, and the removal of pins.

Two facts determine the order of writes. Slurm does not start a pending job whose ``begin_time`` is in the future (the
lease). And writing ``ReqNodeList`` or ``NumNodes`` to a *running* job resizes it, even if Slurm rejects another field
of the same update. Therefore asrptd first fences a job by a new lease, which Slurm rejects unless the job is pending.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from slurm_asrpt.core.cluster import host_of
from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.slurm.node_list import expand, fold
from slurm_asrpt.slurm.priorities import BOOST, BOOSTED_PRIORITY
from slurm_asrpt.slurm.records import PENDING, JobRecord, Update
from slurm_asrpt.slurm.request import gpus_of

PINNED_PRIORITY = 4_294_967_000
"""Above the defaults of priority/basic, which count down from 4,294,901,760."""
PINNED_SITE_FACTOR, TURN = 1_000_000_000, 100_000_000
"""Of the first pins on their nodes, and how much lower each later turn there is (``turns``)."""
MOST_TURNS = 4
"""Pins stay above jobs that are released ahead."""


@dataclass(frozen=True)
class Original:
    """The fields that a pin overwrites, restored when it is removed. cpus: 0 if unknown.

    required_nodes: the nodes of the owner's -w.
    """

    min_nodes: int
    max_nodes: int
    tasks: int
    priority: int
    cpus: int = 0
    required_nodes: str = ""


def original(job: JobRecord) -> Original:
    return Original(job.min_nodes, job.max_nodes, job.tasks, job.priority, job.cpus, job.required_nodes)


def lease(job_id: str, seconds: float) -> Update:
    """Keep Slurm from starting the job for ``seconds``."""
    return Update(job_id, {"StartTime": f"now+{max(1, round(seconds))}"})


def hand_over(job_id: str, seconds: float = 0.0) -> Update:
    """Let Slurm schedule the job: now, or after ``seconds`` if its owner wants that."""
    if seconds <= 0:
        return Update(job_id, {"StartTime": "now"})
    return Update(job_id, {"StartTime": f"now+{math.ceil(seconds)}"})  # Slurm's now has whole seconds: never earlier


def pin(job_id: str, gpus: Mapping[str, int], multifactor: bool, turn: int = 0, cpus: int = 0) -> Update:
    """Start the job now, on exactly these nodes. NumNodes must equal their number, else Slurm adds nodes.

    turn: of ``turns``. cpus: the job's, if NumNodes raises them (``raised_cpus``).
    """
    count = len(set(map(host_of, gpus)))
    nodes = {"NumNodes": f"{count}-{count}", "ReqNodeList": pinned_nodes(gpus)}
    start = {"StartTime": "now", **_priority(multifactor, PINNED_PRIORITY - turn, PINNED_SITE_FACTOR - turn * TURN)}
    if cpus:
        return Update(job_id, nodes, {"NumCPUs": str(cpus), **start})
    return Update(job_id, {**nodes, **start})


def lost_by_updates(job: JobRecord) -> dict[str, str]:
    """Fields that each update of a pending job must repeat, or Slurm changes them, by their names in an update.

    24.05 and 24.11 reset the tasks and CPUs of a job with --ntasks-per-gpu at any update, 26.05 at one of NumNodes, to
    those for one GPU on each node. Slurm 22.05 does not, and does not show the option.
    """
    if not job.tasks_per_gpu or job.state != PENDING:
        return {}
    tasks = max(job.tasks, job.tasks_per_gpu * gpus_of(job))
    return {"NumTasks": str(tasks), "NumCPUs": str(max(job.cpus, tasks * job.cpus_per_task))}


def repeating(update: Update, lost: Mapping[str, str]) -> Update:
    """The update, and the second one that it may have, with these fields unless it sets them."""
    return replace(update, fields={**lost, **update.fields}, then={**lost, **update.then} if update.then else {})


def raised_cpus(job: JobRecord, cpus: int, nodes: int) -> int:
    """The CPUs of a job that has ``cpus``, if Slurm raises them as it takes a number of nodes; else 0.

    It raises them to --mincpus of each node, which jobs with --mem also have under MaxMemPerCPU. If the tasks of the
    job need fewer, Slurm never starts it then (BadConstraints). It accepts the CPUs that the job had, but only in an
    update after that of the nodes.
    """
    return cpus if job.min_cpus_per_node * nodes > cpus else 0


def turns(starts: Iterable[Collection[str]], before: Iterable[Collection[str]]) -> list[int]:
    """The turn of each start on its nodes, at most MOST_TURNS.

    Slurm divides the GPUs of a job on several nodes by what is free there, so that it may take what another start was
    to get. Jobs that share a node with such a job therefore start in the order of the decision, in which its division
    is the planned one. Others go by their own priorities.

    starts: the nodes of each, in the order of the decision. before: those of earlier starts that still wait.
    """
    after_any, after_divided = dict[str, int](), dict[str, int]()

    def next_turn(nodes: Collection[str], first: bool = False) -> int:
        earlier = after_any if len(nodes) > 1 else after_divided
        turn = 0 if first else min(MOST_TURNS, max([earlier.get(name, 0) for name in nodes], default=0))
        for name in nodes:
            after_any[name] = max(after_any.get(name, 0), turn + 1)
            if len(nodes) > 1:
                after_divided[name] = max(after_divided.get(name, 0), turn + 1)
        return turn

    for nodes in before:
        next_turn(nodes, first=True)
    return [next_turn(nodes) for nodes in starts]


def pinned_nodes(gpus: Mapping[str, int]) -> str:
    """The node list of a pin. gpus: by server."""
    return fold(set(map(host_of, gpus)))


def next_for_slurm(job_id: str, multifactor: bool) -> Update:
    """Let Slurm start the job now, on nodes of its own choice, before other jobs."""
    return Update(job_id, {"StartTime": "now", **_priority(multifactor, PINNED_PRIORITY, PINNED_SITE_FACTOR)})


def not_next_for_slurm(job_id: str, before: Original, multifactor: bool) -> Update:
    """Restore what ``next_for_slurm`` overwrote; the lease stays."""
    return Update(job_id, _priority(multifactor, before.priority, 0))


def unpin(
    job_id: str, before: Original, unbounded: int, nodes: int, slurm: SlurmConfig, raises_cpus: bool = False
) -> Update:
    """Restore what ``pin`` overwrote; the lease stays. nodes: how many the pin has. raises_cpus: NumNodes raises them.

    unbounded: the maximum of nodes in place of none, which Slurm cannot restore. It must not exceed MaxNodes of the
    partition, or Slurm would never start the job (PartitionNodeLimit).

    Fewer tasks than nodes means that Slurm had raised the node count because of the GPUs, and will do so again; written
    back, that count would raise the tasks. The CPUs must be restored. The tasks must not where they follow the nodes: a
    task count, once written, would limit the nodes. Nor must they where the pin has raised none: after that, Slurm
    never starts a job with --mincpus (BadConstraints). The node list is in Slurm's own form, because Slurm keeps
    what the owner has written, with blanks too, and no update may have these.
    """
    most = before.max_nodes or max(unbounded, before.min_nodes)
    least = before.min_nodes if before.tasks >= before.min_nodes else 1
    fields = {"NumNodes": f"{least}-{most}", "ReqNodeList": _in_slurms_form(before.required_nodes)}
    if not slurm.tasks_follow_nodes and nodes > before.tasks:
        fields["NumTasks"] = str(before.tasks)
    fields |= _priority(slurm.multifactor, before.priority, 0)
    cpus = {"NumCPUs": str(before.cpus)} if before.cpus else {}
    return Update(job_id, fields, cpus) if raises_cpus else Update(job_id, {**fields, **cpus})


def _in_slurms_form(nodes: str) -> str:
    try:
        return fold(expand(nodes))
    except SlurmError:
        return nodes


def waits_no_more(error: str) -> bool:
    """Whether Slurm rejected an update because the job has started or ended (22.05 to 26.05)."""
    return "no longer pending" in error or "already finished" in error


_LIMITS_CHECK = (
    "Requested partition configuration not available now",
    "Requested account has breached requested QOS usage threshold",
)


def begin_refused(error: str) -> str:
    """Slurm's answer to an update of StartTime alone; empty if it has set the begin time all the same.

    It checks limits only after that, but before it changes the priority, and rejects each update of a job that its
    partition or QOS would not start: MaxMemPerNode, AllowAccounts, State=INACTIVE, UsageThreshold (22.05 to 26.05).
    """
    return "" if is_over_limit(error) else error


def is_over_limit(error: str) -> bool:
    """Whether Slurm rejects each update of the job, because its partition or QOS would not start it."""
    return any(text in error for text in _LIMITS_CHECK)


def site_factor(job_id: str, factor: int) -> Update:
    """Mode order: the job's position in the queue, added to its multifactor priority."""
    return Update(job_id, {"SiteFactor": str(factor)})


AHEAD_PRIORITY = 500_000_000
"""Jobs that are released ahead have at most this priority, below those of pins (multifactor)."""


def release_ahead(job_id: str, factor: int, multifactor: bool, confined: bool = False, cpus: int = 0) -> Update:
    """Let Slurm start the job as soon as there is room, in the order of these factors (basic: of the priorities).

    confined: on one node; what this overwrites is restored by ``unpin``. cpus: as for ``pin``.
    """
    nodes = {"NumNodes": "1-1"} if confined else {}
    start = {**hand_over(job_id).fields, **_priority(multifactor, 0, factor)}
    return Update(job_id, nodes, {"NumCPUs": str(cpus), **start}) if nodes and cpus else Update(job_id, nodes | start)


def lease_again(job_id: str, seconds: float, multifactor: bool) -> Update:
    """Undo ``release_ahead``."""
    return Update(job_id, {**lease(job_id, seconds).fields, **_priority(multifactor, 0, 0)})


def is_boosted(job: JobRecord, multifactor: bool) -> bool:
    """Whether ``asrpt-admin boost`` has put a pending job before all others."""
    return job.nice <= -BOOST // 2 if multifactor else job.priority == BOOSTED_PRIORITY


def boost(job: JobRecord, multifactor: bool, undo: bool = False) -> Update:
    """Put a pending job before all others, or (multifactor only) undo that.

    With priority/basic, a large nice value would overflow; there, a hold and a release restore the default.
    """
    if multifactor:
        return Update(job.address, {"Nice": str(job.nice + (BOOST if undo else -BOOST))})
    return Update(job.address, {"Priority": str(BOOSTED_PRIORITY)})


def _priority(multifactor: bool, priority: int, factor: int) -> dict[str, str]:
    if multifactor:
        return {"SiteFactor": str(factor)}
    return {"Priority": str(priority)} if priority else {}
