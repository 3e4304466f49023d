"""Reads the site's limits and priorities: both in one read, and rarely."""

from __future__ import annotations

import time

from slurm_asrpt.daemon.log_once import LogOnce
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.site import Site
from slurm_asrpt.throttle import Throttle

READ_PAUSE_FACTOR = 199.0
"""Reading takes half a percent of the time at most, beside reads at once for new users and priorities."""
SOON = 0.1
"""Of that pause, where jobs wait for a change."""


class SiteReader:
    """site: as last read. reads: how often it was tried."""

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._throttle = Throttle(time.monotonic, pause_factor=READ_PAUSE_FACTOR)
        self._log = LogOnce()
        self.site, self.reads = Site(), 0

    @property
    def due(self) -> bool:
        return self._throttle.due

    @property
    def due_soon(self) -> bool:
        """Whether it is time to read for jobs that wait for a change."""
        return time.monotonic() >= self._throttle.last + SOON * self._throttle.pause_s

    def read(self) -> None:
        """Read the site; if Slurm does not answer, the previous one stays in force. ``site`` is new if it differs."""
        self.reads += 1
        try:
            with self._throttle.spending():
                found = self._client.site()
        except SlurmError as error:
            self._log.trouble(f"{one_line(error)}; the previous limits and priorities stay in force")
            return
        self._log.over()
        if found != self.site:
            self.site = found
