"""Figures of a side, and ratios of two sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from slurm_asrpt.lab.site.jobs import GPUS, SiteJob, Window
from slurm_asrpt.lab.site.sides import Record

BOUND_S = 60.0
"""Run time of shorter jobs in the bounded slowdown: a start takes some of the lab's time."""
SHORT_WAIT_S = 60.0
"""Shorter waits count as this long in ratios."""
DAY_S = 86400.0
LEAST_CLASS = 20
"""Jobs of a user or a size class that count for the worst-off."""
PERCENTILES = (50, 95, 99)
GOOD = ("COMPLETED", "RUNNING")
"""The states of jobs that completed, or would have."""


def figures(window: Window, records: Sequence[Record]) -> dict[str, Any]:
    """Completion, wait and bounded slowdown of a side, by size and user; utilisation; makespan. Times in seconds.

    Completion counts from when a job was to be submitted. submitted_late_s: how much later it was; if that is more than
    a small part of the waits, the machine did not bear the pace, and the figures are the machine's. utilisation:
    GPU-seconds in use over those of the cluster until the last submission. finish_time_fairness: by user, mean
    completion over what a cluster of their equal share would take, the run time times the number of users (Mahajan et
    al., NSDI 2020).
    """
    jobs = window.jobs
    due, start, end = (np.array([getattr(record, name) for record in records]) for name in ("due", "start", "end"))
    run = np.array([job.run_s for job in jobs])
    gpus = np.array([job.gpus for job in jobs])
    completion, wait = end - due, start - due
    late = np.array([record.submit for record in records]) - due
    slowdown = np.maximum(1.0, completion / np.maximum(run, BOUND_S))
    span = float(due[-1])
    used = float((gpus * (np.minimum(end, span) - np.minimum(start, span))).sum())
    users = len({job.user for job in jobs})
    return {
        "completion_s": _summary(completion),
        "wait_s": _summary(wait),
        "slowdown": _summary(slowdown),
        "makespan_s": float(end.max() - due.min()),
        "utilisation": used / (window.servers * GPUS * span),
        "completed": sum(record.state in GOOD for record in records),
        "submitted_late_s": _summary(late),
        "sizes": _by(jobs, completion, size_class),
        "users": _by(jobs, completion, lambda job: job.user),
        "finish_time_fairness": _by(jobs, completion / np.maximum(run, BOUND_S) / users, lambda job: job.user),
    }


def _summary(values: Any) -> dict[str, float]:
    found = {f"p{share}": float(np.percentile(values, share)) for share in PERCENTILES}
    return {"mean": float(values.mean()), **found, "max": float(values.max())}


def size_class(job: SiteJob) -> str:
    if job.gpus == 1:
        return "1"
    return f"2-{GPUS - 1}" if job.gpus < GPUS else f"{GPUS}" if job.gpus == GPUS else f">{GPUS}"


def _by(jobs: Sequence[SiteJob], values: Any, kind: Callable[[SiteJob], str]) -> dict[str, dict[str, float]]:
    kinds = np.array([kind(job) for job in jobs])
    each = {name: values[kinds == name] for name in sorted(set(kinds.tolist()))}
    return {name: {"jobs": len(found), "mean": float(found.mean())} for name, found in each.items()}


def ratios(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    """The figures of one side over those of another; below 1 is better, except for utilisation."""
    return {
        "jct_ratio": _over(ours["completion_s"]["mean"], theirs["completion_s"]["mean"]),
        "slowdown_ratio": _over(ours["slowdown"]["mean"], theirs["slowdown"]["mean"]),
        "median_wait_ratio": _waits(ours["wait_s"]["p50"], theirs["wait_s"]["p50"]),
        "p95_wait_ratio": _waits(ours["wait_s"]["p95"], theirs["wait_s"]["p95"]),
        "p99_wait_ratio": _waits(ours["wait_s"]["p99"], theirs["wait_s"]["p99"]),
        "longest_wait_ratio": _waits(ours["wait_s"]["max"], theirs["wait_s"]["max"]),
        "worst_user_ratio": _worst(ours["users"], theirs["users"]),
        "worst_size_ratio": _worst(ours["sizes"], theirs["sizes"]),
        "worst_fairness_ratio": _over(_most(ours), _most(theirs)),
        "makespan_ratio": _over(ours["makespan_s"], theirs["makespan_s"]),
        "utilisation_ratio": _over(ours["utilisation"], theirs["utilisation"]),
    }


def longer_by(ours: Sequence[Record], theirs: Sequence[Record], seconds: float) -> int:
    """Jobs that waited more than ``seconds`` longer on our side."""
    return sum(one.start - other.start > seconds for one, other in zip(ours, theirs, strict=True))


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The Kolmogorov-Smirnov distance of two samples: the largest difference of their distribution functions."""
    points = np.sort(np.concatenate([one, other]))
    below = [np.searchsorted(np.sort(values), points, side="right") / len(values) for values in (one, other)]
    return float(np.abs(below[0] - below[1]).max())


def _over(ours: float, theirs: float) -> float:
    return round(ours / theirs, 4)


def _waits(ours: float, theirs: float) -> float:
    return _over(max(ours, SHORT_WAIT_S), max(theirs, SHORT_WAIT_S))


def _worst(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """The largest ratio of mean completion times over the classes with enough jobs, or over all if none has."""
    enough = [name for name, each in theirs.items() if each["jobs"] >= LEAST_CLASS] or list(theirs)
    return max(_over(ours[name]["mean"], theirs[name]["mean"]) for name in enough)


def _most(side: Mapping[str, Any]) -> float:
    return max(float(each["mean"]) for each in side["finish_time_fairness"].values())
