"""The overview, which asrpt-status shows without options: the user's jobs, then the queue, on one screen."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path

from slurm_asrpt_cli._app.tables import Line, clip, print_lines, safe, table_lines
from slurm_asrpt_cli._app.users import own_name
from slurm_asrpt_cli.status.status_file import screenful, warn_if_stale
from slurm_asrpt_cli.status.table import SHORT, Field, columns, date, fit, start_note

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.status.document import JobStatus, Status, counted_gpus
from slurm_asrpt.text import counted

OWN = tuple(field for field in SHORT if field.title != "USER")
LEAST_ROWS = 3


def show_overview(folder: Path) -> None:
    """Print the overview for the user who runs the command. Raises AsrptError."""
    width, height = shutil.get_terminal_size()
    now, user = time.time(), own_name()
    found = screenful(folder, now, user, height)
    warn_if_stale(found, now)
    print_lines(overview(found, user, width, height - 1))  # the last line is for the shell prompt


def overview(found: Status, user: str, width: int, height: int) -> list[Line]:
    """At most ``height`` lines of ``width`` cells; a few more on a terminal too small for a table."""
    own = [job for job in found.jobs if job.user == user]
    queue = _queue(found.jobs)
    total = sum(jobs for jobs, _ in found.counts.values())
    head = [*summary(found, width), ()]
    room = height - len(head) - 1 - any(start_note([job]) for job in found.jobs)
    below = min(len(queue), LEAST_ROWS) + 3
    mine = (
        _block(f"Your jobs: {by_state(own, width - len('Your jobs: '))}", own, OWN, width, room - below)
        if own
        else [_none(user, width)]
    )
    shown = [*_shown(own, room - below)[0], *_shown(queue, room - len(mine), total)[0]]
    note = start_note(shown)
    counts = ((state, jobs, gpus) for state, (jobs, gpus) in found.counts.items())
    title = f"Queue: {_in_words(counts, width - len('Queue: '))}"
    lines = [*head, *mine, (), *_block(title, queue, SHORT, width, room - len(mine), total)]
    has_start = any("START" in text for line in lines for text, _ in line)  # not on a narrow terminal
    if note and (has_start or note.startswith("START")):
        lines.append(((clip(note, width), "dim"),))
    return lines


_PASSIVE = " Nothing is written to Slurm; this is what asrptd would do."
_NOTES = {
    "shadow": _PASSIVE,
    "disabled": _PASSIVE,
    "unsaved": " asrptd cannot save its state: Slurm schedules until it can.",
}
"""By mode."""


def summary(found: Status, width: int) -> list[Line]:
    """The free GPUs, and the mode, policy and leader of asrptd, in two lines."""
    free = free_gpus(found)
    note = _NOTES.get(found.mode, "")
    second = _with(found.leader, f"Mode {safe(found.mode)}, policy {safe(found.policy)}", width)
    lines: list[Line] = [((clip(f"{free}.{note}", width), "bold"),), ((clip(second, width), "dim"),)]
    return lines


def free_gpus(found: Status) -> str:
    """The free GPUs in words, and how many are on nodes where Slurm starts no jobs now."""
    away = sum(node.gpus for node in found.nodes if not node.usable)
    free = f"{found.gpus_free} of {counted(found.gpus_total, 'GPU')} free"
    return f"{free}, {away} more reserved, draining or down" if away > 0 else free


def _with(leader: str, text: str, width: int) -> str:
    """``text`` and as much of the leader (host, PID, start time) as fits; the PID is dropped first, the host last."""
    process, _, since = safe(leader).rpartition(" since ")
    host, began = process.partition(" pid ")[0], _in_local_time(since)
    said = [f"{process} since {began}", f"{host} since {began}", host] if leader else []
    return next((whole for on in said if len(whole := f"{text}, asrptd on {on}") <= width), text)


def _in_local_time(text: str) -> str:
    """A time with its offset from UTC, as Slurm writes local times; another text (of an earlier release) as it is."""
    try:
        return date(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return text


_WORDS = {Phase.RUNNING: "running", Phase.STARTING: "starting", Phase.LEFT: "left to Slurm"}


def by_state(jobs: Sequence[JobStatus], width: int = 0) -> str:
    """``3 running (8 GPUs), 1 starting (1 GPU), 12 waiting (40 GPUs), 1 left to Slurm (1 GPU)``; width: its most."""
    return _in_words(((job.state, 1, counted_gpus(job)) for job in jobs), width)


def _in_words(counts: Iterable[tuple[str, int, int]], width: int = 0) -> str:
    """counts: state, jobs, GPUs; a state may occur more than once. width: only jobs are told if GPUs do not fit."""
    count, gpus = Counter[str](), Counter[str]()
    for state, jobs, some in counts:
        word = _WORDS.get(state, "waiting")  # type: ignore[call-overload]  # a phase is its text
        count[word] += jobs
        gpus[word] += some
    said = [word for word in ("running", "starting", "waiting", "left to Slurm") if count[word]]
    full = ", ".join(f"{count[word]} {word} ({counted(gpus[word], 'GPU')})" for word in said)
    short = ", ".join(f"{count[word]} {word}" for word in said)
    return (short if width and len(full) > width else full) or "no jobs"


def _queue(jobs: Sequence[JobStatus]) -> list[JobStatus]:
    """The job that starts next comes first, running jobs come last."""
    running = [job for job in jobs if job.state == Phase.RUNNING]
    return [job for job in jobs if job.state != Phase.RUNNING] + running


def _none(user: str, width: int) -> Line:
    return ((clip(f"You ({safe(user)}) have no jobs in the partitions that asrptd manages.", width), ""),)


def _block(
    title: str, jobs: Sequence[JobStatus], fields: Sequence[Field], width: int, room: int, total: int = 0
) -> list[Line]:
    """A title and a table, at most ``room`` lines together; a last line counts the jobs that do not fit.

    total: the number of jobs, if more than ``jobs`` has.
    """
    shown, more = _shown(jobs, room, total)
    lines: list[Line] = [((clip(title, width), "bold"),)]
    if jobs:
        lines += table_lines(fit(columns(fields, shown), width), True, width)
    if more:
        lines.append(((clip(f"  and {more} more: asrpt-status --all", width), "dim"),))
    return lines


def _shown(jobs: Sequence[JobStatus], room: int, total: int = 0) -> tuple[Sequence[JobStatus], int]:
    """The jobs of such a block, and how many do not fit."""
    rows, total = max(room - 2, LEAST_ROWS), max(total, len(jobs))
    if total > rows:
        rows -= 1
    return jobs[:rows], max(0, total - rows)
