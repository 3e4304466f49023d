"""asrptd's main loop: a cycle, the heartbeat, the status, a pause; until a signal stops it."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.daemon.clock import ClockStepDetector, check_same_clock, cpu_s, pause_after
from slurm_asrpt.daemon.dashboard import FILE_NAME as DASHBOARD
from slurm_asrpt.daemon.dashboard import Dashboard
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.leader import LeaderLock, LeadershipLostError
from slurm_asrpt.daemon.log_once import LogOnce
from slurm_asrpt.daemon.metrics import CALIBRATED_S, Metrics
from slurm_asrpt.daemon.profile_names import FILE_NAME as PROFILE_NAMES
from slurm_asrpt.daemon.profile_names import ProfileNames
from slurm_asrpt.daemon.profiles import AttachmentsFile, Profiles
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.record.history import HistoryWriter
from slurm_asrpt.daemon.record.progress import ProgressWatch
from slurm_asrpt.daemon.scheduling import Scheduling, assemble
from slurm_asrpt.daemon.setup import check_slurm, configured_policy, preferred_client
from slurm_asrpt.daemon.state import NotSavedError, StateStore
from slurm_asrpt.daemon.wakeup import Wakeups, least_pause
from slurm_asrpt.daemon.writes.rank_maps import remove as remove_hosts
from slurm_asrpt.doctor.predictions import recent_drift
from slurm_asrpt.errors import AsrptError, SlurmError, one_line, printable
from slurm_asrpt.forecast.calibration import calibration
from slurm_asrpt.forecast.snapshot import PUBLISHED
from slurm_asrpt.history.maintenance import DAY_S, open_or_set_aside, prune
from slurm_asrpt.history.store import FILE_NAME as HISTORY_FILE
from slurm_asrpt.history.store import History, HistoryError
from slurm_asrpt.hook.hook_conf import FILE_NAME as HOOK_CONF
from slurm_asrpt.hook.hook_conf import WAKEUP, render_hook_conf, write_hook_conf
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.spool import forgotten_hosts, forgotten_progress
from slurm_asrpt.status.document import FILE_NAME as STATUS
from slurm_asrpt.status.document import write_status
from slurm_asrpt.status.ended import FOLDER as ENDED
from slurm_asrpt.switch import OperatingMode, is_off
from slurm_asrpt.throttle import Throttle, backoff_s

LOG = logging.getLogger("asrptd")
DISABLED = "disabled: waiting jobs are released to Slurm and nothing more is written; asrpt-admin enable resumes"
MAX_PAUSE_S = 60.0
LONGEST_STATUS_AGE_S = 10.0
"""asrpt-status considers asrptd down if the status is half a minute old."""
FORGOTTEN_S = 30 * DAY_S
"""Jobs of unmanaged partitions are not known here; they are assumed to be shorter than this."""
GARBAGE = (50_000, 20, 20)
"""Thresholds of gc. With the defaults it scans the state of thousands of jobs every few cycles. That takes half a
cycle and finds hardly any cyclic garbage."""
SHORTEST_PAUSE = 0.2
"""Minimum pause as a share of the interval, so that the policy's wake-ups do not cause too many reads."""


class Daemon:
    """The resources of a running asrptd. ``close`` releases them."""

    def __init__(self, settings: Settings, leader: LeaderLock, stopping: threading.Event) -> None:
        """leader: the lock of the state directory, held. stopping: if set, the loop ends after its cycle."""
        self.settings, self.leader, self.stopping = settings, leader, stopping
        partitions, rules = settings.slurm.partitions, settings.group
        self.attachments = AttachmentsFile(
            settings.paths.attachments, lambda found: render_hook_conf(partitions, 0, 0.0, rules, found)
        )
        folders = settings.paths.profiles
        self.profiles = Profiles(lambda name: load_named(name, folders))
        self.profile_names = ProfileNames(folders, lambda name: load_named(name, folders))
        self.client: SlurmClient = CliClient(settings.slurm)
        self.slurm: SlurmConfig  # set when Slurm has answered
        self.scheduling: Scheduling
        self.audit: AuditWriter
        self.recent: RecentJobs
        self.mode = OperatingMode(settings.daemon.mode)
        self.metrics = Metrics(settings.daemon.metrics)
        self.history = HistoryWriter(self._open_history, settings.paths.spool, self.profiles)
        self.progress = ProgressWatch(settings.paths.spool, settings.daemon.progress_s)
        self.status_throttle = Throttle(time.monotonic, LONGEST_STATUS_AGE_S)
        self.dashboard = Dashboard(settings.paths.run, settings.daemon.dashboard)
        self.wakeups = Wakeups(settings.paths.hook / WAKEUP)
        self._store = StateStore(leader)
        self._scheduling_is_up = False
        self._maintained = 0.0
        self._clock_steps, self._clock_stepped = ClockStepDetector(), False
        self._files = OptionalFiles()
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
        self._publish(now)
        scheduler.timer.done("show")
        self._measure(now)
        self._log_profile_problems()
        self._maintain(now)
        LOG.debug("cycle of %d jobs took %.3f s: %s", len(self.scheduling.jobs), time.time() - now, scheduler.timer)
        began = time.monotonic()
        scheduler.between_cycles(self.pause_s(now, wakeup, 0))
        LOG.debug("between cycles %.3f s", time.monotonic() - began)
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

    def _follow_switch(self) -> None:
        """Follow asrpt-admin disable and enable from the next cycle on."""
        off = is_off(self.settings.paths.state)
        if off is not self.mode.disabled:
            LOG.warning("%s", DISABLED if off else f"enabled again: mode {self.settings.daemon.mode}")
            # asrpt-admin waits for this in the status
            self.status_throttle = Throttle(time.monotonic, LONGEST_STATUS_AGE_S)
        self.mode.disabled = off

    def pause_s(self, began: float, wakeup: float | None, failures: int) -> float:
        """Seconds from now to the next cycle. failures: cycles in a row that have failed."""
        interval = self.settings.daemon.interval_s
        if failures:
            return backoff_s(interval, MAX_PAUSE_S, failures)
        until = min(began + interval, wakeup if wakeup is not None else began + interval)
        left = min(interval, until - time.time())  # the clock may have stepped back
        return max(interval * SHORTEST_PAUSE, self._least_pause_s, left)

    # published files

    def _publish(self, now: float) -> None:
        """Write hook.conf and the published files, after successful cycles only: else the hook must not lease."""
        paths = self.settings.paths
        with self._files.writing(paths.hook, HOOK_CONF):
            self._heartbeat(now)
        with self._files.writing(paths.hook, PROFILE_NAMES):
            if self.profile_names.write(paths.hook):
                self.profiles.look_again()
        with self._files.writing(paths.run, PUBLISHED):
            self.scheduling.forecaster.step(now)
        if self.status_throttle.due:
            with self._files.writing(paths.run, STATUS), self.status_throttle.spending():
                self._write_status(now)
            with self._files.writing(paths.run, ENDED):
                self.scheduling.status.report_ended(paths.run, now)

    def _heartbeat(self, now: float, alive: bool = True) -> None:
        """Write the hook's parameters, and until when it may assume that asrptd runs."""
        lease = self.settings.daemon.lease_s if alive and self.mode.enforcing else 0
        grace = max(60.0, 6 * self.settings.daemon.interval_s, 2 * MAX_PAUSE_S)
        paths, partitions, attachments = self.settings.paths, self.settings.slurm.partitions, self.attachments.current()
        write_hook_conf(paths.hook, partitions, lease, now + grace, self.settings.group, attachments)

    def _write_status(self, now: float) -> None:
        status = self.scheduling.status.build(now, self.scheduling.forecaster)
        write_status(self.settings.paths.run, status, private=self.slurm.private_jobs)
        self.metrics.state(status.mode, status.gpus_total, status.gpus_free, (job.state for job in status.jobs))
        self.metrics.leases(self.scheduling.leases.seconds_left(now))
        with self._files.writing(self.settings.paths.run, DASHBOARD):
            self.dashboard.publish(status, private=self.slurm.private_jobs)

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

    # maintenance

    def _maintain(self, now: float) -> None:
        """At first and once a day, delete files of jobs whose ends were missed, and old runs in the history."""
        if now < self._maintained + DAY_S:
            return
        self._maintained = now
        self._remove_forgotten_files(now)
        self._drop_old_runs(now)

    def _remove_forgotten_files(self, now: float) -> None:
        """Progress directories, and host files: another job that gets the number must not run by them."""
        known = {str(job.record.number) for job in self.scheduling.jobs.values()}
        spool = self.settings.paths.spool
        remove_hosts(spool, forgotten_hosts(spool, known))
        for number in forgotten_progress(spool, known, now - FORGOTTEN_S):
            self.progress.remove(number)

    def _drop_old_runs(self, now: float) -> None:
        keep_days = self.settings.predict.keep_days
        try:
            dropped = prune(self.history.connect(), keep_days, now)
        except HistoryError as error:
            LOG.error("%s; retrying tomorrow", one_line(error))
            return
        if dropped:
            LOG.info("history: dropped runs that ended more than %d days ago: %d", keep_days, dropped)

    def close(self) -> None:
        """Stop: unless another asrptd leads, the hook no longer leases jobs. Leases expire by themselves."""
        try:
            self.leader.check()
            self._heartbeat(time.time(), alive=False)
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
