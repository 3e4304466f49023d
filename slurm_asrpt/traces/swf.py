"""The Standard Workload Format of the Parallel Workloads Archive, and lists made from its logs. Mostly CPU jobs.

18 numbers per line, -1 for unknown, comments after a semicolon (D. Feitelson, "The Standard Workload Format", 2.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.traces.files import LineFormat, Rows, TraceFile, lines, read_columns, read_rows
from slurm_asrpt.traces.published import has_shared_columns, read_shared_columns
from slurm_asrpt.traces.registry import PROCESSORS, ReadOptions, refuse_processors, register
from slurm_asrpt.traces.trace import DAY_S, Trace, all_of, clean

FIELDS = (
    "job_id", "submit_s", "wait_s", "duration_s", "processors", "cpu_s", "memory", "req_processors", "time_limit_s",
    "req_memory", "status", "user", "unix_group", "executable", "queue", "partition", "preceding", "think_s",
)  # fmt: skip
_STATUS = {0: "FAILED", 1: "COMPLETED", 5: "CANCELLED"}
_PARTIAL = (2, 3, 4)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
PARTIAL = "part of a job that was interrupted"
"""What ``merged`` says of lines for the parts between checkpoints: the job has a line of its own."""


def _is_swf(found: TraceFile) -> bool:
    if has_shared_columns(found, "user_class") or has_shared_columns(found, "req_procs"):
        return True
    figures = [line.split() for line in found.head if line.strip() and not line.lstrip().startswith(";")]
    comments = any(line.startswith(";") for line in found.head)
    if not figures:
        return comments and all(line.startswith(";") or not line.strip() for line in found.head)
    return all(len(row) == len(FIELDS) and all(map(_NUMBER.fullmatch, row)) for row in figures[:-1] or figures)


@register("swf", "Standard Workload Format (Parallel Workloads Archive); needs --processors-as-gpus", _is_swf)
def read(found: TraceFile, options: ReadOptions) -> Trace:
    """Allocated processors (requested ones, if unknown) count as GPUs. The group is user and executable.

    Raises InputError, also unless options.processors_as_gpus.
    """
    refuse_processors(options)
    if has_shared_columns(found, "req_procs"):
        return _archive_list(found)
    if has_shared_columns(found, "user_class"):  # made from a log without waits: submissions are starts
        rows = read_shared_columns(found)
        return clean(found.name, rows.frame, {PROCESSORS: all_of(rows.frame)}, rows.faults)
    with lines(found.path) as opened:
        figures = _Lines(opened)
        rows = read_columns(figures, LineFormat(FIELDS, quotes=False), ["job_id"], FIELDS[1:])
        midnight = figures.midnight
    return _trace(found, rows, midnight)


def _trace(found: TraceFile, rows: Rows, midnight: float | None) -> Trace:
    frame = rows.frame
    partial = frame["status"].isin(_PARTIAL)
    frame = frame[~partial].reset_index(drop=True)
    known = frame.where(frame != -1)
    for name in ("user", "executable", "queue", "status"):
        known[name] = frame[name].where(frame[name] >= 0)
    gpus = known["processors"].where(known["processors"] > 0, known["req_processors"])
    jobs = pd.DataFrame(
        {
            "job_id": frame["job_id"],
            "submit_s": known["submit_s"] + (midnight or 0.0),
            "user": _labels("u", known["user"]),
            "group": (_labels("u", known["user"]) + _labels("/x", known["executable"])).where(
                known["executable"].notna(), ""
            ),
            "gpus": gpus,
            "duration_s": known["duration_s"],
            "status": known["status"].map(_STATUS).fillna(""),
            "time_limit_s": known["time_limit_s"],
            "wait_s": known["wait_s"],
            "queue": _labels("q", known["queue"]),
        }
    )
    merged = {PARTIAL: int(partial.sum())}
    return clean(found.name, jobs, {PROCESSORS: all_of(jobs)}, rows.faults, merged, midnight is not None)


def _labels(prefix: str, figures: pd.Series) -> pd.Series:
    """``u7`` for 7, empty if unknown."""
    codes, kinds = pd.factorize(figures)
    names = np.array([f"{prefix}{kind:.0f}" for kind in kinds] + [""], dtype=object)
    return pd.Series(names[codes], index=figures.index, dtype=object)


class _Lines:
    """Lines with commas between the numbers and without comments; collects the clock's settings from comments."""

    def __init__(self, opened: Iterator[str]) -> None:
        self.opened = opened
        self.start: float | None = None
        self.zone = 0.0

    def __iter__(self) -> Iterator[str]:
        for line in self.opened:
            text, _, comment = line.partition(";")
            if comment:
                self._header(comment.strip())
            yield ",".join(text.split()) + "\n"

    def _header(self, comment: str) -> None:
        found = re.fullmatch(r"(UnixStartTime|TimeZone)\s*:\s*(-?[0-9]{1,12})(?:\s.*)?", comment)
        if found and found[1] == "UnixStartTime":
            self.start = float(found[2])
        elif found:
            self.zone = float(found[2])

    @property
    def midnight(self) -> float | None:
        """Seconds from midnight to second 0 of the log."""
        return None if self.start is None else (self.start + self.zone) % DAY_S


def _archive_list(found: TraceFile) -> Trace:
    extra = ["req_procs", "req_time_s", "orig_wait_s"]
    text = ["job_id", "user", "group", "status", "queue"]
    rows = read_rows(found.path, text, ["submit_s", "num_gpus", "duration_s", *extra])
    frame = rows.frame
    known = frame["num_gpus"].where(frame["num_gpus"] > 0, frame["req_procs"])
    names = {"req_time_s": "time_limit_s", "orig_wait_s": "wait_s"}
    # the list's group is the UNIX group: no recurrence key
    frame = frame.assign(gpus=known, group="").rename(columns=names)
    return clean(found.name, frame, {PROCESSORS: all_of(frame)}, rows.faults)
