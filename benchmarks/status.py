"""Measure the response time of asrpt-status with many jobs: python -m benchmarks.status --json

The status has 10,000 jobs, as asrptd writes it. The command runs as a user types it, including the start of Python.
Each line is the median of several alternating runs, on a terminal of 80x24 (``overview``) or into a pipe. ``bare_s``:
Python alone. ``ratio``: the overview over that. ``overview_cpu_s``: CPU time of the overview, which other work on the
machine disturbs less. ``write_s``: time that asrptd spends on writing the status; ``page_s`` and ``page_bytes``: on the
dashboard with a full day of samples, the median of as many runs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pty
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track

from slurm_asrpt.reporting.dashboard import page
from slurm_asrpt.status.document import FILE_NAME, JobStatus, NodeStatus, Status, write_status
from slurm_asrpt.status.explain import add_ahead
from slurm_asrpt.status.usage import KEPT_S, STEP_S, Usage

COMMAND = Path(sys.executable).parent / "asrpt-status"
USERS, NODES = 50, 1250
LINES = {
    "overview": [],
    "me": ["--me"],
    "explain": ["--explain", "5000"],
    "user": ["--user", "user3"],
    "job": ["5000"],
    "all": ["--all"],
    "parsable": ["--parsable"],
    "json": ["--json"],
}


def status(jobs: int, now: float) -> Status:
    """A fifth of the jobs run; the others are pending. Each has a prediction and an estimate of its start."""
    rows = [_job(number, jobs // 5, now) for number in range(1, jobs + 1)]
    add_ahead(rows)
    nodes = [NodeStatus(f"gpu{number:04d}", 8, 0, "a100", ["gpu"], "ALLOCATED") for number in range(NODES)]
    return Status(now, "enforce", "asrpt-gated", 5.0, 8 * NODES, 0, rows, leader="ctl", forecast_s=60.0, nodes=nodes)


def _job(number: int, running: int, now: float) -> JobStatus:
    runs = number <= running
    known = {"start_time": now - 600.0, "remaining_s": 3000.0} if runs else {"rank": number - running}
    return JobStatus(
        job_id=str(number), name=f"train-{number % 97}", user=f"user{number % USERS}", partition="gpu", gpus=8,
        group="0123456789abcdef", profile="vgg19-dp8", predicted_iterations=7200, predicted_run_s=3600.0,
        submit_time=now - 900.0, state="running" if runs else "waiting", reason="running" if runs else "gpus",
        text="" if runs else "needs 8 GPUs, 0 free for it", alpha_min=0.5,
        facts={} if runs else {"need": 8, "free": 0}, nodes={f"gpu{number % NODES:04d}": 8} if runs else {},
        predicted_low=6000, predicted_high=9000, predicted_run_low_s=3000.0, predicted_run_high_s=4500.0,
        start_made=None if runs else now, start_earliest=None if runs else now + 60.0 * number,
        start_latest=None if runs else now + 90.0 * number, **known,
    )  # fmt: skip


def on_terminal(command: list[str], environment: dict[str, str]) -> float:
    """Seconds until the command ends, with its output on a terminal of 80x24."""
    ours, theirs = pty.openpty()
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    while _read(ours):
        pass
    process.wait()
    took = time.perf_counter() - began
    os.close(ours)
    return took


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end closed it
        return b""


def cpu_time() -> float:
    """CPU seconds of all ended child processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_pipe(command: list[str], environment: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment, check=True)
    return time.perf_counter() - began


def dashboard(found: Status, runs: int) -> dict[str, float]:
    """Seconds to add a sample and make the page, and its size, plain and compressed."""
    usage, took, text = Usage(), list[float](), b""
    for step in range(KEPT_S // STEP_S, 0, -1):
        usage = usage.with_sample(replace(found, written=found.written - step * STEP_S))
    for _ in range(runs):
        began = time.perf_counter()
        text = page(found, usage.with_sample(found), written_every_s=30.0).encode()
        took.append(time.perf_counter() - began)
    return {"page_s": statistics.median(took), "page_bytes": len(text), "page_gzip_bytes": len(gzip.compress(text))}


def measure(jobs: int, runs: int, folder: Path) -> dict[str, float]:
    now = time.time()
    began = time.perf_counter()
    write_status(folder, status(jobs, now))
    result: dict[str, float] = {"write_s": time.perf_counter() - began}
    result["bytes"] = (folder / FILE_NAME).stat().st_size
    config = folder / "asrpt.toml"
    config.write_text(f"[paths]\nrun = {json.dumps(str(folder))}\n")
    environment = {**os.environ, "ASRPT_CONFIG": str(config), "COLUMNS": "80", "LINES": "24"}
    took: dict[str, list[float]] = {name: [] for name in ("bare", *LINES)}
    for _ in track(range(runs), "asking", console=Console(stderr=True), disable=not sys.stderr.isatty()):
        took["bare"].append(in_pipe([sys.executable, "-c", "pass"], environment))
        for name, words in LINES.items():
            run, before = on_terminal if name == "overview" else in_pipe, cpu_time()
            took[name].append(run([str(COMMAND), *words], environment))
            took.setdefault(f"{name}_cpu", []).append(cpu_time() - before)
    result |= {f"{name}_s": statistics.median(times) for name, times in took.items()} | dashboard(
        status(jobs, now), runs
    )
    return result | {"ratio": result["overview_s"] / result["bare_s"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = {"jobs": options.jobs, **measure(options.jobs, options.runs, Path(folder))}
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:<12} {value:.3f}" if isinstance(value, float) else f"{name:<12} {value}")


if __name__ == "__main__":
    main()
