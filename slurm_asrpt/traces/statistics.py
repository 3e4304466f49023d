"""Statistics of a trace: sizes, run times, recurrence, arrivals, tails. reporting/trace_plot.py draws them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.traces.trace import DAY_S, Trace, recurrence_key

Floats = NDArray[np.float64]
PERCENTILES = (1, 10, 25, 50, 75, 90, 99)
RECURRENT_RUNS = 5
"""A group with at least this many runs recurs (as in the paper's section V-A)."""
BUSIEST_USERS = 0.05
TAIL = 0.05
"""Share of the longest jobs that the Hill estimator uses."""


def statistics(trace: Trace) -> dict[str, Any]:
    """Figures of a trace as JSON values; times in seconds unless a name says otherwise, shares from 0 to 1.

    Raises ValueError for a trace without jobs.
    """
    jobs = trace.jobs
    if not len(jobs):
        raise ValueError(f"no usable job in {trace.name}")
    gpus, duration = jobs["gpus"].to_numpy(dtype=np.float64), jobs["duration_s"].to_numpy()
    work = gpus * duration
    days = float(jobs["submit_s"].iloc[-1]) / DAY_S
    return {
        "name": trace.name,
        "rows": trace.rows,
        "jobs": len(jobs),
        "left_out": dict(trace.left_out),
        "merged": dict(trace.merged),
        "changed": dict(trace.changed),
        "span_days": days,
        "jobs_per_day": len(jobs) / days if days else None,
        "gpu_hours": float(work.sum()) / 3600,
        "busy_gpus": float(work.sum()) / (days * DAY_S) if days else None,
        "single_gpu_share": float((gpus == 1).mean()),
        "sizes": _sizes(gpus, work),
        "duration_s": _percentiles(duration),
        "wait_s": _percentiles(jobs["wait_s"].dropna().to_numpy()),
        "with_time_limit": float(np.isfinite(jobs["time_limit_s"]).mean()),
        "recurrence": _recurrence(jobs),
        "users": _users(jobs["user"], work),
        "tail": _tail(duration, work),
        "arrivals": _arrivals(trace),
    }


def size_label(size: Mapping[str, Any]) -> str:
    """``1``, ``3-4``."""
    return str(size["to"]) if size["from"] == size["to"] else f"{size['from']}-{size['to']}"


def _percentiles(values: Floats) -> dict[str, float] | None:
    """Mean, p1 .. p99 and max; None without values."""
    if not len(values):
        return None
    named = zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)
    return {"mean": float(values.mean()), **{f"p{p}": float(v) for p, v in named}, "max": float(values.max())}


def _sizes(gpus: Floats, work: Floats) -> list[dict[str, Any]]:
    """Jobs by GPUs: 1, 2, 3-4, 5-8 and so on; sizes without jobs are left out."""
    power = np.ceil(np.log2(gpus)).astype(int)
    found = []
    for exponent in np.unique(power):
        here = power == exponent
        first = 1 if exponent == 0 else 2 ** (int(exponent) - 1) + 1
        found.append(
            {
                "from": first,
                "to": 2 ** int(exponent),
                "jobs": int(here.sum()),
                "job_share": float(here.mean()),
                "gpu_time_share": float(work[here].sum() / work.sum()),
            }
        )
    return found


def runs_per_job(jobs: pd.DataFrame) -> NDArray[np.int64]:
    """For each job, the number of runs of its group, itself included."""
    codes, _ = pd.factorize(recurrence_key(jobs))
    return np.asarray(np.bincount(codes)[codes], dtype=np.int64)


def _recurrence(jobs: pd.DataFrame) -> dict[str, Any]:
    """key: what identifies runs of one program; seen_before: share of the jobs whose group was submitted before."""
    key = recurrence_key(jobs)
    runs = runs_per_job(jobs)
    told = float((jobs["group"] != "").mean())
    owner = "user" if (jobs["user"] != "").any() else "queue"
    return {
        "key": "group" if told == 1 else f"{owner} and GPUs" if told == 0 else f"group, else {owner} and GPUs",
        "groups": int(key.nunique()),
        "recurrent_share": float((runs >= RECURRENT_RUNS).mean()),
        "seen_before": float(key.duplicated().mean()),
        "largest_group": int(runs.max()),
    }


def _users(user: pd.Series, work: Floats) -> dict[str, Any] | None:
    """What the busiest 5% of the users submit; None if users are unknown."""
    known = (user != "").to_numpy()
    if not known.any():
        return None
    by_user = pd.DataFrame({"user": user[known], "work": work[known]}).groupby("user")["work"].agg(["size", "sum"])
    few = max(1, round(BUSIEST_USERS * len(by_user)))
    shares = {name: float(by_user[name].nlargest(few).sum() / by_user[name].sum()) for name in ("size", "sum")}
    return {
        "users": len(by_user),
        "busiest": few,
        "busiest_job_share": shares["size"],
        "busiest_gpu_time_share": shares["sum"],
    }


def _tail(duration: Floats, work: Floats) -> dict[str, Any]:
    """Share of the GPU time of the largest jobs; Hill's estimate of the tail index of the run times."""
    largest = np.sort(work)[::-1]
    shares = {
        f"top_{percent}_percent": float(largest[: max(1, round(len(work) * percent / 100))].sum() / work.sum())
        for percent in (1, 10)
    }
    return {**shares, "hill_index": hill_index(duration)}


def hill_index(values: Floats) -> float | None:
    """Hill's estimate of the index a in P(X > x) ~ x^-a from the largest TAIL of ``values``; below 2 the tail
    is heavy.

    None with fewer than ten such values, or if they are all equal.
    """
    count = int(len(values) * TAIL)
    if count < 10:
        return None
    largest = np.sort(values)[::-1][: count + 1]
    mean = float(np.log(largest[:-1] / largest[-1]).mean())
    return 1 / mean if mean > 0 else None


def _arrivals(trace: Trace) -> dict[str, Any]:
    """by_hour: share of the jobs in each hour, of the day if known, else counted from the first job."""
    first = trace.first_s
    hour = ((trace.jobs["submit_s"].to_numpy() + (first or 0.0)) // 3600).astype(np.int64)
    by_hour = np.bincount(hour % 24, minlength=24) / len(hour)
    per_hour = np.bincount(hour - hour[0])
    spread = float(per_hour.std() / per_hour.mean())
    return {
        "hour": "of the day" if first is not None else "after the first job, modulo 24",
        "by_hour": [float(share) for share in by_hour],
        "busiest_over_quietest": float(by_hour.max() / by_hour.min()) if by_hour.min() else None,
        "hourly_variation": spread,
    }
