"""Jobs that have ended: told once, and remembered as long as Slurm shows them, as they may be requeued even then."""

from __future__ import annotations

from collections.abc import Container

from slurm_asrpt.daemon.jobs.managed_job import Tracked
from slurm_asrpt.daemon.parts import Parts
from slurm_asrpt.daemon.record import facts
from slurm_asrpt.daemon.writes import rank_maps
from slurm_asrpt.slurm.records import JobRecord


class Ended:
    """What is known of them by job id, and what is still to be cleared away."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._known: dict[str, Tracked] = {}
        self._gone: list[JobRecord] = []

    def told(self, record: JobRecord) -> bool:
        """Whether this end has been told."""
        known = self._known.get(record.job_id)
        return known is not None and known.record.submit_time == record.submit_time

    def note(self, tracked: Tracked) -> None:
        """It has ended, for good unless somebody requeues it."""
        tracked.service, tracked.interruption = tracked.service.cut(tracked.record.end_time, None), None
        tracked.real = tracked.forecast = None  # of this run, and many are saved
        self._known[tracked.record.job_id] = tracked
        self.is_gone(tracked.record)

    def is_gone(self, record: JobRecord) -> None:
        """Its files may go as soon as all is written."""
        self._gone.append(record)

    def before(self, record: JobRecord) -> Tracked | None:
        """The run before that of a job that was requeued after its end; Slurm has kept our pin on it."""
        return self._known.get(record.job_id) if record.restarts else None

    def pinned(self) -> list[Tracked]:
        """Those of which a restart must not forget what our pins had overwritten; what a pin has ended stays ended."""
        known = self._known.values()
        return [tracked for tracked in known if tracked.original is not None and not facts.failed_by_pin(tracked)]

    def keep_only(self, shown: Container[str]) -> None:
        """Forget those whom Slurm has forgotten."""
        self._known = {job_id: tracked for job_id, tracked in self._known.items() if job_id in shown}

    def settle(self) -> None:
        """Runs go to the audit trail, then to the history, then their files go: a crash in between repeats a step."""
        self.parts.audit.flush()
        self.parts.recorder.flush()
        for record in self._gone:  # the prolog makes a progress folder for every job, ours or not
            rank_maps.remove(self.parts.settings.paths.spool, [record.number])
            self.parts.watch.remove(str(record.number))
        self._gone.clear()
