"""Checks of asrptd: systemd units, status, release, leases, clock."""

from __future__ import annotations

import os
from collections.abc import Iterator

from slurm_asrpt import __version__, switch
from slurm_asrpt.config.settings import Mode, Settings
from slurm_asrpt.doctor.checks import UNITS, Finding, Here, Snapshot, Unit, failure, ok, warning
from slurm_asrpt.errors import AsrptError, one_line
from slurm_asrpt.slurm.records import PENDING
from slurm_asrpt.status.document import read_status, stale_after
from slurm_asrpt.text import counted

CLOCK_S = 2.0
"""Tolerated difference in seconds: Slurm and leases count whole seconds."""


def switched(settings: Settings, here: Here) -> Iterator[Finding]:
    """Warn if asrptd is disabled, or runs in another mode than the settings say. The last status of an asrptd that has
    ended does not count: the next one reads the settings."""
    try:
        off = switch.is_off(settings.paths.state)
    except OSError as error:
        yield warning("switch", f"{settings.paths.state}: {error.strerror}", "run this as root or the daemon's user")
        return
    if off:
        yield warning("switch", "asrptd is disabled and writes nothing to Slurm", "asrpt-admin enable")
        return
    runs_in = "" if here.leads is False else _mode(settings)
    if runs_in in set(Mode) - {settings.daemon.mode}:
        text = f"asrptd runs in mode {runs_in}, but asrpt.toml says {settings.daemon.mode}"
        yield warning("switch", text, "systemctl restart asrptd")
    else:
        yield ok("switch", f"enabled, mode {settings.daemon.mode}")


def _mode(settings: Settings) -> str:
    """The mode in asrptd's status; "" without one, which ``alive`` reports."""
    try:
        return read_status(settings.paths.run).mode
    except AsrptError:
        return ""


def state(settings: Settings) -> Iterator[Finding]:
    """The state directory can be written: asrptd saves what a restart must know before it writes to Slurm."""
    folder = settings.paths.state
    try:
        system = os.statvfs(folder)  # not os.access: an ordinary user may not write there, but asrptd may
    except OSError:  # asrptd has not run yet
        return
    if system.f_flag & os.ST_RDONLY:
        text = f"{folder} is read-only: asrptd hands the waiting jobs to Slurm until it can save its state"
        yield failure("state", text, "make it writable; asrptd then goes on by itself")
        return
    unsaved = _mode(settings) == "unsaved"
    if not system.f_bavail:
        then = (
            "asrptd hands the waiting jobs to Slurm until it can save its state"
            if unsaved
            else "asrptd schedules jobs, but its audit trail waits for room, and it learns nothing"
        )
        yield failure("state", f"{folder} is full: {then}", "make room on its disk")
    elif unsaved:
        text = f"asrptd cannot write to {folder} (its log says why), so it hands the waiting jobs to Slurm"
        yield failure("state", text, "make it writable for asrptd, which then goes on by itself")


def release(settings: Settings, here: Here) -> Iterator[Finding]:
    """The asrptd that runs is the installed release. ``alive`` reports a missing status, and that none runs."""
    if here.leads is False:
        return
    try:
        runs = read_status(settings.paths.run).release
    except AsrptError:
        return
    if runs == __version__:
        yield ok("release", f"asrptd runs the installed release, {runs}")
    else:
        text = f"asrptd runs {runs or 'an older release'}, but {__version__} is installed"
        yield warning("release", text, "systemctl restart asrptd")


def starts(here: Here) -> Iterator[Finding]:
    """asrptd starts with these settings. One that runs has read them before they were changed."""
    if here.refuses:
        yield failure("settings", f"asrptd would not start: {here.refuses}", "mend asrpt.toml (asrptd --once tries it)")


def alive(settings: Settings, now: float, here: Here) -> Iterator[Finding]:
    """It runs, and the status is fresh. systemd cannot see that a process hangs or that every cycle fails."""
    try:
        status = read_status(settings.paths.run)
    except AsrptError as error:
        yield warning("asrptd", one_line(error), "start asrptd, and run this as root")
        return
    age = now - status.written
    if here.leads is False:
        text = f"it is not running; its last status is {age:.0f} s old"
        yield failure("asrptd", text, "journalctl -u asrptd says why it ended; systemctl start asrptd")
        return
    if age <= stale_after(status.interval_s):
        yield ok("asrptd", f"the status is {max(0.0, age):.0f} s old")
        return
    text = (
        f"the status is {age:.0f} s old, but asrptd writes one every {status.interval_s:g} s: "
        "it is gone, hangs, or its cycles fail"
    )
    yield failure(
        "asrptd", text, "look for failing cycles in journalctl -u asrptd; if there are none, systemctl restart asrptd"
    )


def leases(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """Every job in asrptd's queue has a lease that is not about to expire, or is released ahead."""
    try:
        status = read_status(settings.paths.run)
    except AsrptError:
        return  # reported by ``alive``
    if status.mode != Mode.ENFORCE:
        yield ok("leases", f"none are used in mode {status.mode}")
        return
    queued = {row.job_id for row in status.jobs if row.rank and not row.released_ahead}
    ends = {job.job_id: job.eligible_time for job in snapshot.jobs if job.state == PENDING and job.job_id in queued}
    least = settings.daemon.renewal_s - 3 * settings.daemon.interval_s  # else it is renewed in the next cycle
    weak = [job_id for job_id, end in ends.items() if end - now < max(0.0, least)]
    if weak:
        some = f"{len(weak)} of {counted(len(ends), 'waiting job')}"
        text = f"{some} without a lease or with one that expires soon, e.g. {weak[0]}: Slurm may start them"
        yield failure("leases", text, "look for lease-refused in asrptd's log; systemctl status asrptd")
    else:
        ahead = sum(row.released_ahead for row in status.jobs)
        more = f", {ahead} released ahead" if ahead else ""
        yield ok("leases", f"{counted(len(ends), 'waiting job')} with a valid lease{more}")


def clock(settings: Settings, now: float, snapshot: Snapshot) -> Iterator[Finding]:
    """The clocks agree: leases expire by the controller's clock and are renewed by this machine's."""
    low, high = snapshot.ahead_s
    off = max(low, -high, 0.0)
    if off <= CLOCK_S:
        yield ok("clock", "the controller's clock agrees with this machine's")
        return
    text = f"the controller's clock is {off:.0f} s {'ahead of' if low > 0 else 'behind'} this machine's"
    kind = failure if off > settings.daemon.lease_s / 4 else warning
    yield kind("clock", text, "synchronize both (chronyc tracking), or run asrptd on the controller")


def units(found: list[Unit]) -> Iterator[Finding]:
    """Findings for units that are missing, stopped, disabled or outdated."""
    bad = [finding for unit in found for finding in _unit(unit)]
    yield from bad
    if found and not bad:
        yield ok("units", f"{' and '.join(UNITS)} are active and enabled")


def _unit(unit: Unit) -> Iterator[Finding]:
    name, active = unit.get("Id", ""), unit.get("ActiveState", "")
    if unit.get("LoadState") != "loaded":
        text = f"systemd does not know {name} ({unit.get('LoadState', 'unknown')})"
        yield warning("units", text, "if this is the controller, asrpt-admin install --apply; else run this there")
        return
    if active == "failed":
        yield failure(
            "units", f"{name} has failed ({unit.get('Result')})", f"journalctl -u {name}, then systemctl start {name}"
        )
    elif active not in ("active", "activating", "reloading"):
        yield failure("units", f"{name} is not running ({active})", f"systemctl start {name}")
    if unit.get("UnitFileState") not in ("enabled", "enabled-runtime", "linked"):
        text = f"{name} does not start at boot ({unit.get('UnitFileState')})"
        yield warning("units", text, f"systemctl enable {name}")
    if unit.get("NeedDaemonReload") == "yes":
        text = f"{name} has changed, but systemd uses the previous version"
        yield warning("units", text, f"systemctl daemon-reload; systemctl restart {name}")
