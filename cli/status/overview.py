"""What asrpt-status shows by itself: one's own jobs, then the queue, on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from slurm_asrpt_cli._app.tables import Line, clip, safe, table_lines
from slurm_asrpt_cli.status.columns import SHORT, Field, columns, fit

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.status.document import JobStatus, Status
from slurm_asrpt.text import counted

OWN = tuple(field for field in SHORT if field.title != "USER")
LEAST_ROWS = 3


def overview(found: Status, user: str, width: int, height: int) -> list[Line]:
    """At most ``height`` lines of ``width`` cells, or a few more on a terminal too small for anything."""
    own = [job for job in found.jobs if job.user == user]
    queue = _queue(found.jobs)
    head = [*summary(found, width), ()]
    room = height - len(head) - 1
    below = min(len(queue), LEAST_ROWS) + 3
    mine = _block(f"Your jobs: {by_state(own)}", own, OWN, width, room - below) if own else [_none(user, width)]
    title = f"The queue: {_in_words((state, jobs, gpus) for state, (jobs, gpus) in found.counts.items())}"
    total = sum(jobs for jobs, _ in found.counts.values())
    return [*head, *mine, (), *_block(title, queue, SHORT, width, room - len(mine), total)]


def summary(found: Status, width: int) -> list[Line]:
    """What the cluster and asrptd are about, in two lines."""
    free = f"{found.gpus_free} of {counted(found.gpus_total, 'GPU')} free"
    idle = found.mode in ("shadow", "disabled")
    note = "  Nothing is written to Slurm: this is what asrptd would do." if idle else ""
    second = _with(found.leader, f"Mode {safe(found.mode)}, policy {safe(found.policy)}", width)
    lines: list[Line] = [((clip(f"{free}.{note}", width), "bold"),), ((clip(second, width), "dim"),)]
    return lines


def _with(leader: str, text: str, width: int) -> str:
    """``text`` and as much of the leader (host, pid, since when) as has room; the pid goes first, the host last."""
    host, _, rest = safe(leader).partition(" pid ")
    said = [safe(leader), f"{host} since {rest.rpartition(' since ')[2]}", host] if leader else []
    return next((whole for on in said if len(whole := f"{text}, asrptd on {on}") <= width), text)


_WORDS = {Phase.RUNNING: "running", Phase.STARTING: "running", Phase.LEFT: "left to Slurm"}


def by_state(jobs: Sequence[JobStatus]) -> str:
    """``3 running (8 GPUs), 12 waiting (40 GPUs), 1 left to Slurm (1 GPU)``."""
    return _in_words((job.state, 1, job.gpus) for job in jobs)


def _in_words(counts: Iterable[tuple[str, int, int]]) -> str:
    """counts: state, jobs, GPUs; a state may come again."""
    count, gpus = Counter[str](), Counter[str]()
    for state, jobs, some in counts:
        word = _WORDS.get(state, "waiting")  # type: ignore[call-overload]  # a phase is its text
        count[word] += jobs
        gpus[word] += some
    said = [word for word in ("running", "waiting", "left to Slurm") if count[word]]
    parts = [f"{count[word]} {word} ({counted(gpus[word], 'GPU')})" for word in said]
    return ", ".join(parts) or "no jobs"


def _queue(jobs: Sequence[JobStatus]) -> list[JobStatus]:
    """Who starts next comes first; those that run already last."""
    running = [job for job in jobs if job.state == Phase.RUNNING]
    return [job for job in jobs if job.state != Phase.RUNNING] + running


def _none(user: str, width: int) -> Line:
    return ((clip(f"No jobs of yours ({safe(user)}) in the partitions of asrptd.", width), ""),)


def _block(
    title: str, jobs: Sequence[JobStatus], fields: Sequence[Field], width: int, room: int, total: int = 0
) -> list[Line]:
    """A title and a table of at most ``room`` lines together; what it has no room for is counted.

    total: how many there are, if more than ``jobs``.
    """
    rows, total = max(room - 2, LEAST_ROWS), max(total, len(jobs))
    if total > rows:
        rows -= 1
    lines: list[Line] = [((clip(title, width), "bold"),)]
    if jobs:
        lines += table_lines(fit(columns(fields, jobs[:rows]), width), True, width)
    if total > rows:
        lines.append(((clip(f"  and {total - rows} more: asrpt-status --all", width), "dim"),))
    return lines
