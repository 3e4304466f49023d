"""Import of runs into the history: from sacct, and from traces that the simulator reads.

Rows are imported in batches, each completely or not at all. An interrupted import keeps the batches so far, and it is
safe to run an import repeatedly. Runs that asrptd recorded itself are never overwritten.

Without a profile, iterations are seconds, as for asrptd's own runs (decision 2). A job with a profile teaches nothing
here: the duration of its iterations depends on its placement, and sacct does not report placement by GPU.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from slurm_asrpt.config.settings import SlurmSettings
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
from slurm_asrpt.traces.trace import instant, numbers

BATCH = 5000
WINDOW_S = 7 * DAY_S
"""Time span of one sacct query: its answer is held in memory."""
OVERLAP_S = DAY_S
"""How far a later import looks back behind the last one: slurmdbd may learn of an end late."""
FIRST_S = 365 * DAY_S
FIELDS = ("JobID", "UID", "ExitCode", *SACCT_FIELDS[1:])
"""Fields to query from sacct; JobName stays last."""
TOO_OLD = "older than predict.keep_days"
FUTURE = "ends in the future"
TOLERATED_S = 300
"""How far the cluster's clocks may be ahead of this machine's."""


@dataclass
class Counts:
    """Number of rows by outcome. there: nothing new in them. skipped: by reason. The field names are keys of
    ``--json``."""

    read: int = 0
    added: int = 0
    updated: int = 0
    there: int = 0
    skipped: Counter[str] = field(default_factory=Counter)

    def include(self, other: Counts) -> None:
        """Add the counts of another batch."""
        self.read += other.read
        self.added += other.added
        self.updated += other.updated
        self.there += other.there
        self.skipped += other.skipped


class Importer:
    """Imports rows into a history and counts them. oldest: runs that ended earlier are skipped (``oldest_kept``).

    history: None if it does not exist yet. write: False only counts.
    now: runs that end after it are skipped, since they would stay the latest for long; None: none are.
    """

    def __init__(self, history: History | None, oldest: int = 0, write: bool = True, now: float | None = None) -> None:
        self.history, self.oldest, self.write = history, oldest, write
        self.latest = now + TOLERATED_S if now is not None else math.inf
        self.counts = Counts()
        self._unwritten: dict[Key, Run] = {}

    def add_batch(self, rows: Sequence[Row]) -> None:
        """Import one batch. Raises HistoryError."""
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
        self.counts.include(counts)  # only now: an interrupted batch leaves nothing behind

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
    """Whether the run has something new to write; counts it."""
    if known is None:
        counts.added += 1
    elif known.origin is Origin.ASRPTD or row_of(known) == row_of(run):
        counts.there += 1
        return False
    else:
        counts.updated += 1
    return True


def import_rows(rows: Iterable[Row], into: Importer, progress: Callable[[int], None] = lambda read: None) -> None:
    """Import rows in batches; ``progress`` is called after each with the number of rows read."""
    remaining = iter(rows)
    while batch := list(islice(remaining, BATCH)):
        into.add_batch(batch)
        progress(into.counts.read)


def import_sacct(
    into: Importer,
    slurm: SlurmSettings,
    partitions: str,
    since: int | None,
    now: int,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> None:
    """Query sacct window by window; a mark in the history records how far the import got. Raises SlurmError,
    HistoryError.

    partitions: separated by commas. since: where to begin; default: a little before the mark, or a year ago without
    one.
    progress: called with the number of windows done and the total.
    """
    mark = f"sacct {partitions}"
    reached = into.history.mark(mark) if into.history else 0
    begin = since if since is not None else (reached - OVERLAP_S if reached else now - FIRST_S)
    starts = range(begin, max(now, begin + 1), WINDOW_S)
    for number, start in enumerate(starts):
        progress(number, len(starts))
        end = min(start + WINDOW_S, now)
        separator = f"|{secrets.token_hex(4)}|"
        first, last = accounting.as_argument(start), accounting.as_argument(end)
        text = accounting.ask_sacct(slurm, FIELDS, first, partitions, separator, last, every_run=True)
        import_rows(sacct_rows(text.rstrip("\n").split("\n"), separator), into)
        if into.write and into.history:
            into.history.set_mark(mark, end)
    progress(len(starts), len(starts))


def sacct_file_rows(path: Path) -> Iterator[Row]:
    """The runs in a file of sacct output. Raises InputError."""
    text = accounting.read_text(path)
    try:
        yield from sacct_rows(text.rstrip("\n").split("\n"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def trace_file_rows(path: Path, fmt: str, processors_as_gpus: bool, begin: int) -> Iterator[Row]:
    """The runs in a trace that the simulator reads; as ``trace_rows``. Raises InputError."""
    yield from trace_rows(read_trace(path, fmt, processors_as_gpus=processors_as_gpus), begin)


def sacct_rows(text: Iterable[str], separator: str = "|") -> Iterator[Row]:
    """The runs in sacct output, header line first. Raises InputError for missing columns."""
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
    frame = columns_of(raw)
    for row in pd.concat([frame, extra], axis=1).itertuples(index=False):
        yield _of_sacct(row, local=frame.attrs["midnights"])


def _of_sacct(row: Any, local: bool) -> Row:
    """A run from the columns of ``columns_of`` and of ``sacct_rows``. local: whether its times are in local time."""
    why = _unusable(row)
    if why:
        return Skipped(why)
    tag = parse_tag(row.tag)
    start = round(instant(row.submit_s + row.wait_s, local))
    end = round(instant(row.end, local)) if np.isfinite(row.end) else 0
    uid = int(row.uid) if np.isfinite(row.uid) else uid_of(row.user)
    run = Run(
        job_id=row.job_id,
        start_time=start,
        submit_time=round(instant(row.submit_s, local)),
        end_time=end if end >= start else start + round(row.duration_s),
        state=row.status,
        exit_code=_exit_code(row.exit),
        user=row.user,
        uid=uid,
        group_id=fallback_group(uid, row.name, int(row.gpus)),
        job_name=row.name,
        partition=row.queue,
        account=row.account,
        qos=row.qos,
        tres=row.tres,
        gpus=int(row.gpus),
        iterations=max(1, round(row.duration_s)),
        iterations_source=Source.ELAPSED,
        origin=Origin.SACCT,
    )
    if tag is None:
        return run
    if tag.profile:  # seconds are not iterations of a job with a profile
        run = replace(run, iterations=0, iterations_source=Source.NONE)
    return with_tag(run, tag.in_iterations(0.0 if tag.profile else 1.0))  # its best placement is not known


def _unusable(row: Any) -> str:
    """Why a row of sacct is not a run to learn from; empty if it is one."""
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
    """The exit code in ``CODE:SIGNAL``."""
    code = text.partition(":")[0]
    return int(code) if code.isascii() and code.isdigit() and len(code) < 10 else 0


_STATES = {
    **dict.fromkeys(("", "pass", "success", "succeeded", "terminated", "completed"), COMPLETED),
    **dict.fromkeys(("killed", "cancelled", "canceled"), "CANCELLED"),
    **dict.fromkeys(("failed", "fail"), "FAILED"),
}


def trace_rows(trace: Trace, begin: int = 0) -> Iterator[Row]:
    """The jobs of a trace. begin: submission of its first job, seconds since the epoch.

    Job IDs get the trace's name as a prefix, users a foreign user ID (``foreign_uid``). A missing status counts as
    completed.
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
