"""What the daemon writes back, as values: leases, pins and their undoing.

Two facts decide the order of writes. A pending job's ``begin_time`` in the future keeps Slurm's hands off it (the
lease). And ``ReqNodeList`` or ``NumNodes`` written to a *running* job resizes it, even when another field of the
same update is refused: so a job is fenced by a fresh lease, which Slurm refuses for anything but a pending job,
before its nodes are touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_asrpt.slurm.client import SlurmConfig
from slurm_asrpt.slurm.parse import fold
from slurm_asrpt.slurm.records import JobRecord, Update

PINNED_PRIORITY = 4_294_000_000
PINNED_SITE_FACTOR = 1_000_000_000


@dataclass(frozen=True)
class Original:
    """What a pin overwrites, to be put back when the pin is undone. cpus: 0 where it was not noted.

    required_nodes: those of the owner's -w.
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
    """Slurm may not start the job for so many seconds."""
    return Update(job_id, {"StartTime": f"now+{max(1, round(seconds))}"})


def hand_over(job_id: str, seconds: float = 0.0) -> Update:
    """Slurm may start the job as it likes: now, or after so many seconds where its owner wants that."""
    return lease(job_id, seconds) if seconds > 0 else Update(job_id, {"StartTime": "now"})


def pin(job_id: str, gpus: Mapping[str, int], multifactor: bool) -> Update:
    """Start now, on exactly these nodes. NumNodes must equal the length of the list, or Slurm adds nodes."""
    fields = {"StartTime": "now", "NumNodes": f"{len(gpus)}-{len(gpus)}", "ReqNodeList": fold(gpus)}
    return Update(job_id, {**fields, **_priority(multifactor, PINNED_PRIORITY, PINNED_SITE_FACTOR)})


def unpin(job_id: str, before: Original, cluster_nodes: int, slurm: SlurmConfig) -> Update:
    """Put back what ``pin`` overwrote; the lease stays. Slurm has no word for "no upper bound": the cluster's size.

    Fewer tasks than nodes means that Slurm itself had raised the node count for the GPUs' sake, and it will again;
    written back as it was it would raise the tasks. The CPUs do not come back by themselves. Where tasks follow the
    nodes they do, and a task count once written would keep the job from ever having more nodes than tasks.
    """
    most = before.max_nodes or max(cluster_nodes, before.min_nodes)
    least = before.min_nodes if before.tasks >= before.min_nodes else 1
    fields = {"NumNodes": f"{least}-{most}", "ReqNodeList": before.required_nodes}
    if not slurm.tasks_follow_nodes:
        fields["NumTasks"] = str(before.tasks)
    if before.cpus:
        fields["NumCPUs"] = str(before.cpus)
    return Update(job_id, {**fields, **_priority(slurm.multifactor, before.priority, 0)})


def waits_no_more(error: str) -> bool:
    """Whether Slurm refused an update because the job has begun or ended (22.05 to 26.05)."""
    return "no longer pending" in error or "already finished" in error


def site_factor(job_id: str, factor: int) -> Update:
    """Mode order: the job's place among ours, on top of what multifactor gives it."""
    return Update(job_id, {"SiteFactor": str(factor)})


def _priority(multifactor: bool, priority: int, factor: int) -> dict[str, str]:
    if multifactor:
        return {"SiteFactor": str(factor)}
    return {"Priority": str(priority)} if priority else {}
