"""Export and import of runs as CSV and as JSON lines. For foreign tables, missing columns are derived from the others.

In CSV, a text that a spreadsheet would take for a formula (``=cmd``) is written with an apostrophe in front; reading
removes it.
"""

from __future__ import annotations

import csv
import json
import math
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from slurm_asrpt.errors import InputError, printable
from slurm_asrpt.history.store import COMPLETED, Origin, Run, Source, row_of
from slurm_asrpt.hook.hook_conf import digest
from slurm_asrpt.slurm.notation import parse_duration
from slurm_asrpt.traces.csv_columns import ALIASES
from slurm_asrpt.traces.files import LONGEST_LINE, WRONG_FIELDS, lines
from slurm_asrpt.traces.parsing import normal_name

NAMES = tuple(f.name for f in fields(Run))
ELAPSED = "elapsed"
"""A column of foreign tables: run time in seconds, or ``[D-]HH:MM:SS``."""
UNREADABLE, NO_JOB_ID, NO_TIME = "unreadable line", "no job id", "no start or end"
NO_FIELDS = "no object with a run's fields"
BACKWARDS = "ends before it starts"
_OTHER_NAMES = {
    "submit_time": "submit_s",
    "start_time": "start_s",
    "end_time": "end_s",
    "state": "status",
    "group_id": "group",
    "job_name": "name",
    "partition": "queue",
    ELAPSED: "duration_s",
}
_TEXTS = frozenset(f.name for f in fields(Run) if f.type == "str")
_FORMULA = frozenset("=+-@\t\r'")
_KEY = re.compile("[0-9a-f]{16}")
_LATEST = 1 << 62


@dataclass(frozen=True)
class Skipped:
    """A row that is not a run, and why."""

    reason: str


Row = Run | Skipped


class Output(Protocol):
    """A text stream; line breaks must be written as they are."""

    def write(self, text: str, /) -> object: ...


def fallback_group(uid: int, name: str, gpus: int) -> str:
    """The group of jobs whose script is unknown: user and job name without counters; without a name, user and GPUs.

    It never equals a group that the hook makes, so it never answers for one. Such runs teach what is typical of the
    user and of the cluster, and what recurs.
    """
    kind = f"asrpt-name 1\n{uid}\n{normal_name(name)}" if name else f"asrpt-unnamed 1\n{uid}\n{gpus}"
    return digest(kind.encode(errors="replace"))


def named_group(text: str) -> str:
    """A foreign table's own recurrence key as a group ID; empty for no key. As ``fallback_group``, it never equals
    the hook's."""
    return digest(b"asrpt-named 1\n" + text.encode(errors="replace")) if text else ""


@cache
def uid_of(user: str) -> int:
    """The user ID on this machine; for an unknown name a number below -1, always the same."""
    try:
        return pwd.getpwnam(user).pw_uid if user else -1
    except (KeyError, ValueError):
        return foreign_uid(user)


def foreign_uid(user: str) -> int:
    """A number that keeps users of another cluster apart from each other and from those of this one; -1 for no name."""
    return -2 - int(digest(user.encode(errors="replace"))[:8], 16) if user else -1


def write_csv(file: Output, runs: Iterable[Run]) -> None:
    """Write a header line and all columns of each run."""
    writer = csv.writer(file, lineterminator="\r\n")  # with a bare \n, a \r in a name would not be quoted
    writer.writerow(NAMES)
    for run in runs:
        cells = zip(NAMES, row_of(run), strict=True)
        writer.writerow(_escape_formula(value) if name in _TEXTS else value for name, value in cells)


def write_json_lines(file: Output, runs: Iterable[Run]) -> None:
    """Write one JSON object per run and line, in ASCII."""
    for run in runs:
        file.write(json.dumps({name: getattr(run, name) for name in NAMES}) + "\n")


def _escape_formula(text: str) -> str:
    return f"'{text}" if text[:1] in _FORMULA and text else text


def _unescape_formula(text: str) -> str:
    return text[1:] if text[:1] == "'" and text[1:2] in _FORMULA and len(text) > 1 else text


def read_csv(path: Path, columns: Mapping[str, str]) -> Iterator[Row]:
    """Read a CSV file. columns: our column (of NAMES or ELAPSED) -> the file's title. Raises InputError."""
    csv.field_size_limit(LONGEST_LINE)  # the default limit is too small for the nodes of a large job
    with lines(path, newline="") as opened:
        reader = csv.reader(opened)
        try:
            titles = [title.strip().casefold() for title in next(reader, [])]
        except csv.Error as error:
            raise InputError(f"{path}: no header line ({error}); is this a CSV file?") from None
        places = _places(path, titles, columns)
        while (cells := _next(reader)) is not None:
            if isinstance(cells, Skipped) or len(cells) != len(titles):
                yield cells if isinstance(cells, Skipped) else Skipped(WRONG_FIELDS)
                continue
            values = {name: cells[place] for name, place in places.items()}
            yield _row(
                {name: _unescape_formula(text) if name in _TEXTS else text for name, text in values.items()}, Origin.CSV
            )


def _next(reader: Any) -> list[str] | Skipped | None:
    """The cells of the next row that is not blank; None at the end."""
    try:
        return next((row for row in reader if row), None)
    except csv.Error:
        return Skipped(UNREADABLE)


def _places(path: Path, titles: list[str], columns: Mapping[str, str]) -> dict[str, int]:
    """The position of each of our columns. Raises InputError for a missing or unknown one."""
    known = (*NAMES, ELAPSED)
    for name in columns:
        if name not in known:
            raise InputError(f"--column {printable(name)[:40]}=...: unknown column; valid ones: {', '.join(known)}")
    usual = {name: (name, *ALIASES.get(_OTHER_NAMES.get(name, name), ())) for name in known}
    wanted = usual | {name: (title.strip().casefold(),) for name, title in columns.items()}
    places = {name: titles.index(hit) for name, names in wanted.items() for hit in names[::-1] if hit in titles}
    missing = [name for name in columns if name not in places]
    if missing:
        raise InputError(f"{path}: no column is titled {printable(columns[missing[0]])!r}; titles: {_list(titles)}")
    if "job_id" not in places or len(places.keys() & {"start_time", "end_time", ELAPSED}) < 2:
        raise InputError(
            f"{path}: needs columns job_id and two of start_time, end_time and elapsed; "
            f"name them: --column job_id=TITLE (titles: {_list(titles)})"
        )
    return places


def _list(titles: list[str]) -> str:
    return printable(", ".join(titles))[:200]


def read_json_lines(path: Path) -> Iterator[Row]:
    """Read a file with one JSON object per line. Raises InputError, also if no line is a run."""
    foreign = {Skipped(UNREADABLE), Skipped(NO_FIELDS)}
    some = ours = False
    with lines(path, newline="\n") as opened:
        for row in (_of_json(line) for line in opened if line.strip()):
            some, ours = True, ours or not isinstance(row, Skipped) or row not in foreign
            yield row
    if some and not ours:
        raise InputError(f"{path}: no line is a JSON object with a run's fields; for a table with titles name it --csv")


def _of_json(line: str) -> Row:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return Skipped(UNREADABLE)
    if not isinstance(values, dict) or not values.keys() <= {*NAMES, ELAPSED}:
        return Skipped(NO_FIELDS)
    return _row(values, Origin.CSV)


def _row(values: Mapping[str, Any], origin: Origin) -> Row:
    """A run from values by name, as text or JSON values. An empty cell of a numeric column counts as missing."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        try:
            if value != "" or name in _TEXTS:
                found[name] = _PARSERS[name](value)
        except (ValueError, TypeError, OverflowError, RecursionError):
            return Skipped(f"unreadable {name}")
    return _completed(found, origin)


def _completed(found: dict[str, Any], origin: Origin) -> Row:
    """Derive what the table does not have."""
    if not found.get("job_id"):
        return Skipped(NO_JOB_ID)
    elapsed = found.pop(ELAPSED, None)
    if elapsed is not None and "end_time" in found:
        found.setdefault("start_time", found["end_time"] - round(elapsed))
    if elapsed is not None and "start_time" in found:
        found.setdefault("end_time", found["start_time"] + round(elapsed))
    if not {"start_time", "end_time"} <= found.keys():
        return Skipped(NO_TIME)
    if 0 < found["end_time"] < found["start_time"]:
        return Skipped(BACKWARDS)
    if "iterations" not in found:
        ran = found["end_time"] - found["start_time"] if elapsed is None else elapsed
        found |= {"iterations": max(1, round(ran)), "iterations_source": Source.ELAPSED}
    found.setdefault("uid", uid_of(found.get("user", "")))
    if not found.get("group_id") and not {"group_id", "origin"} <= found.keys():  # our own exports stay unchanged
        found["group_id"] = fallback_group(found["uid"], found.get("job_name", ""), found.get("gpus", 0))
    for name in ("group_id", "program"):  # of another cluster: keys are made of 16 hex digits
        if found.get(name) and not _KEY.fullmatch(found[name]):
            found[name] = named_group(found[name])
    found.setdefault("iterations_source", Source.REPORTED if found["iterations"] else Source.NONE)
    return Run(**{"state": COMPLETED, "origin": origin, **found})


def _whole(value: Any) -> int:
    """Raises ValueError, TypeError unless the value is an integer of 63 bits."""
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"-?[0-9]{1,19}", value) else float(value)
    if isinstance(value, bool) or value != int(value) or abs(value) > _LATEST:
        raise ValueError(value)
    return int(value)


def _count(value: Any) -> int:
    """Raises ValueError, TypeError unless the value is a whole number of at least 0."""
    number = _whole(value)
    if number < 0:
        raise ValueError(value)
    return number


def _measure(value: Any) -> float:
    """Raises ValueError, TypeError unless the value is a finite number of at least 0."""
    number = _real(value)
    if number < 0:
        raise ValueError(value)
    return number


def _real(value: Any) -> float:
    number = float(value)
    if isinstance(value, bool) or not math.isfinite(number):
        raise ValueError(value)
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(value)
    return value


def _instant(value: Any) -> int:
    """Seconds since the epoch, from a number or an ISO 8601 date (local time if it has no zone)."""
    try:
        return _whole(value)
    except ValueError:
        return math.floor(_real(value) if _numeric(value) else datetime.fromisoformat(_text(value)).timestamp())


def _numeric(value: Any) -> bool:
    return not isinstance(value, str) or bool(re.fullmatch(r"[0-9.]+", value))


def _duration(value: Any) -> float:
    return _real(parse_duration(value) if isinstance(value, str) and ":" in value else value)


def _mapping(number: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any]]:
    """A parser of mappings from names to numbers, as JSON text or as objects."""

    def parse(value: Any) -> dict[str, Any]:
        pairs = json.loads(value) if isinstance(value, str) else value
        if not isinstance(pairs, dict):
            raise TypeError(pairs)
        return {name: number(figure) for name, figure in pairs.items()}

    return parse


_PARSERS: Mapping[str, Callable[[Any], Any]] = {
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(("submit_time", "start_time", "end_time"), _instant),
    **dict.fromkeys(("forecast_made", "forecast_low", "forecast_median", "forecast_high"), _instant),
    **dict.fromkeys(("exit_code", "uid"), _whole),
    **dict.fromkeys(("gpus", "predicted_iterations", "iterations"), _count),
    **dict.fromkeys(("predicted_low", "predicted_high", "predicted_mean", "reported_total", "work_s"), _count),
    **dict.fromkeys(("time_limit_s", "min_nodes", "max_nodes", "switches"), _count),
    **dict.fromkeys(("alpha", "link_s", "iteration_s", "speed"), _measure),
    "nodes": _mapping(_whole),
    "features": _mapping(_real),
    "iterations_source": Source,
    "origin": Origin,
    ELAPSED: _duration,
}
