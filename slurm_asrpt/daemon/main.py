"""asrptd's loop: a cycle, the heartbeat, the status, a pause; until it is told to stop."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from pathlib import Path
from types import FrameType

from slurm_asrpt import switch
from slurm_asrpt.config.settings import Client, Mode, Settings
from slurm_asrpt.core.cluster import Fabric
from slurm_asrpt.core.policies import Policy, banded_policies, make_policy, policy_names, policy_settings
from slurm_asrpt.daemon.clock import StepWatch, check_same_clock, cpu_s, rest_s
from slurm_asrpt.daemon.cycle import Scheduler
from slurm_asrpt.daemon.forecasts.arrivals import WINDOW_S, Arrivals
from slurm_asrpt.daemon.forecasts.forecaster import Forecaster
from slurm_asrpt.daemon.forgiving import Forgiving
from slurm_asrpt.daemon.jobs.admission import Profiles
from slurm_asrpt.daemon.leader import Lead, LeadLostError
from slurm_asrpt.daemon.metrics import CALIBRATED_S, Metrics
from slurm_asrpt.daemon.parts import Parts
from slurm_asrpt.daemon.profiles import Attached
from slurm_asrpt.daemon.record.audit import Audit
from slurm_asrpt.daemon.record.history import Recorder
from slurm_asrpt.daemon.record.progress import ProgressWatch
from slurm_asrpt.daemon.state import Store
from slurm_asrpt.daemon.status import build_status
from slurm_asrpt.doctor.predictions import recent_drift
from slurm_asrpt.errors import AsrptError, InputError, SlurmError, one_line, printable
from slurm_asrpt.files import check_trusted_folder, make_folder, only_us
from slurm_asrpt.forecast.calibration import calibration
from slurm_asrpt.forecast.snapshot import PUBLISHED
from slurm_asrpt.history.maintenance import DAY_S, open_or_set_aside, tend
from slurm_asrpt.history.store import FILE_NAME as HISTORY_FILE
from slurm_asrpt.history.store import History, HistoryError
from slurm_asrpt.hook.hook_conf import FILE_NAME as HOOK_CONF
from slurm_asrpt.hook.hook_conf import render_hook_conf, write_hook_conf
from slurm_asrpt.predict.conformal import Misses
from slurm_asrpt.profile.documents import load_named
from slurm_asrpt.slurm import pyslurm
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.spool import forgotten_progress, hosts_dir, progress_dir
from slurm_asrpt.status.document import FILE_NAME as STATUS
from slurm_asrpt.status.document import write_status
from slurm_asrpt.throttle import Seldom

LOG = logging.getLogger("asrptd")
DISABLED = "disabled: what waits is handed back to Slurm and nothing more is written; asrpt-admin enable goes on"
LONGEST_PAUSE_S = 60.0
LONGEST_UNSHOWN_S = 10.0
"""asrpt-status takes a status of half a minute ago for a sign that asrptd is gone."""
FORGOTTEN_S = 30 * DAY_S
"""Jobs of partitions that are not ours are not known here: longer than they run, let us hope."""
GARBAGE = (50_000, 20, 20)
"""Thresholds of gc: to look through all that is known of thousands of jobs, as it does by default for every few cycles'
new objects, takes as long as half a cycle; next to none of it is cyclic garbage."""
SHORTEST_PAUSE = 0.2
"""Share of the interval: wake-ups of the policy must not turn into a flood of reads."""


class Daemon:
    """Everything asrptd owns while it runs. ``close`` gives it back."""

    def __init__(self, settings: Settings, lead: Lead, stopping: threading.Event) -> None:
        """lead: over the state folder, taken. stopping: set it, and the loop ends after its cycle."""
        self.settings, self.lead, self.stopping = settings, lead, stopping
        self.store = Store(lead)
        partitions, rules = settings.slurm.partitions, settings.group
        self.attached = Attached(
            settings.paths.attachments, lambda found: render_hook_conf(partitions, 0, 0.0, rules, found)
        )
        self.profiles = Profiles(lambda name: load_named(name, settings.paths.profiles))
        self._told: dict[str, str] = {}
        self.client: SlurmClient = CliClient(settings.slurm)
        self.metrics = Metrics(settings.daemon.metrics)
        self.recorder = Recorder(self._open_history, settings.paths.spool, self.profiles)
        self._tended = 0.0
        self._showing = Seldom(time.monotonic, LONGEST_UNSHOWN_S)
        self.watch = ProgressWatch(settings.paths.spool, settings.daemon.progress_s)
        self.forecaster = Forecaster(settings.daemon)
        self.scheduler: Scheduler  # as soon as Slurm has answered
        self._steps, self._stepped = StepWatch(), False
        self._forgiving = Forgiving()
        self._rest_s = 0.0

    def _open_history(self) -> History:
        """Raises HistoryError."""
        history, trouble = open_or_set_aside(self.settings.paths.state / HISTORY_FILE, time.time())
        if trouble:
            LOG.error("%s", printable(trouble))
        return history

    def _scheduler(self, config: SlurmConfig) -> Scheduler:
        """Raises InputError for a mode, or bands, that this Slurm cannot have."""
        settings = self.settings
        if settings.daemon.mode is Mode.ORDER and not config.multifactor:
            raise InputError("daemon.mode: order writes SiteFactor, which needs PriorityType=priority/multifactor")
        if settings.policy.fairshare_bands and not (config.multifactor and config.accounts):
            raise InputError("policy.fairshare_bands: needs PriorityType=priority/multifactor and slurmdbd")
        if settings.daemon.mode is not Mode.SHADOW and os.geteuid() not in (0, config.slurm_uid):
            LOG.warning(
                "asrptd is user %d and SlurmUser %d: Slurm refuses its updates unless it is an operator "
                "(sacctmgr modify user NAME set adminlevel=operator)",
                os.geteuid(),
                config.slurm_uid,
            )
        return Scheduler(
            Parts(
                settings=settings,
                client=self.client,
                slurm=config,
                policy=_policy(settings),
                profiles=self.profiles,
                store=self.store,
                audit=Audit(settings.paths.state, settings.audit, self.metrics.event),
                recorder=self.recorder,
                watch=self.watch,
                arrivals=self._arrivals(time.time()),
                misses=self._misses(time.time()),
            )
        )

    def _arrivals(self, now: float) -> Arrivals:
        """Who came in the last day, as far as the history knows. It cannot keep the daemon from its work."""
        try:
            history, first = self.recorder.reach(), int(now - WINDOW_S)
            known = history.count("submit_time BETWEEN 1 AND ?", (first,))
            runs = history.runs_where("end_time >= ? AND submit_time >= ?", [first] * 2)
            return Arrivals(runs, first if known else now)
        except HistoryError as error:
            LOG.error("%s", one_line(error))
            return Arrivals(since=now)

    def _misses(self, now: float) -> Misses:
        """By how much the latest predictions have missed, as ``_arrivals``."""
        try:
            return Misses.of_history(self.recorder.reach(), now)
        except HistoryError as error:
            LOG.error("%s", one_line(error))
            return Misses()

    def _quickest_client(self, config: SlurmConfig) -> SlurmClient:
        """pyslurm where it may be used and can be, else the one that has just answered."""
        if self.settings.slurm.client is Client.CLI:
            return self.client
        try:
            client = pyslurm.load(self.settings.slurm, config.version)
        except SlurmError as why_not:
            LOG.debug("Slurm's commands do everything: %s", one_line(why_not))
            return self.client
        LOG.info("pyslurm is used for what it can do (slurm.client)")
        return client

    def _wait_for_slurm(self, once: bool) -> SlurmConfig | None:
        """Slurm's configuration as soon as slurmctld answers: at boot we may be there first. None: told to stop."""
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
                pause = self._pause(0.0, None, failures)
                LOG.error("Slurm does not answer yet (%s); asking again in %g s", one_line(error), pause)
                self.stopping.wait(pause)
        return None

    def run(self, once: bool = False) -> None:
        """Cycle until told to stop. A Slurm that does not answer, now or later, is asked again after growing pauses.

        Raises InputError for settings that this Slurm cannot follow, and with ``once`` whatever goes wrong.
        """
        config = self._wait_for_slurm(once)
        if config is None:
            return
        gc.set_threshold(*GARBAGE)
        self.client = self._quickest_client(config)
        self.scheduler = self._scheduler(config)
        if not once:
            self.watch.start()
        failures = 0
        while not self.stopping.is_set():
            began = time.time()
            try:
                wakeup = self._cycle(began)
                failures = 0
            except LeadLostError:
                raise
            except (AsrptError, OSError) as error:  # Slurm is away, a disk is full: nothing that a traceback explains
                if once:
                    raise
                failures += 1
                LOG.error("%s; trying again", one_line(error))
            except Exception:
                if once:
                    raise
                # a bug of ours: the jobs' leases run on, so a later cycle may still mend what this one could not
                failures += 1
                LOG.exception("a cycle failed; trying again")
            if once:
                return
            if failures:
                wakeup = None
                self.metrics.failed()
            self.stopping.wait(self._pause(began, wakeup, failures))

    def _cycle(self, now: float) -> float | None:
        self.lead.check()
        self._follow_clock(now)
        self._obey_the_switch()
        before = cpu_s()
        wakeup = self.scheduler.cycle(now)
        self._rest_s = rest_s(cpu_s() - before, len(os.sched_getaffinity(0)))
        paths = self.settings.paths
        with self._forgiving.writing(paths.hook, HOOK_CONF):  # only now: while cycles fail, the hook must not lease
            self._heartbeat(now)
        with self._forgiving.writing(paths.run, PUBLISHED):
            self.forecaster.step(self.scheduler, now)
        if self._showing.due:
            with self._forgiving.writing(paths.run, STATUS), self._showing.spending():
                self._show(now)
        self.scheduler.laps.done("show")
        self._measure(now)
        self._tell_problems()
        if now >= self._tended + DAY_S:
            self._sweep(now)
        self._tend_history(now)
        LOG.debug(
            "cycle of %d jobs took %.3f s: %s",
            len(self.scheduler.world.tracked),
            time.time() - now,
            self.scheduler.laps,
        )
        began = time.monotonic()
        self.scheduler.between_cycles(self._pause(now, wakeup, 0))
        LOG.debug("between cycles %.3f s", time.monotonic() - began)
        return wakeup

    def _follow_clock(self, now: float) -> None:
        """After a step begin anew, as a restart does: what was noted for a time is not due at that time any more.

        Raises SlurmError while slurmctld has another time.
        """
        step = self._steps.step()
        if step:
            LOG.warning("the clock has stepped by %+.0f s", step)
            self.scheduler.parts.audit.record(now, "clock-step", seconds=step)
        self._stepped = self._stepped or bool(step)
        if self._stepped:
            config = self.client.config()
            check_same_clock(config, time.time())
            self.scheduler.parts.audit.flush()
            self.scheduler, self._stepped = self._scheduler(config), False
            self.forecaster.close()
            self.forecaster = Forecaster(self.settings.daemon)

    def _obey_the_switch(self) -> None:
        """asrpt-admin disable counts from the next cycle on."""
        parts, off = self.scheduler.parts, switch.is_off(self.settings.paths.state)
        if off is not parts.disabled:
            LOG.warning("%s", DISABLED if off else f"enabled again: mode {self.settings.daemon.mode}")
            self._showing = Seldom(time.monotonic, LONGEST_UNSHOWN_S)  # asrpt-admin waits for the status to say so
        parts.disabled = off

    def _show(self, now: float) -> None:
        status = build_status(self.scheduler, now, self.forecaster)
        write_status(self.settings.paths.run, status, private=self.scheduler.parts.slurm.private_jobs)
        self.metrics.state(status.mode, status.gpus_total, status.gpus_free, (job.state for job in status.jobs))
        self.metrics.leases(self.scheduler.writer.leases_left(now))

    def _measure(self, now: float) -> None:
        self.metrics.cycle(now, time.time() - now, self.scheduler.laps.seconds)
        if self.metrics.wants_a_look(now):
            try:
                self.metrics.drift(recent_drift(self.settings))
                self.metrics.calibration(calibration(self.recorder.reach(), int(now) - CALIBRATED_S))
            except (AsrptError, OSError) as error:
                LOG.warning("%s", one_line(error))

    def _tend_history(self, now: float) -> None:
        """Once a day drop what is too old."""
        if now < self._tended + DAY_S:
            return
        self._tended = now
        keep_days = self.settings.predict.keep_days
        try:
            dropped = tend(self.recorder.reach(), keep_days, now)
        except HistoryError as error:
            LOG.error("%s; trying again tomorrow", one_line(error))
            return
        if dropped:
            LOG.info("history: dropped runs that ended more than %d days ago: %d", keep_days, dropped)

    def _sweep(self, now: float) -> None:
        """Progress folders of jobs that ended while nobody looked."""
        known = {str(tracked.record.number) for tracked in self.scheduler.world.tracked.values()}
        for number in forgotten_progress(self.settings.paths.spool, known, now - FORGOTTEN_S):
            self.watch.remove(number)

    def _tell_problems(self) -> None:
        """Each profile that cannot be used, once: its jobs are scheduled as unprofiled ones."""
        for name, problem in self.profiles.problems.items():
            if self._told.get(name) != problem:
                LOG.warning("%s; such jobs count as unprofiled", printable(problem))
        self._told = dict(self.profiles.problems)

    def _pause(self, began: float, wakeup: float | None, failures: int) -> float:
        interval = self.settings.daemon.interval_s
        if failures:
            return float(min(LONGEST_PAUSE_S, interval * 2**failures))
        until = min(began + interval, wakeup if wakeup is not None else began + interval)
        left = min(interval, until - time.time())  # the clock may have stepped back
        return max(interval * SHORTEST_PAUSE, self._rest_s, left)

    def _heartbeat(self, now: float, alive: bool = True) -> None:
        """Tell the hook how to lease, and for how long it may believe that we are there."""
        enforcing = alive and self.scheduler.parts.mode is Mode.ENFORCE
        lease = self.settings.daemon.lease_s if enforcing else 0
        grace = max(60.0, 6 * self.settings.daemon.interval_s, 2 * LONGEST_PAUSE_S)
        paths, partitions, attachments = self.settings.paths, self.settings.slurm.partitions, self.attached.follow()
        write_hook_conf(paths.hook, partitions, lease, now + grace, self.settings.group, attachments)

    def close(self) -> None:
        """A clean stop: the hook leases nothing from now on, unless another leads; leases run out by themselves."""
        try:
            self.lead.check()
            self._heartbeat(time.time(), alive=False)
        except LeadLostError as error:
            LOG.warning("%s", one_line(error))
        except OSError as error:
            LOG.warning("%s; the hook goes on leasing for two minutes", one_line(error))
        self.metrics.close()
        self.watch.stop()
        self.forecaster.close()
        self.recorder.close()
        self.lead.close()


def stop_on_signals(stopping: threading.Event) -> None:
    """SIGTERM and SIGINT let the cycle end, then the loop."""

    def stop(number: int, _: FrameType | None) -> None:
        LOG.info("%s: stopping after this cycle", signal.Signals(number).name)
        stopping.set()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def prepare(settings: Settings) -> None:
    """Make the folders, refuse settings that no daemon can follow: one that stands by says so at once, too.

    Raises AsrptError, InputError.
    """
    _policy(settings)
    render_hook_conf(settings.slurm.partitions, 0, 0.0, settings.group)
    _make_folders(settings)


def _policy(settings: Settings) -> Policy:
    """The policy by name, with those of the settings that it takes. Raises InputError that lists the known ones."""
    name = settings.policy.name
    fabric = Fabric(settings.fabric.inter_bytes_per_s, settings.fabric.intra_bytes_per_s)
    able = banded_policies()
    if settings.policy.fairshare_bands and name in policy_names() and name not in able:
        raise InputError(f"policy.fairshare_bands: {name} has no bands; those that do: {', '.join(able)}")
    chosen = settings.policy.chosen(policy_settings(name))
    try:
        return make_policy(name, fabric=fabric, **chosen)
    except ValueError as error:
        raise InputError(f"{'policy' if name in policy_names() else 'policy.name'}: {error}") from None


def _make_folders(settings: Settings) -> None:
    paths = settings.paths
    folders: dict[Path, int] = {
        paths.state: 0o700,
        paths.run: 0o755,
        paths.hook: 0o755,
        paths.spool: 0o755,
        hosts_dir(paths.spool): 0o755,
        progress_dir(paths.spool): 0o755,
    }
    for folder, mode in folders.items():
        try:
            make_folder(folder, mode)
            check_trusted_folder(folder.resolve(), only_us())
        except OSError as error:
            remedy = "asrptd runs as root or SlurmUser, and none but these may write its folders (chown, chmod go-w)"
            raise AsrptError(f"{folder} cannot be used ({error.strerror}); {remedy}") from error
