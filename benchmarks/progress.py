"""Measure the cost of progress reports for a training: python -m benchmarks.progress --json

Microseconds of CPU time per call, medians of alternating rounds: an empty loop, reports that almost never write,
reports with a loss, ``track``, calls outside of a job, and asrptd's check of one of 2000 running jobs. Writes are in
elapsed time (local directory). Milliseconds of CPU time: the import and a call of asrpt-report, in addition to an empty
Python. All run without site-packages, whose cost depends on what is installed there.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.progress import track

from slurm_asrpt import progress
from slurm_asrpt.daemon.record.progress import ProgressWatch
from slurm_asrpt.progress import FOLDER_VARIABLE, Reporter
from slurm_asrpt.spool import progress_dir

ROOT = Path(__file__).parents[1]
ROUNDS = 9
CALLS = 100_000
WRITES = 200
STARTS = 3
JOBS = 2000
REPORT = "import sys; sys.path.insert(0, 'cli'); from report import main; main(['5'])"
PROGRAMS = {
    "python_ms": "pass",
    "import_ms": "import slurm_asrpt.progress",
    "asrpt_report_ms": REPORT,
}


def loops(folder: str) -> dict[str, Callable[[], None]]:
    """The timed loops, with CALLS calls each."""
    inside, outside = Reporter({FOLDER_VARIABLE: folder}), Reporter({})

    def empty() -> None:
        for _ in range(CALLS):
            pass

    def tracked() -> None:
        progress._forget()
        for _ in progress.track(range(CALLS)):
            pass

    def reports(reporter: Reporter, *more: float) -> Callable[[], None]:
        def loop() -> None:
            for number in range(CALLS):
                reporter.report(number, *more)

        return loop

    return {
        "empty_us": empty,
        "report_us": reports(inside),
        "report_loss_us": reports(inside, CALLS, 0.5),
        "track_us": tracked,
        "outside_us": reports(outside),
    }


def writes(folder: str) -> None:
    reporter = Reporter({FOLDER_VARIABLE: folder})
    for number in range(WRITES):
        reporter.report(number, WRITES, 0.5)
        reporter.flush()


def jobs(spool: Path) -> dict[str, float]:
    """Running jobs, each with a progress file."""
    for number in range(JOBS):
        folder = progress_dir(spool) / str(number)
        folder.mkdir(parents=True)
        (folder / progress.FILE_NAME).write_text("400 1000 0.5 0\n")
    return {str(number): 0.0 for number in range(JOBS)}


def seconds(action: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    began = clock()
    action()
    return clock() - began


def children() -> float:
    """CPU seconds of all ended child processes so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(rounds: int) -> dict[str, float]:
    took: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ[FOLDER_VARIABLE] = folder
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        timed = loops(folder)
        watch, running = ProgressWatch(Path(folder), 1e-9), jobs(Path(folder))
        for _ in track(range(rounds), "measuring", console=Console(stderr=True), transient=True):
            for name, loop in timed.items():
                took.setdefault(name, []).append(seconds(loop, time.process_time) / CALLS * 1e6)
            took.setdefault("write_us", []).append(seconds(lambda: writes(folder)) / WRITES * 1e6)
            took.setdefault("look_us", []).append(seconds(lambda: watch.look(running), time.process_time) / JOBS * 1e6)
            for name, code in PROGRAMS.items():
                for _ in range(STARTS):
                    before = children()
                    subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, env=environment, check=True)
                    took.setdefault(name, []).append((children() - before) * 1e3)
    return {name: round(statistics.median(values), 3) for name, values in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    found = measure(options.rounds)
    found["asrpt_report_over_python_ms"] = round(found["asrpt_report_ms"] - found["python_ms"], 3)
    if options.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:<28} {value:10.3f}")


if __name__ == "__main__":
    main()
