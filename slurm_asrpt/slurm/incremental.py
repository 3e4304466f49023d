"""Incremental reads of the queue: what changes while jobs wait, without squeue's JSON.

squeue spends most of its time on writing JSON, and asrptd as much on reading it, although few jobs change from one
cycle to the next. With many jobs, each cycle reads fixed columns with ``squeue -O``. If these show changes that they
cannot explain (new jobs, changed requests), the JSON of these jobs is read, where squeue can print that of single jobs.
Else that of all jobs is: between two cycles, at a limited rate; or at once if the request of a waiting job has changed,
because asrptd must not act on the old request. A task that is split from an array makes the request that its array
made. The GPUs of jobs that have started are asked for by themselves.

Some changes show in no column: columns may be cut off, and others are missing (excluded nodes on 22.05, licenses). So
each job that has not ended is read in full again within a bounded time: all at once after LONGEST_S, or, where squeue
can print single jobs, one part after the other between cycles, so that all have had their turn after SPREAD_S.

Columns have a fixed number of bytes, so no value can be mistaken for another column or job.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from slurm_asrpt.errors import SlurmError
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.notation import fold_tasks, or_empty, read_tasks
from slurm_asrpt.slurm.parse import maintenance_release, release, signal_of, with_gres
from slurm_asrpt.slurm.records import PENDING, REQUEUED_STATES, RUNNING_STATES, JobRecord
from slurm_asrpt.throttle import Throttle

LOG = logging.getLogger("asrptd")

MANY = 500
"""With fewer jobs, all are read in full every time."""
LONGEST_S = 60.0
"""Longest time between two full reads where squeue prints all jobs; half of it if there are pauses between cycles."""
SPREAD_S = 60.0
"""Where squeue prints single jobs, all are read again within this time and a pause between two cycles. If that falls
behind, because squeue fails or the jobs are too many, all are read at once after twice this time."""
PARTS = 12
"""In so many parts at most, because slurmctld sends all jobs for each of them."""
SOME = 300
"""So many jobs that are new or have changed are read by themselves, more together with all others between two cycles.
24.11 needs 0.06 s of CPU time for 100 of 2,300 jobs, 1.5 s for all."""
LONGEST_LIST = 5000
"""So many job ids fit on a command line."""
TASKS_PER_JOB = 10
"""Where squeue prints a line for each pending task, all jobs are read in full if there are more tasks than this for
each job: the lines would cost as much, and more memory."""


def prints_records(version: str) -> bool:
    """Whether this squeue can print one line for each record. From 23.02 on, it joins tasks, or has a line for each."""
    return release(version) < (23, 2)


def prints_single_jobs(version: str) -> bool:
    """Whether this squeue prints the JSON of those jobs only that --jobs names (from 24.05.1 on), not of all."""
    return maintenance_release(version) >= (24, 5, 1)


def too_many_tasks(jobs: Collection[JobRecord]) -> int:
    """The pending tasks of arrays, if a line for each would cost more than to read many jobs in full; else 0."""
    lists = (read_tasks(job.array_tasks) for job in jobs if job.array_tasks)
    tasks = sum(len(each) for found in lists for each in found)
    return tasks if tasks > TASKS_PER_JOB * len(jobs) else 0


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
OPTION = ",".join(f"{name}:{width}" for name, width in (_STATE_COLUMNS | _REQUEST_COLUMNS | _ARRAY_COLUMNS).items())
"""For ``squeue -O``, with SLURM_TIME_FORMAT=%s."""
_REQUEST = slice(sum(_STATE_COLUMNS.values()), sum((_STATE_COLUMNS | _REQUEST_COLUMNS).values()))
_TASKS_START = _REQUEST.stop + _ARRAY_COLUMNS["ArrayJobID"]
_LINE = _TASKS_START + _ARRAY_COLUMNS["ArrayTaskId"] + 1


def parse_lines(text: bytes) -> dict[int, bytes]:
    """The line of each job by its number. Those of an array's pending tasks are joined. Raises SlurmError."""
    starts = range(0, len(text), _LINE)
    if len(text) % _LINE or any(text[start + _LINE - 1] != ord("\n") for start in starts):
        raise SlurmError("squeue -O printed columns of unexpected widths")
    try:
        by_number: dict[int, list[int]] = {}
        for start in starts:
            by_number.setdefault(int(text[start : start + _STATE_COLUMNS["JobId"]]), []).append(start)
        return {number: _joined(text, same) for number, same in by_number.items()}
    except ValueError as error:
        raise SlurmError(f"cannot parse the output of squeue -O ({error!r})") from error


def _joined(text: bytes, starts: Sequence[int]) -> bytes:
    """The line of a job from those that start there, one for each of its pending tasks. Raises ValueError.

    These have the same columns but ``ArrayTaskId``, without the array's limit: ``0-3,7%``.
    """
    first = starts[0]
    if len(starts) == 1:
        return text[first : first + _LINE]
    tasks = fold_tasks(sorted(int(text[start + _TASKS_START : start + _LINE]) for start in starts))
    return text[first : first + _TASKS_START] + f"{tasks}% \n".encode()


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
            changes["signal"] = _signal(now["exit_code"])
        if then.get("MaxNodes") != now.get("MaxNodes"):  # without an upper bound, the node count is shown
            changes["max_nodes"] = int(now["MaxNodes"])
    except (KeyError, ValueError) as error:
        raise SlurmError(f"cannot parse the output of squeue -O ({error!r})") from error
    if changes["state"] == PENDING:
        changes |= {"start_time": record.start_time, "end_time": record.end_time}  # ignore Slurm's estimates
    moved = changes.get("nodes", record.nodes) != record.nodes
    if moved:
        changes |= {"gpus_by_node": {}, "gpus_by_type": {}, "gpu_indexes": {}}  # no column has the GPUs by node
    other = line[_REQUEST] != before[_REQUEST]
    lacks = other or len(now) < len(_STATE_COLUMNS) or bool(moved and changes["nodes"])
    return replace(record, **changes), _ended(changes["state"]) or not lacks  # an ended job has no CPUs


def _ended(state: str) -> bool:
    return state != PENDING and state not in RUNNING_STATES


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
    code, shown, _ = value.partition(":")
    return int(code) if shown else int(value) >> 8  # 22.05 prints a wait status


def _signal(value: str) -> int:
    _, shown, signal = value.partition(":")
    return int(signal) if shown else signal_of(int(value))


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
    """What a line says about an array. tasks: the pending ones in its record, or the number of a single one.

    most: how many may run at once, 0 without a limit; None if the line does not say.
    """

    array: int
    tasks: str
    most: int | None

    @classmethod
    def shown_in(cls, line: bytes) -> _Tasks | None:
        """None for a job that is not of an array, or if the list of tasks is cut off."""
        array = line[_REQUEST.stop : _TASKS_START].decode(errors="replace").strip()
        shown = line[_TASKS_START:].decode(errors="replace")
        tasks, limited, most = shown.strip().partition("%")
        if not array.isdecimal() or not shown.endswith(" \n") or not read_tasks(tasks):
            return None
        return cls(int(array), tasks, int(most) if most.isdecimal() else None if limited else 0)

    @property
    def single(self) -> bool:
        return self.tasks.isdecimal()

    def completed(self, before: str) -> _Tasks | None:
        """With the last task of ``0-20:2``, which ``squeue --array`` leaves out; None if that is not clear.

        Slurm writes more than five tasks over a span of more than ten like that. before: the earlier pending tasks.
        """
        shown = [task for each in read_tasks(self.tasks) for task in each]
        step = shown[1] - shown[0] if len(shown) > 4 else 1
        last = shown[-1] + step
        even = step > 1 and shown == list(range(shown[0], last, step))
        if self.most is not None or not even or not any(last in each for each in read_tasks(before)):
            return self
        return self._replace(tasks=fold_tasks([*shown, last])) if ":" in fold_tasks(shown) else None

    def record(self, array: JobRecord, number: int) -> JobRecord:
        """A record of the array from an earlier one."""
        if self.single:
            return replace(array, job_id=f"{self.array}_{self.tasks}", number=number, array_tasks="")
        return replace(array, array_tasks=self.tasks, array_most=array.array_most if self.most is None else self.most)


class _Known(NamedTuple):
    """A job as last read. line: its last line, None if it has only been read in full. read: when it was read in full.

    whole: the record is complete. same_request: its request has not changed since the full read.
    """

    record: JobRecord
    line: bytes | None
    read: float
    whole: bool = True
    same_request: bool = True

    def updated(self, line: bytes) -> _Known:
        """Raises SlurmError."""
        if line == self.line:
            return self
        if self.line is None:
            return self._replace(line=line, same_request=False)
        tasks = _Tasks.shown_in(line) if self.record.array_tasks else None
        tasks = tasks.completed(self.record.array_tasks) if tasks else None
        before = tasks.record(self.record, self.record.number) if tasks else self.record
        record, whole = update_record(before, self.line, line)
        same = line[_REQUEST] == self.line[_REQUEST]
        if record.array_tasks and (tasks is None or record.state != self.record.state):
            same = False  # the list is cut off, or the whole array was cancelled
        return _Known(record, line, self.read, self.whole and whole, self.same_request and same)

    def split_off(self, tasks: _Tasks, number: int, line: bytes) -> _Known:
        """The task that Slurm has split from this array. Raises SlurmError."""
        return self._replace(record=tasks.record(self.record, number)).updated(line)

    @property
    def outdated(self) -> bool:
        """The job waits with another request or pin than the record has, or the record is another job's."""
        return not self.same_request and (self.record.state == PENDING or bool(self.record.array_tasks))


class IncrementalQueue:
    """All jobs. lines: returns the output of ``squeue -O``; read: reads all jobs in full; gres: the GRES by node of
    running jobs, by their numbers. All may raise SlurmError. task_lines: whether lines has one for each pending task.
    some: reads jobs with these numbers in full, possibly others with them; None if that costs as much as all.

    With many jobs and without ``some``, new ones appear after the next ``catch_up``, tasks of known arrays at once.
    """

    def __init__(
        self,
        lines: Callable[[], bytes],
        read: Callable[[], list[JobRecord]],
        gres: Callable[[Sequence[str]], Mapping[str, Mapping[str, str]]],
        clock: Callable[[], float] = time.monotonic,
        many: int = MANY,
        task_lines: bool = False,
        some: Callable[[Sequence[str]], list[JobRecord]] | None = None,
    ) -> None:
        self._lines, self._read, self._clock, self._many = lines, read, clock, many
        self._gres, self._task_lines, self._some = gres, task_lines, some
        self._reading = Throttle(clock)
        self._longest_s = 4 * SPREAD_S if some else LONGEST_S
        self._reread_at = -math.inf
        self._known: dict[int, _Known] = {}
        self._lacking = False
        self._told = False  # of too many tasks

    def jobs(self) -> list[JobRecord]:
        """Raises SlurmError."""
        try:
            lines = parse_lines(self._lines()) if self._by_lines else {}
            known = {number: job.updated(lines[number]) for number, job in self._known.items() if number in lines}
            known |= self._split_off({number: line for number, line in lines.items() if number not in known})
            known |= self._started(known)
            known |= self._read_some(known, lines)
        except SlurmError:  # unexpected output: read all in full, which may fail too
            return self._read_all({})
        if not lines or self._old(self._longest_s) or any(job.outdated for job in known.values()):
            return self._read_all(lines)
        self._known = known
        self._lacking = len(known) < len(lines) or not all(job.whole for job in known.values())
        return [job.record for job in known.values()]

    def catch_up(self) -> None:
        """Read all jobs in full if the last lines left anything open and a read is due, else some again.

        Raises SlurmError.
        """
        if not self._by_lines:
            return
        lacks = self._lacking and self._reading.due
        if self._some and not lacks and self._clock() >= self._reread_at + SPREAD_S / PARTS:
            self._reread(self._some)
        if lacks or self._old(self._longest_s / 2):
            self._read_all(parse_lines(self._lines()))

    @property
    def _by_lines(self) -> bool:
        """Whether lines are cheaper than to read all jobs in full."""
        many = len(self._known) >= self._many
        tasks = too_many_tasks([job.record for job in self._known.values()]) if many and self._task_lines else 0
        if tasks and not self._told:
            LOG.warning("%d tasks of arrays are pending: squeue reads slowly, all jobs in full in each cycle", tasks)
        self._told = bool(tasks)
        return many and not tasks

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

    def _read_some(self, known: Mapping[int, _Known], lines: Mapping[int, bytes]) -> dict[int, _Known]:
        """The jobs that are new, or of which the lines do not show what has changed, if they are few."""
        wanted = {n for n in lines if n not in known or known[n].outdated or not known[n].whole}
        if self._some is None or not 0 < len(wanted) <= SOME:
            return {}
        try:
            records = self._some([str(number) for number in sorted(wanted)])
        except SlurmError:  # one is gone, and squeue prints none of the others
            return {}
        now = self._clock()
        return {r.number: _Known(r, lines[r.number], now) for r in records if r.number in wanted}

    def _reread(self, some: Callable[[Sequence[str]], list[JobRecord]]) -> None:
        """Read the jobs again that were read longest ago, as many as the time since the last call allows for.

        Their lines are older than that, so later changes are noticed next time.
        """
        now, live = self._clock(), self._live
        most = math.ceil(min(1.0, (now - self._reread_at) / SPREAD_S) * len(live))
        oldest = dict(sorted(live.items(), key=lambda item: item[1].read)[: min(most, LONGEST_LIST)])
        self._reread_at = now
        with suppress(SlurmError):  # a single job is gone; or Slurm is, which the next cycle reports
            records = some([str(number) for number in oldest]) if oldest else []
            self._known |= {r.number: _Known(r, oldest[r.number].line, now) for r in records if r.number in oldest}

    @property
    def _live(self) -> dict[int, _Known]:
        """Jobs that have not ended: of others, nothing changes."""
        return {number: job for number, job in self._known.items() if not _ended(job.record.state)}

    def _old(self, seconds: float) -> bool:
        """Whether a job that has not ended was last read in full so long ago."""
        return self._clock() >= min((job.read for job in self._live.values()), default=self._reading.last) + seconds

    def _read_all(self, lines: dict[int, bytes]) -> list[JobRecord]:
        """Read all jobs. The lines were read before, so later changes are noticed next time.

        A job submitted in between has no line, and appears after the next full read.
        """
        with self._reading.spending():
            records = [record for record in self._read() if not lines or record.number in lines]
        now = self._reread_at = self._reading.last
        self._known = {record.number: _Known(record, lines.get(record.number), now) for record in records}
        self._lacking = False
        return records
