"""The native trace format: ``asrpt-sim import`` writes it.

A CSV file with the columns of ``trace.COLUMNS``, not those that only some sources know (accounts, QOS, node counts).
The line before the header, ``# asrpt-trace 1 {JSON}``, holds the trace's name, the time of day of its first job, and
how many rows of the source were left out, merged or changed.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_asrpt.errors import InputError
from slurm_asrpt.files import replace_file
from slurm_asrpt.traces.files import LineFormat, TraceFile, lines, read_columns, titles_of
from slurm_asrpt.traces.registry import ReadOptions, register
from slurm_asrpt.traces.trace import COLUMNS, DAY_S, NUMBERS, TEXT, Trace, clean

MARK = "# asrpt-trace 1 "
_COUNTS = ("left_out", "merged", "changed")


def _is_ours(found: TraceFile) -> bool:
    marked = "".join(found.head[:1]).startswith(MARK)
    return set(COLUMNS) <= set(titles_of("".join(found.head[1:2] if marked else found.head[:1])))


@register("asrpt", "what `asrpt-sim import` writes", _is_ours)
def read(found: TraceFile, options: ReadOptions) -> Trace:
    """A trace as it was written; without the first line, clean rows of unknown origin."""
    with lines(found.path) as opened:
        first = next(opened, "")
        known = _known(first) if first.startswith(MARK) else {}
        titles = titles_of(next(opened, "")) if first.startswith(MARK) else titles_of(first)
        rows = read_columns(opened, LineFormat(titles), TEXT, NUMBERS)
    counts = {what: _counts(known.get(what)) for what in _COUNTS}
    left_out = dict(counts["left_out"])
    for fault, count in rows.faults.items():
        left_out[fault] = left_out.get(fault, 0) + count
    trace = clean(str(known.get("name") or found.name), rows.frame, counts["changed"], left_out, counts["merged"])
    first_s = known.get("first_s")
    sound = isinstance(first_s, int | float) and 0 <= first_s < DAY_S
    return Trace(
        trace.name, trace.jobs, trace.rows, trace.left_out, trace.changed, trace.merged, first_s if sound else None
    )


def _known(line: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line[len(MARK) :])
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {}


def _counts(found: Any) -> dict[str, int]:
    """Counts by text; ignores anything else."""
    pairs = found.items() if isinstance(found, dict) else ()
    return {str(k): v for k, v in pairs if isinstance(v, int) and not isinstance(v, bool) and 0 < v < 10**12}


def write_trace(trace: Trace, path: Path) -> None:
    """Write the trace as CSV, gzipped if the name ends in .gz. The file is written atomically.

    Raises InputError if it cannot be written.
    """
    about = {"name": trace.name, "rows": trace.rows, "first_s": trace.first_s}
    about |= {what: dict(getattr(trace, what)) for what in _COUNTS}
    text = f"{MARK}{json.dumps(about)}\n" + trace.jobs[list(COLUMNS)].to_csv(index=False, lineterminator="\n")
    data = text.encode("utf-8", "replace")
    try:
        # no time stamp inside: the same trace always gives the same bytes
        replace_file(path, gzip.compress(data, 6, mtime=0) if path.suffix == ".gz" else data, mode=None)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror or error}); specify another file") from None
