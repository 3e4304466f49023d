"""Runs from elsewhere into the history: sacct's, and those of the simulator's traces.

Rows are taken in batches, each wholly or not at all, so that an interrupted import keeps what it has done, and one
that is run again adds nothing. What asrptd has recorded itself is never overwritten.

Without a profile iterations are seconds, as for asrptd's own runs (decision 2). A job with a profile teaches nothing
here: how long its iterations took depends on its placement, which sacct does not tell by GPU.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from slurm_asrpt.errors import InputError
from slurm_asrpt.history.csv_json import Row, Skipped, fallback_group, foreign_uid, named_group, uid_of
from slurm_asrpt.history.maintenance import DAY_S
from slurm_asrpt.history.store import COMPLETED, History, Key, Origin, Run, Source, row_of, with_tag
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.traces import Trace, accounting, read_trace
from slurm_asrpt.traces.parsing import instants
from slurm_asrpt.traces.sacct import (
    COMPONENT,
    NEVER_STARTED,
    NO_END,
    NOT_ENDED,
    SACCT_FIELDS,
    STEP,
    allocations,
    columns_of,
    read_raw,
)
from slurm_asrpt.traces.trace import numbers

BATCH = 5000
WINDOW_S = 7 * DAY_S
"""What sacct is asked for at a time: its answer is held in memory."""
OVERLAP_S = DAY_S
"""How far a later import looks back behind the last one: slurmdbd may hear of an end late."""
FIRST_S = 365 * DAY_S
FIELDS = ("JobID", "UID", "ExitCode", *SACCT_FIELDS[1:])
"""What to ask sacct for; JobName stays last."""
TOO_OLD = "older than predict.keep_days"
FUTURE = "ends in the future"
TOLERATED_S = 300
"""By so much a clock of the cluster may be ahead of ours."""


@dataclass
class Counts:
    """What became of the rows. there: nothing new in them. skipped: by reason."""

    read: int = 0
    added: int = 0
    updated: int = 0
    there: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def include(self, other: Counts) -> None:
        """Add those of another."""
        self.read += other.read
        self.added += other.added
        self.updated += other.updated
        self.there += other.there
        self.skipped += other.skipped


class Importer:
    """Takes rows into a history and counts. oldest: runs that ended before it are skipped (``oldest_kept``).

    now: so are those that end after it, which would stay the latest for long; None: none are.
    history: None for one that is not there yet. write: False only counts.
    """

    def __init__(self, history: History | None, oldest: int = 0, write: bool = True, now: float | None = None) -> None:
        self.history, self.oldest, self.write = history, oldest, write
        self.latest = now + TOLERATED_S if now is not None else math.inf
        self.counts = Counts()
        self._unwritten: dict[Key, Run] = {}

    def add_batch(self, rows: Sequence[Row]) -> None:
        """One batch. Raises HistoryError."""
        counts = Counts(read=len(rows))
        runs = [run for row in rows if (run := self._wanted(row, counts))]
        before = self._before({run.key for run in runs})
        fresh: dict[Key, Run] = {}
        for run in runs:
            known = fresh.get(run.key) or before.get(run.key)
            if _is_new(run, known, counts):
                fresh[run.key] = run
        if self.write and self.history:
            self.history.add(fresh.values())
        else:
            self._unwritten |= fresh
        self.counts.include(counts)  # not before: of a batch that is interrupted nothing is kept

    def _before(self, keys: set[Key]) -> dict[Key, Run]:
        stored = self.history.find(keys) if self.history else {}
        return stored | {key: self._unwritten[key] for key in keys & self._unwritten.keys()}

    def _wanted(self, row: Row, counts: Counts) -> Run | None:
        why = row.reason if isinstance(row, Skipped) else self._untimely(row)
        if why:
            counts.skipped[why] += 1
        return None if why or isinstance(row, Skipped) else row

    def _untimely(self, run: Run) -> str:
        if run.end_time > self.latest:
            return FUTURE
        return TOO_OLD if run.end_time < self.oldest else ""


def _is_new(run: Run, known: Run | None, counts: Counts) -> bool:
    """Whether there is anything in a run to write."""
    if known is None:
        counts.added += 1
    elif known.origin is Origin.ASRPTD or row_of(known) == row_of(run):
        counts.there += 1
        return False
    else:
        counts.updated += 1
    return True


def import_rows(rows: Iterable[Row], into: Importer, progress: Callable[[int], None] = lambda read: None) -> None:
    """Take rows in batches; ``progress`` hears after each how many were read."""
    remaining = iter(rows)
    while batch := list(islice(remaining, BATCH)):
        into.add_batch(batch)
        progress(into.counts.read)


def import_sacct(
    into: Importer,
    partitions: str,
    since: int | None,
    now: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    """Ask sacct window by window; a mark in the history says up to when that is done. Raises SlurmError, HistoryError.

    partitions: separated by commas. since: where to begin, else a little before the mark, a year ago without one.
    progress: hears how many windows of how many are done.
    """
    mark = f"sacct {partitions}"
    reached = into.history.mark(mark) if into.history else 0
    begin = since if since is not None else (reached - OVERLAP_S if reached else now - FIRST_S)
    starts = range(begin, max(now, begin + 1), WINDOW_S)
    for number, start in enumerate(starts):
        progress(number, len(starts))
        end = min(start + WINDOW_S, now)
        separator = f"|{secrets.token_hex(4)}|"
        text = accounting.ask_sacct(FIELDS, _local(start), partitions, separator, _local(end), every_run=True)
        import_rows(sacct_rows(text.rstrip("\n").split("\n"), separator), into)
        if into.write and into.history:
            into.history.set_mark(mark, end)
    progress(len(starts), len(starts))


def _local(instant: int) -> str:
    """As sacct takes times: local ones, without a zone."""
    return datetime.fromtimestamp(instant).strftime("%Y-%m-%dT%H:%M:%S")


def sacct_file_rows(path: Path) -> Iterator[Row]:
    """The runs in a file of what sacct printed. Raises InputError."""
    text = accounting.read_text(path)
    try:
        yield from sacct_rows(text.rstrip("\n").split("\n"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def trace_file_rows(path: Path, fmt: str, processors_as_gpus: bool, begin: int) -> Iterator[Row]:
    """The runs in a trace that the simulator reads; as ``trace_rows``. Raises InputError."""
    yield from trace_rows(read_trace(path, fmt, processors_as_gpus=processors_as_gpus), begin)


def sacct_rows(text: Iterable[str], separator: str = "|") -> Iterator[Row]:
    """The runs in what sacct printed, titles first. Raises InputError for missing columns."""
    rows = read_raw(text, separator)
    for reason, count in rows.faults.items():
        yield from [Skipped(reason)] * count
    raw, steps, strange = allocations(rows.frame)
    yield from [Skipped(STEP)] * steps + [Skipped("no job id")] * strange
    extra = pd.DataFrame(
        {
            "tag": raw["admincomment"],
            "name": raw["jobname"],
            "uid": numbers(raw["uid"]),
            "exit": raw["exitcode"],
            "end": instants(raw["end"])[0],
        }
    )
    for row in pd.concat([columns_of(raw), extra], axis=1).itertuples(index=False):
        yield _of_sacct(row)


def _of_sacct(row: Any) -> Row:
    """A run of the columns of ``columns_of`` and those of ``sacct_rows``."""
    why = _unusable(row)
    if why:
        return Skipped(why)
    tag = parse_tag(row.tag)
    start = round(row.submit_s + row.wait_s)
    uid = int(row.uid) if np.isfinite(row.uid) else uid_of(row.user)
    run = Run(
        job_id=row.job_id,
        start_time=start,
        submit_time=round(row.submit_s),
        end_time=round(row.end) if row.end >= start else start + round(row.duration_s),
        state=row.status,
        exit_code=_exit_code(row.exit),
        user=row.user,
        uid=uid,
        group_id=fallback_group(uid, row.name, int(row.gpus)),
        job_name=row.name,
        partition=row.queue,
        gpus=int(row.gpus),
        iterations=max(1, round(row.duration_s)),
        iterations_source=Source.ELAPSED,
        origin=Origin.SACCT,
    )
    if tag is None:
        return run
    if tag.profile:  # seconds are no iterations of a job with a profile
        run = replace(run, iterations=0, iterations_source=Source.NONE)
    return with_tag(run, tag)


def _unusable(row: Any) -> str:
    """Why a row of sacct is no run that we could learn from; empty if it is one."""
    if "+" in row.job_id:
        return COMPONENT
    if not row.begun:
        return NEVER_STARTED
    if row.unended:
        return NOT_ENDED
    if not np.isfinite([row.submit_s, row.wait_s, row.duration_s]).all():
        return "no start or end"
    return "no GPUs" if not row.gpus > 0 else ""


def _exit_code(text: str) -> int:
    """Of ``CODE:SIGNAL``."""
    code = text.partition(":")[0]
    return int(code) if code.isascii() and code.isdigit() and len(code) < 10 else 0


_STATES = {
    **dict.fromkeys(("", "pass", "success", "succeeded", "terminated", "completed"), COMPLETED),
    **dict.fromkeys(("killed", "cancelled", "canceled"), "CANCELLED"),
    **dict.fromkeys(("failed", "fail"), "FAILED"),
}


def trace_rows(trace: Trace, begin: int = 0) -> Iterator[Row]:
    """The jobs of a trace. begin: when its first job was submitted, seconds since the epoch.

    Job ids get the trace's name in front, users a number of their own (``foreign_uid``); a status that a trace does not
    tell counts as completed.
    """
    for reason, count in (*trace.left_out.items(), *trace.merged.items()):
        yield from [Skipped(reason)] * count
    for row in trace.jobs.itertuples(index=False):
        yield _of_trace(row, trace.name, begin)


def _of_trace(row: Any, name: str, begin: int) -> Row:
    state = _STATES.get(row.status.casefold(), row.status.upper())
    if state in NO_END:
        return Skipped(NOT_ENDED)
    uid, gpus = foreign_uid(row.user), int(row.gpus)
    start = begin + row.submit_s + (row.wait_s if np.isfinite(row.wait_s) else 0.0)
    return Run(
        job_id=f"{name}:{row.job_id}",
        start_time=int(start),
        submit_time=int(begin + row.submit_s),
        end_time=int(start + row.duration_s),
        state=state,
        user=row.user,
        uid=uid,
        group_id=named_group(row.group) or fallback_group(uid, "", gpus),
        partition=row.queue,
        gpus=gpus,
        iterations=max(1, round(row.duration_s)),
        iterations_source=Source.ELAPSED,
        origin=Origin.TRACE,
    )
