"""The columns that several published traces have been brought into, and which trace a file of them is.

job_id, submit_s, user, group, num_gpus, gpu_type, duration_s, status, and more by origin.
"""

from __future__ import annotations

from collections.abc import Mapping

from slurm_asrpt.traces.base import Trace, clean
from slurm_asrpt.traces.files import Rows, Source, read_rows

SHARED = ("job_id", "submit_s", "user", "group", "num_gpus", "gpu_type", "duration_s", "status")
_TEXT = ("job_id", "user", "group", "status")
_NUMBER = ("submit_s", "num_gpus", "duration_s")


def is_common(found: Source, *titles: str) -> bool:
    """Whether the file has these columns and the titles that tell one origin from the others."""
    return found.has(*SHARED, *titles)


def read_common(found: Source, text: Mapping[str, str] | None = None, number: Mapping[str, str] | None = None) -> Rows:
    """Columns of ours; text, number: further ones, column of ours -> the file's."""
    text, number = {**{name: name for name in _TEXT}, **(text or {})}, {**{n: n for n in _NUMBER}, **(number or {})}
    rows = read_rows(found.path, list(text.values()), list(number.values()))
    names = {theirs: ours for ours, theirs in (text | number).items()} | {"num_gpus": "gpus"}
    return Rows(rows.frame.rename(columns=names), rows.faults)


def common_trace(found: Source, queue: str) -> Trace:
    """A trace that needs nothing but the queue besides the shared columns."""
    rows = read_common(found, {"queue": queue})
    return clean(found.name, rows.frame, left_out=rows.faults)
