"""Microsoft's ITP traces (2021, published with ElasticFlow): a file for each cluster, or one with a cluster column."""

from __future__ import annotations

from pathlib import Path

from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.traces.base import Trace, clean
from slurm_asrpt.traces.common import common_trace, is_common
from slurm_asrpt.traces.files import Rows, Source, read_rows, source
from slurm_asrpt.traces.registry import ReadOptions, register

_RAW = ("job_id", "submission_time", "duration", "num_gpu")


def _is_itp(found: Source) -> bool:
    if found.path.is_dir():
        files = _clusters(found.path)
        return bool(files) and source(files[0]).has(*_RAW)
    return is_common(found, "cluster") or found.has(*_RAW)


def _clusters(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.csv"), *folder.glob("*.csv.gz")])


@register("itp", "Microsoft ITP 2021 (ElasticFlow): a cluster's CSV, their folder, or the list with cluster", _is_itp)
def read(found: Source, options: ReadOptions) -> Trace:
    """The queue is the cluster. The source tells no user and no recurrence. Raises InputError."""
    if is_common(found, "cluster"):
        return common_trace(found, "cluster")
    files = _clusters(found.path) if found.path.is_dir() else [found.path]
    parts = [_cluster(path) for path in files]
    faults: dict[str, int] = {}
    for part in parts:
        for fault, count in part.faults.items():
            faults[fault] = faults.get(fault, 0) + count
    return clean(found.name, pd.concat([part.frame for part in parts], ignore_index=True), left_out=faults)


def _cluster(path: Path) -> Rows:
    rows = read_rows(path, ["job_id"], ["submission_time", "duration", "num_gpu"])
    names = {"submission_time": "submit_s", "duration": "duration_s", "num_gpu": "gpus"}
    queue = path.name.removesuffix(".gz").removesuffix(".csv")
    return Rows(rows.frame.rename(columns=names).assign(queue=queue), rows.faults)
