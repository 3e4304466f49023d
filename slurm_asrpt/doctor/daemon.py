"""asrptd: that it lives, that what waits is leased, that its clock is the controller's."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_asrpt import __version__, switch
from slurm_asrpt.config.settings import Mode, Settings
from slurm_asrpt.doctor.findings import Finding, failure, ok, warning
from slurm_asrpt.doctor.look import Look
from slurm_asrpt.errors import AsrptError, one_line
from slurm_asrpt.slurm.records import PENDING
from slurm_asrpt.status.document import read_status, stale_after
from slurm_asrpt.text import counted

CLOCK_S = 2.0
"""Slurm counts whole seconds, and so do leases."""


def switched(settings: Settings, now: float) -> Iterator[Finding]:
    """Somebody may have forgotten that asrptd is disabled."""
    try:
        off = switch.is_off(settings.paths.state)
    except OSError as error:
        yield warning("switch", f"{settings.paths.state}: {error.strerror}", "run as the daemon's user or root")
        return
    if off:
        yield warning("switch", "asrptd is disabled and writes nothing to Slurm", "asrpt-admin enable")
    else:
        yield ok("switch", f"enabled, mode {settings.daemon.mode}")


def release(settings: Settings, now: float) -> Iterator[Finding]:
    """An upgrade counts for asrptd once it is started anew. That it has no status is said by others."""
    try:
        runs = read_status(settings.paths.run).release
    except AsrptError:
        return
    if runs == __version__:
        yield ok("release", f"asrptd runs {runs}, which is installed")
    else:
        text = f"asrptd runs {runs or 'a release that does not say which'}, and {__version__} is installed"
        yield warning("release", text, "systemctl restart asrptd")


def alive(settings: Settings, now: float) -> Iterator[Finding]:
    """Its status is new: what systemd takes for running may hang, or fail in each cycle."""
    try:
        status = read_status(settings.paths.run)
    except AsrptError as error:
        yield warning("asrptd", one_line(error), "start asrptd; run this as root")
        return
    age = now - status.written
    if age <= stale_after(status.interval_s):
        yield ok("asrptd", f"its status is {max(0.0, age):.0f} s old")
        return
    text = (
        f"its status is {age:.0f} s old, and it writes one every {status.interval_s:g} s: it is gone, hangs, or fails"
    )
    yield failure("asrptd", text, "journalctl -u asrptd says if its cycles fail; if not, systemctl restart asrptd")


def leases(settings: Settings, now: float, look: Look) -> Iterator[Finding]:
    """Every job in asrptd's queue has a lease, and none is about to run out."""
    try:
        status = read_status(settings.paths.run)
    except AsrptError:
        return  # said already
    if status.mode != Mode.ENFORCE:
        yield ok("leases", f"none are written (mode {status.mode})")
        return
    queued = {row.job_id for row in status.jobs if row.rank}
    ends = {job.job_id: job.eligible_time for job in look.jobs if job.state == PENDING and job.job_id in queued}
    least = settings.daemon.renewal_s - 3 * settings.daemon.interval_s  # renewed in the next cycle
    weak = [job_id for job_id, end in ends.items() if end - now < max(0.0, least)]
    if weak:
        some = f"{len(weak)} of {counted(len(ends), 'waiting job')}"
        text = f"{some} with a short lease or none, such as {weak[0]}: Slurm starts such"
        yield failure("leases", text, "asrptd's log: grep lease-refused; systemctl status asrptd")
    else:
        yield ok("leases", f"{counted(len(ends), 'waiting job')} with a lease")


def clock(settings: Settings, now: float, look: Look) -> Iterator[Finding]:
    """Leases end by the controller's clock and are renewed by this one's."""
    low, high = look.ahead_s
    off = max(low, -high, 0.0)
    if off <= CLOCK_S:
        yield ok("clock", "the controller's agrees with this machine's")
        return
    text = f"the controller's is {off:.0f} s {'ahead of' if low > 0 else 'behind'} this machine's"
    kind = failure if off > settings.daemon.lease_s / 4 else warning
    yield kind("clock", text, "synchronise both (chronyc tracking), or run asrptd on the controller")
