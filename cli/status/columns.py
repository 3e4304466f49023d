"""The columns of asrpt-status: what is in their cells, and which of them a terminal has room for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter

from slurm_asrpt_cli._app.tables import GAP, Column, clock_interval, safe, safe_cells, slurm_clock

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.slurm.notation import fold_gpus
from slurm_asrpt.status.document import JobStatus
from slurm_asrpt.text import UNKNOWN, slurm_time

REASON_WIDTH = 28
"""What the last column needs on a terminal before other columns make room for it."""
LEAST_REASON = 12
"""With less than this a reason says nothing: rather no name."""
STYLES: dict[str, str] = {
    Phase.RUNNING: "green",
    Phase.STARTING: "green",
    Phase.DELAYED: "yellow",
    Phase.LEFT: "dim",
}


@dataclass(frozen=True)
class Field:
    """A column of the table. cell: may hold a user's text, ``columns`` makes it safe.

    long: only with --long or --parsable; short: only without.
    """

    title: str
    cell: Callable[[JobStatus], str]
    right: bool = False
    long: bool = False
    short: bool = False


def _iterations(job: JobStatus) -> str:
    """Predicted iterations, ``-`` where the group is unseen; ``done/total`` once the job reports."""
    if job.iterations_done is None:
        return str(job.predicted_iterations) if job.predicted_iterations > 0 else UNKNOWN
    return f"{job.iterations_done}/{job.iterations_total or UNKNOWN}"


def share(job: JobStatus) -> str:
    """Share of the iterations that is done, in whole percent; never 100% before the end."""
    if job.iterations_done is None or not job.iterations_total:
        return UNKNOWN
    return f"{min(100, 100 * job.iterations_done // job.iterations_total)}%"


def _where_or_why(job: JobStatus) -> str:
    """Nodes of a job that has some, else the reason; both for one that is delayed for a better placement."""
    if not job.nodes:
        return job.text
    nodes = fold_gpus(job.nodes)
    return nodes if job.state in (Phase.RUNNING, Phase.STARTING) else f"{job.text or UNKNOWN} [{nodes}]"


def gpus_in_words(gpus: int, profile: str, unused: str) -> str:
    """unused: why the profile does not count, "" where it does."""
    named = f"profile {safe(profile)}" if profile else "no profile"
    return f"{gpus}; not used: {safe(unused)}" if unused else f"{gpus}, {named}"


_LEARNED_FROM = {
    "exact": "runs of its group with the same size and arguments",
    "group": "runs of its group",
    "program": "runs of the same program (its group is new)",
    "user": "its user's other jobs (its program is new)",
    "cluster": "everybody's jobs (its user has none yet)",
}


def learned_from(level: str) -> str:
    """Whose runs a prediction rests on, by the level that answered."""
    return f"learned from {_LEARNED_FROM.get(level, 'past runs')}"


def date(seconds: float | None) -> str:
    """Local time as Slurm writes it, YYYY-MM-DDTHH:MM:SS."""
    try:
        return UNKNOWN if seconds is None else datetime.fromtimestamp(seconds).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


def _start(job: JobStatus) -> str:
    """When a job has started, or is expected to."""
    if job.start_earliest is not None:
        return clock_interval(job.start_earliest, job.start_latest, time.time())
    return UNKNOWN if job.start_time is None else slurm_clock(job.start_time, time.time())


def durations(low: float | None, high: float | None) -> str:
    return UNKNOWN if low is None else f"{slurm_time(low)}-{slurm_time(high)}"


def attained(job: JobStatus) -> str:
    """GPU-hours that it has had."""
    return UNKNOWN if job.attained_gpu_s is None else gpu_hours(job.attained_gpu_s)


def gpu_hours(gpu_s: float) -> str:
    """Three digits, or all before the point: never 2.4e+04."""
    hours = gpu_s / 3600
    return f"{hours:.0f}" if hours >= 999.5 else f"{hours:.3g}"


COLUMNS = (
    Field("RANK", lambda job: UNKNOWN if job.rank is None else str(job.rank), right=True),
    Field("JOBID", attrgetter("job_id"), right=True),
    Field("NAME", attrgetter("name")),
    Field("USER", attrgetter("user")),
    Field("PARTITION", attrgetter("partition"), long=True),
    Field("GPUS", lambda job: str(job.gpus), right=True),
    Field("GROUP", attrgetter("group"), long=True),
    Field("PROFILE", attrgetter("profile"), long=True),
    Field("ITERATIONS", _iterations, right=True, long=True),
    Field("DONE", share, right=True),
    Field("RUN_TIME", lambda job: slurm_time(job.predicted_run_s), right=True),
    Field("TIME_LEFT", lambda job: slurm_time(job.remaining_s), right=True),
    Field("RUN_10-90", lambda job: durations(job.predicted_run_low_s, job.predicted_run_high_s), long=True),
    Field("LEFT_10-90", lambda job: durations(job.remaining_low_s, job.remaining_high_s), long=True),
    Field("START", _start, short=True),
    Field("SUBMITTED", lambda job: date(job.submit_time), long=True),
    Field("STARTED", lambda job: date(job.start_time), long=True),
    Field("START_EARLIEST", lambda job: date(job.start_earliest), long=True),
    Field("START_LATEST", lambda job: date(job.start_latest), long=True),
    Field("ALPHA", lambda job: UNKNOWN if job.alpha is None else f"{job.alpha:.4g}", right=True, long=True),
    Field("QUEUE", lambda job: UNKNOWN if job.queue is None else str(job.queue), right=True, long=True),
    Field("ATTAINED", attained, right=True, long=True),
    Field("STATE", attrgetter("state")),
    Field("REASON", attrgetter("reason"), long=True),
    Field("NODES", lambda job: fold_gpus(job.nodes), long=True),
    Field("TEXT", attrgetter("text"), long=True),
)
FIELDS = tuple(field for field in COLUMNS if not field.short)
SHORT = (*(field for field in COLUMNS if not field.long), Field("NODES/REASON", _where_or_why))

# On a narrow terminal these make room, in this order, until the reason has REASON_WIDTH.
GIVES_WAY = ("STATE", "NAME", "RUN_TIME", "DONE", "TIME_LEFT", "USER")
NARROW_NAME = 12


def columns(fields: Iterable[Field], jobs: Sequence[JobStatus]) -> list[Column]:
    styles = [STYLES.get(job.state, "") for job in jobs]
    made = []
    for field in fields:
        tinted = field.title in ("STATE", "NODES/REASON")
        cells = safe_cells([field.cell(job) for job in jobs])
        made.append(Column(field.title, cells, field.right, styles=styles if tinted else ()))
    return made


def fit(every: Sequence[Column], width: int) -> list[Column]:
    """Narrow or drop columns, least needed first, until the last one has room."""
    kept = list(every)
    empty = [c.title for c in kept if c.title in ("START", "DONE", "TIME_LEFT") and set(c.cells) <= {UNKNOWN}]
    for title in (*empty, *(title for title in GIVES_WAY if title not in empty)):
        place = next((number for number, column in enumerate(kept) if column.title == title), None)
        if place is None:
            continue
        if _before(kept) + min(REASON_WIDTH, kept[-1].width) <= width:
            break
        if title == "STATE":  # "delayed" for "delayed for placement": the first words differ
            kept[place] = replace(kept[place], cells=[cell.partition(" ")[0] for cell in kept[place].cells])
        elif title == "NAME":
            kept[place] = replace(kept[place], cap=NARROW_NAME)
        else:
            del kept[place]
    for title in ("START", "NAME"):
        if width - _before(kept) < min(LEAST_REASON, kept[-1].width):
            kept = [column for column in kept if column.title != title]
    return kept


def _before(some: Sequence[Column]) -> int:
    """Where the last column begins."""
    return sum(column.width + len(GAP) for column in some[:-1])
