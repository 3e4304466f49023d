"""Readers of job traces. Values out; replaying them is the simulator's."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt.errors import InputError

PHILLY_SAMPLE = Path(__file__).parent / "samples" / "philly-sample.csv"
"""A few hundred jobs of Microsoft's Philly trace, CC-BY-4.0; see the README beside it."""

_NEEDED = ("job_id", "submit_s", "num_gpus", "duration_s", "vc")


@dataclass(frozen=True)
class TraceJob:
    """One job of a trace. submit_s: seconds on the trace's clock; duration_s: run time without queueing.

    vc: the virtual cluster (tenant) that it was submitted to.
    """

    job_id: str
    submit_s: float
    gpus: int
    duration_s: float
    vc: str


def read_philly(path: Path) -> list[TraceJob]:
    """The jobs of a Philly CSV file (plain or .gz), in its order. Raises InputError naming the line."""
    try:
        reader = csv.DictReader(io.StringIO(_text(path), newline=""), strict=True)
        missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
        if missing:
            raise InputError(f"{path}: line 1: no column {', '.join(missing)}; is this a Philly job list?")
        return list(_jobs(path, reader))
    except csv.Error as error:
        raise InputError(f"{path}: line {reader.reader.line_num}: not CSV ({error}); mend that line") from error


def _jobs(path: Path, reader: csv.DictReader[str]) -> Iterator[TraceJob]:
    for row in reader:
        try:
            yield _job(row)
        except ValueError as error:
            raise InputError(f"{path}: line {reader.line_num}: {error}; mend or drop that row") from None


def _job(row: Mapping[str, str | None]) -> TraceJob:
    """One row. Raises ValueError for a missing cell or a figure that cannot be."""
    cells = {name: row[name] or "" for name in _NEEDED}
    if not cells["job_id"]:
        raise ValueError("job_id is empty")
    gpus = _number(cells, "num_gpus")
    if gpus < 1 or gpus != int(gpus):
        raise ValueError(f"num_gpus must be a whole number of at least 1, found {cells['num_gpus'][:40]!r}")
    return TraceJob(cells["job_id"], _number(cells, "submit_s"), int(gpus), _number(cells, "duration_s"), cells["vc"])


def _number(cells: Mapping[str, str], name: str) -> float:
    try:
        value = float(cells[name])
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e15:
        raise ValueError(f"{name} must be a number of at least 0, found {cells[name][:40]!r}")
    return value


def _text(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read ({error}); name a Philly job list") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 (byte {error.start}); is this a job list?") from error
