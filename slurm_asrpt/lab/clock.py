"""A lab's own clock, which goes some times as fast as the machine's, for the cluster and for all that runs in the lab.

libfaketime, preloaded into every process of the lab, gives them this clock, and shortens their sleeps and timeouts by
the same factor. Its zero is in shared memory, which one process holds as long as the lab is up.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab import machine, processes
from slurm_asrpt.lab.processes import Daemon
from slurm_asrpt.lab.spec import LabPaths

NAME = "clock"
"""The daemon that holds the clock. It is started first and ended last."""
VARIABLES = ("LD_PRELOAD", "FAKETIME", "FAKETIME_SHARED")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  (where the C library has POSIX shared memory and semaphores)
_PATIENCE_S = 5.0


@dataclass(frozen=True)
class Clock:
    """The clock of a lab. began, shown: a time of the machine's clock and what the lab's showed then, in seconds.

    variables: the environment that gives it to a process.
    """

    speed: float
    began: float
    shown: float
    variables: Mapping[str, str]

    def time(self) -> float:
        """The lab's time now, in seconds since 1970."""
        return self.at(time.time())

    def at(self, machine_time: float) -> float:
        """The lab's time at a time of the machine's clock."""
        return self.shown + (machine_time - self.began) * self.speed


def start(speed: float, paths: LabPaths) -> Daemon:
    """Start the process that holds the lab's clock, and save the clock. Raises MachineError.

    Test users' processes need to write to the shared memory: libfaketime locks it.
    """
    # If only faketime is killed, sleep ends too.
    held = [machine.program("setpriv"), "--pdeathsig", "KILL", machine.program("sleep"), "infinity"]
    command = [machine.program("faketime"), "-f", f"+0 x{speed:g}", *held]
    daemon = processes.start(NAME, command, dict(os.environ), paths.log / f"{NAME}.out", paths.pids)
    variables = _wait_for_variables(daemon)
    for file in _shared(variables):
        file.chmod(0o666)
    before = time.time()
    command = [machine.program("date"), "+%s.%N"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MachineError(f"libfaketime: date failed: {done.stderr.strip()}")
    clock = Clock(speed, (before + time.time()) / 2, float(done.stdout), variables)
    paths.clock.write_text(json.dumps(asdict(clock)) + "\n", encoding="utf-8")
    return daemon


def _wait_for_variables(daemon: Daemon) -> dict[str, str]:
    """The variables that faketime gave to its child, as soon as that runs."""
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and daemon.alive:
        with contextlib.suppress(OSError, IndexError):
            child = children.read_text(encoding="ascii").split()[0]
            pairs = (entry.partition("=") for entry in Path(f"/proc/{child}/environ").read_text("utf-8").split("\0"))
            found = {name: value for name, _, value in pairs if name in VARIABLES}
            if len(found) == len(VARIABLES) and all(file.exists() for file in _shared(found)):
                return found
        time.sleep(0.02)
    raise MachineError("faketime does not hold a clock; is libfaketime installed? apt-get install faketime")


def load(paths: LabPaths) -> Clock | None:
    """The clock of a lab that is up; None if it has no clock of its own."""
    try:
        return Clock(**json.loads(paths.clock.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def remove(paths: LabPaths) -> None:
    """Remove the clock of a lab whose processes have ended. faketime does so itself only if its child ends first."""
    clock = load(paths)
    for file in _shared(clock.variables) if clock else ():
        file.unlink(missing_ok=True)
    paths.clock.unlink(missing_ok=True)


def _shared(variables: Mapping[str, str]) -> list[Path]:
    """The files of the semaphore and of the shared memory."""
    semaphore, memory = (name.lstrip("/") for name in variables["FAKETIME_SHARED"].split())
    return [_SHARED_MEMORY / f"sem.{semaphore}", _SHARED_MEMORY / memory]
