"""Starts and ends a lab's daemons. A daemon is identified by pid and start time, so a reused pid is never killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_asrpt.errors import MachineError

_children: list[subprocess.Popen[bytes]] = []
"""Daemons started by this process, to be reaped when they exit."""


@dataclass(frozen=True)
class Daemon:
    """A process of a lab. started: clock ticks since boot (field 22 of /proc/<pid>/stat)."""

    name: str
    pid: int
    started: int

    @property
    def alive(self) -> bool:
        _reap()
        return start_time(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal, if the pid has not been reused."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def start_time(pid: int) -> int | None:
    """Start time of a process in ticks since boot; None if it does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the command name, in parentheses, may contain anything
    return None if fields[0] == "Z" else int(fields[19])


def _reap() -> None:
    _children[:] = [child for child in _children if child.poll() is None]


def start(name: str, command: Sequence[str], env: Mapping[str, str], log: Path, pids: Path) -> Daemon:
    """Start a daemon in its foreground mode, in a session of its own, and write its pid file to ``pids``.

    Raises MachineError if it cannot be executed.
    """
    try:
        with interrupts_deferred(), log.open("ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                cwd="/",
                start_new_session=True,
            )
            _children.append(process)
            daemon = Daemon(name, process.pid, start_time(process.pid) or 0)
            (pids / f"{name}.pid").write_text(f"{daemon.pid} {daemon.started}\n", encoding="ascii")
    except OSError as error:
        raise MachineError(f"{command[0]}: cannot be started ({error.strerror})") from error
    return daemon


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Defer SIGINT and SIGTERM until the block ends, so that no daemon runs without a pid file.

    Several signals are raised as one. Uses handlers, because a daemon would inherit a signal mask.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda caught, _: pending.append(caught)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if pending:
            signal.raise_signal(pending[0])


def read_daemon(file: Path) -> Daemon | None:
    """The daemon of a pid file; None if the file is missing or damaged."""
    try:
        pid, started = file.read_text(encoding="ascii").split()
        return Daemon(file.stem, int(pid), int(started))
    except (OSError, ValueError):
        return None


def read_daemons(pids: Path) -> list[Daemon]:
    """The daemons of all pid files in a directory, running or not."""
    return [daemon for file in sorted(pids.glob("*.pid")) if (daemon := read_daemon(file))]


def end(daemons: Iterable[Daemon], patience_s: float = 10.0, requests: int = 1) -> None:
    """End processes: SIGTERM, then SIGKILL for those that run on after ``patience_s`` seconds.

    requests: how often SIGTERM is sent within that time, for a daemon that can miss one.
    """
    running = list(daemons)
    for number in [signal.SIGTERM] * requests + [signal.SIGKILL]:
        for daemon in running:
            daemon.signal(number)
        running = _wait_gone(running, patience_s / requests)
        if not running:
            return


def _wait_gone(daemons: list[Daemon], patience_s: float) -> list[Daemon]:
    deadline = time.monotonic() + patience_s
    while (daemons := [d for d in daemons if d.alive]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return daemons


def end_jobs(slurm_conf: Path, directory: Path) -> None:
    """End the processes of the lab's jobs. Repeats, because a starting slurmstepd may start more."""
    for _ in range(20):
        found = job_processes(slurm_conf, directory)
        if not found:
            return
        end(found, patience_s=1.0)


def job_processes(slurm_conf: Path, directory: Path) -> list[Daemon]:
    """The processes of the lab's jobs: slurmstepd and the processes that it started.

    A job's process has the lab's SLURM_CONF and a node name in its environment; a user's shell with the same SLURM_CONF
    has no node name. slurmstepd overwrites its environment, but keeps files of the lab open, at least its log.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (_is_job_process(entry, slurm_conf) or _is_stepd(entry, directory)):
            pid = int(entry.name)
            started = start_time(pid)
            if started is not None and pid != os.getpid():
                found.append(Daemon("job", pid, started))
    return found


def _is_job_process(process: Path, slurm_conf: Path) -> bool:
    with contextlib.suppress(OSError):
        environment = (process / "environ").read_bytes().split(b"\0")
        in_lab = f"SLURM_CONF={slurm_conf}".encode() in environment
        return in_lab and any(entry.startswith(b"SLURMD_NODENAME=") for entry in environment)
    return False


def _is_stepd(process: Path, directory: Path) -> bool:
    with contextlib.suppress(OSError):
        if (process / "comm").read_text(encoding="utf-8", errors="replace").strip() == "slurmstepd":
            return any(os.readlink(file).startswith(f"{directory}/") for file in (process / "fd").iterdir())
    return False
