"""Readers of published GPU traces: Alibaba openb, Microsoft Philly, SenseTime Helios, Microsoft ITP.

Each reader accepts the files as published, and a list in shared columns: job_id, submit_s, user, group, num_gpus,
gpu_type, duration_s, status, and further columns that tell the traces apart. Alibaba's PAI tables are in pai.py.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import InputError
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.traces.files import Rows, TraceFile, lines, open_trace_file, read_rows
from slurm_asrpt.traces.parsing import instants, recurrent_names
from slurm_asrpt.traces.registry import ReadOptions, register
from slurm_asrpt.traces.trace import DAY_S, ROUNDED, Trace, clean, numbers

SHARED = ("job_id", "submit_s", "user", "group", "num_gpus", "gpu_type", "duration_s", "status")
_SHARED_TEXT = ("job_id", "user", "group", "status")
_SHARED_NUMBERS = ("submit_s", "num_gpus", "duration_s")


def has_shared_columns(found: TraceFile, *titles: str) -> bool:
    """Whether the file has the shared columns and the titles that tell one trace from the others."""
    return found.has(*SHARED, *titles)


def read_shared_columns(
    found: TraceFile, text: Mapping[str, str] | None = None, number: Mapping[str, str] | None = None
) -> Rows:
    """Read the shared columns. text, number: further columns, our column -> the file's title."""
    text, number = (
        {**{name: name for name in _SHARED_TEXT}, **(text or {})},
        {**{n: n for n in _SHARED_NUMBERS}, **(number or {})},
    )
    rows = read_rows(found.path, list(text.values()), list(number.values()))
    names = {theirs: ours for ours, theirs in (text | number).items()} | {"num_gpus": "gpus"}
    return Rows(rows.frame.rename(columns=names), rows.faults)


def shared_columns_trace(found: TraceFile, queue: str) -> Trace:
    """A trace that needs only the queue in addition to the shared columns."""
    rows = read_shared_columns(found, {"queue": queue})
    return clean(found.name, rows.frame, left_out=rows.faults)


_OPENB = ("name", "num_gpu", "gpu_milli", "pod_phase", "creation_time", "deletion_time", "scheduled_time")


def _is_openb(found: TraceFile) -> bool:
    return has_shared_columns(found, "gpu_milli") or found.has(*_OPENB)


@register("openb", "Alibaba openb 2023 (FGD): openb_pod_list*.csv, or the list with gpu_milli", _is_openb)
def read_openb(found: TraceFile, options: ReadOptions) -> Trace:
    """Alibaba openb (2023, published with FGD): pods, some of which use a part of a GPU.

    A pod with less than 1000 gpu_milli uses a part of one GPU, which is rounded up. Raises InputError.
    """
    if has_shared_columns(found, "gpu_milli"):
        rows = read_shared_columns(found, number={"gpu_milli": "gpu_milli"})
        frame = rows.frame
    else:
        times = ["creation_time", "scheduled_time", "deletion_time"]
        rows = read_rows(found.path, ["name", "pod_phase"], ["num_gpu", "gpu_milli", *times])
        frame = rows.frame.rename(columns={"name": "job_id", "pod_phase": "status", "num_gpu": "gpus"})
        _openb_times(frame)
    parts = (frame["gpus"] == 1) & (frame["gpu_milli"] > 0) & (frame["gpu_milli"] < 1000)
    return clean(found.name, frame, {ROUNDED: parts}, rows.faults)


def _openb_times(frame: pd.DataFrame) -> None:
    """A pod runs from its scheduling (or its creation, if that is missing) to its deletion."""
    start = frame["scheduled_time"].fillna(frame["creation_time"])
    frame["submit_s"] = frame["creation_time"]
    frame["duration_s"] = frame["deletion_time"] - start
    frame["wait_s"] = frame["scheduled_time"] - frame["creation_time"]


MAX_JSON = 512 << 20
"""Characters of ``cluster_job_log``, which is read in one piece; the published one has about 100 million."""


def _is_philly(found: TraceFile) -> bool:
    return has_shared_columns(found, "vc", "submit_local") or _is_json(found)


def _is_json(found: TraceFile) -> bool:
    begin = "".join(found.head).lstrip()
    return begin.startswith("[") and '"jobid"' in begin and '"attempts"' in begin


@register(
    "philly", "Microsoft Philly 2017: cluster_job_log (JSON), or the job list with vc and submit_local", _is_philly
)
def read_philly(found: TraceFile, options: ReadOptions) -> Trace:
    """Microsoft Philly (2017): the published JSON, and the job list made of it.

    The queue is the virtual cluster. Raises InputError.
    """
    return _read_json(found) if _is_json(found) else _read_list(found)


def _read_list(found: TraceFile) -> Trace:
    rows = read_shared_columns(found, {"queue": "vc", "local": "submit_local"})
    local, _ = instants(rows.frame["local"])
    # both clocks run alike: shifting by whole days keeps the list's values and gives the hour of the day
    apart = float((local - rows.frame["submit_s"]).median())
    told = math.isfinite(apart)
    rows.frame["submit_s"] += apart % DAY_S if told else 0.0
    return clean(found.name, rows.frame, left_out=rows.faults, midnights=told)


def _read_json(found: TraceFile) -> Trace:
    """One object per job: it runs in its attempts, and its GPUs are those of the last attempt that has any.

    The run time is the sum over the attempts; the wait ends when the first attempt starts.
    """
    with lines(found.path) as opened:
        text = "".join(_limited(opened))
    try:
        jobs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{found.path}: not JSON ({str(error)[:80]}); is this Philly's cluster_job_log?") from None
    sound = [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []
    if not sound:
        raise InputError(f"{found.path}: no list of jobs; is this Philly's cluster_job_log?")
    frame = pd.DataFrame([_job(job) for job in sound])
    attempts = pd.DataFrame(
        [attempt for number, job in enumerate(sound) for attempt in _attempts(number, job)],
        columns=["job", "start", "end"],
    )
    frame["submit_s"], _ = instants(frame["submit_s"])
    start, _ = instants(attempts["start"])
    end, _ = instants(attempts["end"])
    by_job = (end - start).groupby(attempts["job"])
    # an attempt without an end gives no run time, rather than one that is too short
    frame["duration_s"] = by_job.sum(min_count=1).where(by_job.count() == by_job.size()).reindex(frame.index)
    frame["wait_s"] = start.groupby(attempts["job"]).min().reindex(frame.index) - frame["submit_s"]
    strange = len(jobs) - len(sound)
    return clean(found.name, frame, left_out={"no job": strange}, midnights=True)


def _limited(opened: Any) -> Any:
    count = 0
    for line in opened:
        count += len(line)
        if count > MAX_JSON:
            raise InputError(f"more than {MAX_JSON >> 20} MiB of JSON; is this Philly's cluster_job_log?")
        yield line


def _job(raw: Mapping[str, Any]) -> dict[str, Any]:
    gpus = [_gpus(attempt) for attempt in _list(raw.get("attempts")) if isinstance(attempt, dict)]
    return {
        "job_id": _word(raw.get("jobid")),
        "submit_s": _word(raw.get("submitted_time")),
        "user": _word(raw.get("user")),
        "gpus": next((count for count in reversed(gpus) if count), 0),
        "status": _word(raw.get("status")),
        "queue": _word(raw.get("vc")),
    }


def _attempts(number: int, raw: Mapping[str, Any]) -> list[tuple[int, str, str]]:
    found = [attempt for attempt in _list(raw.get("attempts")) if isinstance(attempt, dict)]
    return [(number, _word(attempt.get("start_time")), _word(attempt.get("end_time"))) for attempt in found]


def _gpus(attempt: Mapping[str, Any]) -> int:
    servers = [server for server in _list(attempt.get("detail")) if isinstance(server, dict)]
    return sum(len(_list(server.get("gpus"))) for server in servers)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


_HELIOS = ("user", "vc", "gpu_num", "state", "submit_time", "duration")


def _is_helios(found: TraceFile) -> bool:
    return has_shared_columns(found, "vc", "num_nodes") or (found.has(*_HELIOS) and _id_title(found) != "")


def _id_title(found: TraceFile) -> str:
    return next((title for title in ("job_id", "jobname") if found.has(title)), "")


@register(
    "helios", "SenseTime Helios 2020 (cluster_log.csv), Lucid's variants, or the list with vc, num_nodes", _is_helios
)
def read_helios(found: TraceFile, options: ReadOptions) -> Trace:
    """SenseTime Helios (2020): as published, as in Lucid's artifact, and as a list in shared columns.

    The queue is the virtual cluster; the file's ``queue`` is the wait in seconds. Lucid's job names make the
    groups. Jobs of the CPU cluster use no GPUs and are left out. Raises InputError.
    """
    if has_shared_columns(found, "vc", "num_nodes"):
        return shared_columns_trace(found, "vc")
    key = _id_title(found) or "job_id"
    text = ["user", "vc", "state", "submit_time", *sorted({key, *(t for t in ("jobname", "queue") if found.has(t))})]
    rows = read_rows(found.path, text, ["gpu_num", "duration"])
    names = {"vc": "queue", "state": "status", "gpu_num": "gpus", "duration": "duration_s", "queue": "wait_s"}
    frame = rows.frame.rename(columns=names)
    frame["submit_s"], midnights = instants(frame["submit_time"])
    if "wait_s" in frame:
        frame["wait_s"] = numbers(frame["wait_s"])
    if key == "jobname":
        frame["job_id"] = frame["jobname"]
    elif "jobname" in frame:
        frame["group"] = recurrent_names(frame["user"], frame["jobname"])
    return clean(found.name, frame, left_out=rows.faults, midnights=midnights)


_ITP = ("job_id", "submission_time", "duration", "num_gpu")


def _is_itp(found: TraceFile) -> bool:
    if found.path.is_dir():
        files = _clusters(found.path)
        return bool(files) and open_trace_file(files[0]).has(*_ITP)
    return has_shared_columns(found, "cluster") or found.has(*_ITP)


def _clusters(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")])


@register(
    "itp", "Microsoft ITP 2021 (ElasticFlow): a cluster's CSV, their directory, or the list with cluster", _is_itp
)
def read_itp(found: TraceFile, options: ReadOptions) -> Trace:
    """Microsoft ITP (2021, published with ElasticFlow): a file per cluster, their directory, or a list with a cluster
    column.

    The queue is the cluster. The source has no users and no recurrence. Raises InputError.
    """
    if has_shared_columns(found, "cluster"):
        return shared_columns_trace(found, "cluster")
    files = _clusters(found.path) if found.path.is_dir() else [found.path]
    parts = [_cluster(path) for path in files]
    faults: dict[str, int] = {}
    for part in parts:
        for fault, count in part.faults.items():
            faults[fault] = faults.get(fault, 0) + count
    return clean(found.name, pd.concat([part.frame for part in parts], ignore_index=True), left_out=faults)


def _cluster(path: Path) -> Rows:
    rows = read_rows(path, ["job_id"], ["submission_time", "duration", "num_gpu"])
    names = {"submission_time": "submit_s", "duration": "duration_s", "num_gpu": "gpus"}
    queue = path.name.removesuffix(".gz").removesuffix(".csv")
    return Rows(rows.frame.rename(columns=names).assign(queue=queue), rows.faults)
