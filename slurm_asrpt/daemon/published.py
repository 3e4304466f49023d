"""The files that asrptd publishes after its cycles: for the hook, for users, for web servers."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.daemon.clock import MAX_RETRY_PAUSE_S
from slurm_asrpt.daemon.dashboard import FILE_NAME as DASHBOARD
from slurm_asrpt.daemon.dashboard import Dashboard
from slurm_asrpt.daemon.log_once import LogOnce
from slurm_asrpt.daemon.metrics import Metrics
from slurm_asrpt.daemon.profile_names import FILE_NAME as PROFILE_NAMES
from slurm_asrpt.daemon.profile_names import ProfileNames
from slurm_asrpt.daemon.profiles import AttachmentsFile, Profiles
from slurm_asrpt.daemon.scheduling import Scheduling
from slurm_asrpt.errors import one_line
from slurm_asrpt.forecast.snapshot import PUBLISHED
from slurm_asrpt.hook.hook_conf import FILE_NAME as HOOK_CONF
from slurm_asrpt.hook.hook_conf import render_hook_conf, write_hook_conf
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.status.document import FILE_NAME as STATUS
from slurm_asrpt.status.document import write_status
from slurm_asrpt.status.ended import FOLDER as ENDED
from slurm_asrpt.throttle import Throttle

LONGEST_STATUS_AGE_S = 10.0
"""asrpt-status considers asrptd down if the status is half a minute old."""


class PublishedFiles:
    """hook.conf and profiles.txt for the hook; forecast inputs, status.json and dashboard.html for users.

    A full or read-only directory does not make a cycle fail, which would delay the next.
    """

    def __init__(self, settings: Settings, profiles: Profiles, metrics: Metrics) -> None:
        self._settings, self._profiles, self._metrics = settings, profiles, metrics
        partitions, rules, folders = settings.slurm.partitions, settings.group, settings.paths.profiles
        self._attachments = AttachmentsFile(
            settings.paths.attachments, lambda found: render_hook_conf(partitions, 0, 0.0, rules, found)
        )
        self._profile_names = ProfileNames(folders, lambda name: load_named(name, folders))
        self._dashboard = Dashboard(settings.paths.run, settings.daemon.dashboard)
        self.status_throttle = Throttle(time.monotonic, LONGEST_STATUS_AGE_S)
        self._files = OptionalFiles()

    def status_is_due(self) -> None:
        """Write the status after this cycle, however costly it is: asrpt-admin waits for what it says."""
        self.status_throttle = Throttle(time.monotonic, LONGEST_STATUS_AGE_S)

    def write(self, scheduling: Scheduling, enforcing: bool, private_jobs: bool, now: float) -> None:
        """Write what is due, after successful cycles only: else the hook must not lease.

        enforcing: whether the hook is to lease jobs. private_jobs: users may see only their own jobs.
        """
        paths = self._settings.paths
        with self._files.writing(paths.hook, HOOK_CONF):
            self.heartbeat(enforcing, now)
        with self._files.writing(paths.hook, PROFILE_NAMES):
            if self._profile_names.write(paths.hook):
                self._profiles.look_again()
        with self._files.writing(paths.run, PUBLISHED):
            scheduling.forecaster.step(now)
        if self.status_throttle.due:
            with self._files.writing(paths.run, STATUS), self.status_throttle.spending():
                self._write_status(scheduling, private_jobs, now)
            with self._files.writing(paths.run, ENDED):
                scheduling.status.report_ended(paths.run, now)

    def heartbeat(self, enforcing: bool, now: float) -> None:
        """Write the hook's parameters, and until when it may assume that asrptd runs. Raises OSError."""
        settings = self._settings
        lease = settings.daemon.lease_s if enforcing else 0
        grace = max(60.0, 6 * settings.daemon.interval_s, 2 * MAX_RETRY_PAUSE_S)
        partitions, attachments = settings.slurm.partitions, self._attachments.current()
        write_hook_conf(settings.paths.hook, partitions, lease, now + grace, settings.group, attachments)

    def _write_status(self, scheduling: Scheduling, private_jobs: bool, now: float) -> None:
        run, status = self._settings.paths.run, scheduling.status.build(now, scheduling.forecaster)
        write_status(run, status, private=private_jobs)
        self._metrics.state(status.mode, status.gpus_total, status.gpus_free, (job.state for job in status.jobs))
        self._metrics.leases(scheduling.leases.seconds_left(now))
        with self._files.writing(run, DASHBOARD):
            self._dashboard.publish(status, private=private_jobs)


class OptionalFiles:
    """Writes published files. A full or read-only directory does not make a cycle fail, which would delay the next."""

    def __init__(self) -> None:
        self._logs = defaultdict[tuple[Path, str], LogOnce](partial(LogOnce, logging.ERROR))

    @contextmanager
    def writing(self, folder: Path, name: str) -> Iterator[None]:
        """Run the block, which writes a file. A failure is logged once; the next cycle retries."""
        log = self._logs[folder, name]
        try:
            yield
        except OSError as error:
            log.trouble(f"{folder}/{name} cannot be written: {one_line(error)}; scheduling continues")
        else:
            log.over()
