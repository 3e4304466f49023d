"""Why a job stands where it stands: one reason, the evidence, what would change it. From the published status alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.status.document import NEAREST, JobStatus, Status
from slurm_asrpt.status.left_to_slurm import LEFT_CHANGES
from slurm_asrpt.status.reason_texts import change_of, rule_of


@dataclass(frozen=True)
class Ahead:
    """Who goes first. gpu_s: their predicted work, GPU-seconds, without the ``unseen``, of which nothing is known.

    tasks: of the same arrays, which are not in line yet and follow before this job.
    """

    jobs: int
    gpus: int
    gpu_s: float
    unseen: int
    nearest: list[str]
    tasks: int = 0


@dataclass(frozen=True)
class Ending:
    """A running job whose GPUs will be free. remaining_s: seconds, None if unknown."""

    job_id: str
    gpus: int
    remaining_s: float | None


@dataclass(frozen=True)
class Explanation:
    """why: the one reason that decides; rule: by what it does; changes: what would have to change.

    own_gpu_s: the job's predicted work, GPU-seconds, None for an unseen one. free: GPUs by node that are not in use.
    ends: running jobs that will give back enough, the soonest first; empty where that would not help.
    """

    job_id: str
    state: str
    reason: str
    why: str
    rule: str
    changes: list[str]
    own_gpu_s: float | None
    ahead: Ahead | None
    free: dict[str, int] = field(default_factory=dict)
    ends: list[Ending] = field(default_factory=list)


def explain(found: Status, job: JobStatus) -> Explanation:
    """Explain a job of this status."""
    waits = job.rank is not None  # in line, and for nothing else than GPUs
    return Explanation(
        job_id=job.job_id,
        state=job.state,
        reason=job.reason,
        why=job.text or ("it runs" if job.state == Phase.RUNNING else ""),
        rule=rule_of(job.reason),
        changes=_changes(job),
        own_gpu_s=work(job),
        ahead=_ahead(found.jobs, job),
        free={node.name: node.gpus_free for node in found.nodes if node.gpus_free} if waits else {},
        ends=_ends(found, job) if waits else [],
    )


def work(job: JobStatus) -> float | None:
    """g_i ñ_i α̃_i^min, what the order goes by, GPU-seconds; None for an unseen group."""
    iterations = job.predicted_mean or job.predicted_iterations
    return job.gpus * iterations * job.alpha_min if iterations and job.alpha_min else None


def _changes(job: JobStatus) -> list[str]:
    """What would have to change; of a job left to Slurm first what its owner could do."""
    own = LEFT_CHANGES.get(str(job.facts.get("word", ""))) if job.reason == "left" else None
    try:
        usual = change_of(job.reason, job.facts)
    except (KeyError, ValueError, TypeError):  # facts of another release
        usual = ""
    usual = usual.replace("job=ID", f"job={job.job_id}")
    return [text for text in (own and f"for asrptd to schedule it: {own}", usual) if text]


def add_ahead(rows: Iterable[JobStatus]) -> None:
    """Note of each job in line what goes before it. rows: all, those in line by rank."""
    rows = list(rows)
    rests = {row.job_id: row for row in rows if row.reason == "array"}
    behind = {row.job_id.partition("_")[0]: row.job_id for row in rows if row.rank is not None} if rests else {}
    gpus, gpu_s, unseen, tasks = 0, 0.0, 0, 0
    for row in rows:
        if row.rank is None:
            continue
        row.ahead = {"gpus": gpus, "gpu_s": gpu_s, "unseen": unseen} | ({"tasks": tasks} if tasks else {})
        array = row.job_id.partition("_")[0]
        if array in rests and behind[array] == row.job_id:  # those of the rest are as long, and come after it
            tasks += int(rests[array].facts["more"])
        own = work(row)
        gpus, gpu_s, unseen = gpus + row.gpus, gpu_s + (own or 0.0), unseen + (own is None)


def _ahead(jobs: Sequence[JobStatus], job: JobStatus) -> Ahead | None:
    if job.rank is None or job.ahead is None:
        return None
    nearest = [first.job_id for first in jobs if first.rank is not None and first.rank < min(job.rank, NEAREST + 1)]
    ahead = job.ahead
    return Ahead(
        job.rank - 1,
        int(ahead["gpus"]),
        float(ahead["gpu_s"]),
        int(ahead["unseen"]),
        nearest,
        int(ahead.get("tasks", 0)),
    )


def _ends(found: Status, job: JobStatus) -> list[Ending]:
    """Running jobs in the order of their predicted ends, until there would be enough GPUs; none if there are now."""
    running = [j for j in found.jobs if j.state == Phase.RUNNING]
    running.sort(key=lambda j: (j.remaining_s is None, j.remaining_s or 0.0))
    chosen, have = list[Ending](), found.gpus_free
    for one in running:
        if have >= job.gpus:
            break
        chosen.append(Ending(one.job_id, one.gpus, one.remaining_s))
        have += one.gpus
    return chosen if have >= job.gpus else []
