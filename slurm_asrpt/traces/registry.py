"""Kinds of trace by name, and which of them a file is."""

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
    """processors_as_gpus: take the processors of a log of CPU jobs as GPUs. columns: column of ours -> the file's."""

    processors_as_gpus: bool = False
    columns: Mapping[str, str] = field(default_factory=dict)


Reader = Callable[[TraceFile, ReadOptions], Trace]


@dataclass(frozen=True)
class _Format:
    about: str
    matches: Callable[[TraceFile], bool]
    read: Reader


_FORMATS: dict[str, _Format] = {}


def register(name: str, about: str, matches: Callable[[TraceFile], bool]) -> Callable[[Reader], Reader]:
    """Make a reader known. Formats are tried in the order of their registration: the narrow ones come first."""

    def add(read: Reader) -> Reader:
        _FORMATS[name] = _Format(about, matches, read)
        return read

    return add


def formats() -> dict[str, str]:
    """The kinds of trace that can be read, with a line on each."""
    return {name: kind.about for name, kind in _FORMATS.items()}


def read_trace(
    path: Path, fmt: str = AUTO, *, processors_as_gpus: bool = False, columns: Mapping[str, str] | None = None
) -> Trace:
    """The trace in a file or folder, plain or gzipped.

    fmt: one of ``formats()``, or "auto" to tell by the contents. processors_as_gpus: logs of CPU jobs are refused
    without it. columns: for "csv", which column holds what. Raises InputError, worded for the command line, for
    what is no trace; rows that make no sense are left out and counted.
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
    """The name of the format: "csv" where columns are named. Raises InputError for an unknown one."""
    if fmt == AUTO and columns:
        return "csv"
    if fmt != AUTO and fmt not in _FORMATS:
        raise InputError(f"no format is called {printable(fmt)[:40]!r}; known: {', '.join(_FORMATS)}")
    if columns and fmt != "csv":
        raise InputError(f"columns can be named for the format csv only, not for {fmt}")
    return fmt


def _detect(found: TraceFile) -> _Format:
    for kind in _FORMATS.values():
        if kind.matches(found):
            return kind
    if found.path.is_dir():
        raise InputError(
            f"{found.path}: a folder without the tables of a trace; name the file, or the pai or itp folder"
        )
    if found.path.is_file() and not found.path.stat().st_size:
        raise InputError(f"{found.path}: the file is empty")
    raise InputError(
        f"{found.path}: not a trace of a known kind ({', '.join(_FORMATS)}); "
        "for a CSV file with other titles name its columns: --column submit_s=TITLE"
    )


def refuse_processors(options: ReadOptions) -> None:
    """Raises InputError unless the user has said that processors shall count as GPUs."""
    if not options.processors_as_gpus:
        raise InputError("a log of CPU jobs: it counts processors, not GPUs; --processors-as-gpus takes them as GPUs")


PROCESSORS = "processors taken as GPUs"
"""What ``changed`` says of them."""
