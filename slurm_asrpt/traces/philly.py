"""Microsoft's Philly trace (2017): the published JSON and the job list made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from slurm_asrpt.errors import InputError
from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.traces.base import DAY_S, Trace, clean
from slurm_asrpt.traces.common import is_common, read_common
from slurm_asrpt.traces.files import Source, lines
from slurm_asrpt.traces.registry import ReadOptions, register
from slurm_asrpt.traces.times import instants

MOST_JSON = 512 << 20
"""Characters of ``cluster_job_log``, which is read in one piece; the published one has about 100 million."""


def _is_philly(found: Source) -> bool:
    return is_common(found, "vc", "submit_local") or _is_json(found)


def _is_json(found: Source) -> bool:
    begin = "".join(found.head).lstrip()
    return begin.startswith("[") and '"jobid"' in begin and '"attempts"' in begin


@register(
    "philly", "Microsoft Philly 2017: cluster_job_log (JSON), or the job list with vc and submit_local", _is_philly
)
def read(found: Source, options: ReadOptions) -> Trace:
    """The queue is the virtual cluster. Raises InputError."""
    return _read_json(found) if _is_json(found) else _read_list(found)


def _read_list(found: Source) -> Trace:
    rows = read_common(found, {"queue": "vc", "local": "submit_local"})
    local, _ = instants(rows.frame["local"])
    # both clocks tick alike: shifting by whole days keeps the list's figures and gives the hour of the day
    apart = float((local - rows.frame["submit_s"]).median())
    told = math.isfinite(apart)
    rows.frame["submit_s"] += apart % DAY_S if told else 0.0
    return clean(found.name, rows.frame, left_out=rows.faults, midnights=told)


def _read_json(found: Source) -> Trace:
    """One job an object: it runs in its attempts, and the GPUs are those of the last one that has any.

    The run time is the sum over the attempts, the wait ends when the first one starts.
    """
    with lines(found.path) as opened:
        text = "".join(_limited(opened))
    try:
        jobs = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{found.path}: not JSON ({str(error)[:80]}); is this Philly's cluster_job_log?") from None
    sound = [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []
    if not sound:
        raise InputError(f"{found.path}: no list of jobs; is this Philly's cluster_job_log?")
    frame = pd.DataFrame([_job(job) for job in sound])
    attempts = pd.DataFrame(
        [attempt for number, job in enumerate(sound) for attempt in _attempts(number, job)],
        columns=["job", "start", "end"],
    )
    frame["submit_s"], _ = instants(frame["submit_s"])
    start, _ = instants(attempts["start"])
    end, _ = instants(attempts["end"])
    by_job = (end - start).groupby(attempts["job"])
    # an attempt without an end is no run time, rather than one that is too short
    frame["duration_s"] = by_job.sum(min_count=1).where(by_job.count() == by_job.size()).reindex(frame.index)
    frame["wait_s"] = start.groupby(attempts["job"]).min().reindex(frame.index) - frame["submit_s"]
    strange = len(jobs) - len(sound)
    return clean(found.name, frame, left_out={"no job": strange}, midnights=True)


def _limited(opened: Any) -> Any:
    count = 0
    for line in opened:
        count += len(line)
        if count > MOST_JSON:
            raise InputError(f"more than {MOST_JSON >> 20} MiB of JSON; is this Philly's cluster_job_log?")
        yield line


def _job(raw: Mapping[str, Any]) -> dict[str, Any]:
    gpus = [_gpus(attempt) for attempt in _list(raw.get("attempts")) if isinstance(attempt, dict)]
    return {
        "job_id": _word(raw.get("jobid")),
        "submit_s": _word(raw.get("submitted_time")),
        "user": _word(raw.get("user")),
        "gpus": next((count for count in reversed(gpus) if count), 0),
        "status": _word(raw.get("status")),
        "queue": _word(raw.get("vc")),
    }


def _attempts(number: int, raw: Mapping[str, Any]) -> list[tuple[int, str, str]]:
    found = [attempt for attempt in _list(raw.get("attempts")) if isinstance(attempt, dict)]
    return [(number, _word(attempt.get("start_time")), _word(attempt.get("end_time"))) for attempt in found]


def _gpus(attempt: Mapping[str, Any]) -> int:
    servers = [server for server in _list(attempt.get("detail")) if isinstance(server, dict)]
    return sum(len(_list(server.get("gpus"))) for server in servers)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""
