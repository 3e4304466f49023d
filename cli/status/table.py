"""The table of jobs: its columns, which of them fit on a terminal, and the same jobs as JSON."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from operator import attrgetter

from slurm_asrpt_cli._app.tables import (
    GAP,
    Column,
    clip,
    clock_interval,
    print_parsable,
    print_table,
    safe,
    safe_cells,
    slurm_clock,
    terminal_width,
)

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.slurm.notation import fold_gpus
from slurm_asrpt.status.document import JobStatus, Status
from slurm_asrpt.status.explain import open_ends
from slurm_asrpt.status.reason_texts import REFUSES
from slurm_asrpt.text import UNKNOWN, slurm_time

REASON_WIDTH = 28
"""Cells that the last column should get on a terminal; other columns give way until it has them."""
LAST_TO_GO = {"STATE": 20, "NAME": 12, "START": 12}
"""These give way, too, if the last column would get fewer cells: first STATE, which nodes and reasons imply."""
BATCH = 500
"""Rows that --parsable formats at a time: formatting 10,000 at once takes twice as long, as their memory is new."""
STYLES: dict[str, str] = {
    Phase.RUNNING: "green",
    Phase.STARTING: "green",
    Phase.DELAYED: "yellow",
    Phase.LEFT: "dim",
}


@dataclass(frozen=True)
class Field:
    """A column of the table. cell: may hold text from a user, which ``columns`` escapes.

    long: shown only with --long or --parsable; short: shown only without.
    """

    title: str
    cell: Callable[[JobStatus], str]
    right: bool = False
    long: bool = False
    short: bool = False


def _iterations(job: JobStatus) -> str:
    """Predicted iterations, ``-`` for an unseen group; ``done/total`` once the job reports its progress."""
    if job.iterations_done is None:
        return str(job.predicted_iterations) if job.predicted_iterations > 0 else UNKNOWN
    return f"{job.iterations_done}/{job.iterations_total or UNKNOWN}"


def share(job: JobStatus) -> str:
    """Percentage of iterations done, rounded down, so that 100% means all."""
    if job.iterations_done is None or not job.iterations_total:
        return UNKNOWN
    return f"{min(100, 100 * job.iterations_done // job.iterations_total)}%"


def _where_or_why(job: JobStatus) -> str:
    """The nodes of a job that has some, else its reason; both for a job that is delayed for a better placement.

    Slurm's own word comes first: on a terminal of 80 columns, the rest is cut off.
    """
    if not job.nodes:
        return job.text.removeprefix(REFUSES)
    nodes = fold_gpus(job.nodes)
    return nodes if job.state in (Phase.RUNNING, Phase.STARTING) else f"{job.text or UNKNOWN} [{nodes}]"


def gpus_in_words(gpus: int | str, profile: str, unused: str) -> str:
    """unused: why asrptd ignores the profile, or ""."""
    named = f"profile {safe(profile)}" if profile else "no profile"
    return f"{gpus}; profile ignored: {safe(unused)}" if unused else f"{gpus}, {named}"


_LEARNED_FROM = {
    "exact": "runs of its group with the same size and arguments",
    "group": "runs of its group",
    "program": "runs of the same program (new group)",
    "user": "other runs of the same user (new program)",
    "cluster": "runs of all users (new user)",
}


def learned_from(level: str) -> str:
    """Which runs a prediction is based on. level: the lookup level that had an entry."""
    return f"learned from {_LEARNED_FROM.get(level, 'past runs')}"


def against_best(alpha: float, best: float) -> str:
    """The seconds per iteration in a placement, compared with those in the best one."""
    return "the best" if alpha <= 1.005 * best else f"{alpha / best:.2f} times those of the best ({best:.4g} s)"


def date(seconds: float | None) -> str:
    """Local time as Slurm writes it, YYYY-MM-DDTHH:MM:SS."""
    try:
        return UNKNOWN if seconds is None else datetime.fromtimestamp(seconds).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return UNKNOWN


def _start(job: JobStatus) -> str:
    """The start time, or the interval in which the job is expected to start."""
    if job.start_earliest is not None and job.state != Phase.ENDED:
        return clock_interval(job.start_earliest, job.start_latest, time.time())
    return UNKNOWN if job.start_time is None else slurm_clock(job.start_time, time.time())


def durations(low: float | None, high: float | None) -> str:
    """An interval of durations, in seconds, as Slurm writes them."""
    return UNKNOWN if low is None else f"{slurm_time(low)}-{slurm_time(high)}"


def attained(job: JobStatus) -> str:
    """Attained service in GPU-hours."""
    return UNKNOWN if job.attained_gpu_s is None else gpu_hours(job.attained_gpu_s)


def gpu_hours(gpu_s: float) -> str:
    """GPU-hours to three digits, without an exponent."""
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

# On a narrow terminal these columns shrink or go, in this order, until the reason has REASON_WIDTH.
SHRINKS = ("NAME", "USER")
GIVES_WAY = ("STATE", *SHRINKS, "RUN_TIME", "DONE", "TIME_LEFT", "USER")
NARROW_NAME = 12


def columns(fields: Iterable[Field], jobs: Sequence[JobStatus]) -> list[Column]:
    """The columns with a cell per job, escaped; states are colored."""
    styles = [STYLES.get(job.state, "") for job in jobs]
    made = []
    for field in fields:
        tinted = field.title in ("STATE", "NODES/REASON")
        cells = safe_cells([field.cell(job) for job in jobs])
        made.append(Column(field.title, cells, field.right, styles=styles if tinted else ()))
    return made


def fit(every: Sequence[Column], width: int) -> list[Column]:
    """Narrow or drop columns, the least important first, until the last one has room."""
    kept = list(every)
    empty = [c.title for c in kept if c.title in ("START", "DONE", "TIME_LEFT") and set(c.cells) <= {UNKNOWN}]
    for title in (*empty, *(title for title in GIVES_WAY if title not in empty)):
        place = next((number for number, column in enumerate(kept) if column.title == title), None)
        if place is None:
            continue
        if _before(kept) + min(REASON_WIDTH, kept[-1].width) <= width:
            break
        if title == "STATE":  # the first words differ: "delayed" stands for "delayed for placement"
            kept[place] = replace(kept[place], cells=[cell.partition(" ")[0] for cell in kept[place].cells])
        elif title in SHRINKS and not kept[place].cap:
            kept[place] = replace(kept[place], cap=NARROW_NAME)
        else:
            del kept[place]
    for title, least in LAST_TO_GO.items():
        if width - _before(kept) < min(least, kept[-1].width):
            kept = [column for column in kept if column.title != title]
    return kept


def _before(some: Sequence[Column]) -> int:
    """Cells to the left of the last column."""
    return sum(column.width + len(GAP) for column in some[:-1])


def open_note(jobs: Iterable[JobStatus], shown: Iterable[Column] | None = None) -> str:
    """Why intervals in the column START have no end; empty if all have one, or if that column is not ``shown``."""
    whys = open_ends(jobs) if shown is None or any(column.title == "START" for column in shown) else []
    return f"? in START: {', '.join(whys)}" if whys else ""


def start_note(jobs: Sequence[JobStatus], shown: Iterable[Column] | None = None) -> str:
    """What to know about the column START: why intervals have no end, or why no job has any start (the column may then
    be missing); empty if there is nothing to say."""
    if any(job.start_earliest is not None or job.start_time is not None for job in jobs):
        return open_note(jobs, shown)
    whys = Counter(job.start_unknown for job in jobs if job.start_unknown not in ("", job.text))
    return f"START: {safe(whys.most_common(1)[0][0])}" if whys else ""


def print_jobs(shown: Status, *, long: bool = False, parsable: bool = False, header: bool = True) -> None:
    """Print the jobs as a table: with --long all columns, with --parsable separated by ``|``."""
    if parsable:
        for first in range(0, len(shown.jobs) or 1, BATCH):
            print_parsable(columns(FIELDS, shown.jobs[first : first + BATCH]), header and not first)
        return
    made = columns(FIELDS if long else SHORT, shown.jobs)
    width = None if long else terminal_width()
    fitted = fit(made, width) if width else made
    print_table(fitted, header, width)
    if width and (note := start_note(shown.jobs, fitted)):
        print(clip(note, width))
    if not shown.jobs and sys.stdout.isatty():  # titles alone look as if something were missing
        print("no matching jobs", file=sys.stderr)
