"""What users name as a trace: a file or directory, a shipped sample by name, or ``pai-like`` for a synthetic one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from slurm_asrpt.errors import InputError
from slurm_asrpt.text import counted
from slurm_asrpt.traces import AUTO, Trace, read_trace
from slurm_asrpt.traces.samples import NAMED
from slurm_asrpt.traces.synthetic import DAYS, pai_like

GENERATED = "pai-like"
GENERATED_JOBS = 100_000
KNOWN = f"a file, a directory, {GENERATED}[:jobs[:days]], or a sample ({', '.join(NAMED)})"
"""Valid names of a trace, in words."""


def generated_size(spec: str) -> tuple[int, float] | None:
    """Jobs and days of ``pai-like[:jobs[:days]]``; None for a file's name. Raises InputError for an invalid number."""
    name, *numbers = spec.split(":")
    if name != GENERATED:
        return None
    try:
        jobs = int(numbers[0]) if numbers else GENERATED_JOBS
        days = float(numbers[1]) if len(numbers) > 1 else DAYS
        if len(numbers) > 2 or not 1 <= jobs <= 100_000_000 or not 0 < days <= 36500:
            raise ValueError
    except ValueError:
        raise InputError(f"cannot read {spec!r}: write {GENERATED}[:jobs[:days]], e.g. {GENERATED}:20000:30") from None
    return jobs, days


def path_of(spec: str) -> Path:
    """The file or directory of that name, if it exists; else the sample of that name.

    Raises InputError for an empty name.
    """
    if not spec:
        raise InputError(f"the name of the trace is empty; specify {KNOWN}")
    path = Path(spec)
    return NAMED[spec] if spec in NAMED and not path.exists() else path


def load_trace(
    spec: str,
    seed: int = 0,
    fmt: str = AUTO,
    *,
    processors_as_gpus: bool = False,
    columns: Mapping[str, str] | None = None,
) -> Trace:
    """Generate or read a trace. seed: for a generated one; the others: of ``read_trace``. Raises InputError."""
    size = generated_size(spec)
    if size:
        return pai_like(*size, seed=seed)
    path = path_of(spec)
    try:
        path.stat()
    except OSError as error:
        raise missing_trace(path, error) from None
    return read_trace(path, fmt, processors_as_gpus=processors_as_gpus, columns=columns)


def no_jobs(spec: str, trace: Trace) -> str:
    """The message for a trace without a usable job."""
    left = ", ".join(f"{what}: {count:,}" for what, count in sorted(trace.left_out.items(), key=lambda p: -p[1]))
    return f"{spec}: no usable job in {counted(trace.rows, 'row')}; {left or 'the file has no rows'}"


def column_titles(pairs: Iterable[str], example: str = "submit_s=SubmitTime") -> dict[str, str]:
    """``NAME=TITLE`` arguments as our column -> the file's title. Raises InputError."""
    chosen: dict[str, str] = {}
    for pair in pairs:
        name, equals, title = pair.partition("=")
        if not (equals and name.strip() and title.strip()):
            raise InputError(f"--column {pair}: write NAME=TITLE, e.g. --column {example}")
        chosen[name.strip()] = title
    return chosen


def fingerprint(path: Path) -> str:
    """SHA-256 of a file; for a directory, of the names and sizes below it. Raises InputError if it does not exist."""
    try:
        if path.is_dir():
            listing = sorted((str(p.relative_to(path)), p.stat().st_size) for p in path.rglob("*") if p.is_file())
            return hashlib.sha256(json.dumps(listing).encode()).hexdigest()
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: not a regular file; write the trace to a file first")
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise missing_trace(path, error) from None


def missing_trace(path: Path, error: OSError) -> InputError:
    """The error for a trace that does not exist, or that may not be read."""
    if isinstance(error, PermissionError):
        return InputError(f"{path}: cannot be read ({error.strerror})")
    return InputError(f"{path}: no such trace ({error.strerror}); specify {KNOWN}")
