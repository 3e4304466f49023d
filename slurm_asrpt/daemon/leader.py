"""Leader election: one asrptd per state directory schedules; the others stand by, and one takes over when it ends.

The kernel releases the lock when a process ends, in any way. A running process can also lose the lock: the file was
deleted, or a network file system gave it to another. So the file names the leader, and the leader reads it before it
writes.
"""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from pathlib import Path
from threading import Event

from slurm_asrpt.errors import AsrptError, printable

LOCK_NAME = "lock"
STANDBY_S, POLL_S = 1.0, 0.1
"""Seconds between two attempts to take the lock."""
_LONGEST_NAME = 200

LOG = logging.getLogger("asrptd")


class LeadershipLostError(AsrptError):
    """Another asrptd leads now; this one must not write."""


class LeaderLock:
    """The lock of a state directory. name: host, pid and time, as in the status and the log."""

    def __init__(self, folder: Path) -> None:
        """Raises AsrptError if the directory cannot be used."""
        self.folder, self.path = folder, folder / LOCK_NAME
        self.name = ""
        self._lock = -1
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(folder, error) from error

    def take(self) -> bool:
        """Try to take the lock. Returns whether this process leads now. Raises AsrptError."""
        descriptor = -1
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock, self.name = descriptor, _name(time.time())
            # over what is there: a full disk gives no other block
            os.pwrite(descriptor, self.name.encode().ljust(_LONGEST_NAME), 0)
            os.ftruncate(descriptor, _LONGEST_NAME)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise _unusable(self.folder, error) from error
        return True

    def holder(self) -> str:
        """The leader's name in the lock file; empty if it cannot be read."""
        try:
            with self.path.open("rb") as file:
                return printable(file.read(_LONGEST_NAME).decode(errors="replace").rstrip())
        except OSError:
            return ""

    def check(self) -> None:
        """Raises LeadershipLostError unless this process still leads."""
        holder = self.holder()
        if holder != self.name:
            raise LeadershipLostError(f"{self.path} was lost ({holder or 'it is missing'}); this asrptd ends")

    def close(self) -> None:
        """Release the lock. The file is kept: if it were deleted, two processes could lead."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def held(folder: Path) -> bool:
    """Whether an asrptd leads in this state directory. Raises OSError."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _name(now: float) -> str:
    since = time.strftime("%Y-%m-%dT%H:%M:%S%z", time.localtime(now))  # users in other time zones read it
    return printable(f"{socket.gethostname()} pid {os.getpid()} since {since}")[:_LONGEST_NAME]


def _unusable(folder: Path, error: OSError) -> AsrptError:
    return AsrptError(f"the state directory {folder} cannot be used ({error.strerror})")


def wait_to_lead(folder: Path, stopping: Event, once: bool = False) -> LeaderLock | None:
    """Wait for the lock. Returns None if stopped before. Raises AsrptError, with ``once`` also if another leads."""
    lock, logged = LeaderLock(folder), ""
    while not stopping.is_set():
        if lock.take():
            LOG.info("leading: %s", lock.name)
            return lock
        holder = lock.holder()
        if once:
            raise AsrptError(
                f"another asrptd leads ({holder}); stop it first, because two would undo each other's work"
            )
        if holder != logged:
            LOG.info("standing by: %s leads; this asrptd takes over when it ends", holder or "another")
            logged = holder
        _wait(stopping)
    return None


def _wait(stopping: Event) -> None:
    """Wait until the next look. In short sleeps: under libfaketime, Event.wait with a timeout never returns."""
    until = time.monotonic() + STANDBY_S
    while not stopping.is_set() and time.monotonic() < until:
        time.sleep(POLL_S)
