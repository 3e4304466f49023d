"""Figures of benchmarks.rules, from what Slurm recorded: completion, utilisation, and whether a rule was kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from statistics import fmean
from typing import NamedTuple

NEVER = math.inf
REQUEUE_S = 121.0
"""Slurm starts a requeued job after two minutes at the earliest."""
SETTLE_S = 2.0
"""A job that has been pending for less may not be known to the scheduler yet: its rule decides nothing."""
TOGETHER_S = 1.0
"""Slurm records whole seconds: starts that are this close count as one."""
PREEMPT_S = 6.0
"""A preempted job ends after KillWait (2 s in a lab), so that the other one can start."""


class Run(NamedTuple):
    """A run of a job, or a pending job. Times in seconds since the epoch, NEVER if it has not happened.

    since: the job is pending since then: its submission, or the end of its requeue. able: it may start from then on,
    which is not before its begin time or the end of the job that it depends on.
    """

    job_id: str
    role: str
    gpus: int
    since: float
    start: float
    end: float
    able: float = 0.0


class Limit(NamedTuple):
    """The jobs of these roles may use ``gpus`` GPUs at a time. until_s: seconds after the first submission."""

    roles: tuple[str, ...]
    gpus: int
    until_s: float = math.inf


class Played(NamedTuple):
    """What happened on one side. until: the last end, or the time at which the jobs were cancelled."""

    runs: Sequence[Run]
    gpus: int
    began: float
    until: float
    latencies: Sequence[float] = ()


class Step(NamedTuple):
    """A time span in which nothing changed. usable: GPUs that the jobs could have used within their limits.

    pending: GPUs that jobs ask for which may start.
    """

    begin: float
    span_s: float
    used: int
    usable: int
    pending: int


def in_order(
    job_id: str, role: str, gpus: int, submitted: float, times: Sequence[tuple[float, float]], able: float = 0.0
) -> list[Run]:
    """The runs of a job from their starts and ends; a job without any is pending. able: as in ``Run``."""
    found, since = [], submitted
    for start, end in sorted(times) or [(NEVER, NEVER)]:
        found.append(Run(job_id, role, gpus, since, start, end, able))
        since = end + REQUEUE_S
    return found


def steps(played: Played, limits: Sequence[Limit] = ()) -> Iterator[Step]:
    """What was in use between one change and the next, in order of time."""
    times = {time for run in played.runs for time in run[3:]} | {played.began + limit.until_s for limit in limits}
    ends = sorted({played.began, played.until} | {time for time in times if played.began < time < played.until})
    for begin, end in pairwise(ends):
        running, pending = _by_role(played.runs, begin)
        valid = [limit for limit in limits if begin < played.began + limit.until_s]
        usable = min(played.gpus, _within(valid, running, pending))
        yield Step(begin, end - begin, sum(running.values()), usable, sum(map(sum, pending.values())))


def _by_role(runs: Sequence[Run], now: float) -> tuple[dict[str, int], dict[str, list[int]]]:
    """GPUs in use, and those of each pending job that may start, by role; each role is in both."""
    running, pending = dict[str, int](), dict[str, list[int]]()
    for run in runs:
        held = run.start <= now < run.end
        running[run.role] = running.get(run.role, 0) + run.gpus * held
        able = max(run.since, run.able) <= now < run.start
        pending.setdefault(run.role, []).extend([run.gpus] * able)
    return running, pending


def _within(limits: Sequence[Limit], running: Mapping[str, int], pending: Mapping[str, Sequence[int]]) -> int:
    """The GPUs that running and pending jobs could use within the limits."""
    limited = {role for limit in limits for role in limit.roles}
    usable = sum(running[role] + sum(sizes) for role, sizes in pending.items() if role not in limited)
    for limit in limits:
        held = min(limit.gpus, sum(running.get(role, 0) for role in limit.roles))
        usable += held + _filled(limit.gpus - held, [size for role in limit.roles for size in pending.get(role, ())])
    return usable


def _filled(room: int, sizes: Sequence[int]) -> int:
    """The most of so many GPUs that whole jobs of these sizes fill."""
    sums = {0}
    for size in sizes:
        if room in sums:
            break
        sums |= {before + size for before in sums if before + size <= room}
    return max(sums)


def utilisation(found: Sequence[Step]) -> float:
    """GPU-seconds in use over GPU-seconds that the jobs could have used, while jobs are pending."""
    waiting = [step for step in found if step.pending and step.usable]
    usable = sum(step.span_s * step.usable for step in waiting)
    return sum(step.span_s * step.used for step in waiting) / usable if usable else 1.0


def longest_idle_s(found: Sequence[Step], since: float) -> float:
    """The longest time after ``since`` in which less than half of the usable GPUs are in use."""
    spans = [(2 * step.used < step.usable, step) for step in found if step.begin + step.span_s > since]
    idle = [[step for _, step in group] for low, group in groupby(spans, key=lambda pair: pair[0]) if low]
    return max((group[-1].begin + group[-1].span_s - max(since, group[0].begin) for group in idle), default=0.0)


def makespan_s(played: Played, roles: Sequence[str] = ()) -> float:
    """From the first submission of these roles (none: all) to the last end, at most ``until``."""
    chosen = _of(played.runs, roles)
    return max(min(run.end, played.until) for run in chosen) - min(run.since for run in chosen)


def mean_completion_s(played: Played, roles: Sequence[str] = ()) -> float:
    """The mean time from a job's submission to its last end, at most ``until``."""
    jobs = groupby(sorted(_of(played.runs, roles)), key=lambda run: run.job_id)
    each = [list(runs) for _, runs in jobs]
    return fmean(min(max(run.end for run in job), played.until) - min(run.since for run in job) for job in each)


def mean_waits_s(played: Played) -> dict[str, float]:
    """The mean time until a job of each role starts."""
    roles = dict.fromkeys(run.role for run in played.runs)
    waits = {role: [min(r.start, played.until) - r.since for r in played.runs if r.role == role] for role in roles}
    return {role: fmean(max(0.0, wait) for wait in found) for role, found in waits.items()}


def _of(runs: Sequence[Run], roles: Sequence[str]) -> list[Run]:
    return [run for run in runs if not roles or run.role in roles]


def order_kept(runs: Sequence[Run], before: Sequence[tuple[str, str]], since: float = 0.0) -> tuple[int, int]:
    """Of the pairs of pending jobs that a rule orders, those whose first one starts first; and all of them.

    before: roles; jobs of the first one go before jobs of the second. since: the rule holds from then on.
    """
    kept = decided = 0
    for first, second in before:
        for one in _of(runs, [first]):
            for other in _of(runs, [second]):
                begin = max(one.since, other.since, since) + SETTLE_S
                if begin <= min(one.start, other.start) < NEVER:
                    decided += 1
                    kept += one.start <= other.start + TOGETHER_S
    return kept, decided


def preemption_kept(runs: Sequence[Run], preempts: Sequence[tuple[str, str]]) -> tuple[int, int]:
    """Of the jobs that come while a job runs that they may preempt, those that do not wait for its end; and all."""
    kept = decided = 0
    for first, second in preempts:
        victims = _of(runs, [second])
        for one in _of(runs, [first]):
            due = one.since + PREEMPT_S
            running = [victim for victim in victims if victim.start <= one.since < victim.end]
            decided += bool(running)
            kept += bool(running) and (one.start <= due or all(victim.end <= due for victim in running))
    return kept, decided


def limits_kept(played: Played, limits: Sequence[Limit]) -> tuple[int, int]:
    """Of the starts of jobs with a limit, those that were within it; and all of them."""
    kept = decided = 0
    for limit in limits:
        chosen = [run for run in _of(played.runs, limit.roles) if run.start < played.began + limit.until_s]
        for run in chosen:
            used = sum(other.gpus for other in chosen if other.start <= run.start < other.end)
            decided += 1
            kept += used <= limit.gpus
    return kept, decided


def share(part: float, whole: float) -> float | None:
    """None if there is nothing to compare with."""
    return part / whole if whole else None


def over(ours: float, plain: float) -> float:
    """A ratio of seconds that Slurm records whole: one second at least is in the denominator."""
    return ours / max(1.0, plain)
