"""From sbatch to the start on idle GPUs, plain Slurm beside asrptd: python -m benchmarks.latency --json

A lab of 2 x 8 GPUs with Slurm's default SchedulerParameters. ``start_s``: one user submits ``--jobs`` jobs with one
GPU, one every ``--every`` seconds; seconds from the call of sbatch to the first command of the job, median and maximum.
``gap_s``: a chain of ``--chain`` jobs that each take all GPUs, submitted together; mean seconds from the last command
of one to the first of the next. ``idle_cpu``: share of a core that asrptd and its commands take while nothing happens,
``burst_cpu`` while jobs are submitted, ``watch_cpu`` watching for events by itself. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import threading
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from benchmarks.busylab import big_lab, cpu_s
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.daemon.wakeup import Wakeups
from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab.asrptd import asrptd
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.lab.spec import LabSpec

USER = "asrpt1"


def submit(lab: Lab, name: str, sleep_s: float, *options: str) -> float:
    """Submit a job that writes when it begins and ends to NAME.times; when sbatch was called."""
    script = f"#!/bin/sh\ndate +%s.%N >{name}.times\nsleep {sleep_s}\ndate +%s.%N >>{name}.times\n"
    called = time.time()
    lab.run(["sbatch", "--output=/dev/null", "--time=10", *options], user=USER, input=script)
    return called


def times(lab: Lab, name: str, timeout_s: float) -> tuple[float, float]:
    """When a job has begun and ended. Raises MachineError."""
    path, deadline = lab.home(USER) / f"{name}.times", time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = path.read_text(encoding="ascii").split() if path.exists() else []
        if len(found) == 2:
            return float(found[0]), float(found[1])
        time.sleep(0.1)
    raise MachineError(f"{name} has not ended after {timeout_s:g} s")


def starts(lab: Lab, label: str, jobs: int, every_s: float) -> list[float]:
    called = []
    for number in range(jobs):
        began = time.monotonic()
        called.append(submit(lab, f"{label}{number}", 1, "--gpus=1"))
        time.sleep(max(0.0, began + every_s - time.monotonic()))
    return [times(lab, f"{label}{n}", 120.0)[0] - at for n, at in enumerate(called)]


def gaps(lab: Lab, label: str, jobs: int) -> list[float]:
    nodes = lab.spec.node_list
    options = [f"-N{len(nodes)}", f"--gpus-per-node={nodes[0].gpus}"]
    for number in range(jobs):
        submit(lab, f"{label}-chain{number}", 3, *options)
    ran = sorted(times(lab, f"{label}-chain{number}", 60.0 * jobs) for number in range(jobs))
    return [after[0] - before[1] for before, after in itertools.pairwise(ran)]


def measure(lab: Lab, label: str, pid: int, options: argparse.Namespace) -> dict[str, float]:
    found = {}
    if pid:
        time.sleep(5.0)
        found["idle_cpu"] = cpu_share(pid, options.idle)
    cpu, began = cpu_s(pid, children=True) if pid else 0.0, time.monotonic()
    waits = starts(lab, label, options.jobs, options.every)
    if pid:
        found["burst_cpu"] = round((cpu_s(pid, children=True) - cpu) / (time.monotonic() - began), 4)
    found |= {"start_s": round(statistics.median(waits), 2), "start_max_s": round(max(waits), 2)}
    return found | {"gap_s": round(statistics.fmean(gaps(lab, label, options.chain)), 2)}


def cpu_share(pid: int, seconds: float) -> float:
    before, began = cpu_s(pid, children=True), time.monotonic()
    time.sleep(seconds)
    return round((cpu_s(pid, children=True) - before) / (time.monotonic() - began), 4)


def watching(folder: Path) -> float:
    """Share of a core that ten looks a second take."""
    began, cpu = time.monotonic(), time.process_time()
    Wakeups(folder / "wakeup").sleep(10.0, 10.0, threading.Event())
    return round((time.process_time() - cpu) / (time.monotonic() - began), 5)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two submissions")
    parser.add_argument("--chain", type=int, default=6)
    parser.add_argument("--idle", type=float, default=60.0, help="seconds in which nothing happens")
    parser.add_argument("--interval", type=float, default=5.0, help="daemon.interval_s")
    parser.add_argument("--scheduler-parameters", default="bf_interval=30", help="the default is Slurm's")
    parser.add_argument("--port", type=int, default=28000, help="first port of the lab")
    parser.add_argument("--only", choices=("plain", "asrptd"))
    options = parser.parse_args(arguments)
    settings = {"daemon": {"interval_s": options.interval, "lease_s": 600, "mode": "enforce"}}
    parameters, port = options.scheduler_parameters, options.port
    spec = LabSpec(nodes="2x8", base_port=port, scheduler_parameters=parameters, settings=settings)
    found: dict[str, object] = {"interval_s": options.interval}
    with big_lab(spec) as lab:
        found["watch_cpu"] = watching(lab.paths.hook)
        for label in [options.only] if options.only else ["plain", "asrptd"]:
            with asrptd(lab, "enforce", DEFAULT_POLICY, "debug") if label == "asrptd" else nullcontext(0) as pid:
                found[label] = measure(lab, label, pid, options)
    print(json.dumps(found, indent=None if options.json else 2))


if __name__ == "__main__":
    main()
