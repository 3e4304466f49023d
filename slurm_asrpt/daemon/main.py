"""asrptd's main loop: a cycle, the published files, a pause; until a signal stops it."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from dataclasses import replace
from types import FrameType

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.daemon.clock import MAX_RETRY_PAUSE_S, ClockStepDetector, check_same_clock, cpu_s, pause_after
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.leader import LeaderLock, LeadershipLostError
from slurm_asrpt.daemon.maintenance import Maintenance
from slurm_asrpt.daemon.metrics import CALIBRATED_S, Metrics
from slurm_asrpt.daemon.profiles import Profiles
from slurm_asrpt.daemon.published import PublishedFiles
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.record.history import HistoryWriter
from slurm_asrpt.daemon.record.progress import ProgressWatch
from slurm_asrpt.daemon.scheduling import Scheduling, assemble
from slurm_asrpt.daemon.setup import check_slurm, configured_policy, preferred_client
from slurm_asrpt.daemon.state import NotSavedError, StateStore
from slurm_asrpt.daemon.wakeup import Wakeups, least_pause
from slurm_asrpt.doctor.predictions import recent_drift
from slurm_asrpt.errors import AsrptError, SlurmError, one_line, printable
from slurm_asrpt.forecast.calibration import calibration
from slurm_asrpt.history.maintenance import open_or_set_aside
from slurm_asrpt.history.store import FILE_NAME as HISTORY_FILE
from slurm_asrpt.history.store import History
from slurm_asrpt.hook.hook_conf import WAKEUP
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.switch import OperatingMode, is_off
from slurm_asrpt.throttle import Throttle, backoff_s

LOG = logging.getLogger("asrptd")
DISABLED = "disabled: waiting jobs are released to Slurm and nothing more is written; asrpt-admin enable resumes"
GARBAGE = (50_000, 20, 20)
"""Thresholds of gc. With the defaults it scans the state of thousands of jobs every few cycles. That takes half a
cycle and finds hardly any cyclic garbage."""
RECONFIGURED_S = 60.0
"""Time between two looks at Slurm's settings: ``scontrol reconfigure`` or an upgrade may have changed them."""
SHORTEST_PAUSE = 0.2
"""Minimum pause as a share of the interval, so that the policy's wake-ups do not cause too many reads."""


class Daemon:
    """The resources of a running asrptd. ``close`` releases them."""

    def __init__(self, settings: Settings, leader: LeaderLock, stopping: threading.Event) -> None:
        """leader: the lock of the state directory, held. stopping: if set, the loop ends after its cycle."""
        self.settings, self.leader, self.stopping = settings, leader, stopping
        folders = settings.paths.profiles
        self.profiles = Profiles(lambda name: load_named(name, folders))
        self.client: SlurmClient = CliClient(settings.slurm)
        self.slurm: SlurmConfig  # set when Slurm has answered
        self.scheduling: Scheduling
        self.audit: AuditWriter
        self.recent: RecentJobs
        self.mode = OperatingMode(settings.daemon.mode)
        self.metrics = Metrics(settings.daemon.metrics)
        self.history = HistoryWriter(self._open_history, settings.paths.spool, self.profiles)
        self.progress = ProgressWatch(settings.paths.spool, settings.daemon.progress_s)
        self.published = PublishedFiles(settings, self.profiles, self.metrics)
        self.maintenance = Maintenance(settings, self.history, self.progress)
        self.wakeups = Wakeups(settings.paths.hook / WAKEUP)
        self._store = StateStore(leader)
        self._scheduling_is_up = False
        self._clock_steps, self._clock_stepped = ClockStepDetector(), False
        self.conf_throttle = Throttle(time.monotonic, least_s=RECONFIGURED_S)
        self._logged_problems: dict[str, list[str]] = {}
        self._least_pause_s = 0.0

    def _open_history(self) -> History:
        """Raises HistoryError."""
        history, trouble = open_or_set_aside(self.settings.paths.state / HISTORY_FILE, time.time())
        if trouble:
            LOG.error("%s", printable(trouble))
        return history

    # start

    def _start_scheduling(self, config: SlurmConfig) -> None:
        """Start from the saved state; also after a step of the clock. Raises InputError if Slurm lacks a feature."""
        check_slurm(self.settings, config)
        if self._scheduling_is_up:
            self.scheduling.forecaster.close()
        self.slurm, self.mode = config, OperatingMode(self.settings.daemon.mode)
        self.audit = AuditWriter(self.settings.paths.state, self.settings.audit, self.metrics.event)
        self.recent = RecentJobs.of_history(self.history.connect, time.time())
        self.scheduling = assemble(
            settings=self.settings,
            client=self.client,
            slurm=config,
            policy=configured_policy(self.settings),
            profiles=self.profiles,
            store=self._store,
            audit=self.audit,
            history=self.history,
            progress=self.progress,
            recent=self.recent,
            mode=self.mode,
        )
        self._scheduling_is_up = True

    def _wait_for_slurm(self, once: bool) -> SlurmConfig | None:
        """Slurm's configuration when slurmctld answers: at boot, asrptd may start first. None if stopped before."""
        failures = 0
        while not self.stopping.is_set():
            try:
                config = self.client.config()
                check_same_clock(config, time.time())
                return config
            except SlurmError as error:
                if once:
                    raise
                failures += 1
                pause = self.pause_s(0.0, None, failures)
                LOG.error("Slurm does not answer yet (%s); retrying in %g s", one_line(error), pause)
                self.wakeups.sleep(pause, pause, self.stopping)
        return None

    # the loop

    def run(self, once: bool = False) -> None:
        """Run cycles until stopped. If Slurm does not answer, retry after growing pauses.

        Raises InputError if Slurm lacks a feature that the settings need, and with ``once`` any error.
        """
        config = self._wait_for_slurm(once)
        if config is None:
            return
        gc.set_threshold(*GARBAGE)
        self.client = preferred_client(self.settings, self.client, config)
        self._start_scheduling(config)
        if not once:
            self.progress.start()
        failures = 0
        while not self.stopping.is_set():
            began, since = time.time(), time.monotonic()
            try:
                wakeup = self.cycle(began)
                failures = 0
            except LeadershipLostError:
                raise
            except (AsrptError, OSError) as error:  # Slurm is down, a disk is full: no traceback is needed
                if once:
                    raise
                # no pause grows until the state is saved or the jobs are released: no job starts meanwhile
                failures = 1 if isinstance(error, NotSavedError) else failures + 1
                LOG.error("%s; retrying", one_line(error))
            except Exception:
                if once:
                    raise
                # a bug; leases have not expired yet, so a later cycle may succeed in time
                failures += 1
                LOG.exception("a cycle failed; retrying")
            if once:
                return
            if failures:
                wakeup = None
                self.metrics.failed()
            pause = self.pause_s(began, wakeup, failures)
            early = max(self._least_pause_s, least_pause(time.monotonic() - since))
            self.wakeups.sleep(pause, pause if failures else early, self.stopping)

    def cycle(self, now: float) -> float | None:
        """One cycle: decide, write to Slurm, publish. Returns when the policy wants the next one, if it says so.

        now: seconds since the epoch. Raises LeadershipLostError, AsrptError, OSError.
        """
        self.leader.check()
        self._follow_clock(now)
        self._follow_switch()
        before, scheduler = cpu_s(), self.scheduling.scheduler
        wakeup = scheduler.cycle(now)
        self._least_pause_s = pause_after(cpu_s() - before, len(os.sched_getaffinity(0)))
        self.published.write(self.scheduling, self.mode.enforcing, self.slurm.private_jobs, now)
        scheduler.timer.done("show")
        self._measure(now)
        self._log_profile_problems()
        self.maintenance.run(self.scheduling.jobs, now)
        LOG.debug("cycle of %d jobs took %.3f s: %s", len(self.scheduling.jobs), time.time() - now, scheduler.timer)
        began = time.monotonic()
        scheduler.between_cycles(self.pause_s(now, wakeup, 0))
        LOG.debug("between cycles %.3f s", time.monotonic() - began)
        self._follow_slurm_conf(now)  # not before the cycle: a slow answer would make its leases late
        return wakeup

    def _follow_clock(self, now: float) -> None:
        """After a step of the clock, start again as after a restart, because all noted times have become wrong.

        Raises SlurmError while slurmctld's clock differs.
        """
        step = self._clock_steps.step()
        if step:
            LOG.warning("the clock has stepped by %+.0f s", step)
            self.audit.record(now, "clock-step", seconds=step)
        self._clock_stepped = self._clock_stepped or bool(step)
        if self._clock_stepped:
            config = self.client.config()
            check_same_clock(config, time.time())
            self.audit.flush()
            self._start_scheduling(config)
            self._clock_stepped = False

    def _follow_slurm_conf(self, now: float) -> None:
        """If slurm.conf, or Slurm itself, is another one now, start again as after a restart.

        Raises SlurmError; InputError if Slurm lacks a feature now that the settings need.
        """
        if not self.conf_throttle.due:
            return
        with self.conf_throttle.spending():
            config = self.client.config()
        if replace(config, time=0.0) != replace(self.slurm, time=0.0):
            LOG.warning("slurm.conf or Slurm's release has changed: starting again with what it says now")
            self.audit.record(now, "slurm-changed", version=config.version)
            self.audit.flush()
            self.client = preferred_client(self.settings, CliClient(self.settings.slurm), config)
            self._start_scheduling(config)

    def _follow_switch(self) -> None:
        """Follow asrpt-admin disable and enable from the next cycle on."""
        off = is_off(self.settings.paths.state)
        if off is not self.mode.disabled:
            LOG.warning("%s", DISABLED if off else f"enabled again: mode {self.settings.daemon.mode}")
            self.published.status_is_due()
        self.mode.disabled = off

    def pause_s(self, began: float, wakeup: float | None, failures: int) -> float:
        """Seconds from now to the next cycle. failures: cycles in a row that have failed."""
        interval = self.settings.daemon.interval_s
        if failures:
            return backoff_s(interval, MAX_RETRY_PAUSE_S, failures)
        until = min(began + interval, wakeup if wakeup is not None else began + interval)
        left = min(interval, until - time.time())  # the clock may have stepped back
        return max(interval * SHORTEST_PAUSE, self._least_pause_s, left)

    def _measure(self, now: float) -> None:
        self.metrics.cycle(now, time.time() - now, self.scheduling.scheduler.timer.seconds)
        if self.metrics.history_due(now):
            try:
                self.metrics.drift(recent_drift(self.settings))
                self.metrics.calibration(calibration(self.history.connect(), int(now) - CALIBRATED_S))
            except (AsrptError, OSError) as error:
                LOG.warning("%s", one_line(error))

    def _log_profile_problems(self) -> None:
        """Log each unusable profile once. Its jobs are scheduled as unprofiled ones."""
        for name, problem in self.profiles.problems.items():
            if self._logged_problems.get(name) != problem:
                *others, last = map(printable, problem)
                for line in others:
                    LOG.warning("%s", line)
                LOG.warning("%s; its jobs count as unprofiled", last)
        self._logged_problems = dict(self.profiles.problems)

    def close(self) -> None:
        """Stop: unless another asrptd leads, the hook no longer leases jobs. Leases expire by themselves."""
        try:
            self.leader.check()
            self.published.heartbeat(False, time.time())
        except LeadershipLostError as error:
            LOG.warning("%s", one_line(error))
        except OSError as error:
            LOG.warning("%s; the hook continues to lease jobs for two minutes", one_line(error))
        self.metrics.close()
        self.progress.stop()
        if self._scheduling_is_up:
            self.scheduling.forecaster.close()
        self.history.close()
        self.leader.close()


def stop_on_signals(stopping: threading.Event) -> None:
    """SIGTERM and SIGINT end the loop after the current cycle. SIGHUP, which would end asrptd at once, does nothing."""

    def stop(number: int, _: FrameType | None) -> None:
        LOG.info("%s: stopping after this cycle", signal.Signals(number).name)
        stopping.set()

    def stay(number: int, _: FrameType | None) -> None:
        LOG.warning("%s: ignored; settings are read when asrptd starts", signal.Signals(number).name)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, stay)
