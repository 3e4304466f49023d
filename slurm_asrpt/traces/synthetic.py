"""A synthetic trace, calibrated to what is published about Alibaba's PAI cluster (MLaaS in the Wild, NSDI 2022).

Targets, each checked by tests/unit/traces/test_generate.py: over 70% of the jobs use one GPU; nearly 65% of the jobs
belong to groups that recur at least five times in the two months; run times have a median of 23 minutes and a 90th
percentile of 4.5 hours, which makes a heavy tail; arrivals follow a daily pattern; about 60% of the jobs are
predictable from their group's past (Fig. 4 of the A-SRPT paper).
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.lazy_pandas import pd
from slurm_asrpt.traces.trace import Trace, clean

DAYS = 60.0
MEDIAN_S, SPREAD = 1530.0, 1.89  # of the group medians, log-normal; with early stops this gives 23 min and 4.5 h
LONGEST_S = 14 * 86400.0
SIZES = (1, 2, 4, 8, 16, 32, 64)
SIZE_SHARE = (0.72, 0.10, 0.07, 0.07, 0.025, 0.011, 0.004)
RECURRENT = 0.65
"""Share of the jobs whose group runs at least five times."""
SAME, VARIED = 0.75, 0.17
"""Shares of the runs that last as long as the others of their group, and that vary; the rest stop early."""
_HOURS = np.array([5, 4, 3, 2, 2, 2, 3, 4, 6, 8, 9, 9, 7, 8, 9, 9, 9, 8, 7, 7, 7, 7, 6, 6], dtype=float)
"""Relative arrivals by hour of the day: a valley at night, and dips at noon and in the evening."""
_NORMAL = NormalDist()
_LIMITS_S = np.array([0.5, 1, 2, 4, 8, 12, 24, 48, 96, 168, 336, 1000]) * 3600

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def pai_like(jobs: int = 100_000, days: float = DAYS, seed: int = 0) -> Trace:
    """``jobs`` jobs in ``days`` days. The same arguments give the same trace. Raises ValueError for an empty trace."""
    if jobs < 1 or not days > 0:
        raise ValueError(f"at least one job and more than 0 days are required, not {jobs} in {days:g}")
    rng = np.random.default_rng(seed)
    runs = _runs_per_group(jobs, rng)
    groups = len(runs)
    group = np.repeat(np.arange(groups), runs)
    submit = _arrivals(runs, group, days * 86400, rng)
    submit[submit.argmin()] = 0.0  # midnight: traces are clocked from their first job
    user = _users(groups, rng)
    size = np.array(SIZES)[np.searchsorted(np.cumsum(SIZE_SHARE[:-1]), _even(runs, rng), side="right")]
    typical = MEDIAN_S * np.exp(SPREAD * np.array([_NORMAL.inv_cdf(u) for u in _even(runs, rng)]))
    duration = np.clip(typical[group] * _variation(jobs, rng), 1.0, LONGEST_S)
    frame = pd.DataFrame(
        {
            "job_id": np.arange(jobs).astype(str),
            "submit_s": submit,
            "user": [f"u{u}" for u in user[group]],
            "group": [f"g{g}" for g in group],
            "gpus": size[group],
            "duration_s": duration,
            "time_limit_s": _limits(duration, typical[group], user[group], rng),
            "queue": "gpu",
        }
    )
    frame = frame.sort_values("submit_s", ignore_index=True)
    frame["job_id"] = np.arange(jobs).astype(str)
    return clean(f"pai-like-{jobs}-{seed}", frame, midnights=True)


def _runs_per_group(jobs: int, rng: np.random.Generator) -> Ints:
    """The number of runs of each group, summing to ``jobs``: Pareto-distributed from five on, or one to four."""
    often = round(RECURRENT * jobs)
    most = max(5.0, min(jobs / 50, 3000.0))
    pareto = np.minimum(5 * (1 - rng.random(max(1, often // 5))) ** -1.25, most).astype(np.int64)
    rare = rng.choice([1, 2, 3, 4], jobs - often, p=[0.55, 0.22, 0.13, 0.10])
    return np.concatenate([_up_to(pareto, often), _up_to(rare, jobs - often)])


def _up_to(runs: Ints, total: int) -> Ints:
    """The first of ``runs`` that sum to ``total``, the last one cut."""
    kept = runs[: int(np.searchsorted(np.cumsum(runs), total)) + 1].copy()
    if len(kept):
        kept[-1] -= kept.sum() - total
    return np.asarray(kept[kept > 0], dtype=np.int64)


def _even(runs: Ints, rng: np.random.Generator) -> Floats:
    """A number in (0, 1) for each group, uniform over the *jobs*, so that one large group does not distort the
    targets."""
    order = rng.permutation(len(runs))
    ends = np.cumsum(runs[order])
    quantile = np.empty(len(runs))
    quantile[order] = (ends - runs[order] / 2) / ends[-1]
    return quantile


def _arrivals(runs: Ints, group: Ints, span: float, rng: np.random.Generator) -> Floats:
    """Seconds. A group lives for a part of the span and runs at random times in it; the hour of the day warps the
    clock."""
    life = span * np.where(runs >= 5, rng.beta(2, 1, len(runs)), rng.beta(1, 6, len(runs)))
    born = rng.random(len(runs)) * (span - life)
    when = born[group] + rng.random(len(group)) * life[group]
    return _by_hour(when)


def _by_hour(when: Floats) -> Floats:
    """Move each instant within its day so that the hours get their share."""
    edges = np.concatenate([[0.0], np.cumsum(_HOURS / _HOURS.sum())])
    day = np.floor(when / 86400)
    return np.asarray(day * 86400 + np.interp(when / 86400 - day, edges, np.arange(25) * 3600.0))


def _users(groups: int, rng: np.random.Generator) -> Ints:
    """A few users own most groups (Zipf's law, with about one user for thirty groups)."""
    users = max(2, groups // 30)
    weight = 1 / np.arange(1, users + 1)
    return np.asarray(rng.choice(users, groups, p=weight / weight.sum()), dtype=np.int64)


def _variation(jobs: int, rng: np.random.Generator) -> Floats:
    """The run time of each job relative to what is typical of its group."""
    kind = rng.random(jobs)
    same = rng.lognormal(0, 0.03, jobs)
    varied = rng.lognormal(0, 0.6, jobs)
    stopped = rng.uniform(0.005, 0.6, jobs)
    return np.where(kind < SAME, same, np.where(kind < SAME + VARIED, varied, stopped))


def _limits(duration: Floats, typical: Floats, user: Ints, rng: np.random.Generator) -> Floats:
    """The user's time limit: a round figure well above the usual run time, and never below the job's."""
    habit = np.array(1.2 + rng.lognormal(0.5, 0.7, int(user.max()) + 1))
    wanted = np.maximum(duration * 1.05, typical * habit[user])
    return np.asarray(_LIMITS_S[np.minimum(np.searchsorted(_LIMITS_S, wanted), len(_LIMITS_S) - 1)])
