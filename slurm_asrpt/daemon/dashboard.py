"""Keeps the dashboard fresh: dashboard.html in paths.run, for web servers."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from slurm_asrpt.config.settings import Show
from slurm_asrpt.status.document import Status, publish
from slurm_asrpt.status.usage import FILE_NAME as USAGE
from slurm_asrpt.status.usage import read_usage, write_usage
from slurm_asrpt.throttle import Throttle

FILE_NAME = "dashboard.html"
EVERY_S = 30.0
PAUSE_FACTOR = 999.0
"""A page of very many jobs is written less often: it takes at most a thousandth of the time."""


class Dashboard:
    """The page and the samples that it draws."""

    def __init__(self, run_dir: Path, show: Show, clock: Callable[[], float] = time.monotonic) -> None:
        """clock: in seconds."""
        self._run_dir, self._show = run_dir, show
        self._throttle = Throttle(clock, pause_factor=PAUSE_FACTOR, least_s=EVERY_S)
        self._usage = read_usage(run_dir)

    def publish(self, status: Status, *, private: bool) -> None:
        """Write the page, if it is due. private: readable by root and the daemon's user only. Raises OSError."""
        if not self._throttle.due:
            return
        with self._throttle.spending():
            if self._show is Show.OFF:
                self._remove()
            else:
                self._write(status, private)

    def _write(self, status: Status, private: bool) -> None:
        from slurm_asrpt.reporting.dashboard import page  # Jinja, only if it is needed

        if self._usage.due(status.written):
            self._usage = self._usage.with_sample(status)
            write_usage(self._run_dir, self._usage, private=private)
        anonymous = self._show is Show.ANONYMOUS
        text = page(status, self._usage, anonymous=anonymous, written_every_s=max(EVERY_S, self._throttle.pause_s))
        publish(self._run_dir, FILE_NAME, text.encode(), private=private)

    def _remove(self) -> None:
        """Remove what an asrptd with other settings has left: nobody keeps it fresh."""
        for name in (FILE_NAME, USAGE):
            (self._run_dir / name).unlink(missing_ok=True)
