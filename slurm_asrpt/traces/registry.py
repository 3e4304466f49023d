"""Trace formats by name, and detection of a file's format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_asrpt.errors import InputError, printable
from slurm_asrpt.traces.files import TraceFile, open_trace_file
from slurm_asrpt.traces.trace import Trace

AUTO = "auto"


@dataclass(frozen=True)
class ReadOptions:
    """processors_as_gpus: count the processors in a log of CPU jobs as GPUs. columns: our column -> the file's
    title."""

    processors_as_gpus: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)


Reader = Callable[[TraceFile, ReadOptions], Trace]


@dataclass(frozen=True)
class _Format:
    about: str
    matches: Callable[[TraceFile], bool]
    read: Reader
    resembles: Callable[[TraceFile], bool]


_FORMATS: dict[str, _Format] = {}


def register(
    name: str,
    about: str,
    matches: Callable[[TraceFile], bool],
    resembles: Callable[[TraceFile], bool] = lambda found: False,
) -> Callable[[Reader], Reader]:
    """Register a reader. Formats are tried in the order of registration: specific ones come first.

    resembles: whether a file that matches no format seems to be of this one, with a column missing. The reader is then
    called to say which.
    """

    def add(read: Reader) -> Reader:
        _FORMATS[name] = _Format(about, matches, read, resembles)
        return read

    return add


def formats() -> dict[str, str]:
    """The formats that can be read, with a line on each."""
    return {name: kind.about for name, kind in _FORMATS.items()}


def read_trace(
    path: Path, fmt: str = AUTO, *, processors_as_gpus: bool = False, columns: Mapping[str, str] | None = None
) -> Trace:
    """The trace in a file or directory, plain or gzipped.

    fmt: one of ``formats()``, or "auto" to detect it. processors_as_gpus: logs of CPU jobs are refused without it.
    columns: for "csv", our column -> the file's title. Raises InputError, worded for the command line, if the input
    is not a trace. Invalid rows are left out and counted.
    """
    fmt = check_format(fmt, columns)
    found = open_trace_file(path)
    kind = _FORMATS[fmt] if fmt != AUTO else _detect(found)
    try:
        return kind.read(found, ReadOptions(processors_as_gpus, columns or {}))
    except InputError as error:
        if str(path) in str(error):
            raise
        raise InputError(f"{path}: {error}") from None


def check_format(fmt: str, columns: Mapping[str, str] | None = None) -> str:
    """The name of the format: "csv" if columns are given. Raises InputError for an unknown one."""
    if fmt == AUTO and columns:
        return "csv"
    if fmt != AUTO and fmt not in _FORMATS:
        raise InputError(f"unknown format {printable(fmt)[:40]!r}; valid ones: {', '.join(_FORMATS)}")
    if columns and fmt != "csv":
        raise InputError(f"columns can be specified for the format csv only, not for {fmt}")
    return fmt


def _detect(found: TraceFile) -> _Format:
    for kind in _FORMATS.values():
        if kind.matches(found):
            return kind
    for kind in _FORMATS.values():
        if kind.resembles(found):
            return kind
    if found.path.is_dir():
        raise InputError(
            f"{found.path}: a directory without the tables of a trace; specify the file, or the pai or itp directory"
        )
    if found.path.is_file() and not found.path.stat().st_size:
        raise InputError(f"{found.path}: the file is empty")
    raise InputError(f"{found.path}: {_no_trace(found)}")


_CSV_ADVICE = (
    "a CSV file has commas between its fields; if its titles are others, specify them: --column submit_s=TITLE"
)
_OTHER_FILES = {
    "SQLite format 3": "a database, not a trace; of asrptd's history, asrpt-admin history export makes a CSV file",
    "{": "JSON of no known trace; of asrptd's history, asrpt-admin history export makes a CSV file",
    "#!": "a script, not a trace; asrpt-admin predict and asrpt-status --what-if take job scripts",
}
"""What a file is, by how it begins, and what to do with it."""


def _no_trace(found: TraceFile) -> str:
    first = found.head[0] if found.head else ""
    told = (words for begin, words in _OTHER_FILES.items() if first.startswith(begin))
    return next(told, f"not a trace in a known format ({', '.join(_FORMATS)}); {_CSV_ADVICE}")


def refuse_processors(options: ReadOptions) -> None:
    """Raises InputError unless the user requested that processors count as GPUs."""
    if not options.processors_as_gpus:
        raise InputError(
            "a log of CPU jobs: it counts processors, not GPUs; to count them as GPUs use --processors-as-gpus"
        )


PROCESSORS = "processors taken as GPUs"
"""What ``changed`` says of such jobs."""
