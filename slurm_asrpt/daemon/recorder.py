"""From a job that has ended to a row of the history."""

from __future__ import annotations

from pathlib import Path

from slurm_asrpt.core.job import UNPROFILED
from slurm_asrpt.daemon.intake import Profiles
from slurm_asrpt.daemon.tracked import Tracked
from slurm_asrpt.predict.history import History, Run, Source
from slurm_asrpt.spool import read_progress


class Recorder:
    """Writes ended runs into the history and clears their progress folders."""

    def __init__(self, history: History, spool: Path, profiles: Profiles) -> None:
        self.history, self.spool, self.profiles = history, spool, profiles

    def record(self, tracked: Tracked) -> bool:
        """Keep the run of a tagged job that has run; False where there is nothing to keep."""
        record = tracked.record
        if tracked.tag is None or not record.nodes or not 0 < record.start_time <= record.end_time:
            return False  # not ours, or cancelled before it had any node
        if self.history.known(record.job_id, int(record.start_time)):
            return False  # Slurm shows ended jobs for minutes; after a restart we know less of them than then
        iterations, source = self._iterations(tracked)
        placement = tracked.real
        gpus = dict(placement.gpus if placement else tracked.read or (tracked.pin.gpus if tracked.pin else {}))
        run = Run(
            job_id=record.job_id,
            start_time=int(record.start_time),
            submit_time=int(record.submit_time),
            end_time=int(record.end_time),
            state=record.state,
            exit_code=record.exit_code,
            user=record.user,
            uid=record.uid,
            group_id=tracked.tag.group,
            job_name=record.name,
            partition=record.partition,
            gpus=sum(gpus.values()),
            nodes=gpus,
            profile=tracked.tag.profile,
            program=tracked.tag.program,
            features=tracked.tag.features,
            predicted_iterations=tracked.tag.iterations,
            predicted_low=tracked.tag.low,
            predicted_high=tracked.tag.high,
            predicted_by=tracked.tag.level,
            iterations=iterations,
            iterations_source=source,
            alpha=placement.alpha if placement else 0.0,
        )
        self.history.record([run])
        return True

    def _iterations(self, tracked: Tracked) -> tuple[int, Source]:
        """What the job reported, else elapsed time over the alpha of its real placement.

        A job without a profile counts one iteration a second whatever it reports: its prediction is only ever
        used together with that stand-in profile.
        """
        record, tag = tracked.record, tracked.tag
        elapsed = record.end_time - record.start_time
        profiled = tag is not None and self._profiled(tracked)
        if not profiled:
            return max(1, round(elapsed)), Source.ELAPSED
        reported = read_progress(self.spool, str(record.number))
        if reported:
            return reported, Source.REPORTED
        if tracked.real is not None and tracked.real.alpha > 0:
            return max(1, round(elapsed / tracked.real.alpha)), Source.ELAPSED
        return 0, Source.NONE

    def _profiled(self, tracked: Tracked) -> bool:
        if tracked.job is not None:
            return tracked.job.profiled
        name = tracked.tag.profile if tracked.tag else ""
        gpus = sum((tracked.real.gpus if tracked.real else tracked.read or {}).values())
        return bool(name and gpus) and self.profiles.get(name, gpus).name != UNPROFILED
