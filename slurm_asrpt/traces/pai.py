"""Alibaba's PAI trace (2020, "MLaaS in the Wild"): the official tables, and the simulator's list of 100,000 jobs.

Fractional GPUs: ``plan_gpu`` is a percentage of a GPU for each instance of a task. A job's GPUs are plan_gpu / 100
times inst_num, summed over its tasks and rounded up to whole GPUs (``trace.whole_gpus``). Jobs without GPUs are left
out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from slurm_asrpt.errors import InputError
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.traces.files import Rows, TraceFile, open_trace_file, read_rows
from slurm_asrpt.traces.registry import ReadOptions, register
from slurm_asrpt.traces.trace import ROUNDED, Trace, clean, whole_gpus

TABLES: Mapping[str, tuple[str, ...]] = {
    "job": ("job_name", "inst_id", "user", "status", "start_time", "end_time"),
    "task": (
        *("job_name", "task_name", "inst_num", "status", "start_time", "end_time"),
        *("plan_cpu", "plan_mem", "plan_gpu", "gpu_type"),
    ),
    "instance": (
        *("job_name", "task_name", "inst_name", "worker_name", "inst_id", "status", "start_time", "end_time"),
        "machine",
    ),
    "group_tag": ("inst_id", "user", "gpu_type_spec", "group", "workload"),
}
"""The columns of the official files, which have no header line."""

_LIST = ("job_id", "user", "num_gpu", "num_pod", "duration", "job_name", "submit_time", "group", "wait_time")
_BEIJING_S = 8 * 3600
"""Time stamps keep the time of day in UTC+8."""


def _is_pai(found: TraceFile) -> bool:
    return found.has(*_LIST) or _folder(found.path) is not None


def _folder(path: Path) -> Path | None:
    """The directory of the official tables: the path itself, or the directory of the job table at the path."""
    if path.is_dir():
        return path if _table(path, "job") else None
    return path.parent if path.name.startswith("pai_job_table.csv") else None


def _table(folder: Path, name: str) -> Path | None:
    paths = (folder / f"pai_{name}_table.csv{suffix}" for suffix in ("", ".gz"))
    return next((path for path in paths if path.is_file()), None)


@register("pai", "Alibaba PAI 2020: a directory of pai_*_table.csv, or pai_job_duration_estimate_100K.csv", _is_pai)
def read(found: TraceFile, options: ReadOptions) -> Trace:
    """Raises InputError."""
    folder = _folder(found.path)
    return _read_tables(folder) if folder else _read_list(found)


def _read_list(found: TraceFile) -> Trace:
    rows = read_rows(found.path, ["job_id", "user", "group"], ["submit_time", "num_gpu", "duration", "wait_time"])
    names = {"submit_time": "submit_s", "num_gpu": "gpus", "duration": "duration_s", "wait_time": "wait_s"}
    frame = rows.frame.rename(columns=names)
    frame["gpus"], rounded = whole_gpus(frame["gpus"])
    return clean(found.name, frame, {ROUNDED: rounded}, rows.faults)


def _read_tables(folder: Path) -> Trace:
    """A job is submitted at its start_time and runs from the start of its first instance (or task) to its end_time."""
    jobs = _rows(folder, "job", ["job_name", "inst_id", "user", "status"], ["start_time", "end_time"])
    tasks = _rows(folder, "task", ["job_name"], ["inst_num", "start_time", "plan_gpu"])
    faults = Counter(jobs.faults) + Counter(tasks.faults)
    index = pd.Index(jobs.frame["job_name"].drop_duplicates())
    gpus, start, strange = _per_job(tasks.frame, index)
    merged = Counter({"task of a job": len(tasks.frame) - strange})
    faults["task of no job in the table"] += strange
    if _table(folder, "instance"):
        first, instances = _first_instances(folder, index)
        start = np.where(np.isnan(first), start, first)
        merged["instance of a job"] += len(instances.frame) - int(instances.frame["alien"].sum())
        faults["instance of no job in the table"] += int(instances.frame["alien"].sum())
        faults.update(instances.faults)
    group = _groups(folder, jobs.frame["inst_id"], merged, faults)
    place = index.get_indexer(pd.Index(jobs.frame["job_name"]))
    frame = _frame(jobs.frame, group, gpus[place], start[place])
    frame["gpus"], rounded = whole_gpus(frame["gpus"])
    return clean(folder.name or "pai", frame, {ROUNDED: rounded}, faults, merged, midnights=True)


def _frame(jobs: pd.DataFrame, group: pd.Series, gpus: np.ndarray, start: np.ndarray) -> pd.DataFrame:
    submit = _time(jobs["start_time"])
    return pd.DataFrame(
        {
            "job_id": jobs["job_name"],
            "submit_s": submit + _BEIJING_S,
            "user": jobs["user"],
            "group": group,
            "gpus": gpus,
            "duration_s": _time(jobs["end_time"]) - start,
            "status": jobs["status"],
            "wait_s": start - submit,
        }
    )


def _time(stamps: pd.Series) -> pd.Series:
    """Time stamps; 0 stands for none."""
    return stamps.where(stamps > 0)


def _rows(folder: Path, name: str, text: Sequence[str], number: Sequence[str]) -> Rows:
    """One table, with or without a header line. Raises InputError if it is missing."""
    path = _table(folder, name)
    if path is None:
        raise InputError(f"{folder}: no pai_{name}_table.csv; the job and the task table are needed")
    titled = open_trace_file(path).titles[:2] == TABLES[name][:2]
    try:
        return read_rows(path, text, number, () if titled else TABLES[name])
    except InputError as error:
        raise error if str(path) in str(error) else InputError(f"{path}: {error}") from None


def _per_job(tasks: pd.DataFrame, index: pd.Index) -> tuple[np.ndarray, np.ndarray, int]:
    """GPUs (also fractional) and first start of each job of the index, nan if unknown; and the number of tasks
    without a job."""
    place = index.get_indexer(pd.Index(tasks["job_name"]))
    known = place >= 0
    planned = tasks["plan_gpu"].fillna(0.0)
    wanted = (planned / 100 * tasks["inst_num"]).where(planned != 0, 0.0)
    # a negative number could be offset by another task's; nan is safer
    wanted = wanted.where((planned >= 0) & ~(tasks["inst_num"] < 0))
    gpus = np.zeros(len(index))
    np.add.at(gpus, place[known], wanted.to_numpy()[known])
    without = np.ones(len(index), dtype=bool)
    without[place[known]] = False
    gpus[without] = np.nan  # without a known task the number of GPUs is unknown
    return gpus, _first(place, tasks["start_time"], len(index)), int((~known).sum())


def _first(place: np.ndarray, stamps: pd.Series, count: int) -> np.ndarray:
    """The earliest time stamp at each place, nan if there is none."""
    known = (place >= 0) & (stamps.to_numpy() > 0)
    first = np.full(count, np.inf)
    np.minimum.at(first, place[known], stamps.to_numpy()[known])
    return np.where(np.isinf(first), np.nan, first)


def _first_instances(folder: Path, index: pd.Index) -> tuple[np.ndarray, Rows]:
    """The first instance's start of each job, and for each row of the table whether its job is unknown."""
    rows = _rows(folder, "instance", ["job_name"], ["start_time"])
    place = index.get_indexer(pd.Index(rows.frame["job_name"]))
    first = _first(place, rows.frame["start_time"], len(index))
    return first, Rows(pd.DataFrame({"alien": place < 0}), rows.faults)


def _groups(folder: Path, inst_id: pd.Series, merged: Counter[str], faults: Counter[str]) -> pd.Series:
    """The recurrence group of each job; empty if the tag table is missing or has none."""
    if _table(folder, "group_tag") is None:
        return pd.Series("", index=inst_id.index, dtype=object)
    tags = _rows(folder, "group_tag", ["inst_id", "group"], [])
    faults.update(tags.faults)
    merged["group tag of a job"] += len(tags.frame)
    known = tags.frame[tags.frame["group"] != ""].drop_duplicates("inst_id").set_index("inst_id")["group"]
    return inst_id.map(known).fillna("")
