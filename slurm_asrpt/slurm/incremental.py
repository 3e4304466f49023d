"""Incremental reads of the queue: what changes while jobs wait, without squeue's JSON.

squeue spends most of its time on writing JSON, and asrptd as much on reading it, although few jobs change from one
cycle to the next. With many jobs, each cycle reads fixed columns with ``squeue -O``. If these show changes that they
cannot explain (new jobs, what a job got that has started), the full JSON is read between two cycles, at a limited rate.
If the request of a waiting job has changed, it is read at once, because asrptd must not act on the old request. A task
that is split from an array makes the request that its array made. The GPUs of jobs that have started are asked for by
themselves.
Columns have a fixed number of bytes, so no value can be mistaken for another column or job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.slurm.parse import expand, or_empty, signal_of, with_gres
from slurm_asrpt.slurm.records import PENDING, REQUEUED_STATES, RUNNING_STATES, JobRecord
from slurm_asrpt.throttle import Throttle

MANY = 500
"""With fewer jobs, all are read in full every time."""
LONGEST_S = 60.0
"""Longest time between two full reads: columns may be cut off, and 22.05 has none for excluded nodes."""


def _widths(columns: str) -> dict[str, int]:
    return {name: int(width) for name, _, width in (column.partition(":") for column in columns.split())}


_STATE_COLUMNS = _widths(
    "JobId:12 State:16 Reason:64 SubmitTime:20 EligibleTime:20 AccrueTime:20 StartTime:20 EndTime:20 PriorityLong:12"
    " Nice:12 RestartCnt:8 exit_code:10 NodeList:128 Dependency:128 MaxNodes:12"
)
"""Columns that are read, with their widths in bytes. For the others only a change is noticed."""
_ARRAY_COLUMNS = _widths("ArrayJobID:12 ArrayTaskId:128")
_REQUEST_COLUMNS = _widths(
    "Partition:64 TimeLimit:16 NumNodes:12 NumTasks:12 NumCPUs:12 MinMemory:16 mem-per-tres:32"
    " tres-per-job:64 tres-per-node:64 tres-per-task:64 tres-per-socket:64 ReqNodes:128 Feature:64 Reservation:64"
    " OverSubscribe:8 Contiguous:4 NTPerNode:8 Deadline:20 Account:64 QOS:64 admin_comment:256"
)
OPTION = ",".join(f"{name}:{width}" for name, width in (_STATE_COLUMNS | _ARRAY_COLUMNS | _REQUEST_COLUMNS).items())
"""For ``squeue -O``, with SLURM_TIME_FORMAT=%s."""
_STATE_BYTES = sum(_STATE_COLUMNS.values())
_REQUEST_STARTS = _STATE_BYTES + sum(_ARRAY_COLUMNS.values())
_LINE = _REQUEST_STARTS + sum(_REQUEST_COLUMNS.values()) + 1


def parse_lines(text: bytes) -> dict[int, bytes]:
    """The line of each job by its number. Raises SlurmError."""
    starts = range(0, len(text), _LINE)
    if len(text) % _LINE or any(text[start + _LINE - 1] != ord("\n") for start in starts):
        raise SlurmError("squeue -O printed columns of unexpected widths")
    try:
        return {int(text[start : start + _STATE_COLUMNS["JobId"]]): text[start : start + _LINE] for start in starts}
    except ValueError as error:
        raise SlurmError(f"cannot parse the output of squeue -O ({error!r})") from error


def update_record(record: JobRecord, before: bytes, line: bytes) -> tuple[JobRecord, bool]:
    """The record updated from a changed line, and whether it is complete.

    Raises SlurmError for a line that cannot be parsed.
    """
    now, then = _columns(line, _STATE_COLUMNS), _columns(before, _STATE_COLUMNS)
    if not now.get("Reason", "").isalnum():  # Slurm may show a sentence instead
        now.pop("Reason", None)
    try:
        changes: dict[str, Any] = {field: read(now[name]) for name, (field, read) in _FIELDS.items() if name in now}
        if "exit_code" in now:
            changes["signal"] = signal_of(int(now["exit_code"]))
        if then.get("MaxNodes") != now.get("MaxNodes"):  # without an upper bound, the node count is shown
            changes["max_nodes"] = int(now["MaxNodes"])
    except (KeyError, ValueError) as error:
        raise SlurmError(f"cannot parse the output of squeue -O ({error!r})") from error
    if changes["state"] == PENDING:
        changes |= {"start_time": record.start_time, "end_time": record.end_time}  # ignore Slurm's estimates
    moved = changes.get("nodes", record.nodes) != record.nodes
    if moved:
        changes |= {"gpus_by_node": {}, "gpus_by_type": {}, "gpu_indexes": {}}  # no column has the GPUs by node
    other = line[_REQUEST_STARTS:] != before[_REQUEST_STARTS:]
    lacks = other or len(now) < len(_STATE_COLUMNS) or bool(moved and changes["nodes"])
    ended = changes["state"] != PENDING and changes["state"] not in RUNNING_STATES  # an ended job has no CPUs
    return replace(record, **changes), ended or not lacks


def _columns(line: bytes, widths: Mapping[str, int]) -> dict[str, str]:
    """The columns at the start of the line, except for those that may be cut off."""
    columns, start = {}, 0
    for name, width in widths.items():
        value = line[start : start + width]
        start += width
        if value.endswith(b" "):
            columns[name] = value.decode(errors="replace").rstrip(" ")
    return columns


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
    "AccrueTime": ("accrue_time", _seconds),
    "StartTime": ("start_time", _seconds),
    "EndTime": ("end_time", _seconds),
    "PriorityLong": ("priority", int),
    "Nice": ("nice", int),
    "RestartCnt": ("restarts", int),
    "exit_code": ("exit_code", _exit_code),
    "NodeList": ("nodes", or_empty),
    "Dependency": ("dependency", or_empty),
}


class _Tasks(NamedTuple):
    """What a line says about an array. tasks: the pending ones in its record, or the number of a single one."""

    array: int
    tasks: str
    most: int

    @classmethod
    def shown_in(cls, line: bytes) -> _Tasks | None:
        """None for a job that is not of an array, or if the list of tasks is cut off."""
        columns = _columns(line[_STATE_BYTES:_REQUEST_STARTS], _ARRAY_COLUMNS)
        array, (tasks, _, most) = columns.get("ArrayJobID", ""), columns.get("ArrayTaskId", "").partition("%")
        if not array.isdecimal() or not read_tasks(tasks):
            return None
        return cls(int(array), tasks, int(most) if most.isdecimal() else 0)

    @property
    def single(self) -> bool:
        return self.tasks.isdecimal()

    def record(self, array: JobRecord, number: int) -> JobRecord:
        """A record of the array from an earlier one."""
        if self.single:
            return replace(array, job_id=f"{self.array}_{self.tasks}", number=number, array_tasks="")
        return replace(array, array_tasks=self.tasks, array_most=self.most)


class _Known(NamedTuple):
    """A job as last read. line: its last line, None if it has only been read in full.

    whole: the record is complete. same_request: its request has not changed since the full read.
    """

    record: JobRecord
    line: bytes | None
    whole: bool = True
    same_request: bool = True

    def updated(self, line: bytes) -> _Known:
        """Raises SlurmError."""
        if line == self.line:
            return self
        if self.line is None:
            return _Known(self.record, line, same_request=False)
        tasks = _Tasks.shown_in(line) if self.record.array_tasks else None
        before = tasks.record(self.record, self.record.number) if tasks else self.record
        record, whole = update_record(before, self.line, line)
        same = line[_REQUEST_STARTS:] == self.line[_REQUEST_STARTS:]
        if record.array_tasks and (tasks is None or record.state != self.record.state):
            same = False  # the list is cut off, or the whole array was cancelled
        return _Known(record, line, self.whole and whole, self.same_request and same)

    def split_off(self, tasks: _Tasks, number: int, line: bytes) -> _Known:
        """The task that Slurm has split from this array. Raises SlurmError."""
        return _Known(tasks.record(self.record, number), self.line, self.whole, self.same_request).updated(line)

    @property
    def outdated(self) -> bool:
        """The job waits with another request or pin than the record has, or the record is another job's."""
        return not self.same_request and (self.record.state == PENDING or bool(self.record.array_tasks))


class IncrementalQueue:
    """All jobs. lines: returns the output of ``squeue -O``; read: reads all jobs in full; gres: the GRES by node of
    running jobs, by their numbers. All may raise SlurmError.

    With many jobs, new ones appear after the next ``catch_up``, tasks of known arrays at once.
    """

    def __init__(
        self,
        lines: Callable[[], bytes],
        read: Callable[[], list[JobRecord]],
        gres: Callable[[Sequence[str]], Mapping[str, Mapping[str, str]]],
        clock: Callable[[], float] = time.monotonic,
        many: int = MANY,
    ) -> None:
        self._lines, self._read, self._clock, self._many = lines, read, clock, many
        self._gres = gres
        self._reading = Throttle(clock)
        self._known: dict[int, _Known] = {}
        self._lacking = False

    def jobs(self) -> list[JobRecord]:
        """Raises SlurmError."""
        try:
            lines = parse_lines(self._lines()) if len(self._known) >= self._many else {}
            known = {number: job.updated(lines[number]) for number, job in self._known.items() if number in lines}
            known |= self._split_off({number: line for number, line in lines.items() if number not in known})
            known |= self._started(known)
        except SlurmError:  # unexpected output: read all in full, which may fail too
            return self._read_all({})
        if not lines or self._old(LONGEST_S) or any(job.outdated for job in known.values()):
            return self._read_all(lines)
        self._known = known
        self._lacking = len(known) < len(lines) or not all(job.whole for job in known.values())
        return [job.record for job in known.values()]

    def catch_up(self) -> None:
        """Read all jobs in full if the last lines left anything open and a read is due. Raises SlurmError."""
        if len(self._known) >= self._many and ((self._lacking and self._reading.due) or self._old(LONGEST_S / 2)):
            self._read_all(parse_lines(self._lines()))

    def _split_off(self, lines: Mapping[int, bytes]) -> dict[int, _Known]:
        """The new jobs that are tasks of known arrays. lines: of all new jobs. Raises SlurmError."""
        found = {}
        for number, line in lines.items():
            tasks = _Tasks.shown_in(line)
            array = self._known.get(tasks.array) if tasks and tasks.single else None
            if tasks and array and array.line and array.record.array_tasks:
                found[number] = array.split_off(tasks, number, line)
        return found

    def _started(self, known: Mapping[int, _Known]) -> dict[int, _Known]:
        """The jobs that have started since the last read, with their GPUs. Raises SlurmError."""
        before = {number: (job.record.state, job.record.nodes) for number, job in self._known.items()}
        running = {number: job for number, job in known.items() if job.record.state == "RUNNING"}
        moved = {n: job for n, job in running.items() if before.get(n) != (job.record.state, job.record.nodes)}
        gres = self._gres([str(number) for number in moved]) if moved else {}
        found = {number: gres[str(number)] for number in moved if str(number) in gres}
        return {
            number: moved[number]._replace(record=with_gres(moved[number].record, by_node))
            for number, by_node in found.items()
            if by_node.keys() <= set(expand(moved[number].record.nodes))
        }

    def _old(self, seconds: float) -> bool:
        return self._clock() >= self._reading.last + seconds

    def _read_all(self, lines: dict[int, bytes]) -> list[JobRecord]:
        """Read all jobs. The lines were read before, so later changes are noticed next time.

        A job submitted in between has no line, and appears after the next full read.
        """
        with self._reading.spending():
            records = [record for record in self._read() if not lines or record.number in lines]
        self._known = {record.number: _Known(record, lines.get(record.number)) for record in records}
        self._lacking = False
        return records
