"""Explains a job's state from the published status: the reason, the evidence, and what would change it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.status.document import NEAREST, JobStatus, Status
from slurm_asrpt.status.reason_texts import LEFT_CHANGES, change_of, rule_of, why_open


@dataclass(frozen=True)
class Ahead:
    """The jobs ahead. gpu_s: their predicted work in GPU-seconds, without the ``unseen`` ones, which have none.

    tasks: tasks of their arrays that are not in the queue yet and will run before this job. higher: jobs of a higher
    priority.
    """

    jobs: int
    gpus: int
    gpu_s: float
    unseen: int
    nearest: list[str]
    tasks: int = 0
    higher: int = 0


@dataclass(frozen=True)
class Ending:
    """A running job whose GPUs will become free.

    remaining_s: predicted, in seconds; None if unknown. limit_end: when its time limit ends it, in seconds since the
    epoch; None if it has none.
    """

    job_id: str
    gpus: int
    remaining_s: float | None
    limit_end: float | None = None


@dataclass(frozen=True)
class Explanation:
    """why: the deciding reason; rule: the rule behind it; changes: what would have to change.

    own_gpu_s: the job's predicted work in GPU-seconds, None for unseen groups. free: free GPUs per node. ends: the
    running jobs whose ends will free enough GPUs, soonest first; empty if their ends would not help.
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
    waits = job.rank is not None  # in the queue: it waits for GPUs only
    return Explanation(
        job_id=job.job_id,
        state=job.state,
        reason=job.reason,
        why=job.text or ("it runs" if job.state == Phase.RUNNING else ""),
        rule=rule_of(job.reason, job.facts),
        changes=_changes(job),
        own_gpu_s=work(job),
        ahead=_ahead(found.jobs, job),
        free={node.name: node.gpus_free for node in found.nodes if node.gpus_free} if waits else {},
        ends=_ends(found, job) if waits and job.reason not in ("over-limit", "limit") else [],
    )


def open_ends(jobs: Iterable[JobStatus]) -> list[str]:
    """Why expected starts of these jobs have no upper end, in a few words each."""
    waiting = (job for job in jobs if job.state != Phase.ENDED)
    found = (job for job in waiting if job.start_earliest is not None and job.start_latest is None)
    return list(dict.fromkeys(why_open(job.start_open) for job in found))


def work(job: JobStatus) -> float | None:
    """Predicted work g_i ñ_i α̃_i^min in GPU-seconds, which the queue is ordered by; None for an unseen group."""
    iterations = job.predicted_mean or job.predicted_iterations
    return job.gpus * iterations * job.alpha_min if iterations and job.alpha_min else None


def _changes(job: JobStatus) -> list[str]:
    """What would have to change; for a job left to Slurm, first what its owner can do."""
    own = LEFT_CHANGES.get(str(job.facts.get("word", ""))) if job.reason == "left" else None
    try:
        general = change_of(job.reason, job.facts)
    except (KeyError, ValueError, TypeError):  # facts of another release
        general = ""
    general = re.sub(r"\bID\b", job.job_id, general)
    return [text for text in (own and f"for asrptd to schedule it: {own}", general) if text]


def add_ahead(rows: Iterable[JobStatus], higher: Mapping[str, int] = MappingProxyType({})) -> None:
    """Set ``ahead`` of each job in the queue. rows: all jobs, those in the queue ordered by rank.

    higher: how many of the jobs ahead have a higher priority, where there are any.
    """
    rows = list(rows)
    rests = {row.job_id: row for row in rows if row.reason == "array"}
    behind = {row.job_id.partition("_")[0]: row.job_id for row in rows if row.rank is not None} if rests else {}
    gpus, gpu_s, unseen, tasks = 0, 0.0, 0, 0
    for row in rows:
        if row.rank is None:
            continue
        more = {"tasks": tasks, "higher": higher.get(row.job_id, 0)}
        row.ahead = {"gpus": gpus, "gpu_s": gpu_s, "unseen": unseen} | {
            name: count for name, count in more.items() if count
        }
        array = row.job_id.partition("_")[0]
        if (
            array in rests and behind[array] == row.job_id
        ):  # the array's remaining tasks are as long, and follow this one
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
        int(ahead.get("higher", 0)),
    )


def _ends(found: Status, job: JobStatus) -> list[Ending]:
    """Running jobs by predicted end, until enough GPUs would be free; none if enough are free now.

    Those without a prediction follow, by time limit.

    None for a job for which GPUs are not all alike: counting them would promise too much.
    """
    if job.layout:
        return []
    running = [j for j in found.jobs if j.state == Phase.RUNNING]
    running.sort(key=_end)
    chosen, have = list[Ending](), found.gpus_free
    for one in running:
        if have >= job.gpus:
            break
        chosen.append(Ending(one.job_id, one.gpus, one.remaining_s, one.limit_end))
        have += one.gpus
    return chosen if have >= job.gpus else []


def _end(running: JobStatus) -> tuple[bool, float]:
    if running.remaining_s is not None:
        return False, running.remaining_s
    return True, running.limit_end or math.inf
