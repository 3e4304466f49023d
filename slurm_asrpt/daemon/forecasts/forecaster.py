"""Start-time forecasts. A separate process computes them; cycles start it and collect its answer.

A process gets the share BUDGET of ``daemon.forecast_s`` as CPU time, at low priority, and at most that share of a core.
One process runs at a time, and nothing waits for it. The pause after a long computation is longer, so that forecasts
take at most the share DUTY of a core on average. Where most jobs of the queue are new, a quick computation does not
wait for the end of that pause: it has only the jobs at the head of the queue, which soon have an estimate then.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.forecasts.nameless import without_names
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.forecasts.snapshot import SnapshotMaker
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import Forecast, JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.errors import one_line
from slurm_asrpt.forecast.conformal import StartConformal, StartInterval
from slurm_asrpt.forecast.estimate import HORIZON_S, known
from slurm_asrpt.forecast.snapshot import MAX_JOBS, PUBLISHED, to_json
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.status.document import publish, withdrawn_after
from slurm_asrpt.switch import OperatingMode
from slurm_asrpt.throttle import Throttle

LOG = logging.getLogger("asrptd")
BUDGET = 0.25
DUTY = 0.1
QUICK = 0.2
"""The budget of a quick computation, as a share of that of others."""
QUICK_JOBS = 100
"""Jobs at the head of the queue in a quick computation. With all, its futures would end before these start."""
TIMEOUT = 10
"""Timeout of a process, in multiples of ``forecast_s``."""


class Computation(Protocol):
    """A running computation of forecasts."""

    def answer(self) -> bytes | None:
        """Its output, None while it runs. Raises OSError if it has failed."""

    def stop(self) -> None: ...


class Process:
    """``python -m slurm_asrpt.forecast``, with unnamed temporary files for input and output."""

    def __init__(self, snapshot: bytes, budget_s: float) -> None:
        self._out, self._errors = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 read later
        with tempfile.TemporaryFile() as question:
            question.write(snapshot)
            question.seek(0)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "slurm_asrpt.forecast", f"{budget_s:g}", f"{BUDGET:g}", str(os.getpid())],
                stdin=question,
                stdout=self._out,
                stderr=self._errors,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )

    def answer(self) -> bytes | None:
        code = self._process.poll()
        if code is None:
            return None
        texts = []
        for file in (self._out, self._errors):
            with file:
                file.seek(0)
                texts.append(file.read())
        if code:
            raise OSError(f"exit code {code}: {texts[1][-300:].decode(errors='replace')}")
        return texts[0]

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()
        self._errors.close()


@dataclass
class _Running:
    """A running computation: when it began, and what each job asked for then. waiting: all that waited then."""

    made: float
    jobs: dict[str, Any]
    waiting: frozenset[str]
    quick: bool
    work: Computation


class Forecaster:
    """Makes forecasts every ``forecast_s`` seconds (0: never), in mode enforce only, where asrptd decides.

    In every mode it publishes their inputs for what-ifs, and again when the queue changes.
    """

    def __init__(
        self,
        settings: Settings,
        jobs: JobTable,
        cluster: ClusterState,
        recent: RecentJobs,
        snapshots: SnapshotMaker,
        mode: OperatingMode,
        private_jobs: bool,
        begin: Callable[[bytes, float], Computation] = Process,
        saved: Any = None,
    ) -> None:
        """private_jobs: users may see only their own jobs. begin: starts a computation with a budget in seconds.

        saved: what ``dump`` returned before a restart.
        """
        self.every_s, self._mode = settings.daemon.forecast_s, mode
        self._run, self._private, self._begin = settings.paths.run, private_jobs, begin
        self._jobs, self._cluster, self._recent, self._snapshots = jobs, cluster, recent, snapshots
        self._saved = saved
        self._running: _Running | None = None
        self._due = self._soonest = self._publish_due = -math.inf
        self._seen: frozenset[str] = frozenset()  # the jobs that waited when the last answer was computed
        self._publishing = Throttle(time.monotonic)
        self._published: object = None  # the queue at that time
        self._known: dict[str, tuple[Any, Forecast]] = {}  # with what the job asked for then
        self._without: set[str] = set()  # jobs without a forecast in the last answer
        self._waits: dict[str, Forecast] = {}  # of the pending jobs, as published
        self._pinned: set[str] = set()  # jobs that are about to start

    def step(self, now: float) -> None:
        """After a cycle: collect an answer if there is one, and start the next computation if it is due."""
        if not self.every_s:
            return
        queue = self._queue()
        if now >= self._publish_due or (queue != self._published and self._publishing.due):
            self._publish_due, self._published = now + self.every_s, queue
            with self._publishing.spending():
                self._publish(now)
        if not self._mode.enforcing:
            self._forget()
            return
        self._restore()
        try:
            self._pick_up(now)
            if self._running is None and now >= self._soonest:
                self._start_if_due(now)
        except (OSError, ValueError) as error:  # scheduling continues without forecasts; the next attempt may succeed
            LOG.warning("start-time forecasts failed: %s", one_line(error))
            self._running = None
        self._keep_first(now)
        self._time_starts()

    def _publish(self, now: float) -> None:
        """Publish the input of asrpt-status --what-if, which all users can read."""
        nameless = replace(
            without_names(self._snapshots.make(now)),
            margins=self._adjustment(now),
            rates=self._snapshots.communication.rates,
            moves=self._recent.run_adjustment.offsets(),
            slurm_nodes=self._snapshots.slurm_nodes,
            gpu_defaults=self._snapshots.gpu_defaults,
            partitions=self._snapshots.partitions,
        )
        publish(self._run, PUBLISHED, to_json(nameless), private=self._private)

    def _queue(self) -> object:
        """What what-ifs depend on: the jobs' states and the free GPUs."""
        return {job_id: job.state for job_id, job in self._jobs.items()}, dict(self._cluster.view.free)

    def _start_if_due(self, now: float) -> None:
        waiting = frozenset(name for name, job in self._jobs.items() if _waits(job))
        quick = 2 * len(waiting - self._seen) > len(waiting)
        if waiting and (quick or now >= self._due):
            self._start_computation(waiting, quick, now)

    def _start_computation(self, waiting: frozenset[str], quick: bool, now: float) -> None:
        self._soonest = now + self.every_s
        snapshot = self._snapshots.make(now, QUICK_JOBS if quick else MAX_JOBS)
        jobs = {str(each.job.id): self._jobs[each.job.id].made_from for each in snapshot.waiting}
        for rest in snapshot.arrays:
            for name in rest.asked:
                jobs[str(name)] = self._jobs[name if name in self._jobs else rest.job.id].made_from
        budget_s = BUDGET * self.every_s * (QUICK if quick else 1.0)
        self._running = _Running(now, jobs, waiting, quick, self._begin(to_json(snapshot), budget_s))

    def _pick_up(self, now: float) -> None:
        running = self._running
        if running is None:
            return
        answer = running.work.answer()
        if answer is not None:
            self._running = None
            adjustment, answered = self._adjustment(running.made), json.loads(answer)
            self._due = max(self._due, running.made) + answered["cpu_s"] / DUTY
            found = {job_id: _shown(times, running.made, adjustment) for job_id, times in answered["starts"].items()}
            kept = self._known if running.quick else {}  # its shorter futures may leave out jobs that had an estimate
            self._known = kept | {name: (running.jobs[name], forecast) for name, forecast in found.items()}
            self._without, self._seen = running.jobs.keys() - found.keys(), running.waiting
        elif now > running.made + TIMEOUT * self.every_s:
            running.work.stop()
            raise OSError(f"no answer within {TIMEOUT * self.every_s:g} s")

    def _keep_first(self, now: float) -> None:
        """Keep the first forecast of each job's current request: asrpt-admin calibration evaluates it."""
        waited, self._waits = self._waits, {}
        for job_id, job in self._jobs.items():
            if job.state is JobState.RUNNING and job_id in waited:
                judged = _judged(self._recent.start_adjustment, waited[job_id], job.record.start_time)
                self._recent.start_adjustment = judged
            if job.state is JobState.PINNED and job.forecast is not None:
                self._waits[job_id] = job.forecast
            if job.state in (JobState.PINNED, JobState.RUNNING):
                continue  # its forecast no longer changes
            changed = job_id in self._known and self._known[job_id][0] != job.made_from
            if changed or not (job.state is JobState.QUEUED or job.is_beyond_limit):
                job.forecast_is(None)
            if job.forecast is None:
                job.forecast_is(self.current(job, now))
            if job.forecast is not None:
                self._waits[job_id] = job.forecast

    def _time_starts(self) -> None:
        """Measure the time from the decision to the start of a job."""
        for job in self._jobs.in_state(JobState.RUNNING):
            if job.pin is not None and job.record.job_id in self._pinned:
                self._recent.idle_gaps.started(job.record.start_time - job.pin.at)
        self._pinned = {job.record.job_id for job in self._jobs.in_state(JobState.PINNED)}

    def _adjustment(self, now: float) -> StartConformal:
        """The conformal adjustment, including what still pending jobs show."""
        waiting = ((_start(each.simulated), each.made) for each in self._waits.values() if each.simulated)
        return self._recent.start_adjustment.with_waiting(now, waiting)

    def current(self, job: ManagedJob, now: float) -> Forecast | None:
        """The forecast of a pending job, unless it is too old, or over, or the job's request has changed.

        For array tasks that wait together: the forecast of the next one.
        """
        return self._valid(job.record.job_id, job, now)

    def last(self, job: ManagedJob, now: float) -> Forecast | None:
        """For array tasks that wait together: the forecast of the last one."""
        tasks = read_tasks(job.record.array_tasks)
        return self._valid(f"{job.record.job_id}_{tasks[-1][-1]}", job, now) if tasks else None

    def _valid(self, name: str, job: ManagedJob, now: float) -> Forecast | None:
        made_from, forecast = self._known.get(name, (None, None))
        if forecast is None or not _waits(job) or made_from != job.made_from:
            return None
        is_over = forecast.latest is not None and forecast.latest < now
        return forecast if now <= forecast.made + withdrawn_after(self.every_s) and not is_over else None

    def why_not(self, job: ManagedJob, why: str, rank: int | None) -> str:
        """Why a pending job has no forecast. why: the reason why it is not in the policy's queue, in words.

        rank: its position in the queue, if it has one.
        """
        if self._mode.disabled:
            return "Slurm decides: asrptd is disabled"
        if not self._mode.enforcing:
            return "Slurm decides: asrptd is not in mode enforce"
        if not self.every_s:
            return "not estimated on this cluster (daemon.forecast_s is 0)"
        if not _waits(job):
            return why
        if job.record.job_id in self._without:
            return f"it starts in too few simulations ({HORIZON_S / 86400:g} days each, less if the queue is long)"
        if rank is not None and rank > MAX_JOBS:
            return f"only the first {MAX_JOBS} jobs in the queue get an estimate"
        return "no estimate yet; the next ones include it"

    def dump(self) -> Any:
        """The estimates, to be saved: after a restart they are shown until there are new ones. In whole seconds."""
        if self._saved is not None:
            return self._saved
        known = ((name, self._asking(name), forecast) for name, (_, forecast) in self._known.items())
        return {name: [job.record.submit_time, *_row(each)] for name, job, each in known if job and _waits(job)}

    def _restore(self) -> None:
        """Take up the estimates from before a restart, of the jobs that there still are."""
        saved, self._saved = self._saved, None
        if saved is None:
            return
        try:
            rows = {name: (float(row[0]), _from_row(row[1:])) for name, row in saved.items()}
        except (ValueError, TypeError, IndexError, AttributeError):
            return
        for name, (submit_time, forecast) in rows.items():
            job = self._asking(name)
            if job is not None and job.record.submit_time == submit_time:
                self._known[name] = (job.made_from, forecast)
        self._seen = frozenset(self._known)

    def _asking(self, name: str) -> ManagedJob | None:
        """The job that an estimate is of: for a task that has no record of its own yet, its array."""
        return self._jobs.get(name) or self._jobs.get(name.partition("_")[0])

    def _forget(self) -> None:
        """Slurm decides now: what was estimated for asrptd's decisions no longer holds."""
        self.close()
        self._known, self._without, self._seen, self._saved = {}, set(), frozenset(), None

    def close(self) -> None:
        if self._running is not None:
            self._running.work.stop()
            self._running = None


def _waits(job: ManagedJob) -> bool:
    """Whether the job is eligible and pending, or would be if it did not wait for tasks of its array."""
    return job.state is JobState.QUEUED or job.has_waiting_tasks or job.is_beyond_limit


def _row(forecast: Forecast) -> list[Any]:
    """What ``_from_row`` reads."""
    times = (forecast.made, forecast.earliest, forecast.median, forecast.latest, *forecast.simulated)
    return [forecast.open_end, *(None if time is None else round(time) for time in times)]


def _from_row(row: Sequence[Any]) -> Forecast:
    """Raises ValueError, TypeError, IndexError for anything else."""
    open_end, *times = row
    made, earliest, median, latest, *simulated = (None if time is None else float(time) for time in times)
    if made is None or earliest is None or len(simulated) not in (0, 3):
        raise ValueError("not an estimate")
    return Forecast(made, earliest, median, latest, tuple(simulated), str(open_end))


def _shown(times: Sequence[float | None], made: float, adjustment: StartConformal) -> Forecast:
    """A computed forecast, with the conformal adjustment."""
    start = adjustment.adjusted(_start(times), made)
    latest = known(start.latest)
    return Forecast(made, start.earliest, known(start.median), latest, tuple(times), str(start.open_end))


def _judged(adjustment: StartConformal, forecast: Forecast, began: float) -> StartConformal:
    shown = (forecast.earliest, forecast.median, forecast.latest)
    return adjustment.updated(_start(forecast.simulated or shown), _start(shown), forecast.made, began)


def _start(times: Sequence[float | None]) -> StartInterval:
    earliest, median, latest = (math.inf if time is None else time for time in times)
    return StartInterval(earliest, median, latest)
