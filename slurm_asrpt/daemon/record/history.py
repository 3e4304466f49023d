"""From a job that has ended to a row of the history."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from slurm_asrpt.core.job import UNPROFILED, JobProfile
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import Forecast
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.errors import one_line
from slurm_asrpt.history.store import DamagedError, History, HistoryError, ReadOnlyError, Run, Source, with_tag
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.spool import Progress, read_progress
from slurm_asrpt.text import counted

LOG = logging.getLogger("asrptd")
REQUEUED = "REQUEUED"
"""The state that sacct, too, gives to a run that a requeue has ended."""
MAX_UNWRITTEN = 100_000
FASTEST = 100.0
"""Times the speed of a job's placement; a report of more is none, or one run could move everybody's mean at will."""
QUICKEST_S = 1e-3
"""Of an iteration of a job whose placement is not known."""


class HistoryWriter:
    """Writes ended runs into the history. Runs that the history does not take now are kept and written later.

    open_history: raises HistoryError; asked at once, and again wherever a history is needed and there is none.
    """

    def __init__(self, open_history: Callable[[], History], spool: Path, profiles: Profiles) -> None:
        self.spool, self.profiles = spool, profiles
        self.history: History | None = None
        self.unwritten: list[Run] = []
        self._open, self._logged = open_history, ""
        try:
            self.connect()
        except HistoryError as error:
            self._log_once(one_line(error))

    def connect(self) -> History:
        """The history, opened where it is not. Raises HistoryError."""
        if self.history is None:
            self.history = self._open()
        return self.history

    def record(self, job: ManagedJob) -> Run | None:
        """Keep the run of a tagged job that has run until ``flush``; None where there is nothing to keep."""
        record = job.record
        if job.tag is None or not record.nodes or not 0 < record.start_time <= record.end_time:
            return None  # not ours, or cancelled before it had any node
        run = self._run(job, job.tag)
        if self._known(run):
            return None  # Slurm shows ended jobs for minutes; after a restart we know less of them than then
        self.unwritten.append(run)
        return run

    def record_cut(self, job: ManagedJob, until: float) -> Run | None:
        """As ``record``, for a run that a requeue has ended: Slurm's record is of the job that waits again."""
        record = replace(job.record, state=REQUEUED, end_time=until)
        return self.record(replace(job, record=record))

    def flush(self) -> None:
        """Write what is unwritten. A history that cannot be written must not stop the scheduling."""
        if not self.unwritten:
            return
        try:
            self._write(self.connect())
        except HistoryError as error:
            self._log_once(one_line(error))
            del self.unwritten[:-MAX_UNWRITTEN]
            if isinstance(error, DamagedError | ReadOnlyError):
                self._close()  # opened anew, a damaged one is set aside and a read-only one may be writable by then
        else:
            self.unwritten.clear()
            self._logged = ""

    def _write(self, history: History) -> None:
        """Without what it knew when it could not be asked. Raises HistoryError."""
        history.record([run for run in self.unwritten if not history.known(*run.key)])

    def close(self) -> None:
        """A last try."""
        self.flush()
        if self.unwritten:
            LOG.error("lost: %s that could not be written; sacct has them", counted(len(self.unwritten), "run"))
        self._close()

    def _close(self) -> None:
        if self.history is not None:
            self.history.close()
        self.history = None

    def _known(self, run: Run) -> bool:
        if self.history is None:
            return False  # asked again before it is written
        try:
            return self.history.known(*run.key)
        except HistoryError as error:
            self._log_once(one_line(error))
            return False

    def _log_once(self, trouble: str) -> None:
        """Each trouble once."""
        if trouble != self._logged:
            LOG.error("%s; ended runs are kept in memory and written later", trouble)
        self._logged = trouble

    def _run(self, job: ManagedJob, tag: Tag) -> Run:
        record, placement = job.record, job.placement
        reported = read_progress(self.spool, str(record.number))
        if reported is not None and reported.written < record.start_time:
            reported = None  # of an earlier run: the file outlives a requeue
        iterations, source = self._iterations(job, reported)
        gpus = dict(placement.gpus if placement else job.allocation or (job.pin.gpus if job.pin else {}))
        made, earliest, median, latest = _forecast_times(job.forecast)
        run = Run(
            job_id=record.job_id,
            start_time=int(record.start_time),
            submit_time=int(record.submit_time),
            end_time=int(record.end_time),
            state=record.state,
            exit_code=record.exit_code,
            user=record.user,
            uid=record.uid,
            job_name=record.name,
            partition=record.partition,
            gpus=sum(gpus.values()),
            nodes=gpus,
            iterations=iterations,
            iterations_source=source,
            alpha=placement.alpha if placement else 0.0,
            reported_total=reported.total if reported else 0,
            forecast_made=made,
            forecast_low=earliest,
            forecast_median=median,
            forecast_high=latest,
        )
        profile = self._profile(job)
        return replace(with_tag(run, tag), profile=profile.name if profile.name != UNPROFILED else tag.profile)

    def _iterations(self, job: ManagedJob, reported: Progress | None) -> tuple[int, Source]:
        """What the job reported, else elapsed time over the alpha of its real placement.

        A job without a profile counts one iteration a second of the reference GPU whatever it reports: its prediction
        is only ever used together with that stand-in profile.
        """
        elapsed = job.record.end_time - job.record.start_time
        if self._profile(job).name == UNPROFILED:
            return max(1, round(elapsed / (job.placement.alpha if job.placement else 1.0))), Source.ELAPSED
        if reported is not None and reported.ran and _is_plausible(reported.ran, elapsed, job):
            return reported.ran, Source.REPORTED
        if job.placement is not None and job.placement.alpha > 0:
            return max(1, round(elapsed / job.placement.alpha)), Source.ELAPSED
        return 0, Source.NONE

    def _profile(self, job: ManagedJob) -> JobProfile:
        """That with which the job was planned, else that of the GPUs that it had."""
        if job.job is not None:
            return job.job.profile
        gpus = sum((job.placement.gpus if job.placement else job.allocation or {}).values())
        return self.profiles.of(job.tag if gpus else None, max(gpus, 1))


def _is_plausible(iterations: int, elapsed: float, job: ManagedJob) -> bool:
    """Whether so many iterations can have been done in so many seconds."""
    alpha = job.placement.alpha / FASTEST if job.placement else QUICKEST_S
    return iterations * alpha <= elapsed + 1.0


def _forecast_times(forecast: Forecast | None) -> tuple[int, int, int, int]:
    """When a forecast was made, earliest, median and latest: whole seconds, outwards; 0 for none."""
    if forecast is None:
        return 0, 0, 0, 0
    median, latest = round(forecast.median or 0), math.ceil(forecast.latest or 0)
    return int(forecast.made), int(forecast.earliest), median, latest
