"""What asrptd deletes, at first and once a day: files of jobs whose ends were missed, and old runs in the history."""

from __future__ import annotations

import logging

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.record.history import HistoryWriter
from slurm_asrpt.daemon.record.progress import ProgressWatch
from slurm_asrpt.daemon.writes.rank_maps import remove as remove_hosts
from slurm_asrpt.errors import one_line
from slurm_asrpt.history.maintenance import DAY_S, prune
from slurm_asrpt.history.store import HistoryError
from slurm_asrpt.spool import forgotten_hosts, forgotten_progress

LOG = logging.getLogger("asrptd")
FORGOTTEN_S = 30 * DAY_S
"""Jobs of unmanaged partitions are not known here; they are assumed to be shorter than this."""


class Maintenance:
    """Deletes what nothing else deletes."""

    def __init__(self, settings: Settings, history: HistoryWriter, progress: ProgressWatch) -> None:
        self._spool, self._keep_days = settings.paths.spool, settings.predict.keep_days
        self._history, self._progress = history, progress
        self._last = 0.0

    def run(self, jobs: JobTable, now: float) -> None:
        """Delete what is due."""
        if self._last <= now < self._last + DAY_S:  # earlier than the last time: the clock was set back
            return
        self._last = now
        self._remove_forgotten_files(jobs, now)
        self._drop_old_runs(now)

    def _remove_forgotten_files(self, jobs: JobTable, now: float) -> None:
        """Progress directories, and host files: another job that gets the number must not run by them."""
        known = {str(job.record.number) for job in jobs.values()}
        remove_hosts(self._spool, forgotten_hosts(self._spool, known))
        for number in forgotten_progress(self._spool, known, now - FORGOTTEN_S):
            self._progress.remove(number)

    def _drop_old_runs(self, now: float) -> None:
        try:
            dropped = prune(self._history.connect(), self._keep_days, now)
        except HistoryError as error:
            LOG.error("%s; retrying tomorrow", one_line(error))
            return
        if dropped:
            LOG.info("history: dropped runs that ended more than %d days ago: %d", self._keep_days, dropped)
