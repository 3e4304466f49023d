"""Start-time forecasts: a process of its own computes them, cycles start it and pick up its answer.

A process gets BUDGET of ``daemon.forecast_s`` as CPU time, at a lower priority and never more of a core than that. One
runs at a time, and nothing waits for it. After one that took long there is a longer pause: in the long run forecasts
take DUTY of a core at most.
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
from typing import Any, Protocol, TypeVar

from slurm_asrpt.config.settings import Mode, Settings
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.forecasts.snapshot import SnapshotMaker
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import Forecast, JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.errors import one_line
from slurm_asrpt.forecast.arrays import PendingTasks
from slurm_asrpt.forecast.conformal import StartConformal, StartInterval
from slurm_asrpt.forecast.estimate import HORIZON_S
from slurm_asrpt.forecast.snapshot import MAX_JOBS, PUBLISHED, Waiting, to_json
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.status.document import publish, withdrawn_after
from slurm_asrpt.throttle import Throttle

LOG = logging.getLogger("asrptd")
BUDGET = 0.25
DUTY = 0.1
LATE = 10
"""After so many times ``forecast_s`` a process is given up: the machine has no time for it."""


_Named = TypeVar("_Named", Waiting, PendingTasks)


class Computation(Protocol):
    """A forecast under way."""

    def answer(self) -> bytes | None:
        """Its output, None while it goes on. Raises OSError where there will be none."""

    def stop(self) -> None: ...


class Process:
    """``python -m slurm_asrpt.forecast``, through files without names."""

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
class _Asked:
    """A forecast under way: when it was begun, and what each job was then."""

    made: float
    jobs: dict[str, Any]
    work: Computation


class Forecaster:
    """Forecasts every ``forecast_s`` seconds, 0 for none; only in mode enforce, where asrptd decides.

    In any mode what they are made from is published for what-ifs, again as soon as the queue has changed.
    """

    def __init__(
        self,
        settings: Settings,
        jobs: JobTable,
        cluster: ClusterState,
        recent: RecentJobs,
        snapshots: SnapshotMaker,
        private_jobs: bool,
        begin: Callable[[bytes, float], Computation] = Process,
    ) -> None:
        """private_jobs: users may see only their own jobs. begin: starts a computation with this budget, seconds."""
        self.every_s, self._enforcing = settings.daemon.forecast_s, settings.daemon.mode is Mode.ENFORCE
        self._run, self._private, self._begin = settings.paths.run, private_jobs, begin
        self._jobs, self._cluster, self._recent, self._snapshots = jobs, cluster, recent, snapshots
        self._asked: _Asked | None = None
        self._due = self._publish_due = -math.inf
        self._publishing = Throttle(time.monotonic)
        self._published: object = None  # the queue then
        self._known: dict[str, tuple[Any, Forecast]] = {}  # with what the job was then
        self._without: set[str] = set()  # jobs for which nothing came out
        self._waits: dict[str, Forecast] = {}  # what is said of the jobs that wait
        self._pinned: set[str] = set()  # jobs whose start was decided

    def step(self, now: float) -> None:
        """After a cycle: pick up what is ready, start the next when it is time."""
        if not self.every_s:
            return
        queue = self._queue()
        if now >= self._publish_due or (queue != self._published and self._publishing.due):
            self._publish_due, self._published = now + self.every_s, queue
            with self._publishing.spending():
                self._publish(now)
        if not self._enforcing:
            return
        try:
            self._pick_up(now)
            if self._asked is None and now >= self._due:
                self._ask(now)
        except (OSError, ValueError) as error:  # no process, no answer: scheduling goes on without, the next may come
            LOG.warning("no start-time forecasts this time: %s", one_line(error))
            self._asked = None
        self._keep_first(now)
        self._time_starts()

    def _publish(self, now: float) -> None:
        """What asrpt-status --what-if plays forward: for everybody, so without the names of users."""
        snapshot = self._snapshots.make(now)
        adjustment = self._adjustment(now)
        nameless = replace(
            snapshot,
            margins=adjustment,
            waiting=_nameless(snapshot.waiting),
            recent=_nameless(snapshot.recent),
            arrays=_nameless(snapshot.arrays),
            moves=self._recent.run_adjustment.offsets(),
        )
        publish(self._run, PUBLISHED, to_json(nameless), private=self._private)

    def _queue(self) -> object:
        """What a what-if must not miss: which jobs wait, which have GPUs, and what is free beside them."""
        return {job_id: job.state for job_id, job in self._jobs.items()}, dict(self._cluster.view.free)

    def _ask(self, now: float) -> None:
        if not any(_waits(job) for job in self._jobs.values()):
            return
        self._due = now + self.every_s
        snapshot = self._snapshots.make(now)
        jobs = {str(each.job.id): self._jobs[each.job.id].admitted for each in snapshot.waiting}
        for rest in snapshot.arrays:
            jobs |= dict.fromkeys(map(str, rest.asked), self._jobs[rest.job.id].admitted)
        self._asked = _Asked(now, jobs, self._begin(to_json(snapshot), BUDGET * self.every_s))

    def _pick_up(self, now: float) -> None:
        asked = self._asked
        if asked is None:
            return
        answer = asked.work.answer()
        if answer is not None:
            self._asked = None
            adjustment, answered = self._adjustment(asked.made), json.loads(answer)
            self._due = max(self._due, asked.made + answered["cpu_s"] / DUTY)
            found = {job_id: _shown(times, asked.made, adjustment) for job_id, times in answered["starts"].items()}
            self._known = {job_id: (asked.jobs[job_id], forecast) for job_id, forecast in found.items()}
            self._without = asked.jobs.keys() - found.keys()
        elif now > asked.made + LATE * self.every_s:
            asked.work.stop()
            raise OSError(f"none within {LATE * self.every_s:g} s")

    def _keep_first(self, now: float) -> None:
        """The first forecast of a job, as it asks now, is what asrpt-admin calibration judges."""
        waited, self._waits = self._waits, {}
        for job_id, job in self._jobs.items():
            if job.state is JobState.RUNNING and job_id in waited:
                judged = _judged(self._recent.start_adjustment, waited[job_id], job.record.start_time)
                self._recent.start_adjustment = judged
            if job.state is JobState.PINNED and job.forecast is not None:
                self._waits[job_id] = job.forecast
            if job.state in (JobState.PINNED, JobState.RUNNING):
                continue  # what was said stands
            changed = job_id in self._known and self._known[job_id][0] != job.admitted
            if job.state is not JobState.QUEUED or changed:
                job.forecast_is(None)
            if job.forecast is None:
                job.forecast_is(self.current(job, now))
            if job.forecast is not None:
                self._waits[job_id] = job.forecast

    def _time_starts(self) -> None:
        """How long starts take after they were decided."""
        for job in self._jobs.in_state(JobState.RUNNING):
            if job.pin is not None and job.record.job_id in self._pinned:
                self._recent.idle_gaps.started(job.record.start_time - job.pin.at)
        self._pinned = {job.record.job_id for job in self._jobs.in_state(JobState.PINNED)}

    def _adjustment(self, now: float) -> StartConformal:
        """The conformal adjustment, with what jobs teach that still wait."""
        waiting = ((_start(each.simulated), each.made) for each in self._waits.values() if each.simulated)
        return self._recent.start_adjustment.with_waiting(now, waiting)

    def current(self, job: ManagedJob, now: float) -> Forecast | None:
        """The forecast of a waiting job, unless it is old or the job has changed since.

        For tasks that wait together, the forecast of the next one.
        """
        return self._valid(job.record.job_id, job, now)

    def last(self, job: ManagedJob, now: float) -> Forecast | None:
        """For tasks that wait together, the forecast of the last one."""
        tasks = read_tasks(job.record.array_tasks)
        return self._valid(f"{job.record.job_id}_{tasks[-1][-1]}", job, now) if tasks else None

    def _valid(self, name: str, job: ManagedJob, now: float) -> Forecast | None:
        admitted, forecast = self._known.get(name, (None, None))
        if forecast is None or not _waits(job) or admitted != job.admitted:
            return None
        return forecast if now <= forecast.made + withdrawn_after(self.every_s) else None

    def why_not(self, job: ManagedJob, why: str) -> str:
        """Why a job that does not run has no forecast. why: what keeps it out of the policy's queue, in words."""
        if not self._enforcing:
            return "Slurm decides: asrptd is not in mode enforce"
        if not self.every_s:
            return "daemon.forecast_s is 0"
        if not _waits(job):
            return why
        if job.record.job_id in self._without:
            return f"not within {HORIZON_S / 3600:g} hours, or too many jobs, or tasks of arrays, to tell"
        return f"none yet; the first {MAX_JOBS} in the queue get one"

    def close(self) -> None:
        if self._asked is not None:
            self._asked.work.stop()
            self._asked = None


def _waits(job: ManagedJob) -> bool:
    """For nothing but its turn."""
    return job.state is JobState.QUEUED or job.has_waiting_tasks


def _nameless(jobs: Sequence[_Named]) -> tuple[_Named, ...]:
    return tuple(replace(each, job=replace(each.job, user="", group="")) for each in jobs)


def _shown(times: Sequence[float | None], made: float, adjustment: StartConformal) -> Forecast:
    """What a computation has found, with the conformal adjustment."""
    start = adjustment.adjusted(_start(times), made)
    return Forecast(made, start.earliest, _known(start.median), _known(start.latest), tuple(times))


def _known(time: float) -> float | None:
    return time if math.isfinite(time) else None


def _judged(adjustment: StartConformal, forecast: Forecast, began: float) -> StartConformal:
    shown = (forecast.earliest, forecast.median, forecast.latest)
    return adjustment.updated(_start(forecast.simulated or shown), _start(shown), forecast.made, began)


def _start(times: Sequence[float | None]) -> StartInterval:
    earliest, median, latest = (math.inf if time is None else time for time in times)
    return StartInterval(earliest, median, latest)
