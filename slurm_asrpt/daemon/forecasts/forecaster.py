"""Start-time estimates beside the scheduling: a process of its own computes them, cycles hand over and pick up.

One gets BUDGET of ``daemon.forecast_s`` as CPU time, at a lower priority and never more of a core than that, and one
runs at a time; nothing waits for it. After one that has taken long there is a longer rest: in the long run DUTY of a
core at most goes into them.
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

from slurm_asrpt.config.settings import DaemonSettings, Mode
from slurm_asrpt.daemon.cycle import Scheduler
from slurm_asrpt.daemon.forecasts.snapshot import make_snapshot
from slurm_asrpt.daemon.jobs.arrays import is_rest
from slurm_asrpt.daemon.jobs.managed_job import Forecast, Place, Tracked
from slurm_asrpt.errors import one_line
from slurm_asrpt.forecast.arrays import Rest
from slurm_asrpt.forecast.conformal import Margins, Start
from slurm_asrpt.forecast.estimate import HORIZON_S
from slurm_asrpt.forecast.snapshot import MOST_JOBS, PUBLISHED, Waiting, to_json
from slurm_asrpt.slurm.array_tasks import read_tasks
from slurm_asrpt.status.document import publish, withdrawn_after
from slurm_asrpt.throttle import Seldom

LOG = logging.getLogger("asrptd")
BUDGET = 0.25
DUTY = 0.1
LATE = 10
"""After so many times ``forecast_s`` a process is given up: the machine has no time for it."""


_Named = TypeVar("_Named", Waiting, Rest)


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
    """Estimates every ``forecast_s`` seconds, 0 for none; only in mode enforce, where asrptd's word holds.

    In any mode what they are made from is published, for what-ifs, and anew as soon as the queue has changed.
    """

    def __init__(self, settings: DaemonSettings, begin: Callable[[bytes, float], Computation] = Process) -> None:
        self.every_s, self._enforcing, self._begin = settings.forecast_s, settings.mode is Mode.ENFORCE, begin
        self._asked: _Asked | None = None
        self._due = self._publish_due = -math.inf
        self._publishing = Seldom(time.monotonic)
        self._published: object = None  # the queue then
        self._known: dict[str, tuple[Any, Forecast]] = {}  # with what the job was then
        self._without: set[str] = set()  # jobs for which nothing came out
        self._waits: dict[str, Forecast] = {}  # what is said of the jobs that wait
        self._pinned: set[str] = set()  # jobs whose start was decided

    def step(self, scheduler: Scheduler, now: float) -> None:
        """After a cycle: pick up what is ready, begin anew when it is time."""
        if not self.every_s:
            return
        queue = _queue(scheduler)
        if now >= self._publish_due or (queue != self._published and self._publishing.due):
            self._publish_due, self._published = now + self.every_s, queue
            with self._publishing.spending():
                self._publish(scheduler, now)
        if not self._enforcing:
            return
        try:
            self._pick_up(scheduler, now)
            if self._asked is None and now >= self._due:
                self._ask(scheduler, now)
        except (OSError, ValueError) as error:  # no process, no answer: estimates are a nicety, the next may come
            LOG.warning("no start-time estimates this time: %s", one_line(error))
            self._asked = None
        self._keep_first(scheduler, now)
        self._time_starts(scheduler)

    def _publish(self, scheduler: Scheduler, now: float) -> None:
        """What asrpt-status --what-if plays forward: for everybody, so without the names of users."""
        snapshot = make_snapshot(scheduler, now)
        margins = self._margins(scheduler, now)
        nameless = replace(
            snapshot,
            margins=margins,
            waiting=_nameless(snapshot.waiting),
            recent=_nameless(snapshot.recent),
            arrays=_nameless(snapshot.arrays),
            moves=scheduler.parts.misses.moves(),
        )
        run, private = scheduler.settings.paths.run, scheduler.parts.slurm.private_jobs
        publish(run, PUBLISHED, to_json(nameless), private=private)

    def _ask(self, scheduler: Scheduler, now: float) -> None:
        tracked = scheduler.world.tracked
        if not any(_waits(each) for each in tracked.values()):
            return
        self._due = now + self.every_s
        snapshot = make_snapshot(scheduler, now)
        jobs = {str(each.job.id): tracked[each.job.id].admitted for each in snapshot.waiting}
        for rest in snapshot.arrays:
            jobs |= dict.fromkeys(map(str, rest.asked), tracked[rest.job.id].admitted)
        self._asked = _Asked(now, jobs, self._begin(to_json(snapshot), BUDGET * self.every_s))

    def _pick_up(self, scheduler: Scheduler, now: float) -> None:
        asked = self._asked
        if asked is None:
            return
        answer = asked.work.answer()
        if answer is not None:
            self._asked = None
            margins, told = self._margins(scheduler, asked.made), json.loads(answer)
            self._due = max(self._due, asked.made + told["cpu_s"] / DUTY)
            found = {job_id: _shown(times, asked.made, margins) for job_id, times in told["starts"].items()}
            self._known = {job_id: (asked.jobs[job_id], forecast) for job_id, forecast in found.items()}
            self._without = asked.jobs.keys() - found.keys()
        elif now > asked.made + LATE * self.every_s:
            asked.work.stop()
            raise OSError(f"none within {LATE * self.every_s:g} s")

    def _keep_first(self, scheduler: Scheduler, now: float) -> None:
        """The first estimate of a job, as it asks now, is what asrpt-admin calibration judges."""
        waited, self._waits = self._waits, {}
        for job_id, tracked in scheduler.world.tracked.items():
            if tracked.place is Place.RUNNING and job_id in waited:
                scheduler.parts.margins = _judged(scheduler.parts.margins, waited[job_id], tracked.record.start_time)
            if tracked.place is Place.PINNED and tracked.forecast is not None:
                self._waits[job_id] = tracked.forecast
            if tracked.place in (Place.PINNED, Place.RUNNING):
                continue  # what was said stands
            changed = job_id in self._known and self._known[job_id][0] != tracked.admitted
            if tracked.place is not Place.QUEUED or changed:
                tracked.forecast = None
            tracked.forecast = tracked.forecast or self.current(tracked, now)
            if tracked.forecast is not None:
                self._waits[job_id] = tracked.forecast

    def _time_starts(self, scheduler: Scheduler) -> None:
        """How long starts take after they were decided."""
        tracked = scheduler.world.tracked.values()
        for each in tracked:
            if each.place is Place.RUNNING and each.pin is not None and each.record.job_id in self._pinned:
                scheduler.parts.arrivals.rests.started(each.record.start_time - each.pin.at)
        self._pinned = {each.record.job_id for each in tracked if each.place is Place.PINNED}

    def _margins(self, scheduler: Scheduler, now: float) -> Margins:
        """With what those teach that still wait."""
        waiting = ((_start(each.simulated), each.made) for each in self._waits.values() if each.simulated)
        return scheduler.parts.margins.at(now, waiting)

    def current(self, tracked: Tracked, now: float) -> Forecast | None:
        """The estimate of a job that waits, unless it is old or the job was another one when it was made.

        Of tasks that wait together that of the next one.
        """
        return self._told(tracked.record.job_id, tracked, now)

    def last(self, tracked: Tracked, now: float) -> Forecast | None:
        """Of tasks that wait together the estimate of the last one."""
        tasks = read_tasks(tracked.record.array_tasks)
        return self._told(f"{tracked.record.job_id}_{tasks[-1][-1]}", tracked, now) if tasks else None

    def _told(self, name: str, tracked: Tracked, now: float) -> Forecast | None:
        admitted, forecast = self._known.get(name, (None, None))
        if forecast is None or not _waits(tracked) or admitted != tracked.admitted:
            return None
        return forecast if now <= forecast.made + withdrawn_after(self.every_s) else None

    def why_not(self, tracked: Tracked, why: str) -> str:
        """Why a job that does not run has no estimate. why: what keeps it from being one of the policy's, in words."""
        if not self._enforcing:
            return "Slurm decides: asrptd is not in mode enforce"
        if not self.every_s:
            return "daemon.forecast_s is 0"
        if not _waits(tracked):
            return why
        if tracked.record.job_id in self._without:
            return f"not within {HORIZON_S / 3600:g} hours, or too many jobs, or tasks of arrays, to tell"
        return f"none yet; the first {MOST_JOBS} in line get one"

    def close(self) -> None:
        if self._asked is not None:
            self._asked.work.stop()
            self._asked = None


def _waits(tracked: Tracked) -> bool:
    """For nothing but its turn."""
    return tracked.place is Place.QUEUED or is_rest(tracked)


def _queue(scheduler: Scheduler) -> object:
    """What a what-if must not miss: who waits, who has GPUs, and what is free beside them."""
    world = scheduler.world
    return {job_id: tracked.place for job_id, tracked in world.tracked.items()}, dict(world.view.free)


def _nameless(jobs: Sequence[_Named]) -> tuple[_Named, ...]:
    return tuple(replace(each, job=replace(each.job, user="", group="")) for each in jobs)


def _shown(times: Sequence[float | None], made: float, margins: Margins) -> Forecast:
    """What a computation has found, with the margins."""
    start = margins.around(_start(times), made)
    return Forecast(made, start.earliest, _known(start.median), _known(start.latest), tuple(times))


def _known(time: float) -> float | None:
    return time if math.isfinite(time) else None


def _judged(margins: Margins, forecast: Forecast, began: float) -> Margins:
    shown = (forecast.earliest, forecast.median, forecast.latest)
    return margins.judged(_start(forecast.simulated or shown), _start(shown), forecast.made, began)


def _start(times: Sequence[float | None]) -> Start:
    earliest, median, latest = (math.inf if time is None else time for time in times)
    return Start(earliest, median, latest)
