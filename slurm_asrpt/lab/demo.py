"""make demo: the same jobs on a real Slurm twice, once under its own backfill, once under asrptd.

Round one is Slurm as it comes, with asrptd in mode shadow to learn from it; then the predictor is trained; round two
is asrptd in mode enforce. Nothing else differs: same cluster, same slurm.conf, same submissions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from slurm_asrpt.config import load_settings
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.errors import EXIT_INTERRUPTED, AsrptError, MachineError, one_line
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.lab.workload import DemoJob, Shape, make_workload
from slurm_asrpt.sim.trace import PHILLY_SAMPLE, read_philly
from slurm_asrpt.slurm.parse import parse_jobs
from slurm_asrpt.slurm.records import JobRecord
from slurm_asrpt.slurm.tag import parse_tag

BASE_PORT = 16900
NODES = "8x8"
USERS = 4
FABRIC = Fabric(inter=12.5e9, intra=300e9)
"""100 Gbit/s between servers, NVLink inside: a common cluster of today, and kind to scattered jobs."""
LONGEST_ROUND_S = 600.0
# Time limits guide backfill but kill nobody: a job that Slurm scattered would otherwise be lost, not late.
SLURM_CONF = "OverTimeLimit=UNLIMITED"

console = Console(stderr=True)


@dataclass(frozen=True)
class Round:
    """One way of scheduling the jobs. Times in seconds; lost_gpu_hours: beyond the best placement's run time."""

    completed: int
    avg_jct_s: float
    total_jct_s: float
    makespan_s: float
    lost_gpu_hours: float
    prediction_error: float | None


def submit(lab: Lab, job: DemoJob) -> str:
    """sbatch as a user types it: tasks, GPUs, a time limit. The iterations are not in the script, so it recurs."""
    script = f"#!/bin/sh\nexec {lab.train} --profile {job.profile} --iterations $DEMO_ITERATIONS\n"
    minutes = max(1, -(-int(2 * job.ideal_s) // 60))
    command = ["sbatch", "--parsable", f"--job-name={job.name}", f"--ntasks={job.gpus}", "--cpus-per-task=1"]
    command += [
        "--gpus-per-task=1",
        f"--time={minutes}",
        "--output=/dev/null",
        f"--comment=asrpt:profile={job.profile}",
    ]
    command += [f"--export=ALL,DEMO_ITERATIONS={job.iterations}"]
    return lab.run(command, user=job.user, input=script).stdout.strip()


@contextmanager
def asrptd(lab: Lab, mode: str) -> Iterator[None]:
    """The daemon beside the lab; ended by SIGTERM."""
    command = [str(Path(sys.executable).parent / "asrptd"), "--mode", mode]
    with (lab.directory / "log" / f"asrptd-{mode}.log").open("ab") as log:
        daemon = subprocess.Popen(command, env=lab.env, stdout=log, stderr=log)
    try:
        time.sleep(2.0)
        if daemon.poll() is not None:
            raise MachineError(f"asrptd ended at once; see {log.name}")
        yield
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)


def play(lab: Lab, jobs: Sequence[DemoJob], progress: Progress, title: str) -> dict[str, JobRecord]:
    """Submit the jobs at their times and wait until all have ended; Slurm's records of them by name."""
    task = progress.add_task(title, total=len(jobs))
    start = time.monotonic()
    numbers: dict[str, str] = {}
    waiting = list(jobs)
    while time.monotonic() - start < LONGEST_ROUND_S:
        while waiting and waiting[0].submit_s <= time.monotonic() - start:
            job = waiting.pop(0)
            numbers[submit(lab, job)] = job.name
        records = {r.job_id: r for r in parse_jobs(lab.run(["squeue", "--json", "--states=all"]).stdout)}
        ended = [r for r in records.values() if r.job_id in numbers and r.end_time and not _going(r)]
        progress.update(task, completed=len(ended))
        if len(ended) == len(jobs):
            break
        time.sleep(0.3)
    return {numbers[job_id]: record for job_id, record in records.items() if job_id in numbers}


def _going(record: JobRecord) -> bool:
    return record.state in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED")


def measure(jobs: Sequence[DemoJob], records: Mapping[str, JobRecord], predicted: bool) -> Round:
    """Figures of a round over the jobs that completed."""
    done = [(job, records[job.name]) for job in jobs if records[job.name].state == "COMPLETED"]
    if not done:
        raise MachineError("no job completed; see the logs in the lab's directory")
    times = [record.end_time - record.submit_time for _, record in done]
    lost = [job.gpus * max(0.0, r.end_time - r.start_time - job.ideal_s) for job, r in done]
    errors = [abs(_prediction(record) - job.iterations) / job.iterations for job, record in done]
    return Round(
        completed=len(done),
        avg_jct_s=sum(times) / len(times),
        total_jct_s=sum(times),
        makespan_s=max(r.end_time for _, r in done) - min(r.submit_time for _, r in done),
        lost_gpu_hours=sum(lost) / 3600,
        prediction_error=sum(errors) / len(errors) if predicted else None,
    )


def _prediction(record: JobRecord) -> int:
    tag = parse_tag(record.admin_comment)
    return tag.iterations if tag else 0


def show(backfill: Round, asrpt: Round) -> None:
    table = Table(title="Same jobs, same Slurm, two schedulers")
    for title in ("", "Slurm backfill", "asrptd", "ratio"):
        table.add_column(title, justify="left" if not title else "right")
    rows: dict[str, tuple[float, float, str]] = {
        "jobs completed": (backfill.completed, asrpt.completed, "d"),
        "average completion time, s": (backfill.avg_jct_s, asrpt.avg_jct_s, ".1f"),
        "total completion time, s": (backfill.total_jct_s, asrpt.total_jct_s, ".0f"),
        "makespan, s": (backfill.makespan_s, asrpt.makespan_s, ".0f"),
        "GPU hours beyond the best placement": (backfill.lost_gpu_hours, asrpt.lost_gpu_hours, ".3f"),
    }
    for title, (before, after, form) in rows.items():
        table.add_row(title, format(before, form), format(after, form), f"{after / before:.2f}" if before else "-")
    error = asrpt.prediction_error
    table.add_row("mean prediction error", "-", "-" if error is None else f"{error:.1%}", "-")
    Console().print(table)


def run(lab: Lab, shape: Shape) -> dict[str, Any]:
    """Both rounds; the figures as they go into demo.json."""
    settings = load_settings(lab.settings_path)
    fabric = Fabric(settings.fabric.inter_bytes_per_s, settings.fabric.intra_bytes_per_s)
    nodes = [Node(n.name, n.gpus, i) for i, n in enumerate(lab.spec.node_list)]
    jobs = make_workload(read_philly(PHILLY_SAMPLE), nodes, fabric, lab.spec.user_names, shape)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        with asrptd(lab, "shadow"):
            first = play(lab, jobs, progress, "Slurm's backfill")
        admin = str(Path(sys.executable).parent / "asrpt-admin")
        lab.run([admin, "retrain"], timeout_s=120)
        with asrptd(lab, "enforce"):
            second = play(lab, jobs, progress, "asrptd         ")
    backfill, asrpt = measure(jobs, first, predicted=False), measure(jobs, second, predicted=True)
    show(backfill, asrpt)
    return {
        "jobs": len(jobs),
        "completed_backfill": backfill.completed,
        "completed_asrpt": asrpt.completed,
        "avg_jct_backfill_s": backfill.avg_jct_s,
        "avg_jct_asrpt_s": asrpt.avg_jct_s,
        "ratio": asrpt.avg_jct_s / backfill.avg_jct_s,
        "shape": asdict(shape),
        "backfill": asdict(backfill),
        "asrpt": asdict(asrpt),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=Shape.jobs, help="how many jobs (default %(default)s)")
    parser.add_argument("--seed", type=int, default=Shape.seed, help="which models the groups get")
    parser.add_argument("--load", type=float, default=Shape.load, help="work over capacity while jobs arrive")
    parser.add_argument("--span", type=float, default=Shape.span_s, help="seconds over which jobs arrive")
    parser.add_argument("--output", type=Path, default=Path("build/demo.json"), help="where the figures go")
    parser.add_argument("--keep", action="store_true", help="leave the lab's files (logs, audit trail) behind")
    options = parser.parse_args()
    shape = Shape(options.jobs, options.span, options.load, options.seed)
    try:
        figures = _with_lab(shape, options.keep)
    except AsrptError as error:
        print(f"demo: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("demo: interrupted; the cluster has been taken down", file=sys.stderr)
        return EXIT_INTERRUPTED
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    print(f"average completion time, asrptd over backfill: {figures['ratio']:.2f}; figures in {options.output}")
    return 0


def _with_lab(shape: Shape, keep: bool) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="asrpt-demo-"))
    directory.chmod(0o755)
    directory.rmdir()
    settings = {
        "daemon": {"interval_s": 0.5, "lease_s": 60},
        "fabric": {"inter_bytes_per_s": FABRIC.inter, "intra_bytes_per_s": FABRIC.intra},
    }
    spec = LabSpec(directory, NODES, BASE_PORT, USERS, slurm_conf_extra=SLURM_CONF, settings=settings)
    with console.status(f"bringing up a Slurm cluster of {NODES} GPUs in {directory}"):
        lab = up(spec)
    try:
        return run(lab, shape)
    finally:
        lab.down(purge=not keep)


if __name__ == "__main__":
    sys.exit(main())
