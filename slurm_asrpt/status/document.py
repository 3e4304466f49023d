"""status.json: the published state of the queue. asrptd replaces it by rename; asrpt-status reads it. Schema 1.

``python -m slurm_asrpt.status.schema`` generates docs/status.schema.json from the fields' descriptions. Later releases
may add fields without a new schema number, so readers ignore unknown fields. Any other change increments the number.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

from slurm_asrpt.errors import AsrptError
from slurm_asrpt.files import replace_file

SCHEMA = 1
OWN_ORDER = "Slurm's own order"
"""What ``priority`` says of a job that goes by that, and not by its work."""
UNUSED_PROFILE = "unused_profile"
"""The fact that says why the profile that a job names is not used."""
RESERVED_IN, DRAWN_BY = "reserved_in", "drawn_by"
"""The facts with the reservation that a job names or runs in, and with the magnetic ones that draw it."""
COMMUNICATION = "communication"
"""The fact that says what runs have taught about how much a job without a profile communicates."""
PREEMPTED_BY_NONE = "preempted_by_none"
"""The fact of a running job that may be preempted, where the policy preempts no jobs: the name of the policy."""
RAN_ON = "ran_on"
"""The fact with the nodes of an ended job, as a list of Slurm; those with GPUs are also in ``nodes``."""
FILE_NAME = "status.json"
STALE_CYCLES, STALE_AT_LEAST_S = 3, 30.0
NEAREST = 3
"""How many of the jobs ahead an explanation names."""
_JOBS = b'"jobs": [\n'
_RUNS = b'"state": "running", '
_RANKED = b'"rank": '
T = TypeVar("T")


@dataclass  # not frozen: created once per job and cycle, at half the cost
class JobStatus:
    """A job. Times are in seconds since the epoch, durations in seconds; null if unknown."""

    job_id: Annotated[str, "As in Slurm: 1234, or 1234_5 for an array task."]
    name: Annotated[str, "The job name."]
    user: Annotated[str, "The owner."]
    partition: Annotated[str, "The partition, or several separated by commas."]
    gpus: Annotated[int, "Allocated or requested GPUs."]
    group: Annotated[str, "Recurrence group, 16 hex digits; empty if the hook has not tagged the job."]
    profile: Annotated[str, "The profile that the job names, or empty."]
    predicted_iterations: Annotated[int, "Predicted training iterations; 0 for an unseen group."]
    submit_time: Annotated[float, "Submission time."]
    state: Annotated[str, "virtual queue, waiting, delayed for placement, starting, running, left to Slurm or ended."]
    reason: Annotated[str, "Why it does not run: one word, stable across releases."]
    text: Annotated[str, "The reason as a sentence; empty for a running job."]
    facts: Annotated[dict[str, Any], "The facts behind the reason; the keys depend on the reason."]
    nodes: Annotated[
        dict[str, int],
        "GPUs per node, perhaps 0: chosen (starting), allocated (running), or last considered (delayed, reserved).",
    ]
    rank: Annotated[int | None, "Position in the queue, 1 is next; null once started or if left to Slurm."] = None
    start_time: Annotated[float | None, "Start time; null before the start."] = None
    predicted_run_s: Annotated[float | None, "Predicted runtime, which the order of the queue uses."] = None
    iterations_done: Annotated[
        int | None, "Iterations that the job reports, counted from the beginning of its training."
    ] = None
    alpha: Annotated[float | None, "Seconds per iteration on those nodes."] = None
    alpha_min: Annotated[float | None, "Seconds per iteration in the best placement."] = None
    alpha_by_type: Annotated[
        dict[str, float] | None, "alpha_min on each GPU type that could hold the job alone; null if there is one type."
    ] = None
    iterations_total: Annotated[int | None, "Iterations of the whole training: reported, else predicted."] = None
    alpha_observed: Annotated[float | None, "Observed seconds per iteration, from the job's reports."] = None
    remaining_s: Annotated[float | None, "Remaining runtime of a running job: from its reports, else predicted."] = None
    predicted_low: Annotated[int | None, "10th percentile of the predicted iterations; null without a prediction."] = (
        None
    )
    predicted_high: Annotated[int | None, "90th percentile of the predicted iterations."] = None
    predicted_mean: Annotated[int | None, "Iterations that the queue order uses; null: predicted_iterations."] = None
    predicted_by: Annotated[
        str, "The runs behind the prediction: exact (same size and arguments), group, program, user or cluster."
    ] = ""
    predicted_run_low_s: Annotated[float | None, "10th percentile of the predicted runtime."] = None
    predicted_run_high_s: Annotated[float | None, "90th percentile of the predicted runtime."] = None
    remaining_low_s: Annotated[
        float | None, "10th percentile of the remaining runtime; null if it follows from the job's reports."
    ] = None
    remaining_high_s: Annotated[float | None, "90th percentile of the remaining runtime."] = None
    start_earliest: Annotated[
        float | None,
        "5th percentile of the start time of a waiting job; for array tasks that wait together, of the next task.",
    ] = None
    start_median: Annotated[float | None, "Median start time."] = None
    start_latest: Annotated[float | None, "90th percentile of the start time; null: start_open says why."] = None
    start_open: Annotated[
        str,
        "Why start_latest is null: few-starts (of jobs with an estimate), horizon (perhaps not within days), or "
        "late-starts (too many jobs have waited beyond their estimates); else empty.",
    ] = ""
    last_start_earliest: Annotated[
        float | None, "5th percentile of the start time of the last of the tasks that wait together."
    ] = None
    last_start_latest: Annotated[float | None, "90th percentile of the same; null: last_start_open says why."] = None
    last_start_open: Annotated[str, "As start_open, for the last task."] = ""
    start_made: Annotated[float | None, "When the start times were estimated."] = None
    start_unknown: Annotated[str, "Why a waiting job has no estimated start time."] = ""
    priority: Annotated[
        str, "What gave the job its priority class, such as QOS high, or a place in Slurm's own order; else empty."
    ] = ""
    weight: Annotated[float, "Its predicted work is divided by this within its class (fair share, age, size)."] = 1.0
    band: Annotated[int | None, "Fair-share band, 1 goes first; null if policy.fairshare_bands is not set."] = None
    queue: Annotated[int | None, "Queue by attained service, 1 goes first; null except for policy hlas."] = None
    attained_gpu_s: Annotated[
        float | None, "Attained service in GPU-seconds, over all its runs; null unless the policy preempts jobs."
    ] = None
    expected_gpu_s: Annotated[
        float | None, "GPU-seconds that it is expected to attain at least, by its losses; null without a prediction."
    ] = None
    interruptions: Annotated[int, "How often the policy has preempted it."] = 0
    never_interrupted: Annotated[
        str | None, "Why a running job may not be preempted; empty if it may be, null if the policy preempts no jobs."
    ] = None
    ahead: Annotated[
        dict[str, float] | None,
        "Totals of the jobs ahead in the queue: GPUs (gpus), predicted work in GPU-seconds (gpu_s), jobs of unseen "
        "groups, which have no predicted work (unseen), and tasks of their arrays that are not in the queue yet "
        "(tasks), and jobs of a higher priority (higher); null without a rank.",
    ] = None
    domains: Annotated[
        dict[str, list[int]] | None,
        "A running job's GPUs in each NVLink domain, by node, where they lie in several; null if they do not, or if "
        "fabric.nvlink_domain is not set.",
    ] = None
    layout: Annotated[str, "How its GPUs must be on nodes, and on which, as its owner asked; empty if any will do."] = (
        ""
    )
    released_ahead: Annotated[
        bool, "It is among the next jobs (daemon.release_ahead): it waits without a lease, and Slurm starts it."
    ] = False
    end_time: Annotated[float | None, "When it ended; null before. status.json has no ended jobs."] = None
    limit_end: Annotated[float | None, "When its time limit ends a running job; null if it has none."] = None


@dataclass(frozen=True)
class NodeStatus:
    """A GPU node of the managed partitions."""

    name: Annotated[str, "The node's name. A node with several GPU types has a row for each: n1:a100."]
    gpus: Annotated[int, "Number of GPUs."]
    gpus_free: Annotated[int, "GPUs on which asrptd could start a job now; 0 if the node is down or draining."]
    gpu_type: Annotated[str, "GPU type as in slurm.conf, or empty."] = ""
    partitions: Annotated[list[str], "The node's partitions."] = field(default_factory=list)
    state: Annotated[str, "The node's state as Slurm reports it."] = ""
    other_gres: Annotated[
        bool, "Whether it has shards or MPS, or only some of its GPUs have a type. Such a node is left to Slurm."
    ] = False
    usable: Annotated[bool, "Whether Slurm would start jobs there; false if it is down, draining or reserved."] = True


@dataclass(frozen=True)
class Status:
    """What asrpt-status --json prints. Filters apply to ``jobs``."""

    written: Annotated[float, "When asrptd wrote this, in seconds since the epoch."]
    mode: Annotated[str, "shadow, order, enforce, disabled, or unsaved: asrptd cannot save its state."]
    policy: Annotated[str, "Name of the policy."]
    interval_s: Annotated[float, "Interval between scheduling cycles, in seconds."]
    gpus_total: Annotated[int, "GPUs on usable nodes."]
    gpus_free: Annotated[int, "Free GPUs on usable nodes."]
    jobs: Annotated[
        list[JobStatus], "Jobs: running ones first, then waiting ones in the order in which they should start."
    ] = field(default_factory=list)
    schema: Annotated[int, "Schema number, 1. Added fields do not change it; any other change makes it 2."] = SCHEMA
    leader: Annotated[str, "Host, pid and start time of the asrptd that wrote this."] = ""
    forecast_s: Annotated[float, "Interval between estimates of start times, in seconds; 0: none."] = 0.0
    nodes: Annotated[list[NodeStatus], "Nodes, in Slurm's order."] = field(default_factory=list)
    counts: Annotated[dict[str, list[int]], "Number of jobs and GPUs in each state, regardless of filters."] = field(
        default_factory=dict
    )
    release: Annotated[str, "Release of the asrptd that wrote this; empty from releases before this field."] = ""


def stale_after(interval_s: float) -> float:
    """Seconds after which a status is stale, for cycles every ``interval_s`` seconds: asrptd is gone or hangs."""
    return max(STALE_CYCLES * interval_s, STALE_AT_LEAST_S)


def withdrawn_after(forecast_s: float) -> float:
    """Seconds after which the estimate of a start time is withdrawn as too old."""
    return max(300.0, 3 * forecast_s)


def write_status(run_dir: Path, status: Status, *, private: bool = False) -> None:
    """Replace the status. private: readable by root and the daemon's user only. Raises OSError."""
    rest = {name: value for name, value in vars(status).items() if name != "jobs"}
    rest |= {"nodes": [vars(node) for node in status.nodes], "counts": status.counts or count_jobs(status.jobs)}
    rows = map(json.JSONEncoder().encode, map(known, status.jobs))
    text = json.dumps(rest)[:-1] + ', "jobs": [\n' + ",\n".join(rows) + "\n]}"
    publish(run_dir, FILE_NAME, text.encode(), private=private)


def known(job: JobStatus) -> dict[str, Any]:
    """A row without its null values; asdict() would copy it, at ten times the cost."""
    return {name: value for name, value in vars(job).items() if value is not None}


def count_jobs(jobs: list[JobStatus]) -> dict[str, list[int]]:
    """Number of jobs and GPUs in each state."""
    found: dict[str, list[int]] = {}
    for job in jobs:
        count = found.setdefault(job.state, [0, 0])
        count[0] += 1
        count[1] += counted_gpus(job)
    return found


def counted_gpus(job: JobStatus) -> int:
    """The GPUs that a job adds to a sum: the first component of a waiting heterogeneous job has those of all."""
    return 0 if job.facts.get("word") == "component" else job.gpus


def publish(run_dir: Path, name: str, data: bytes, *, private: bool = False) -> None:
    """Replace a file in the run directory. private: readable by root and the daemon's user only. Raises OSError."""
    replace_file(run_dir / name, data, 0o600 if private else 0o644, durable=False)


def read_published(run_dir: Path, name: str) -> bytes:
    """A file that asrptd publishes. Raises AsrptError that says why it is missing."""
    path = run_dir / name
    try:
        return path.read_bytes()
    except FileNotFoundError:
        why = "asrptd has not run yet (systemctl status asrptd), or paths.run is not visible on this machine"
        raise AsrptError(f"{path} does not exist: {why}") from None
    except PermissionError:
        raise AsrptError(
            f"{path} is readable by SlurmUser and root only, because slurm.conf has PrivateData=jobs"
        ) from None
    except OSError as error:
        raise AsrptError(f"{path} cannot be read ({error.strerror})") from error


def read_status(run_dir: Path) -> Status:
    """The latest status. Raises AsrptError if there is none, or it has another schema."""
    from pydantic_core import from_json  # twice as fast on large files; not worth its import for small ones

    return _parsed(run_dir / FILE_NAME, read_published(run_dir, FILE_NAME), from_json)


def read_screenful(run_dir: Path, user: str, rows: int) -> Status:
    """The status with this user's jobs and the first ``rows`` running and waiting ones: fast with 10,000 jobs."""
    mine, room = _of(user), {True: rows, False: rows}

    def fits(line: bytes) -> bool:
        runs = _RUNS in line
        room[runs] -= 1
        return room[runs] >= 0 or mine in line

    return _read_some(run_dir, fits)


def read_users(run_dir: Path, users: Iterable[str]) -> Status:
    """The status with the jobs of these users only."""
    marks = [_of(user) for user in users]
    return _read_some(run_dir, lambda line: any(mark in line for mark in marks))


def read_jobs(run_dir: Path, job_ids: Iterable[str]) -> Status:
    """The status with these jobs only; an array's id selects all its tasks."""
    starts = tuple(start for job_id in job_ids for start in (_job(job_id), _tasks(job_id)))
    return _read_some(run_dir, lambda line: line.startswith(starts))


def read_around(run_dir: Path, job_id: str) -> Status:
    """What the explanation of a job needs: the job or array, the first jobs in the queue, and all running ones.

    For an array task also the record of its array, which may stand for it.
    """
    starts, room = (_job(job_id), _tasks(job_id), _job(job_id.partition("_")[0])), [NEAREST]

    def needed(line: bytes) -> bool:
        if room[0] and _RANKED in line:
            room[0] -= 1
            return True
        return line.startswith(starts) or _RUNS in line

    return _read_some(run_dir, needed)


def _job(job_id: str) -> bytes:
    """What the line of the job begins with: ``write_status`` writes fields in their order, and the ID is the first."""
    return f'{{"job_id": {json.dumps(job_id)}, '.encode()


def _tasks(array: str) -> bytes:
    """What the lines of the array's tasks begin with."""
    return f'{{"job_id": {json.dumps(array)[:-1]}_'.encode()


def _of(user: str) -> bytes:
    return f'"user": {json.dumps(user)}, '.encode()


def _read_some(run_dir: Path, takes: Callable[[bytes], bool]) -> Status:
    """The status with the jobs whose lines ``takes`` accepts. Not parsing the others saves most of the time.

    Each job is on a line of its own, and quotation marks inside strings are escaped by a backslash.
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
            raise AsrptError(f"{path}: schema {raw.get('schema')}, but this asrpt-status reads {SCHEMA}; upgrade it")
        raw["jobs"] = _rows(JobStatus, raw["jobs"])
        raw["nodes"] = _rows(NodeStatus, raw.get("nodes", []))
        (found,) = _rows(Status, [raw])
        return found
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise AsrptError(f"{path} is damaged; asrptd rewrites it every cycle, so try again") from error


def _rows(kind: type[T], rows: list[dict[str, Any]]) -> list[T]:
    """Instances of a dataclass that adopt the rows as they are: for 10,000 rows, 0.1 s faster than its constructor.

    Fields with a default may be missing; unknown ones are from a later release. Raises KeyError for other missing
    fields, TypeError and AttributeError for malformed rows.
    """
    known = fields(kind)  # type: ignore[arg-type]  # it is a dataclass
    factories = {f.name: f.default_factory for f in known if f.default_factory is not MISSING}
    needed = {f.name for f in known if f.default is MISSING}
    made = []
    for row in rows:
        if not needed <= row.keys():
            for name in needed - row.keys():
                row[name] = factories[name]()  # KeyError if it has no default
        found = object.__new__(kind)
        object.__setattr__(found, "__dict__", row)  # the other defaults are class attributes
        made.append(found)
    return made


def to_json(status: Status) -> str:
    """JSON with all fields, in ASCII. Ten times as fast as asdict() and json.dumps."""
    from pydantic_core import to_json as dumps

    rows = {"jobs": _with_defaults(JobStatus, status.jobs), "nodes": _with_defaults(NodeStatus, status.nodes)}
    return dumps(vars(status) | rows).decode().encode("ascii", _AS_JSON).decode("ascii")


def _as_json(error: UnicodeError) -> tuple[str, int]:
    """Escapes non-ASCII characters as in JSON, \\u1234."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


_AS_JSON = "slurm_asrpt.status.document"
codecs.register_error(_AS_JSON, _as_json)


def _with_defaults(kind: type[Any], rows: Iterable[Any]) -> list[dict[str, Any]]:
    defaults = {f.name: None if f.default is MISSING else f.default for f in fields(kind)}
    return [defaults | vars(row) for row in rows]
