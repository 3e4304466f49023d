"""Rounds of training jobs on a lab in the machine's time: submit them when they are due, wait, and measure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rich.progress import Progress

from slurm_asrpt.errors import MachineError
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.slurm.parse import parse_jobs
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, JobRecord

# Time limits guide backfill, but do not end jobs: jobs in bad placements would otherwise be killed.
SLURM_CONF = "OverTimeLimit=UNLIMITED"
DONE = "COMPLETED"


@dataclass(frozen=True)
class TrainingJob:
    """submit_s: seconds after the round's start. ideal_s: runtime in the best placement, iterations x alpha_min."""

    name: str
    user: str
    gpus: int
    profile: str
    iterations: int
    submit_s: float
    ideal_s: float


@dataclass(frozen=True)
class Round:
    """Results of one round. Times in seconds; lost_gpu_hours: runtime beyond that of the best placement.

    prediction_error: mean of |predicted - actual| / actual iterations; None for the first round.
    """

    completed: int
    avg_jct_s: float
    total_jct_s: float
    makespan_s: float
    lost_gpu_hours: float
    prediction_error: float | None


def measure(jobs: Sequence[TrainingJob], records: Mapping[str, JobRecord], predicted: bool) -> Round:
    """Results of a round, over its completed jobs. records: by job name. Raises MachineError if no job completed."""
    done = [(job, records[job.name]) for job in jobs if job.name in records and records[job.name].state == DONE]
    if not done:
        raise MachineError("no job completed; look into the lab's logs")
    times = [record.end_time - record.submit_time for _, record in done]
    lost = [job.gpus * max(0.0, r.end_time - r.start_time - job.ideal_s) for job, r in done]
    errors = [abs(_prediction(job, record) - job.iterations) / job.iterations for job, record in done]
    return Round(
        completed=len(done),
        avg_jct_s=sum(times) / len(times),
        total_jct_s=sum(times),
        makespan_s=max(r.end_time for _, r in done) - min(r.submit_time for _, r in done),
        lost_gpu_hours=sum(lost) / 3600,
        prediction_error=sum(errors) / len(errors) if predicted else None,
    )


def _prediction(job: TrainingJob, record: JobRecord) -> int:
    tag = parse_tag(record.admin_comment)
    return tag.in_iterations(job.ideal_s / job.iterations).iterations if tag else 0


def submit(lab: Lab, job: TrainingJob, *options: str) -> str:
    """Run sbatch with tasks, GPUs and a time limit. The script does not contain the iterations, so that it recurs."""
    script = f"#!/bin/sh\nexec {lab.train} --profile {job.profile} --iterations $ITERATIONS\n"
    minutes = max(1, -(-int(2 * job.ideal_s) // 60))
    command = ["sbatch", "--parsable", f"--job-name={job.name}", f"--ntasks={job.gpus}", "--cpus-per-task=1"]
    command += [
        "--gpus-per-task=1",
        f"--time={minutes}",
        "--output=/dev/null",
        f"--comment=asrpt:profile={job.profile}",
    ]
    variables = {"ITERATIONS": str(job.iterations)}  # not by --export: Slurm 26.05 would then need a login shell
    return lab.run([*command, *options], user=job.user, input=script, env=variables).stdout.strip()


def play(
    lab: Lab,
    jobs: Sequence[TrainingJob],
    progress: Progress,
    title: str,
    longest_s: float,
    submitted: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, JobRecord]:
    """Submit the jobs at their times and wait until all have ended. Returns Slurm's last records by job name.

    submitted: names by id of jobs that are already submitted. Jobs that have not ended after ``longest_s`` seconds are
    cancelled, so that they do not run into the next round.
    """
    task = progress.add_task(title, total=len(jobs))
    start = time.monotonic()
    names = dict(submitted)
    records: dict[str, JobRecord] = {}  # Slurm forgets ended jobs after a few minutes
    there = set(names.values())
    waiting = [job for job in jobs if job.name not in there]
    while time.monotonic() - start < longest_s:
        while waiting and waiting[0].submit_s <= time.monotonic() - start:
            job = waiting.pop(0)
            names[submit(lab, job)] = job.name
        now = parse_jobs(lab.run(["squeue", "--json", "--states=all"]).stdout)
        records.update({names[r.job_id]: r for r in now if r.job_id in names})
        ended = sum(not _active(record) for record in records.values())
        progress.update(task, completed=ended)
        if ended == len(jobs):
            return records
        time.sleep(0.3)
    lab.cancel_jobs()
    return records


def _active(record: JobRecord) -> bool:
    return record.state == PENDING or record.state in RUNNING_STATES or not record.end_time
