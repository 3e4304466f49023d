"""SenseTime's Helios traces (2020), as published, as in Lucid's artefact, and as a list in the shared columns."""

from __future__ import annotations

from slurm_asrpt.traces.base import Trace, clean, numbers
from slurm_asrpt.traces.common import common_trace, is_common
from slurm_asrpt.traces.files import Source, read_rows
from slurm_asrpt.traces.job_names import recurrent_names
from slurm_asrpt.traces.registry import ReadOptions, register
from slurm_asrpt.traces.times import instants

_RAW = ("user", "vc", "gpu_num", "state", "submit_time", "duration")


def _is_helios(found: Source) -> bool:
    return is_common(found, "vc", "num_nodes") or (found.has(*_RAW) and _id_title(found) != "")


def _id_title(found: Source) -> str:
    return next((title for title in ("job_id", "jobname") if found.has(title)), "")


@register(
    "helios", "SenseTime Helios 2020 (cluster_log.csv), Lucid's variants, or the list with vc, num_nodes", _is_helios
)
def read(found: Source, options: ReadOptions) -> Trace:
    """The queue is the virtual cluster; the file's ``queue`` is the wait in seconds. Lucid's job names make the groups.

    Jobs of the CPU cluster use no GPUs and are left out. Raises InputError.
    """
    if is_common(found, "vc", "num_nodes"):
        return common_trace(found, "vc")
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
