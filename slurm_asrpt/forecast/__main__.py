"""Run a forecast in a separate process: read a snapshot from stdin and write estimates to stdout.

``python -m slurm_asrpt.forecast BUDGET_S SHARE PARENT``: BUDGET_S is the limit in CPU seconds. SHARE is the fraction of
one core to use, so that other work on the controller is not disturbed. PARENT is the ID of the process that waits for
the answer; the forecast ends if that process is gone. The output includes the CPU seconds used.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from hashlib import sha256

from slurm_asrpt.forecast.estimate import forecast, known
from slurm_asrpt.forecast.snapshot import from_json

NICE = 10
SLICE_S = 0.1
"""Minimum pause: shorter ones cost more than they save."""
GRACE_S = 10
"""Additional CPU seconds for the start of Python and for one slow decision of a policy."""


def main() -> None:
    budget_s, share, parent = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    with suppress(PermissionError):  # the systemd unit forbids the call and sets its own weight
        os.nice(NICE)  # the daemon has priority
    most = int(budget_s) + GRACE_S
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    data = sys.stdin.buffer.read()
    snapshot = from_json(data)
    gc.freeze()
    gc.disable()  # a replay creates almost no cyclic garbage
    clock = paced(share, partial(cpu_seconds, parent))
    found = forecast(snapshot, int.from_bytes(sha256(data).digest()[:8]), budget_s=budget_s, clock=clock)
    starts = {job_id: list(map(known, (at.earliest, at.median, at.latest))) for job_id, at in found.items()}
    json.dump({"cpu_s": time.process_time(), "starts": starts}, sys.stdout)


def cpu_seconds(parent: int) -> float:
    """CPU seconds used so far. Exits (SystemExit) if ``parent`` is no longer the parent process."""
    if os.getppid() != parent:
        sys.exit("the process that asked for this forecast is gone")
    return time.process_time()


def paced(
    share: float,
    spent: Callable[[], float] = time.process_time,
    passed: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> Callable[[], float]:
    """A clock of CPU seconds that limits CPU usage to ``share`` of a core: above this, it sleeps before it returns."""
    before, began = spent(), passed()

    def clock() -> float:
        now = spent()
        ahead_s = (now - before) / share - (passed() - began)
        if ahead_s > SLICE_S:
            sleep(ahead_s)
        return now

    return clock


if __name__ == "__main__":
    main()
