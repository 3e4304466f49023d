"""A forecast in a process of its own: a snapshot comes on stdin, estimates go to stdout; nothing else is touched.

``python -m slurm_asrpt.forecast BUDGET_S SHARE ASKER``: the CPU seconds that it may take, and of one core how much at a
time, so that whoever works on the controller does not notice when it begins. It says how many seconds it has taken.
ASKER is the process that waits for the answer: where that is gone, killed say, nothing goes on.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from hashlib import sha256

from slurm_asrpt.forecast.estimate import forecast
from slurm_asrpt.forecast.snapshot import from_json

NICE = 10
SLICE_S = 0.1
"""Shorter rests are not worth a wake-up."""
GRACE_S = 10
"""For the start of Python and a policy that takes its time over one decision."""


def main() -> None:
    budget_s, share, asker = float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    with suppress(PermissionError):  # under systemd, whose unit forbids the call and has its own weight
        os.nice(NICE)  # the daemon comes first
    most = int(budget_s) + GRACE_S
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    data = sys.stdin.buffer.read()
    snapshot = from_json(data)
    gc.freeze()
    gc.disable()  # a replay makes next to no cyclic garbage
    clock = paced(share, partial(cpu_seconds, asker))
    found = forecast(snapshot, int.from_bytes(sha256(data).digest()[:8]), budget_s=budget_s, clock=clock)
    starts = {job_id: [_known(time) for time in astuple(start)] for job_id, start in found.items()}
    json.dump({"cpu_s": time.process_time(), "starts": starts}, sys.stdout)


def cpu_seconds(asker: int) -> float:
    """CPU seconds so far. Ends this process, by SystemExit, where its parent is no longer who asked."""
    if os.getppid() != asker:
        sys.exit("nobody waits for this forecast any more")
    return time.process_time()


def paced(
    share: float,
    spent: Callable[[], float] = time.process_time,
    passed: Callable[[], float] = time.monotonic,
    rest: Callable[[float], object] = time.sleep,
) -> Callable[[], float]:
    """A clock of CPU seconds for who asks it often: where more than its share is spent, it rests before it answers."""
    before, began = spent(), passed()

    def clock() -> float:
        now = spent()
        ahead_s = (now - before) / share - (passed() - began)
        if ahead_s > SLICE_S:
            rest(ahead_s)
        return now

    return clock


def _known(time: float) -> float | None:
    """JSON has no infinity."""
    return time if math.isfinite(time) else None


if __name__ == "__main__":
    main()
