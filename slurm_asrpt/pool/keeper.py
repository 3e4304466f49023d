"""A slot's keeper: starts the slot's executor, and another one whenever it ends, until the driver is gone.

``srun`` starts one for each task of the job, the driver itself on a machine without Slurm. Imports little, because it
stays beside each executor.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

ENDED, RENEW = 0, 75
"""Exit codes of executors: the driver is gone; start another one."""
ADDRESS, KEY, SLOT = "ASRPT_POOL_ADDRESS", "ASRPT_POOL_KEY", "ASRPT_POOL_SLOT"
LAUNCHER, RANK = "SLURM_LAUNCH_NODE_IPADDR", "SLURM_PROCID"
"""Where srun was called, that is the driver's node; and the task's number."""
SHORT_S = 1.0
MAX_PAUSE_S = 5.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Address:
    """Where the driver listens, the pool's key, and the number of this slot."""

    host: str
    port: int
    key: bytes
    slot: int

    @classmethod
    def take(cls, environment: MutableMapping[str, str]) -> Address:
        """From the environment; the key is removed, so that it does not reach the processes of users' code."""
        host, _, port = environment[ADDRESS].rpartition(":")
        slot = environment.get(SLOT) or environment[RANK]
        return cls(host or environment[LAUNCHER], int(port), bytes.fromhex(environment.pop(KEY)), int(slot))


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _leave(number: int, _: FrameType | None) -> NoReturn:
    sys.exit(128 + number)


ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Of an executor, unless the owner has set more: the slots of a node share its CPUs, and the last bits of results may
depend on the number of threads."""


def main() -> int:
    """The process. Returns its exit code."""
    end_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leave)
    pause = 0.0
    while True:
        began = time.monotonic()
        code = _run({**ONE_THREAD, **os.environ})
        if code == ENDED:
            return 0
        short = code != RENEW and time.monotonic() - began < SHORT_S
        pause = min(MAX_PAUSE_S, 2 * pause or 0.1) if short else 0.0
        time.sleep(pause)


def _run(environment: Mapping[str, str]) -> int:
    """Run one executor to its end, which comes at once if this process is told to end."""
    with subprocess.Popen([sys.executable, "-m", "slurm_asrpt.pool.executor"], env=environment) as executor:
        try:
            return executor.wait()
        finally:
            with suppress(OSError):
                executor.kill()


if __name__ == "__main__":
    sys.exit(main())
