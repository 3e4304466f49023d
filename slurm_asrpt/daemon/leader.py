"""Leader election: of all asrptd on one state folder one schedules, the others stand by and take over when it is gone.

The kernel releases the lock of a process that ends, however it ends. A lock can also be lost while its holder lives:
its file was deleted, or a network file system gave it away. So the file names the leader, and the leader reads it
before it writes.
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
STANDBY_S = 1.0
"""Seconds between two attempts to take the lock."""
_LONGEST_NAME = 200

LOG = logging.getLogger("asrptd")


class LeadershipLostError(AsrptError):
    """Another asrptd leads by now; this one must not write any more."""


class LeaderLock:
    """The lock of a state folder. name: host, pid and since when, as status and log say it."""

    def __init__(self, folder: Path) -> None:
        """Raises AsrptError for a folder that cannot be used."""
        self.folder, self.path = folder, folder / LOCK_NAME
        self.name = ""
        self._lock = -1
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(folder, error) from error

    def take(self) -> bool:
        """Whether this process leads from now on; False while another does. Raises AsrptError."""
        descriptor = -1
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._lock, self.name = descriptor, _name(time.time())
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, self.name.encode(), 0)
        except BlockingIOError:
            os.close(descriptor)
            return False
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise _unusable(self.folder, error) from error
        return True

    def holder(self) -> str:
        """Who leads by what the lock's file says; empty where it cannot be read."""
        try:
            with self.path.open("rb") as file:
                return printable(file.read(_LONGEST_NAME).decode(errors="replace"))
        except OSError:
            return ""

    def check(self) -> None:
        """Raises LeadershipLostError unless this process still leads."""
        holder = self.holder()
        if holder != self.name:
            raise LeadershipLostError(f"{self.path} is not ours any more ({holder or 'it is gone'}); this asrptd ends")

    def close(self) -> None:
        """Release the lock. The file stays: to delete it would let two lead."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def held(folder: Path) -> bool:
    """Whether an asrptd leads on this state folder now. Raises OSError."""
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
    since = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(now))
    return printable(f"{socket.gethostname()} pid {os.getpid()} since {since}")[:_LONGEST_NAME]


def _unusable(folder: Path, error: OSError) -> AsrptError:
    return AsrptError(f"the state folder {folder} cannot be used ({error.strerror})")


def wait_to_lead(folder: Path, stopping: Event, once: bool = False) -> LeaderLock | None:
    """The lock, as soon as nobody else holds it; None if told to stop before. Raises AsrptError, with ``once`` too
    where another leads.
    """
    lock, logged = LeaderLock(folder), ""
    while not stopping.is_set():
        if lock.take():
            LOG.info("leading: %s", lock.name)
            return lock
        holder = lock.holder()
        if once:
            raise AsrptError(f"another asrptd leads ({holder}); stop it first: a cycle beside it would undo its work")
        if holder != logged:
            LOG.info("standing by: %s leads; this asrptd takes over when that one is gone", holder or "another")
            logged = holder
        stopping.wait(STANDBY_S)
    return None
