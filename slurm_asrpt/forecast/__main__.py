"""A forecast in a process of its own: a snapshot comes on stdin, estimates go to stdout; nothing else is touched.

``python -m slurm_asrpt.forecast BUDGET_S``, the CPU seconds that it may take. It says how many it has taken, too.
"""

from __future__ import annotations

import gc
import json
import math
import os
import resource
import sys
from contextlib import suppress
from dataclasses import astuple
from hashlib import sha256
from time import process_time

from slurm_asrpt.forecast.estimate import forecast
from slurm_asrpt.forecast.snapshot import from_json

NICE = 10
GRACE_S = 10
"""For the start of Python and a policy that takes its time over one decision."""


def main() -> None:
    budget_s = float(sys.argv[1])
    with suppress(PermissionError):  # under systemd, whose unit forbids the call and has its own weight
        os.nice(NICE)  # the daemon comes first
    most = int(budget_s) + GRACE_S
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    data = sys.stdin.buffer.read()
    snapshot = from_json(data)
    gc.freeze()
    gc.disable()  # a replay makes next to no cyclic garbage
    found = forecast(snapshot, int.from_bytes(sha256(data).digest()[:8]), budget_s=budget_s)
    starts = {job_id: [_known(time) for time in astuple(start)] for job_id, start in found.items()}
    json.dump({"cpu_s": process_time(), "starts": starts}, sys.stdout)


def _known(time: float) -> float | None:
    """JSON has no infinity."""
    return time if math.isfinite(time) else None


if __name__ == "__main__":
    main()
