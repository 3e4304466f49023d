"""CSV files with a header line: columns are found by usual titles, or by those that the user specifies.

Times may be seconds or ISO 8601 dates; durations seconds or ``[D-]HH:MM:SS``. Missing columns are derived: the wait is
start - submission, the run time is end - start, the group is user and job name.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_asrpt.errors import InputError, printable
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.traces.files import TraceFile, read_rows
from slurm_asrpt.traces.parsing import durations, instants, recurrent_names
from slurm_asrpt.traces.registry import ReadOptions, register
from slurm_asrpt.traces.trace import COLUMNS, ROUNDED, Trace, clean, numbers, whole_gpus

EXTRA: Mapping[str, str] = {
    "start_s": "start of the job, on the clock of submit_s",
    "end_s": "end of the job, on the clock of submit_s",
    "name": "the job's name; with the user it makes the group where there is none",
}
"""Columns that ``--column`` accepts in addition to those of a trace."""

ALIASES: Mapping[str, tuple[str, ...]] = {
    "job_id": ("job_id", "jobid", "id"),
    "submit_s": ("submit_s", "submit_time", "submission_time", "submitted_time", "submit"),
    "user": ("user", "user_id", "user_name"),
    "group": ("group", "job_group"),
    "gpus": ("gpus", "num_gpus", "num_gpu", "gpu_num", "n_gpus", "gpu_count", "gpus_req"),
    "duration_s": ("duration_s", "duration", "run_time", "runtime", "elapsed"),
    "status": ("status", "state"),
    "time_limit_s": ("time_limit_s", "time_limit", "wallclock_req"),
    "wait_s": ("wait_s", "wait_time", "queue_time"),
    "queue": ("queue", "partition", "vc", "cluster"),
    "start_s": ("start_s", "start_time", "start"),
    "end_s": ("end_s", "end_time", "end"),
    "name": ("name", "job_name", "jobname"),
}
"""Titles by which a column is known, most likely first."""

_TIMES = ("submit_s", "start_s", "end_s")
_DURATIONS = ("duration_s", "time_limit_s", "wait_s")


_MURI = ("num_gpu", "submit_time", "duration", "iteration_time", "resource_time_0")


@register("muri", "the traces of Muri (SIGCOMM'22), milliseconds", lambda found: found.has("job_id", *_MURI))
def read_muri(found: TraceFile, options: ReadOptions) -> Trace:
    """Sizes and run times derive from Philly; the models in the file are the authors' and are not used."""
    columns = {"job_id": "job_id", "submit_s": "submit_time", "gpus": "num_gpu", "duration_s": "duration"}
    return read_csv_columns(found, columns, unit_s=1e-3)


def _known(titles: tuple[str, ...]) -> dict[str, str]:
    """Our column -> the file's title, for known titles."""
    found = {column: [name for name in names if name in titles] for column, names in ALIASES.items()}
    return {column: names[0] for column, names in found.items() if names}


def _timed(columns: Mapping[str, str]) -> bool:
    return "duration_s" in columns or {"start_s", "end_s"} <= set(columns)


def _has_known_columns(found: TraceFile) -> bool:
    known = _known(found.titles)
    return {"job_id", "submit_s", "gpus"} <= set(known) and _timed(known)


def _has_a_known_column(found: TraceFile) -> bool:
    return len(found.titles) > 1 and bool(_known(found.titles))


@register(
    "csv",
    "CSV with a line of titles; --column submit_s=TITLE where the title is unusual",
    _has_known_columns,
    _has_a_known_column,
)
def read(found: TraceFile, options: ReadOptions) -> Trace:
    """Raises InputError for a missing column."""
    if found.path.is_dir():
        raise InputError(f"{found.path}: is a directory; specify one file")
    return read_csv_columns(found, _chosen(found, options.columns))


def _chosen(found: TraceFile, wanted: Mapping[str, str]) -> dict[str, str]:
    """Known titles, overridden by the user's."""
    unknown = [column for column in wanted if column not in ALIASES]
    if unknown:
        known = ", ".join([*COLUMNS, *EXTRA])
        raise InputError(f"--column {printable(unknown[0])[:40]}=...: unknown column; valid ones: {known}")
    chosen = {**_known(found.titles), **{column: title.strip().casefold() for column, title in wanted.items()}}
    missing = [column for column in ("submit_s", "gpus") if column not in chosen]
    missing += ["duration_s"] * (not _timed(chosen))
    if missing:
        specify = " ".join(f"--column {column}=TITLE" for column in missing)
        raise InputError(f"{found.path}: no column has a known title for {' and '.join(missing)}; specify: {specify}")
    return chosen


def read_csv_columns(found: TraceFile, columns: Mapping[str, str], unit_s: float = 1.0) -> Trace:
    """Read the given columns of a file. Rows without an ID are numbered. unit_s: seconds per unit of numeric times
    and durations."""
    rows = read_rows(found.path, sorted(set(columns.values())), [])
    frame = pd.DataFrame({column: rows.frame[title] for column, title in columns.items()})
    if "job_id" not in frame:
        frame["job_id"] = [str(number) for number in range(1, len(frame) + 1)]
    midnights = False
    for column in _TIMES:
        if column in frame:
            frame[column], dated = instants(frame[column])
            midnights = midnights or (column == "submit_s" and dated)
            frame[column] *= 1.0 if dated else unit_s
            frame.loc[frame[column] < 0, column] = float("nan")  # -1 stands for an unknown time
    for column in _DURATIONS:
        if column in frame:
            frame[column] = durations(frame[column]) * unit_s
    gpus, rounded = whole_gpus(numbers(frame["gpus"]))
    frame["gpus"] = gpus
    _derive(frame)
    return clean(found.name, frame, {ROUNDED: rounded}, rows.faults, midnights=midnights)


def _derive(frame: pd.DataFrame) -> None:
    """Derive missing columns, in place."""
    if "wait_s" not in frame and "start_s" in frame:
        frame["wait_s"] = frame["start_s"] - frame["submit_s"]
    if "duration_s" not in frame:
        frame["duration_s"] = frame["end_s"] - frame["start_s"]
    if "group" not in frame and "name" in frame:
        frame["group"] = recurrent_names(frame.get("user", pd.Series("", index=frame.index)), frame["name"])
