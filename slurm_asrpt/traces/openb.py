"""Alibaba's openb trace (2023, published with FGD): pods, some of which use a part of a GPU."""

from __future__ import annotations

from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.traces.base import ROUNDED, Trace, clean
from slurm_asrpt.traces.common import is_common, read_common
from slurm_asrpt.traces.files import Source, read_rows
from slurm_asrpt.traces.registry import ReadOptions, register

_RAW = ("name", "num_gpu", "gpu_milli", "pod_phase", "creation_time", "deletion_time", "scheduled_time")


def _is_openb(found: Source) -> bool:
    return is_common(found, "gpu_milli") or found.has(*_RAW)


@register("openb", "Alibaba openb 2023 (FGD): openb_pod_list*.csv, or the list with gpu_milli", _is_openb)
def read(found: Source, options: ReadOptions) -> Trace:
    """A pod with less than 1000 gpu_milli uses a part of one GPU, which is rounded up. Raises InputError."""
    if is_common(found, "gpu_milli"):
        rows = read_common(found, number={"gpu_milli": "gpu_milli"})
        frame = rows.frame
    else:
        times = ["creation_time", "scheduled_time", "deletion_time"]
        rows = read_rows(found.path, ["name", "pod_phase"], ["num_gpu", "gpu_milli", *times])
        frame = rows.frame.rename(columns={"name": "job_id", "pod_phase": "status", "num_gpu": "gpus"})
        _times(frame)
    parts = (frame["gpus"] == 1) & (frame["gpu_milli"] > 0) & (frame["gpu_milli"] < 1000)
    return clean(found.name, frame, {ROUNDED: parts}, rows.faults)


def _times(frame: pd.DataFrame) -> None:
    """A pod runs from its scheduling, or its creation where that is not told, to its deletion."""
    start = frame["scheduled_time"].fillna(frame["creation_time"])
    frame["submit_s"] = frame["creation_time"]
    frame["duration_s"] = frame["deletion_time"] - start
    frame["wait_s"] = frame["scheduled_time"] - frame["creation_time"]
