"""Runs asrptd beside a lab."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab.cluster import Lab, tail
from slurm_asrpt.lab.processes import interrupts_deferred


@contextmanager
def asrptd(lab: Lab, mode: str, policy: str = "asrpt", log_level: str = "info") -> Iterator[int]:
    """Run asrptd on the lab; yields its pid. Ended by SIGTERM, after 30 s by SIGKILL.

    Raises MachineError.
    """
    program = str(Path(sys.executable).parent / "asrptd")
    command = [program, "--mode", mode, "--policy", policy, "--log-level", log_level]
    path = lab.directory / "log" / (f"asrptd-{mode}.log" if mode == "shadow" else f"asrptd-{mode}-{policy}.log")
    with path.open("ab") as log:
        # a session of its own: on Ctrl-C, this process ends the daemon in order
        daemon = subprocess.Popen(command, env=lab.env, stdout=log, stderr=log, start_new_session=True)
    try:
        time.sleep(2.0)
        if daemon.poll() is not None:
            raise MachineError(f"asrptd exited immediately: {tail(path)}")
        yield daemon.pid
    finally:
        with interrupts_deferred():
            _end(daemon)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(timeout=30)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()
