"""What asrptd tells owners of their ended jobs: a row as in the status, with how long it waited for what."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_asrpt.core.reasons import Phase
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import Forecast
from slurm_asrpt.history.store import Run, Source
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.status.document import RAN_ON, JobStatus
from slurm_asrpt.status.endings import outcome
from slurm_asrpt.text import slurm_time

MOST_UNWRITTEN = 10_000
"""How many ended jobs wait at most for a directory that cannot be written."""


class Waits:
    """How long each pending job has waited for what, since this asrptd has been running."""

    def __init__(self) -> None:
        self._waited: dict[str, tuple[float, dict[str, float]]] = {}  # with the submission, which a requeue changes
        self._noted = 0.0

    def note(self, rows: Iterable[JobStatus], now: float) -> None:
        """Count the time since the last call, or since its submission, for each job's present reason."""
        kept = dict[str, tuple[float, dict[str, float]]]()
        for row in rows:
            waited = self.of(row.job_id, row.submit_time)
            if row.start_time is None and self._noted:
                since = now - max(self._noted, row.submit_time)
                waited[row.reason] = waited.get(row.reason, 0.0) + max(0.0, since)
            kept[row.job_id] = row.submit_time, waited
        self._waited, self._noted = kept, now

    def of(self, job_id: str, submit_time: float) -> dict[str, float]:
        """Seconds by kind of reason, in the order in which they began. A task begins with those of its array."""
        for name in (job_id, job_id.partition("_")[0]):
            submitted, waited = self._waited.get(name, (None, {}))
            if submitted == submit_time:
                return waited if name == job_id else dict(waited)
        return {}


@dataclass(frozen=True)
class Ended:
    """What is known of a job at its end. waits: seconds by kind of reason. forecast: the first one of its start.

    run: None if it did not run, or if the history keeps no such runs.
    """

    job: ManagedJob
    run: Run | None
    waits: Mapping[str, float]
    forecast: Forecast | None


@dataclass
class EndedReports:
    """Ended jobs until they are written."""

    waits: Waits
    unwritten: list[Ended] = field(default_factory=list)

    def add(self, job: ManagedJob, run: Run | None) -> None:
        """Keep the job until its report is written."""
        waits = self.waits.of(job.record.job_id, job.record.submit_time)
        self.unwritten.append(Ended(job, run, waits, job.forecast))
        del self.unwritten[:-MOST_UNWRITTEN]

    def written(self, uid: int) -> None:
        """The jobs of this user are in their owner's file."""
        self.unwritten = [kept for kept in self.unwritten if kept.job.record.uid != uid]


def ended_row(row: JobStatus, ended: Ended) -> JobStatus:
    """The row of a job that has ended. row: as for a running job."""
    job, run, forecast = ended.job, ended.run, ended.forecast
    record = job.record
    began = float(run.start_time) if run else _began(record)
    end = float(run.end_time if run else record.end_time)
    waited = max(0.0, (began or end) - record.submit_time)
    ran = end - began if began else 0.0
    facts: dict[str, Any] = {"exit_code": record.exit_code, "time_limit_s": record.time_limit, "waited_s": waited}
    if record.signal:
        facts["signal"] = record.signal
    facts |= {"ran_s": ran, "waits": {kind: round(seconds, 1) for kind, seconds in ended.waits.items() if seconds >= 1}}
    if began:
        facts[RAN_ON] = record.nodes  # also of jobs without GPUs, which have none in ``nodes``
    return replace(
        row,
        state=str(Phase.ENDED),
        reason=record.state.lower(),
        text=_text(outcome(record.state, record.exit_code, record.signal), waited, ran if began else None),
        facts={**row.facts, **facts},
        nodes=dict(run.nodes if run else (job.allocation or record.gpus_by_node) if began else {}),
        gpus=run.gpus if run and run.gpus else row.gpus,
        rank=None,
        start_time=began or None,
        end_time=end,
        alpha=(run.alpha or None) if run else None,
        iterations_done=_reported(run) if run else None,
        start_made=forecast.made if forecast else None,
        start_earliest=forecast.earliest if forecast else None,
        start_median=forecast.median if forecast else None,
        start_latest=forecast.latest if forecast else None,
        start_open=forecast.open_end if forecast else "",
    )


def _reported(run: Run) -> int | None:
    """The iterations that it reported, also without a profile: its ``iterations`` are then seconds."""
    if run.iterations_source is Source.REPORTED:
        return run.iterations
    return round((run.end_time - run.start_time) / run.iteration_s) if run.iteration_s else None


def _began(record: JobRecord) -> float:
    """When it started; 0 if it was cancelled before it had nodes. Slurm then shows that time as its start."""
    return record.start_time if record.nodes and 0 < record.start_time <= record.end_time else 0.0


def _text(ended: str, waited: float, ran: float | None) -> str:
    if ran is None:
        return f"{ended} after {slurm_time(waited)}, before it started"
    return f"{ended} after {slurm_time(ran)}; had waited {slurm_time(waited)}"
