"""Start times of waiting jobs as 5-90% intervals: quantiles over many simulated futures.

In each future, runtimes are drawn from the jobs' intervals, and jobs arrive at the recent rate, but with no more work
than all GPUs can do. Arrivals matter: if the policy lets short jobs pass, later jobs determine when a long job starts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain

import numpy as np

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.placement.best_alpha import BestAlphas
from slurm_asrpt.forecast.arrays import PendingTasks, TaskFeed
from slurm_asrpt.forecast.conformal import StartInterval
from slurm_asrpt.forecast.replay import Arrival, Replay
from slurm_asrpt.forecast.sampling import Floats, LogNormals, Sampler, array_tasks, remaining_length, survival
from slurm_asrpt.forecast.snapshot import Snapshot, Waiting

STEP = 20
SAMPLES, MIN_SAMPLES = 2 * STEP - 1, STEP - 1
"""With 20 k - 1 samples, the k-th, 10 k-th and 18 k-th are the 5, 50 and 90% quantiles; no interpolation is needed."""
HORIZON_S = 3 * 86400.0
"""Of a simulated future; a long queue ends it sooner, by the budget."""
BATCH = 100
"""Number of tasks of an array that are drawn at a time."""
FIRST_NUMBER = 10**15
"""First job ID of simulated arrivals: larger than all real ones, since ties are broken by ID."""


def forecast(
    snapshot: Snapshot,
    seed: int,
    samples: int = SAMPLES,
    horizon_s: float = HORIZON_S,
    budget_s: float = np.inf,
    clock: Callable[[], float] = time.process_time,
    new_job: Waiting | None = None,
    progress: Callable[[int], object] = lambda drawn: None,
) -> dict[JobId, StartInterval]:
    """Estimate the start of each waiting job, and of pending array tasks: the next one under the array's ID, the
    last one under its own. Jobs that start in too few futures get no estimate, and none does while there are no GPUs.

    The same snapshot and seed give the same estimates, unless ``budget_s`` seconds of ``clock`` run out before all
    samples are drawn. The first MIN_SAMPLES samples share the budget. This matters on an overloaded cluster, where
    no future ends before the horizon: jobs at the head of the queue still get an estimate.
    samples: at least MIN_SAMPLES.
    new_job: a job that is submitted at the snapshot's time; only its start is estimated then.
    progress: called with the number of samples drawn.
    """
    if not any(node.gpus for node in snapshot.nodes):
        return {}
    futures, deadline = _Futures(snapshot, horizon_s, new_job), clock() + budget_s
    found: list[list[float]] = []
    for number in range(samples):
        begun = clock()
        until = begun + (deadline - begun) / max(MIN_SAMPLES - number, 1)
        starts = futures.simulate(np.random.default_rng([seed, number]), partial(_within_deadline, clock, until))
        if number >= MIN_SAMPLES and clock() >= until:
            break
        found.append(starts)
        progress(len(found))
    each = (len(found) + 1) // STEP
    ordered = np.sort(np.array(found[: STEP * each - 1]), axis=0)
    rows = ordered[[each - 1, 10 * each - 1, 18 * each - 1]].T.tolist()
    ids = futures.asked
    return {job_id: StartInterval(*row) for job_id, row in zip(ids, rows, strict=True) if row[0] < np.inf}


def _lengths(sampler: Sampler, pending: PendingTasks) -> Iterator[float]:
    count = min(pending.count, BATCH)
    some = LogNormals([pending.span] * count)
    while True:
        yield from some.at(sampler.array_normals(str(pending.job.id), count)).tolist()


def _within_deadline(clock: Callable[[], float], until: float) -> bool:
    return clock() < until


class _Futures:
    """The data shared by all samples."""

    def __init__(self, snapshot: Snapshot, horizon_s: float, new_job: Waiting | None) -> None:
        self._snapshot, self._horizon, self._new_job = snapshot, snapshot.now + horizon_s, new_job
        waiting = [*snapshot.waiting, *([new_job] if new_job else [])]
        self._ids = [each.job.id for each in waiting]
        self._waiting = LogNormals([each.span for each in waiting])
        self._begun = [(at, each) for at, each in enumerate(waiting) if each.done]
        self._tasks_waiting = array_tasks(self._ids)
        self._tasks_running = array_tasks([each.job_id for each in snapshot.running])
        self._asked = {new_job.job.id: new_job.job.id} if new_job else self._all_asked()
        self._recent = LogNormals([each.span for each in snapshot.recent])
        self._recent_gpus, self._recent_alphas, self._recent_limits = self._columns_of_recent()

    def _all_asked(self) -> dict[JobId, JobId]:
        """The jobs whose start is reported: the ID to report it under, and the job's own ID."""
        asked = dict(zip(self._ids, self._ids, strict=True))
        for pending in self._snapshot.arrays:
            asked |= pending.asked
        return asked

    @property
    def asked(self) -> Iterable[JobId]:
        """The IDs to report, in the order of what ``simulate`` returns."""
        return self._asked.keys()

    def simulate(self, rng: np.random.Generator, keep_going: Callable[[], bool]) -> list[float]:
        """Simulate one future: start time of each requested job, inf if it does not start."""
        sampler, running = Sampler(rng), self._snapshot.running
        left_s = [
            min(remaining_length(run.span, run.ran_s, chance), run.limit_s)
            for run, chance in zip(
                running, sampler.survival_probabilities(len(running), self._tasks_running), strict=True
            )
        ]
        normals = sampler.normals(len(self._ids), self._tasks_waiting)
        lengths = self._waiting.at(normals)
        for at, each in self._begun:
            lengths[at] = remaining_length(each.span, each.done, survival(normals[at]))
        iterations = dict(zip(self._ids, lengths.tolist(), strict=True))
        arrivals = self._arrivals(rng)
        if self._new_job:
            arrivals = chain([(self._new_job.job, iterations[self._new_job.job.id])], arrivals)
        following = TaskFeed(self._snapshot.arrays, partial(_lengths, sampler))
        asked = self._asked.values()
        starts = Replay(self._snapshot, left_s, iterations, arrivals, asked, following).until(self._horizon, keep_going)
        return [starts.get(job_id, np.inf) for job_id in asked]

    def _columns_of_recent(self) -> tuple[Floats, Floats, Floats]:
        """GPUs, α̃_min (0 if the job fits nowhere) and time limits of the recent arrivals."""
        best, jobs = BestAlphas(self._snapshot.nodes, self._snapshot.fabric), [e.job for e in self._snapshot.recent]
        rows = [(job.gpus, best.alpha(job) or 0.0, job.time_limit) for job in jobs]
        gpus, alphas, limits = np.array(rows, dtype=np.float64).reshape(-1, 3).T
        return gpus, alphas, limits

    def _least_s(self, iterations: Floats) -> float:
        """Seconds that all GPUs of the cluster need for the recent arrivals."""
        run_s = np.minimum(iterations * self._recent_alphas, self._recent_limits)
        return float(run_s @ self._recent_gpus) / sum(node.gpus for node in self._snapshot.nodes)

    def _arrivals(self, rng: np.random.Generator) -> Iterator[Arrival]:
        """Repeat the recent arrivals from a random instant on: this preserves bursts and the mix of jobs.

        If they bring more work than all GPUs can do in that time, they come more slowly, so that they just can: a
        burst is not a lasting rate. Otherwise the short jobs of a burst would pass the long ones for ever.
        """
        recent, window, now = self._snapshot.recent, self._snapshot.window_s, self._snapshot.now
        if not recent or window <= 0:
            return
        offset = rng.random() * window
        due = np.array([(each.job.submit_time - (now - window) - offset) % window for each in recent])
        order = np.argsort(due, kind="stable").tolist()
        number, begin = FIRST_NUMBER, now
        while True:
            drawn = self._recent.draw(rng)
            iterations, slower = drawn.tolist(), max(1.0, self._least_s(drawn) / window)
            for row in order:
                number += 1
                submit_time = begin + slower * float(due[row])
                yield replace(recent[row].job, id=JobId(str(number)), submit_time=submit_time), iterations[row]
            begin += slower * window


def known(time: float) -> float | None:
    """None for infinity, which JSON cannot represent."""
    return time if math.isfinite(time) else None
