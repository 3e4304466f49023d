"""A glance at the queue: what changes while jobs wait, without squeue's JSON.

squeue takes most of its time to turn jobs into JSON, we take as long to read it back, and from one cycle to the next
hardly a job has changed. So where there are many, all is read between two cycles if a glance has shown what it cannot
explain (new jobs, where one has started), and then seldom; but at once where a waiting job asks for something else than
before, as nobody may act on what it asked for.
Columns have a fixed number of bytes: whatever a value holds, it cannot pass for another column or another job.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.records import PENDING, REQUEUED_STATES, RUNNING_STATES, JobRecord
from slurm_asrpt.throttle import Throttle

MANY = 500
"""Fewer jobs are read in full each time."""
LONGEST_S = 60.0
"""All is read so often at least: a column may be cut off, and 22.05 has none for excluded nodes."""


def _widths(columns: str) -> dict[str, int]:
    return {name: int(width) for name, _, width in (column.partition(":") for column in columns.split())}


_PASSING = _widths(
    "JobId:12 State:16 Reason:64 SubmitTime:20 EligibleTime:20 StartTime:20 EndTime:20 PriorityLong:12 RestartCnt:8"
    " exit_code:10 NodeList:128 Dependency:128"
)
"""What a glance explains, in bytes; of the others it only notices a change."""
_LASTING = _widths(
    "Partition:64 TimeLimit:16 NumNodes:12 MaxNodes:12 NumTasks:12 NumCPUs:12 MinMemory:16 mem-per-tres:32"
    " tres-per-job:64 tres-per-node:64 tres-per-task:64 tres-per-socket:64 ReqNodes:128 Feature:64 Reservation:64"
    " OverSubscribe:8 Contiguous:4 NTPerNode:8 ArrayTaskId:32 Deadline:20 Account:64 QOS:64 admin_comment:256"
)
OPTION = ",".join(f"{name}:{width}" for name, width in (_PASSING | _LASTING).items())
"""For ``squeue -O``, with SLURM_TIME_FORMAT=%s."""
_PASSING_BYTES = sum(_PASSING.values())
_LINE = _PASSING_BYTES + sum(_LASTING.values()) + 1


def parse_glance(text: bytes) -> dict[int, bytes]:
    """The line of each job by its number. Raises SlurmError."""
    starts = range(0, len(text), _LINE)
    if len(text) % _LINE or any(text[start + _LINE - 1] != ord("\n") for start in starts):
        raise SlurmError("squeue -O gave columns of other widths than it was asked for")
    try:
        return {int(text[start : start + _PASSING["JobId"]]): text[start : start + _LINE] for start in starts}
    except ValueError as error:
        raise SlurmError(f"squeue -O gave something unreadable ({error!r})") from error


def caught_up(record: JobRecord, before: bytes, line: bytes) -> tuple[JobRecord, bool]:
    """The record as a line that has changed shows it, and whether that is all there is to know.

    Raises SlurmError for a line that cannot be read.
    """
    now = _columns(line)
    if not now.get("Reason", "").isalnum():  # the sentence that Slurm may show in its place
        now.pop("Reason", None)
    try:
        changes: dict[str, Any] = {field: read(now[name]) for name, (field, read) in _FIELDS.items() if name in now}
    except ValueError as error:
        raise SlurmError(f"squeue -O gave something unreadable ({error!r})") from error
    if changes["state"] == PENDING:
        changes |= {"start_time": record.start_time, "end_time": record.end_time}  # what Slurm expects is nothing to us
    moved = changes.get("nodes", record.nodes) != record.nodes
    if moved:
        changes["gpus_by_node"] = {}  # no column says where its GPUs are
    other = line[_PASSING_BYTES:] != before[_PASSING_BYTES:]
    lacks = other or len(now) < len(_PASSING) or bool(moved and changes["nodes"])
    ended = changes["state"] != PENDING and changes["state"] not in RUNNING_STATES  # then it has no CPUs
    return replace(record, **changes), ended or not lacks


def _columns(line: bytes) -> dict[str, str]:
    """The passing columns but for those that may have been cut off."""
    columns, start = {}, 0
    for name, width in _PASSING.items():
        value = line[start : start + width]
        start += width
        if value.endswith(b" "):
            columns[name] = value.decode(errors="replace").rstrip(" ")
    return columns


def _text(value: str) -> str:
    return "" if value in ("(null)", "N/A") else value


def _state(value: str) -> str:
    return PENDING if value in REQUEUED_STATES else value


def _seconds(value: str) -> float:
    return 0.0 if value in ("N/A", "NONE", "Unknown") else float(int(value))


def _exit_code(value: str) -> int:
    return int(value) >> 8  # a wait status


_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "State": ("state", _state),
    "Reason": ("reason", str),
    "SubmitTime": ("submit_time", _seconds),
    "EligibleTime": ("eligible_time", _seconds),
    "StartTime": ("start_time", _seconds),
    "EndTime": ("end_time", _seconds),
    "PriorityLong": ("priority", int),
    "RestartCnt": ("restarts", int),
    "exit_code": ("exit_code", _exit_code),
    "NodeList": ("nodes", _text),
    "Dependency": ("dependency", _text),
}


class _Known(NamedTuple):
    """A job as it was last seen. line: None where it was read in full only, so that no change of it could be noticed.

    whole: the record lacks nothing that is known to be there. as_asked: what it asks for has not changed since.
    """

    record: JobRecord
    line: bytes | None
    whole: bool = True
    as_asked: bool = True

    def follow(self, line: bytes) -> _Known:
        """Raises SlurmError."""
        if line == self.line:
            return self
        if self.line is None:
            return _Known(self.record, line, as_asked=False)
        record, whole = caught_up(self.record, self.line, line)
        same = line[_PASSING_BYTES:] == self.line[_PASSING_BYTES:]
        if record.array_tasks and record.state != self.record.state:
            same = False  # the last of the tasks that wait in this record has it for itself, under another id
        return _Known(record, line, self.whole and whole, self.as_asked and same)

    @property
    def misleading(self) -> bool:
        """It waits, perhaps with a pin of ours or without one that the record still has; or may be another job."""
        return not self.as_asked and (self.record.state == PENDING or bool(self.record.array_tasks))


class Queue:
    """Every job, by a glance or in full. glance: what ``squeue -O`` says; read: all jobs. Both may raise SlurmError.

    Where there are many, one that is new is there from the next ``catch_up`` on.
    """

    def __init__(
        self,
        glance: Callable[[], bytes],
        read: Callable[[], list[JobRecord]],
        clock: Callable[[], float] = time.monotonic,
        many: int = MANY,
    ) -> None:
        self._glance, self._read, self._clock, self._many = glance, read, clock, many
        self._reading = Throttle(clock)
        self._known: dict[int, _Known] = {}
        self._lacking = False

    def jobs(self) -> list[JobRecord]:
        """Raises SlurmError."""
        try:
            lines = parse_glance(self._glance()) if len(self._known) >= self._many else {}
            known = {number: job.follow(lines[number]) for number, job in self._known.items() if number in lines}
        except SlurmError:  # a squeue that says it otherwise: it is asked the long way then, and may fail there
            return self._read_all({})
        if not lines or self._old(LONGEST_S) or any(job.misleading for job in known.values()):
            return self._read_all(lines)
        self._known = known
        self._lacking = len(known) < len(lines) or not all(job.whole for job in known.values())
        return [job.record for job in known.values()]

    def catch_up(self) -> None:
        """Read in full what the last glance lacked, unless that was done just now. Raises SlurmError."""
        if len(self._known) >= self._many and ((self._lacking and self._reading.due) or self._old(LONGEST_S / 2)):
            self._read_all(parse_glance(self._glance()))

    def _old(self, seconds: float) -> bool:
        return self._clock() >= self._reading.last + seconds

    def _read_all(self, lines: dict[int, bytes]) -> list[JobRecord]:
        """The lines were seen before, so what has changed since is noticed next time.

        A job that came in between has none, and has to wait for the next time.
        """
        with self._reading.spending():
            records = [record for record in self._read() if not lines or record.number in lines]
        self._known = {record.number: _Known(record, lines.get(record.number)) for record in records}
        self._lacking = False
        return records
