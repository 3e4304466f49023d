"""Replay two hours of the Philly trace on 250 nodes, backfill against asrptd: python -m benchmarks.replay --json

The two hours are those with the most GPU-seconds of jobs on several GPUs (a job on one GPU has no placement), of
``--trace`` or of the shipped sample. Time is compressed ``--compress`` times. Each job runs ``asrpt-lab train`` with a
model of Table I of its size, for the iterations that take its runtime in the best placement. Longer runtimes are cut to
two hours, so that a round ends. As it is, the trace does not fill 2,000 GPUs: ``--load`` stretches the runtimes until
the work of the two hours is this share of the capacity. ``--hours 24 --least-gpus 16`` selects the large jobs of a day:
few jobs with many GPUs each, for a machine that cannot start many jobs. A load that comes only from long runtimes does
not create a queue: ``--sum-up`` shows the selection without a lab, including ``most_gpus_at_once``.

Round one is Slurm's backfill, with asrptd in mode shadow to learn. Then the predictor is trained, and the same jobs run
again in mode enforce. For both rounds: completed jobs, average completion time and makespan in seconds of the lab
(multiply by ``compress`` for the trace), ``gpu_utilisation``: GPU-seconds that jobs held over GPUs x makespan, and
``useful_utilisation``: the same with the GPU-seconds in the best placements. ``ratio``: average completion time under
asrptd over that under backfill. Needs root.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks.busylab import big_lab, replay_spec
from benchmarks.training_rounds import TrainingJob, measure, play, submit
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.placement.best_alpha import best_alpha
from slurm_asrpt.errors import InputError
from slurm_asrpt.lab.asrptd import asrptd
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.profile.schema import library_names, load_profile
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.traces import Trace, read_trace
from slurm_asrpt.traces.samples import PHILLY

HOURS = 2.0
INTRA = 300e9
SHORTEST_S = 1.0
"""Minimum runtime in the lab; Slurm takes as long to start and end a job."""


class Submitted(NamedTuple):
    """A job of the trace. vc: the virtual cluster (tenant) that it was submitted to, hexadecimal; "": unknown."""

    submit_s: float
    gpus: int
    run_s: float
    vc: str

    @property
    def work(self) -> float:
        """GPU-seconds."""
        return self.gpus * self.run_s

    def at_most(self, span_s: float) -> Submitted:
        return self._replace(run_s=min(span_s, self.run_s))


def submitted(trace: Trace, least_gpus: int = 1, fold_s: float = math.inf) -> list[Submitted]:
    """The jobs on ``least_gpus`` or more, of sizes that a model has, by submission modulo ``fold_s``.

    Raises InputError if there is none.
    """
    sizes = {load_profile(name, []).gpus for name in library_names()}
    columns = (trace.jobs[name].tolist() for name in ("submit_s", "gpus", "duration_s", "queue"))
    rows = (row for row in zip(*columns, strict=True) if row[1] >= least_gpus and row[1] in sizes)
    jobs = [Submitted(at % fold_s, gpus, run, vc) for at, gpus, run, vc in rows]
    if not jobs:
        raise InputError(f"the trace has no job on {least_gpus} GPUs or more")
    return sorted(jobs, key=lambda job: job.submit_s)


def busiest(jobs: Sequence[Submitted], span_s: float = HOURS * 3600) -> list[Submitted]:
    """The hours with the most GPU-seconds on several GPUs, starting at any job; runtimes are cut to these hours."""
    clipped = [job.at_most(span_s) for job in jobs]
    submit = np.array([job.submit_s for job in clipped])
    work = np.concatenate([[0.0], np.cumsum([job.work if job.gpus > 1 else 0.0 for job in clipped])])
    ends = np.searchsorted(submit, submit + span_s)
    first = int(np.argmax(work[ends] - work[np.arange(len(clipped))]))
    return clipped[first : ends[first]]


def carried_in(jobs: Sequence[Submitted], begin_s: float, span_s: float, fold_s: float = math.inf) -> list[Submitted]:
    """The jobs that would run at this time if no job waited, oldest first, with their remaining runtimes."""
    elapsed = [((begin_s - job.submit_s) % fold_s, job) for job in jobs]
    running = sorted((pair for pair in elapsed if 0 < pair[0] < pair[1].run_s), key=lambda pair: -pair[0])
    return [job._replace(submit_s=begin_s, run_s=job.run_s - since).at_most(span_s) for since, job in running]


def most_at_once(window: Sequence[Submitted]) -> int:
    """GPUs in use if each job ran from its submission on; if the cluster has that many, no job waits."""
    changes = sorted([(j.submit_s + j.run_s, -j.gpus) for j in window] + [(j.submit_s, j.gpus) for j in window])
    return int(max(itertools.accumulate(gpus for _, gpus in changes)))


def as_lab_jobs(window: Sequence[Submitted], spec: LabSpec, fabric: Fabric, compress: float) -> list[TrainingJob]:
    """Jobs for the lab: same tenant, size and order of magnitude of runtime give the same model, so jobs recur."""
    nodes = [Node(node.name, node.gpus, number) for number, node in enumerate(spec.node_list)]
    profiles = {name: load_profile(name, []) for name in library_names()}
    best = {name: best_alpha(Job(JobId("0"), "", p.gpus, p), nodes, fabric) for name, p in profiles.items()}
    made = []
    for number, job in enumerate(window):
        fitting = [name for name, profile in profiles.items() if profile.gpus == job.gpus]
        name = random.Random(f"{job.vc} {job.gpus} {round(math.log2(job.run_s + 1))}").choice(fitting)
        iterations = max(1, round(max(SHORTEST_S, job.run_s / compress) / best[name]))
        user = spec.user_names[int(job.vc or "0", 16) % len(spec.user_names)]
        submit_s = (job.submit_s - window[0].submit_s) / compress
        made.append(
            TrainingJob(f"{name}-{number}", user, job.gpus, name, iterations, submit_s, iterations * best[name])
        )
    return made


class Round(NamedTuple):
    """Slurm's records by job name. began: the time from which submissions count."""

    began: float
    records: Mapping[str, JobRecord]

    def as_due(self, jobs: Sequence[TrainingJob]) -> dict[str, JobRecord]:
        """The records as if each job had been submitted when it was due.

        sbatch is slow while jobs start, which would favor a scheduler that starts jobs at once.
        """
        due = {job.name: self.began + job.submit_s for job in jobs}
        return {name: replace(record, submit_time=due[name]) for name, record in self.records.items()}


def figures(jobs: Sequence[TrainingJob], played: Round, gpus: int, learned: bool) -> dict[str, object]:
    records = played.as_due(jobs)
    found = measure(jobs, records, predicted=learned)
    done = [(job, r) for job in jobs if (r := records.get(job.name)) is not None and r.state == "COMPLETED"]
    capacity = gpus * found.makespan_s
    held = sum(job.gpus * (record.end_time - record.start_time) for job, record in done)
    useful = sum(job.gpus * job.ideal_s for job, _ in done)
    late = [max(0.0, played.records[job.name].submit_time - record.submit_time) for job, record in done]
    return {
        **{name: round(value, 3) for name, value in asdict(found).items() if value is not None},
        "avg_wait_s": round(fmean(record.start_time - record.submit_time for _, record in done), 3),
        "avg_sbatch_late_s": round(fmean(late), 3),
        "gpu_utilisation": round(held / capacity, 4),
        "useful_utilisation": round(useful / capacity, 4),
    }


def play_round(lab: Lab, jobs: Sequence[TrainingJob], progress: Progress, title: str, longest_s: float) -> Round:
    """Jobs due at the start are submitted on hold and released together, so that the queue exists from the start."""
    held = {submit(lab, job, "--hold"): job.name for job in jobs if not job.submit_s}
    began = time.time()
    lab.run(["scontrol", "release", ",".join(held)])
    return Round(began, play(lab, jobs, progress, title, longest_s, held))


def rounds(lab: Lab, jobs: Sequence[TrainingJob], longest_s: float) -> tuple[Round, Round]:
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        with asrptd(lab, "shadow", DEFAULT_POLICY):
            backfill = play_round(lab, jobs, progress, "backfill", longest_s)
        lab.run([str(Path(sys.executable).parent / "asrpt-admin"), "retrain"], timeout_s=600.0)
        with asrptd(lab, "enforce", DEFAULT_POLICY):
            return backfill, play_round(lab, jobs, progress, DEFAULT_POLICY, longest_s)


class Plan(NamedTuple):
    """The selected jobs, with stretched runtimes."""

    spec: LabSpec
    fabric: Fabric
    window: list[Submitted]
    jobs: list[TrainingJob]
    sum_up: dict[str, object]


def plan(options: argparse.Namespace) -> Plan:
    """Raises InputError if the trace has no such job."""
    fabric = Fabric(options.gbit * 1e9 / 8, INTRA)
    spec = replay_spec(options.nodes, options.port)
    bandwidths = {"inter_bytes_per_s": fabric.inter, "intra_bytes_per_s": fabric.intra}
    spec = replace(spec, settings={**spec.settings, "fabric": bandwidths})
    span_s, fold_s = options.hours * 3600, options.fold * 3600 or math.inf
    all_jobs = submitted(read_trace(options.trace), options.least_gpus, fold_s)
    window = busiest(all_jobs, span_s)
    carried = carried_in(all_jobs, window[0].submit_s, span_s, fold_s) if options.carry_in else []
    window = [*carried, *window]
    gpus = sum(node.gpus for node in spec.node_list)
    load = sum(job.work for job in window) / (gpus * span_s)
    stretch = options.load / load if options.load else 1.0
    window = [job._replace(run_s=job.run_s * stretch) for job in window]
    jobs = as_lab_jobs(window, spec, fabric, options.compress)
    sum_up: dict[str, object] = {
        "trace": options.trace.name,
        "jobs": len(window),
        "carried_in": len(carried),
        "gpus": gpus,
        "gpus_asked": sum(job.gpus for job in window),
        "most_gpus_at_once": most_at_once(window),
        "gpu_seconds": round(sum(job.work for job in window)),
        "lab_gpu_seconds": round(sum(job.gpus * job.ideal_s for job in jobs)),
        "nodes": options.nodes,
        "hours": options.hours,
        "fold": options.fold,
        "least_gpus": options.least_gpus,
        "compress": options.compress,
        "gbit": options.gbit,
        "load": round(load * stretch, 3),
    }
    return Plan(spec, fabric, window, jobs, sum_up)


def replay(planned: Plan, options: argparse.Namespace) -> dict[str, object]:
    jobs = planned.jobs
    longest_s = 2 * options.hours * 3600 / options.compress + 4 * max(job.ideal_s for job in jobs) + 120.0
    began, cpu = time.monotonic(), time.process_time()
    with big_lab(planned.spec) as lab:
        backfill, enforce = rounds(lab, jobs, longest_s)
    gpus = sum(node.gpus for node in planned.spec.node_list)
    without, with_us = figures(jobs, backfill, gpus, learned=False), figures(jobs, enforce, gpus, learned=True)
    return {
        **planned.sum_up,
        "backfill": without,
        "enforce": with_us,
        "ratio": round(float(str(with_us["avg_jct_s"])) / float(str(without["avg_jct_s"])), 3),
        "elapsed_s": round(time.monotonic() - began, 1),
        "own_cpu_s": round(time.process_time() - cpu, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


def add_selection(parser: argparse.ArgumentParser, nodes: str) -> None:
    """Add the options that select the jobs; nodes: the default."""
    parser.add_argument("--trace", type=Path, default=PHILLY, help="job list to replay; default: the shipped sample")
    parser.add_argument("--nodes", default=nodes)
    parser.add_argument("--gbit", type=float, default=10.0, help="Gbit/s between servers")
    parser.add_argument("--compress", type=float, default=60.0)
    parser.add_argument("--hours", type=float, default=HOURS, help="hours of the trace, and limit of runtimes")
    parser.add_argument("--least-gpus", type=int, default=1, help="leave out jobs with fewer GPUs")
    parser.add_argument("--fold", type=float, default=0.0, help="overlay parts of this many hours; 0: no overlay")
    parser.add_argument("--carry-in", action="store_true", help="start with the jobs that would be running")
    parser.add_argument("--load", type=float, default=0.0, help="stretch runtimes to this load; 0: as in the trace")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    add_selection(parser, "250x8")
    parser.add_argument("--sum-up", action="store_true", help="only print the selection of jobs")
    parser.add_argument("--port", type=int, default=28300, help="first port of the lab, which uses up to 260 more")
    options = parser.parse_args(arguments)
    if not options.trace.is_file():
        print(
            f"replay: skipped, {options.trace} does not exist; without --trace, the shipped sample is used",
            file=sys.stderr,
        )
        return 0
    try:
        planned = plan(options)
    except InputError as error:
        print(f"replay: {error}", file=sys.stderr)
        return error.exit_code
    found = planned.sum_up if options.sum_up else replay(planned, options)
    print(json.dumps(found, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
