"""Check start-time estimates on a real Slurm: python -m benchmarks.calibration --json

Jobs of `pai-like`, with runtimes divided by ``--compress``, arrive in a lab at ``--load``. With ``--swing``, they
arrive at random, and the load of the first ``--jobs`` rises and falls over a day that is shortened as much. More jobs
arrive by day than can run, and the queue drains by night, as on a cluster with users. asrptd runs in mode enforce and
starts without predictions. The predictor is trained once, when half of the ``--jobs`` have arrived. Up to ``--more``
times as many further jobs arrive until all of these have ended; otherwise the last jobs would start early, because no
job could overtake them.

With ``--speed``, the clocks of the lab and of asrptd go as many times as fast (asrpt-lab up --speed), so that
``--compress 1 --speed 100`` plays real days of 14 minutes each. Jobs are plain sleeps then. ``--forecast`` remains in
seconds of the machine, and a forecast gets a quarter of it as CPU time.

With ``--arrays K``, every eighth job is an array of K tasks, ``--bound`` of them at once, each a K-th as long as the
job.

The first estimate of each job is compared with its start, as in ``asrpt-admin calibration``. ``cold`` are the jobs
submitted before the training, ``trained`` those after it, ``all`` both, and ``single`` those that are not array tasks.
``every`` also counts the further jobs; ``coming`` counts those of them whose estimate was made ten hours of the trace
or more (two minutes, with the default ``--compress``) before the last job arrived. ``inside``, ``early`` and ``late``
are shares of the ``jobs`` with an estimate, which came in this number of ``batches``. ``inside_95`` and ``together_95``
are confidence intervals of ``inside`` (benchmarks.start_coverage). ``closed`` has the same figures for intervals with
an upper bound. ``width_s`` is the median of their widths, ``wait_s`` that of the waits after the estimate, in seconds
of the lab. ``--runs`` writes the underlying data to a file. Needs root; takes 5 to 30 minutes.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.arrivals import swinging
from benchmarks.busylab import big_lab, replay_spec
from benchmarks.start_coverage import Verdict, start_coverage
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.config.settings import load_settings
from slurm_asrpt.history.store import FILE_NAME, History, Run
from slurm_asrpt.lab.asrptd import asrptd
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.lab.site.sides import daemon_settings
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.sources import load_trace

SHORTEST_S = 2.0
LONGEST_H = 3.0
"""Limit of runtimes, in the time of the trace; otherwise one job would outlast all others."""
DAY_JOBS, DAY_S = 1500, 86400.0
EVERY = 8
"""Number of jobs per array."""
PATIENCE_S = 600.0
"""Limit for all submitted jobs to end."""
COMING_S = 36000.0
"""Jobs whose estimate was made this long before the last job arrived are also evaluated separately; in the time of the
trace."""
WRITTEN_S = 5.0
"""Time until the history has recorded a run that ended."""
MODE = "enforce"


def workload(options: argparse.Namespace, gpus: int) -> Trace:
    """Jobs that fit into half of the lab, with runtimes and arrivals scaled to the load; more than needed."""
    most = math.ceil((1 + options.more) * options.jobs)
    trace = load_trace(f"pai-like:{2 * most}:{most / DAY_JOBS:g}", options.seed)
    jobs = trace.jobs[trace.jobs["gpus"] <= gpus // 2].head(most).reset_index(drop=True)
    tasks = np.where(jobs.index % EVERY == EVERY - 1, options.arrays or 1, 1)
    run = (jobs["duration_s"].clip(upper=3600 * LONGEST_H) / options.compress / tasks).clip(lower=SHORTEST_S).round()
    jobs = jobs.assign(tasks=tasks)
    busy = (run * tasks * jobs["gpus"]) / gpus / options.load
    if options.swing:
        span = float(busy.head(options.jobs).sum()) * most / options.jobs
        submit = swinging(most, span, DAY_S / options.compress, options.swing, options.seed)
    else:
        came = jobs["submit_s"] - jobs["submit_s"].iloc[0]
        submit = came * float(busy.sum()) / came.iloc[-1]
    return replace(trace, jobs=jobs.assign(duration_s=run, submit_s=submit))


def submit(lab: Lab, job: Any, bound: int) -> str:
    """Submit the same script for each run of a group; the script does not contain the runtime. Return the job id."""
    train = "sleep" if lab.spec.accelerated else f"{lab.train} --iterations"  # which looks around every second
    script = f"#!/bin/sh\n# {job.group}\nexec {train} $RUN_S\n"
    minutes = max(2, math.ceil(2 * job.duration_s / 60))
    command = ["sbatch", "--parsable", "--output=/dev/null", f"--time={minutes}", f"--ntasks={job.gpus}"]
    command += ["--gpus-per-task=1", f"--job-name={job.group}"]
    if job.tasks > 1:
        command += [f"--array=1-{job.tasks}{f'%{bound}' if bound else ''}"]
    users, variables = lab.spec.user_names, {"RUN_S": f"{job.duration_s:.0f}"}
    return lab.run(command, user=users[int(job.user[1:]) % len(users)], input=script, env=variables).stdout.strip()


def play(lab: Lab, trace: Trace, jobs: int, bound: int, progress: Progress) -> tuple[set[str], float]:
    """Submit jobs, train when half of the first ``jobs`` have arrived, and continue until these have ended.

    Return their ids and the time of the training.
    """
    admin = [str(Path(sys.executable).parent / "asrpt-admin"), "retrain"]
    arrivals: Iterable[Any] = trace.jobs.itertuples()
    task, trained, judged = progress.add_task("jobs", total=len(trace)), 0.0, set[str]()
    began = time.monotonic()
    with ThreadPoolExecutor(1) as beside:
        for number, job in enumerate(arrivals):
            if number == jobs // 2:
                training, trained = beside.submit(lab.run, admin, timeout_s=300.0), lab.time()
            if number >= jobs and not judged & in_queue(lab):
                break
            time.sleep(max(0.0, began + job.submit_s / lab.spec.speed - time.monotonic()))
            job_id = submit(lab, job, bound)
            if number < jobs:
                judged.add(job_id)
            progress.advance(task)
        training.result()  # raise if it failed
    return judged, trained


def in_queue(lab: Lab) -> set[str]:
    """The ids of jobs and arrays that have not ended."""
    return set(lab.run(["squeue", "-h", "-o", "%F"]).stdout.split())


def recorded(lab: Lab, history: History) -> list[Run]:
    """The runs of all jobs, except those that do not end or that arrived before the hook was active."""
    until = time.monotonic() + PATIENCE_S
    while in_queue(lab) and time.monotonic() < until:
        time.sleep(1.0)
    time.sleep(WRITTEN_S)
    return list(history.runs_where("end_time > ?", [0]))


def figures(runs: Sequence[Run]) -> dict[str, Any]:
    estimated = [run for run in runs if run.forecast_made]
    bounded = [run for run in estimated if run.forecast_high]
    widths = [run.forecast_high - run.forecast_low for run in bounded]
    return {
        **start_coverage([verdict(run) for run in estimated]),
        "closed": start_coverage([verdict(run) for run in bounded]),
        "width_s": median(widths) if widths else None,
        "wait_s": median(run.start_time - run.forecast_made for run in estimated) if estimated else None,
    }


def verdict(run: Run) -> Verdict:
    return run.forecast_made, run.start_time < run.forecast_low, 0 < run.forecast_high < run.start_time


def lab_spec(options: argparse.Namespace) -> LabSpec:
    """A lab for replays; on a fast clock, asrptd has the settings of a site."""
    if options.speed == 1:
        return replay_spec(options.nodes, options.port, forecast_s=options.forecast)
    # CPU time goes as fast as the clock there, and so a forecast has as much as on a lab with the usual clock
    daemon = daemon_settings(options.speed) | {"forecast_s": options.forecast * options.speed}
    return LabSpec(
        nodes=options.nodes, base_port=options.port, users=4, settings={"daemon": daemon}, speed=options.speed
    )


def replay(options: argparse.Namespace) -> dict[str, Any]:
    spec = lab_spec(options)
    trace = workload(options, sum(node.gpus for node in spec.node_list))
    console = Console(stderr=True)
    progress = Progress(console=console, disable=not console.is_terminal)
    with big_lab(spec) as lab, progress, asrptd(lab, MODE, DEFAULT_POLICY):
        judged, trained = play(lab, trace, options.jobs, options.bound, progress)
        with History(load_settings(lab.settings_path).paths.state / FILE_NAME) as history:
            every = recorded(lab, history)
    if options.runs:
        options.runs.write_text("".join(json.dumps(asdict(run)) + "\n" for run in every))
    runs = [run for run in every if run.job_id.partition("_")[0] in judged]
    last = max(run.submit_time for run in every)
    return {
        "seed": options.seed,
        "load": options.load,
        "swing": options.swing,
        "speed": options.speed,
        "judged": len(judged),
        "ended": len(runs),
        "cold": figures([run for run in runs if run.submit_time < trained]),
        "trained": figures([run for run in runs if run.submit_time >= trained]),
        "all": figures(runs),
        "single": figures([run for run in runs if "_" not in run.job_id]),
        "coming": figures([run for run in every if run.forecast_made <= last - COMING_S / options.compress]),
        "every": figures(every),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=150)
    parser.add_argument("--more", type=float, default=6.0, help="limit of further jobs, as a multiple of --jobs")
    parser.add_argument("--nodes", default="4x4")
    parser.add_argument("--load", type=float, default=1.0, help="GPU-seconds that arrive over those available")
    parser.add_argument("--swing", type=float, default=0.0, help="depth of the daily variation of the load, 0 to 1")
    parser.add_argument("--arrays", type=int, default=0, help="tasks of every eighth job; 0: no arrays")
    parser.add_argument("--bound", type=int, default=0, help="limit of running tasks per array; 0: no limit")
    parser.add_argument("--compress", type=float, default=300.0, help="divide runtimes by this factor")
    parser.add_argument("--speed", type=float, default=1.0, help="of the clocks of the lab and of asrptd")
    parser.add_argument("--forecast", type=float, default=4.0, help="daemon.forecast_s, in seconds of the machine")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--port", type=int, default=23000, help="first port of the lab")
    parser.add_argument("--runs", type=Path, help="write the history's runs here, one JSON object per line")
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    options = parser.parse_args()
    print(json.dumps(replay(options), indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
