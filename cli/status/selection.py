"""Which jobs asrpt-status shows, and in which order."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_asrpt_cli._app.tables import safe
from slurm_asrpt_cli._app.users import is_user

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.slurm.notation import job_id_of, read_tasks
from slurm_asrpt.status.document import JobStatus, Status

_ARRAY = re.compile(r"([0-9]+)_\[([0-9,:-]+)(?:%[0-9]+)?\]")
_JOB_ID = re.compile(r"[0-9]{1,12}(?:[_+][0-9]{1,9})?")
_COMMAS = re.compile(r",(?![^\[]*\])")  # but those in brackets


@dataclass(frozen=True)
class Wanted:
    """A job as Slurm writes it: 12 (also all tasks of array 12), 12_3, 12_[1-4,7] or 12_[0-9:3]."""

    name: str
    job_id: str
    tasks: tuple[range, ...] = ()

    def takes(self, job: JobStatus) -> bool:
        return self.names(job.job_id) or (not self.tasks and _holds(job, self.job_id))

    def names(self, job_id: str) -> bool:
        """Whether it names the job with this ID; tasks in brackets name the record of an array's other tasks, too."""
        array, _, task = job_id.partition("_")
        if not self.tasks:
            return self.job_id in (job_id, array)
        return array == self.job_id and (not task or (task.isdecimal() and any(int(task) in r for r in self.tasks)))


@dataclass(frozen=True)
class Selection:
    """What the command line asks for; an empty field selects all jobs."""

    users: frozenset[str] = frozenset()
    partitions: frozenset[str] = frozenset()
    states: frozenset[str] = frozenset()
    jobs: tuple[Wanted, ...] = ()

    def asks_for_ended(self, jobs: Sequence[JobStatus]) -> bool:
        """Whether ended jobs are to be looked for: by state, or because a named job is not among these."""
        return Phase.ENDED in self.states or any(not any(wanted.takes(job) for job in jobs) for wanted in self.jobs)

    def __bool__(self) -> bool:
        return bool(self.users or self.partitions or self.states or self.jobs)

    def takes(self, job: JobStatus) -> bool:
        return (
            (not self.users or job.user in self.users)
            and (not self.partitions or not self.partitions.isdisjoint(job.partition.split(",")))
            and (not self.states or job.state in self.states)
            and (not self.jobs or any(wanted.takes(job) for wanted in self.jobs))
        )


def check_users(chosen: Selection, found: Status) -> None:
    """Raises InputError if nobody knows any of the users that the selection names."""
    unknown = _unknown_users(chosen, found)
    if unknown and len(unknown) == len(chosen.users):
        raise InputError(f"unknown user {', '.join(map(safe, unknown))}")


def _unknown_users(chosen: Selection, found: Status) -> list[str]:
    return [name for name in sorted(chosen.users - {job.user for job in found.jobs}) if not is_user(name)]


def unknown_names(chosen: Selection, found: Status) -> list[str]:
    """Users and partitions that the selection names and nobody knows, in words; squeue shows the others, too."""
    partitions = {name for node in found.nodes for name in node.partitions} or chosen.partitions
    return [
        *(f"unknown user {safe(name)}" for name in _unknown_users(chosen, found)),
        *(
            f"unknown partition {safe(name)}: it does not exist, or asrptd manages none of its nodes"
            for name in sorted(chosen.partitions - partitions)
        ),
    ]


def words(text: str) -> list[str]:
    """A comma-separated list; commas in the brackets of an array do not count."""
    return [part.strip() for part in _COMMAS.split(text) if part.strip()]


_PENDING = [phase.value for phase in (Phase.VIRTUAL, Phase.WAITING, Phase.DELAYED, Phase.LEFT)]
_OF_SQUEUE = {"pending": _PENDING, "pd": _PENDING, "r": [Phase.RUNNING.value]}


def read_states(text: str) -> frozenset[str]:
    """States by name (``delayed``), in full (``delayed for placement``) or as in squeue, or ``all``, with ended jobs.

    Raises InputError, listing the states.
    """
    known = {key: [phase.value] for phase in Phase for key in (phase.value.lower(), phase.name.lower())}
    if "all" in map(str.lower, words(text)):
        return frozenset(phase.value for phase in Phase)
    known |= _OF_SQUEUE
    for word in words(text):
        if word.lower() not in known:
            names = ", ".join(phase.name.lower() for phase in Phase)
            raise InputError(f"--state: unknown state {word!r}; valid states: {names}, all")
    return frozenset(state for word in words(text) for state in known[word.lower()])


def read_jobs(texts: Sequence[str]) -> tuple[Wanted, ...]:
    """Job IDs and array tasks. Raises InputError if one is no job ID, or brackets hold no task IDs."""
    return tuple(read_job(word) for text in texts for word in words(text))


def read_job(word: str) -> Wanted:
    """One job ID, or array tasks: 12, 12_3, 12+1, or 12_[0-9%4] as squeue writes pending tasks. Raises InputError."""
    if "_[" not in word:
        return Wanted(word, job_id(word))
    array = _ARRAY.fullmatch(word)
    tasks = read_tasks(array[2]) if array else ()
    if array is None or not tasks:
        raise InputError(f"{word[:40]!r}: invalid array tasks; write, for example, 123_[1-4,7]")
    return Wanted(word, array[1], tasks)


def job_id(text: str) -> str:
    """The ID of a job or an array task; of a component (12+1), that under which its job is known. Raises InputError."""
    if not _JOB_ID.fullmatch(text):
        raise InputError(f"{text[:40]!r}: not a job ID; write, for example, 123 or 123_4")
    return job_id_of(text)


def _holds(job: JobStatus, name: str) -> bool:
    """Whether ``job`` is the record of an array's remaining tasks and this task is one of them."""
    array, _, task = name.partition("_")
    tasks = job.facts.get("tasks")
    if job.job_id != array or not isinstance(tasks, str) or not task.isdecimal():
        return False
    return any(int(task) in some for some in read_tasks(tasks))


def select(jobs: Sequence[JobStatus], chosen: Selection) -> list[JobStatus]:
    """The selected jobs, in asrptd's order. Raises AsrptError if a job named on the command line is missing."""
    for wanted in chosen.jobs:
        if not any(wanted.takes(job) for job in jobs):
            raise unknown_job(wanted.name)
    return [job for job in jobs if chosen.takes(job)]


def holds(jobs: Sequence[JobStatus], name: str) -> bool:
    """Whether the job with that ID is among them."""
    return any(job.job_id == name or _holds(job, name) for job in jobs)


def one(jobs: Sequence[JobStatus], name: str) -> JobStatus:
    """The job with that ID. Raises AsrptError if there is none."""
    for job in jobs:
        if job.job_id == name or _holds(job, name):
            return job
    raise unknown_job(name)


def tasks_of(jobs: Sequence[JobStatus], name: str) -> list[JobStatus]:
    """The tasks of the array with that job ID, and the record of its remaining tasks; empty for a single job."""
    found = [job for job in jobs if job.job_id.partition("_")[0] == name]
    return found if any(job.job_id != name for job in found) else []


def missing_jobs(jobs: Sequence[JobStatus], chosen: Selection) -> list[str]:
    """The jobs named on the command line that are not among these, in words."""
    names = [wanted.name for wanted in chosen.jobs if not any(wanted.takes(job) for job in jobs)]
    return [f"job {name}: ended, or unknown to asrptd" for name in names]


def unknown_job(name: str) -> AsrptError:
    return AsrptError(
        f"asrptd does not know job {name[:40]!r}: it is a few seconds old, ended long ago, is another user's, or "
        "asrptd does not manage its partition; try squeue or sacct"
    )


def _number(job: JobStatus) -> list[int]:
    return [int(part) if part.isdecimal() else -1 for part in job.job_id.split("_")]


SORTS: dict[str, Callable[[JobStatus], Any]] = {
    "rank": lambda job: job.rank,
    "jobid": _number,
    "name": lambda job: job.name,
    "user": lambda job: job.user,
    "partition": lambda job: job.partition,
    "gpus": lambda job: job.gpus,
    "group": lambda job: job.group,
    "state": lambda job: job.state,
    "run_time": lambda job: job.predicted_run_s,
    "time_left": lambda job: job.remaining_s,
    "submitted": lambda job: job.submit_time,
    "start": lambda job: job.start_time if job.start_time is not None else job.start_median,
}


def read_sort(text: str) -> list[tuple[str, bool]]:
    """Sort keys, and whether each is reversed (``-gpus``). Raises InputError, listing the valid keys."""
    keys = [(word.lstrip("+-").lower(), word.startswith("-")) for word in words(text)]
    for key, _ in keys:
        if key not in SORTS:
            raise InputError(f"--sort: unknown column {key[:40]!r}; valid columns: {', '.join(SORTS)}")
    return keys


def ordered(jobs: Sequence[JobStatus], keys: Sequence[tuple[str, bool]]) -> list[JobStatus]:
    """Sorted by the first key, then the second, and so on; jobs without a value for a key come last."""
    rows = list(jobs)
    for key, descending in reversed(keys):
        value = SORTS[key]
        known = sorted((job for job in rows if value(job) is not None), key=value, reverse=descending)
        rows = known + [job for job in rows if value(job) is None]
    return rows
