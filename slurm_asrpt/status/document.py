"""status.json: what asrptd shows to users. Written by the daemon by rename, read by asrpt-status. Schema 1.

The texts beside the fields become docs/status.schema.json (``python -m slurm_asrpt.status.schema``). A later release
may add fields to the same schema, so readers ignore those that they do not know; any other change makes it the next
one.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

from slurm_asrpt.errors import AsrptError

SCHEMA = 1
UNUSED_PROFILE = "unused_profile"
"""The fact that says why the profile that a job names does not count."""
FILE_NAME = "status.json"
STALE_CYCLES, STALE_AT_LEAST_S = 3, 30.0
NEAREST = 3
"""So many of those ahead of a job an explanation names."""
_JOBS = b'"jobs": [\n'
_RUNS = b'"state": "running", '
_RANKED = b'"rank": '
T = TypeVar("T")


@dataclass  # not frozen: one per job and cycle is made, at half the price
class JobStatus:
    """A job. Times are seconds since the epoch, durations seconds; null where not known."""

    job_id: Annotated[str, "As Slurm spells it: 1234, or 1234_5 for a task of an array."]
    name: Annotated[str, "As its owner wrote it."]
    user: Annotated[str, "Whose it is."]
    partition: Annotated[str, "Its partition, or several with commas."]
    gpus: Annotated[int, "GPUs that it has or asks for."]
    group: Annotated[str, "Its recurrence group, 16 hex digits; empty without a tag of the hook."]
    profile: Annotated[str, "The profile that it names, or empty."]
    predicted_iterations: Annotated[int, "Training iterations; 0 for an unseen group."]
    submit_time: Annotated[float, "When it was submitted."]
    state: Annotated[str, "virtual queue, waiting, delayed for placement, starting, running or left to Slurm."]
    reason: Annotated[str, "Why it does not run, in one word that stays the same from release to release."]
    text: Annotated[str, "The same for people; empty for a job that just runs."]
    facts: Annotated[dict[str, Any], "What the reason rests on; the names depend on it."]
    nodes: Annotated[
        dict[str, int], "GPUs per node: chosen (starting), real (running), or last considered (delayed, reserved)."
    ]
    rank: Annotated[int | None, "Place in the line, 1 is next; null once started or when left to Slurm."] = None
    start_time: Annotated[float | None, "When it has started; null before."] = None
    predicted_run_s: Annotated[float | None, "Predicted run time."] = None
    iterations_done: Annotated[int | None, "As the job reports them, from the beginning of its training."] = None
    alpha: Annotated[float | None, "Seconds per iteration on those nodes."] = None
    alpha_min: Annotated[float | None, "Seconds per iteration in the best placement."] = None
    alpha_by_type: Annotated[
        dict[str, float] | None, "The same on each type of GPU alone that could hold it; null where there is one type."
    ] = None
    iterations_total: Annotated[int | None, "Of the whole training: reported, else predicted."] = None
    alpha_observed: Annotated[float | None, "Seconds per iteration between its reports."] = None
    remaining_s: Annotated[float | None, "What a running job still takes, by its reports, else as predicted."] = None
    predicted_low: Annotated[int | None, "With 10% it takes fewer iterations; null where nothing is predicted."] = None
    predicted_high: Annotated[int | None, "With 90% it takes fewer iterations."] = None
    predicted_mean: Annotated[int | None, "Iterations that its place in the queue goes by; null: the predicted."] = None
    predicted_by: Annotated[
        str, "Whose runs the prediction rests on: exact (same size and arguments), group, program, user or cluster."
    ] = ""
    predicted_run_low_s: Annotated[float | None, "The same of the run time, 10%."] = None
    predicted_run_high_s: Annotated[float | None, "The same of the run time, 90%."] = None
    remaining_low_s: Annotated[float | None, "The same of what is left; null if the job has said it itself."] = None
    remaining_high_s: Annotated[float | None, "The same of what is left, 90%."] = None
    start_earliest: Annotated[
        float | None, "With 10% a waiting job has started by then; of tasks that wait together the next one."
    ] = None
    start_median: Annotated[float | None, "With 50% it has."] = None
    start_latest: Annotated[float | None, "With 90% it has; null: later than was simulated."] = None
    last_start_earliest: Annotated[float | None, "Of tasks that wait together the same of the last one, 10%."] = None
    last_start_latest: Annotated[float | None, "And 90%; null where that is not foreseen."] = None
    start_made: Annotated[float | None, "When that was simulated."] = None
    start_unknown: Annotated[str, "Why a waiting job has no such estimate."] = ""
    band: Annotated[int | None, "By fair-share, 1 goes first; null where policy.fairshare_bands is not set."] = None
    queue: Annotated[int | None, "By attained service, 1 goes first; null but for policy hlas."] = None
    attained_gpu_s: Annotated[
        float | None, "GPU-seconds that it has had, in all its runs; null but for policy hlas."
    ] = None
    interruptions: Annotated[int, "How often it has made room for others (policy hlas)."] = 0
    never_interrupted: Annotated[
        str | None, "Why a running job is not interrupted; empty if it may be, null but for policy hlas."
    ] = None
    ahead: Annotated[
        dict[str, float] | None,
        "Of those in line before it the GPUs (gpus), the predicted work in GPU-seconds (gpu_s), and how many are of "
        "unseen groups, which have none (unseen); the tasks of their arrays that are not in line yet (tasks); null "
        "without a rank.",
    ] = None


@dataclass(frozen=True)
class NodeStatus:
    """A node with GPUs of the managed partitions."""

    name: Annotated[str, "Its name."]
    gpus: Annotated[int, "GPUs that it has."]
    gpus_free: Annotated[int, "GPUs on which asrptd could start a job now; 0 on a node that is down or draining."]
    gpu_type: Annotated[str, "As in slurm.conf, or empty."] = ""
    partitions: Annotated[list[str], "The partitions that it is in."] = field(default_factory=list)
    state: Annotated[str, "As Slurm writes it."] = ""
    other_gres: Annotated[bool, "Whether its GPUs are of several kinds, or not whole: Slurm keeps it."] = False


@dataclass(frozen=True)
class Status:
    """What asrpt-status --json prints. Filters apply to ``jobs``."""

    written: Annotated[float, "When asrptd wrote it, seconds since the epoch."]
    mode: Annotated[str, "shadow, order, enforce, or disabled."]
    policy: Annotated[str, "The policy by name."]
    interval_s: Annotated[float, "Seconds between two cycles of asrptd."]
    gpus_total: Annotated[int, "GPUs of the usable nodes."]
    gpus_free: Annotated[int, "Those that are free."]
    jobs: Annotated[list[JobStatus], "In the order in which they should start, running ones first."] = field(
        default_factory=list
    )
    schema: Annotated[int, "1. Fields may be added; any other change makes it 2."] = SCHEMA
    leader: Annotated[str, "Host, pid and since when, of the asrptd that wrote it."] = ""
    forecast_s: Annotated[float, "Seconds between two estimates of starts; 0: none."] = 0.0
    nodes: Annotated[list[NodeStatus], "In Slurm's order."] = field(default_factory=list)
    counts: Annotated[dict[str, list[int]], "Of each state all jobs and their GPUs, whatever the filters."] = field(
        default_factory=dict
    )
    release: Annotated[str, "Of the asrptd that wrote it; empty before there was this field."] = ""


def stale_after(interval_s: float) -> float:
    """Seconds after which a status of an asrptd that does a cycle so often is that of one that is gone, or hangs."""
    return max(STALE_CYCLES * interval_s, STALE_AT_LEAST_S)


def withdrawn_after(forecast_s: float) -> float:
    """Seconds after which an estimate of a start says nothing any more."""
    return max(300.0, 3 * forecast_s)


def write_status(run_dir: Path, status: Status, *, private: bool = False) -> None:
    """Replace the status. private: for nobody but root and the daemon's user. Raises OSError."""
    rest = {name: value for name, value in vars(status).items() if name != "jobs"}
    rest |= {"nodes": [vars(node) for node in status.nodes], "counts": status.counts or count_jobs(status.jobs)}
    rows = map(json.JSONEncoder().encode, map(_known, status.jobs))
    text = json.dumps(rest)[:-1] + ', "jobs": [\n' + ",\n".join(rows) + "\n]}"
    publish(run_dir, FILE_NAME, text.encode(), private=private)


def _known(job: JobStatus) -> dict[str, Any]:
    """A row without what is null; asdict() would copy it, at ten times the cost."""
    return {name: value for name, value in vars(job).items() if value is not None}


def count_jobs(jobs: list[JobStatus]) -> dict[str, list[int]]:
    """Of each state the jobs and their GPUs."""
    found: dict[str, list[int]] = {}
    for job in jobs:
        count = found.setdefault(job.state, [0, 0])
        count[0] += 1
        count[1] += job.gpus
    return found


def publish(run_dir: Path, name: str, data: bytes, *, private: bool = False) -> None:
    """Replace a file of the run folder. private: for nobody but root and the daemon's user. Raises OSError."""
    temporary = run_dir / f".{name}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            os.fchmod(descriptor, 0o600 if private else 0o644)
        temporary.replace(run_dir / name)
    except OSError:
        temporary.unlink()  # a part of it would fill the folder until a restart, and longer
        raise


def read_published(run_dir: Path, name: str) -> bytes:
    """A file that asrptd publishes. Raises AsrptError that says why there is none."""
    path = run_dir / name
    try:
        return path.read_bytes()
    except FileNotFoundError:
        why = "asrptd has not run yet (systemctl status asrptd), or this machine does not see its folder (paths.run)"
        raise AsrptError(f"{path} is not there: {why}") from None
    except PermissionError:
        raise AsrptError(f"{path} is for SlurmUser and root alone: slurm.conf has PrivateData=jobs") from None
    except OSError as error:
        raise AsrptError(f"{path} cannot be read ({error.strerror})") from error


def read_status(run_dir: Path) -> Status:
    """The daemon's last word. Raises AsrptError where there is none or it is of another schema."""
    from pydantic_core import from_json  # reads much in half the time, but is not loaded for little

    return _parsed(run_dir / FILE_NAME, read_published(run_dir, FILE_NAME), from_json)


def read_screenful(run_dir: Path, user: str, rows: int) -> Status:
    """The same with this user's jobs, and so many of those that run and of those that wait: quick with 10,000 jobs."""
    mine, room = _of(user), {True: rows, False: rows}

    def fits(line: bytes) -> bool:
        runs = _RUNS in line
        room[runs] -= 1
        return room[runs] >= 0 or mine in line

    return _read_some(run_dir, fits)


def read_users(run_dir: Path, users: Iterable[str]) -> Status:
    """The same with the jobs of these users alone."""
    marks = [_of(user) for user in users]
    return _read_some(run_dir, lambda line: any(mark in line for mark in marks))


def read_jobs(run_dir: Path, job_ids: Iterable[str]) -> Status:
    """The same with these jobs, or all tasks of arrays, alone."""
    names = [f'"job_id": {json.dumps(job_id)}'.encode() for job_id in job_ids]
    marks = [mark for name in names for mark in (name + b", ", name[:-1] + b"_")]
    return _read_some(run_dir, lambda line: any(mark in line for mark in marks))


def read_around(run_dir: Path, job_id: str) -> Status:
    """The same with this job or array, the first in line, and all that run: what its explanation rests on.

    Of a task the record of its array, too, which it may wait in.
    """
    name, room = f'"job_id": {json.dumps(job_id)}'.encode(), [NEAREST]
    job, array = name + b", ", name[:-1] + b"_"
    rest = f'"job_id": {json.dumps(job_id.partition("_")[0])}, '.encode()

    def told(line: bytes) -> bool:
        if _RANKED in line and room[0]:
            room[0] -= 1
            return True
        return _RUNS in line or job in line or array in line or rest in line

    return _read_some(run_dir, told)


def _of(user: str) -> bytes:
    return f'"user": {json.dumps(user)}, '.encode()


def _read_some(run_dir: Path, takes: Callable[[bytes], bool]) -> Status:
    """The status with some of its jobs; not to read the others takes most of the time away.

    Each job is on a line of its own, and a quotation mark inside a text has a backslash before it.
    """
    data = read_published(run_dir, FILE_NAME)
    head, mark, body = data.partition(_JOBS)
    *lines, tail = body.split(b"\n")
    chosen = [line.rstrip(b",") for line in lines if takes(line)]
    return _parsed(run_dir / FILE_NAME, head + mark + b",".join(chosen) + tail if mark else data)


def _parsed(path: Path, data: bytes, loads: Callable[[bytes], Any] = json.loads) -> Status:
    try:
        raw = loads(data)
        if raw.get("schema") != SCHEMA:
            raise AsrptError(f"{path}: schema {raw.get('schema')}, this asrpt-status reads {SCHEMA}; update it")
        raw["jobs"] = _rows(JobStatus, raw["jobs"])
        raw["nodes"] = _rows(NodeStatus, raw.get("nodes", []))
        (found,) = _rows(Status, [raw])
        return found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise AsrptError(f"{path} is damaged; asrptd writes it anew each cycle, so try again") from error


def _rows(kind: type[T], rows: list[dict[str, Any]]) -> list[T]:
    """Objects of a dataclass that take the rows as they are; by its constructor 10,000 cost a tenth of a second more.

    What has a default may be missing, what is unknown is of a later release. Raises KeyError for a field that is
    missing, TypeError, AttributeError for rows that are none.
    """
    known = fields(kind)  # type: ignore[arg-type]  # it is a dataclass
    factories = {f.name: f.default_factory for f in known if f.default_factory is not MISSING}
    needed = {f.name for f in known if f.default is MISSING}
    made = []
    for row in rows:
        if not needed <= row.keys():
            for name in needed - row.keys():
                row[name] = factories[name]()  # KeyError where it has none
        found = object.__new__(kind)
        object.__setattr__(found, "__dict__", row)  # other defaults are attributes of the class
        made.append(found)
    return made


def to_json(status: Status) -> str:
    """With all fields, in ASCII. Ten times as fast as asdict() and json.dumps."""
    from pydantic_core import to_json as dumps

    rows = {"jobs": _with_defaults(JobStatus, status.jobs), "nodes": _with_defaults(NodeStatus, status.nodes)}
    return dumps(vars(status) | rows).decode().encode("ascii", _AS_JSON).decode("ascii")


def _as_json(error: UnicodeError) -> tuple[str, int]:
    """What is not ASCII as JSON has it, \\u1234."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


_AS_JSON = "slurm_asrpt.status.document"
codecs.register_error(_AS_JSON, _as_json)


def _with_defaults(kind: type[Any], rows: Iterable[Any]) -> list[dict[str, Any]]:
    usual = {f.name: None if f.default is MISSING else f.default for f in fields(kind)}
    return [usual | vars(row) for row in rows]
