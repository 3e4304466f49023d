"""Writes ended jobs into the history."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from slurm_asrpt.core.job import Job, JobProfile, is_named
from slurm_asrpt.core.sensitivity import UNKNOWN, Spread
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob, predicted
from slurm_asrpt.daemon.jobs.saved_state import Forecast
from slurm_asrpt.daemon.log_once import LogOnce
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.errors import one_line
from slurm_asrpt.history.store import DamagedError, History, HistoryError, ReadOnlyError, Run, Source, with_tag
from slurm_asrpt.hook.tag import Tag
from slurm_asrpt.slurm.limits import parse_tres
from slurm_asrpt.slurm.request import asks_for_no_gpus
from slurm_asrpt.spool import Progress, read_progress
from slurm_asrpt.text import counted

LOG = logging.getLogger("asrptd")
REQUEUED = "REQUEUED"
"""The state of a run that a requeue has ended, as in sacct."""
MAX_UNWRITTEN = 100_000
MAX_SPEEDUP = 100.0
"""Reported iterations count up to this multiple of the placement's speed, so that one run cannot distort the mean."""
MIN_ITERATION_S = 1e-3
"""The shortest plausible iteration of a job with an unknown placement or profile."""


class HistoryWriter:
    """Writes ended runs into the history. Runs that cannot be written are kept and written later.

    open_history: raises HistoryError; called now, and whenever the history is needed but not open.
    """

    def __init__(self, open_history: Callable[[], History], spool: Path, profiles: Profiles) -> None:
        self.spool, self.profiles = spool, profiles
        self.history: History | None = None
        self.unwritten: list[Run] = []
        self._open, self._log = open_history, LogOnce(logging.ERROR)
        try:
            self.connect()
        except HistoryError as error:
            self._log_once(one_line(error))

    def connect(self) -> History:
        """Open the history if it is not open. Raises HistoryError."""
        if self.history is None:
            self.history = self._open()
        return self.history

    def record(self, job: ManagedJob, spread: Spread = UNKNOWN) -> Run | None:
        """Keep the run of a tagged job with GPUs until ``flush``; None if there is nothing to keep."""
        record = job.record
        if job.tag is None or not record.nodes or not 0 < record.start_time <= record.end_time:
            return None  # not managed, or cancelled before it had nodes
        if asks_for_no_gpus(record) and job.job is None:  # it had GPUs by --ntasks-per-gpu
            return None
        run = self._run(job, job.tag, spread)
        if self._known(run):
            return None  # Slurm shows ended jobs for minutes, and after a restart less is known about them
        self.unwritten.append(run)
        del self.unwritten[:-MAX_UNWRITTEN]
        return run

    def record_cut(self, job: ManagedJob, until: float, spread: Spread = UNKNOWN) -> Run | None:
        """As ``record``, for a run that a requeue has ended. Slurm's record already shows the pending job."""
        record = replace(job.record, state=REQUEUED, end_time=until)
        return self.record(replace(job, record=record), spread)

    def flush(self) -> None:
        """Write the kept runs. Errors are logged only: they must not stop scheduling."""
        if not self.unwritten:
            return
        try:
            self._write(self.connect())
        except HistoryError as error:
            self._log_once(one_line(error))
            if isinstance(error, DamagedError | ReadOnlyError):
                self._close()  # when reopened, a damaged file is set aside, and a read-only one may be writable
        else:
            self.unwritten.clear()
            self._log.over()

    def _write(self, history: History) -> None:
        """Write the kept runs that the history does not know yet. Raises HistoryError."""
        history.record([run for run in self.unwritten if not history.known(*run.key)])

    def close(self) -> None:
        """Close the history after a last attempt to write."""
        self.flush()
        if self.unwritten:
            LOG.error("%s could not be written and are lost; sacct has them", counted(len(self.unwritten), "run"))
        self._close()

    def _close(self) -> None:
        if self.history is not None:
            self.history.close()
        self.history = None

    def _known(self, run: Run) -> bool:
        if self.history is None:
            return False  # checked again before it is written
        try:
            return self.history.known(*run.key)
        except HistoryError as error:
            self._log_once(one_line(error))
            return False

    def _log_once(self, trouble: str) -> None:
        self._log.trouble(f"{trouble}; ended runs are kept in memory and written later")

    def _run(self, job: ManagedJob, tag: Tag, spread: Spread) -> Run:
        record, placement = job.record, job.placement
        reported = read_progress(self.spool, str(record.number))
        if reported is not None and reported.written < record.start_time:
            reported = None  # from an earlier run: the file is kept at a requeue
        iterations, source = self._iterations(job, reported)
        gpus = dict(placement.gpus if placement else job.allocation or (job.pin.gpus if job.pin else {}))
        made, earliest, median, latest = _forecast_times(job.forecast)
        least, most = _asked_nodes(job.job)
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
            account=record.account,
            qos=record.qos,
            tres=record.tres,
            gpus=sum(gpus.values()) or int(parse_tres(record.tres).get("gres/gpu", 0)),
            nodes=gpus,
            iterations=iterations,
            iterations_source=source,
            alpha=placement.alpha if placement else 0.0,
            reported_total=reported.total if reported else 0,
            forecast_made=made,
            forecast_low=earliest,
            forecast_median=median,
            forecast_high=latest,
            time_limit_s=int(record.time_limit),
            min_nodes=least,
            max_nodes=most,
            link_s=spread.link_s,
            switches=spread.switches,
            iteration_s=_iteration_s(job, reported),
            speed=placement.speed if placement else 0.0,
        )
        profile = self._profile(job)
        profiled = is_named(profile)
        return replace(
            with_tag(run, predicted(tag, job.job, job.reference_alpha)),
            profile=profile.name if profiled else tag.profile,
            work_s=_work(job, run) if profiled else iterations,
            iterations_of=tag.profile if profiled else "",
        )

    def _iterations(self, job: ManagedJob, reported: Progress | None) -> tuple[int, Source]:
        """The reported iterations, else elapsed time over the alpha of the real placement.

        A job without a profile counts one iteration per second in its best placement on reference GPUs, whatever it
        reports, because its prediction is only used so.
        """
        elapsed = job.record.end_time - job.record.start_time
        if not is_named(self._profile(job)):
            return max(1, round(elapsed / (job.placement.alpha if job.placement else 1.0))), Source.ELAPSED
        if reported is not None and reported.ran and _is_plausible(reported.ran, elapsed, job):
            return reported.ran, Source.REPORTED
        if job.placement is not None and job.placement.alpha > 0:
            return max(1, round(elapsed / job.placement.alpha)), Source.ELAPSED
        return 0, Source.NONE

    def _profile(self, job: ManagedJob) -> JobProfile:
        """The profile that the job was planned with, else the one for its allocated GPUs."""
        if job.job is not None:
            return job.job.profile
        gpus = sum((job.placement.gpus if job.placement else job.allocation or {}).values())
        return self.profiles.of(job.tag if gpus else None, max(gpus, 1))


def _iteration_s(job: ManagedJob, reported: Progress | None) -> float:
    """Seconds per reported iteration; 0 if unknown. The reports of a requeued job cover all its runs."""
    elapsed = job.record.end_time - job.record.start_time
    if reported is None or job.record.restarts or reported.ran * MIN_ITERATION_S > elapsed:
        return 0.0
    return elapsed / reported.ran if reported.ran else 0.0


def _asked_nodes(job: Job | None) -> tuple[int, int]:
    """The owner's ``-N``, 0 for unknown. Slurm's record has the nodes of the allocation instead once the job runs."""
    if job is None:
        return 0, 0
    request = job.request
    if request.per_node:
        return job.gpus // request.per_node, job.gpus // request.per_node
    return request.min_nodes, request.max_nodes or 0


def _work(job: ManagedJob, run: Run) -> int:
    """Seconds that the run of a job with a profile would have taken in its best placement on reference GPUs.

    From its elapsed time, which is true even if the profile is not. The reports of a requeued job cover all its runs.
    """
    if job.record.restarts and run.iterations_source is Source.REPORTED and job.reference_alpha:
        return max(1, round(run.iterations * job.reference_alpha))
    slower = run.alpha / job.reference_alpha if run.alpha and job.reference_alpha else 1.0
    return max(1, round((run.end_time - run.start_time) / slower))


def _is_plausible(iterations: int, elapsed: float, job: ManagedJob) -> bool:
    """Whether the job can have done so many iterations in so many seconds."""
    alpha = job.placement.alpha / MAX_SPEEDUP if job.placement else MIN_ITERATION_S
    return iterations * alpha <= elapsed + 1.0


def _forecast_times(forecast: Forecast | None) -> tuple[int, int, int, int]:
    """A forecast's time, and its earliest, median and latest start: seconds, rounded outwards; 0 for none."""
    if forecast is None or not math.isfinite(forecast.earliest):  # those of earlier releases
        return 0, 0, 0, 0
    median, latest = round(forecast.median or 0), math.ceil(forecast.latest or 0)
    return int(forecast.made), int(forecast.earliest), median, latest
