"""make demo: run the same jobs on a real Slurm under its own backfill, under asrpt, and under the default policy.

Round one is plain Slurm, with asrptd in mode shadow, which records the runs. Then the predictor is trained, once. In
the other two rounds asrptd is in mode enforce, first with the paper's policy. Nothing else differs: same cluster, same
slurm.conf, same submissions.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from slurm_asrpt import __version__
from slurm_asrpt.config.settings import DEFAULT_POLICY, PolicySettings, load_settings, parse_settings
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.policies import policy_names
from slurm_asrpt.errors import EXIT_INTERRUPTED, AsrptError, InputError, MachineError, one_line
from slurm_asrpt.files import replace_file
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.lab.cluster import Lab, tail, up
from slurm_asrpt.lab.processes import interrupts_deferred
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.lab.train import Parser
from slurm_asrpt.lab.workload import LONGEST_S, DemoJob, Shape, make_workload
from slurm_asrpt.slurm.parse import parse_config, parse_jobs
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, JobRecord
from slurm_asrpt.traces import read_trace
from slurm_asrpt.traces.samples import PHILLY

BASE_PORT = 16900
NODES = "8x8"
USERS = 4
OUTPUT = Path("build/demo.json")
PAPER = "asrpt"
"""The policy of round two: A-SRPT as published."""
ROUNDS = 3
FABRIC = Fabric(inter=12.5e9, intra=300e9)
"""100 Gbit/s between servers and NVLink inside, as is common today; scattered jobs lose little."""
LONGEST_ROUND_S = 600.0
UP_AND_DOWN_S = 25.0
# Time limits guide backfill, but do not end jobs: jobs in bad placements would otherwise be killed.
SLURM_CONF = "OverTimeLimit=UNLIMITED"
RECORDED_SETTINGS = (
    "SLURM_VERSION",
    "SchedulerType",
    "SchedulerParameters",
    "SelectType",
    "SelectTypeParameters",
    "PriorityType",
)
"""Slurm's settings that demo.json records."""

console = Console(stderr=True)

DONE = "COMPLETED"


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


def measure(jobs: Sequence[DemoJob], records: Mapping[str, JobRecord], predicted: bool) -> Round:
    """Results of a round, over its completed jobs. records: by job name. Raises MachineError if no job completed."""
    done = [(job, records[job.name]) for job in jobs if job.name in records and records[job.name].state == DONE]
    if not done:
        raise MachineError("no job completed; run the demo with --keep and look into the logs")
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


def _prediction(job: DemoJob, record: JobRecord) -> int:
    tag = parse_tag(record.admin_comment)
    return tag.in_iterations(job.ideal_s / job.iterations).iterations if tag else 0


def table(rounds: Mapping[str, Round]) -> Table:
    """The rounds side by side, with ratios to the first one. Readable from 40 columns."""
    first = next(iter(rounds.values()))
    shown = Table(title="Same jobs, same Slurm", caption="in parentheses: ratio to the first column")
    shown.add_column("", overflow="fold")
    for name in rounds:
        shown.add_column(name, justify="right", overflow="fold")
    rows: dict[str, tuple[str, str]] = {
        "jobs completed": ("completed", "d"),
        "average completion time, s": ("avg_jct_s", ".1f"),
        "total completion time, s": ("total_jct_s", ".0f"),
        "makespan, s": ("makespan_s", ".0f"),
        "GPU hours lost to placement": ("lost_gpu_hours", ".3f"),
    }
    for title, (field, form) in rows.items():
        shown.add_row(title, *(_cell(found, first, field, form) for found in rounds.values()))
    errors = [found.prediction_error for found in rounds.values()]
    shown.add_row("mean prediction error", *("-" if error is None else f"{error:.1%}" for error in errors))
    return shown


def _cell(found: Round, first: Round, field: str, form: str) -> str:
    value, before = getattr(found, field), getattr(first, field)
    over = f" ({value / before:.2f})" if before and form != "d" and found is not first else ""
    return format(value, form) + over


def ratio(backfill: Round, other: Round) -> float:
    """Average completion time of a round over that of backfill; below 1, backfill is slower."""
    return other.avg_jct_s / backfill.avg_jct_s


def summary(backfill: Round, other: Round, name: str) -> str:
    """The ratio as a sentence. The completion time of a job is the time from submission to end, waiting included."""
    change = ratio(backfill, other) - 1
    if abs(change) < 0.005:
        verdict = "the same as under backfill"
    else:
        verdict = f"{abs(change):.0%} {'shorter' if change < 0 else 'longer'} than under backfill"
    return f"{name}: the average completion time is {verdict} (ratio {1 + change:.2f}; below 1 is better)"


@dataclass(frozen=True)
class Demo:
    """The command line. tau: policy.tau, for policies that have it. default_policy: the policy of round three.

    keep: keep the lab's files.
    """

    shape: Shape
    output: Path
    base_port: int
    keep: bool
    tau: float = PolicySettings().tau
    default_policy: str = DEFAULT_POLICY

    @property
    def default_title(self) -> str:
        return self.default_policy if self.default_policy != PAPER else f"{PAPER} again"


def submit(lab: Lab, job: DemoJob, *options: str) -> str:
    """Run sbatch with tasks, GPUs and a time limit. The script does not contain the iterations, so that it recurs."""
    script = f"#!/bin/sh\nexec {lab.train} --profile {job.profile} --iterations $DEMO_ITERATIONS\n"
    minutes = max(1, -(-int(2 * job.ideal_s) // 60))
    command = ["sbatch", "--parsable", f"--job-name={job.name}", f"--ntasks={job.gpus}", "--cpus-per-task=1"]
    command += [
        "--gpus-per-task=1",
        f"--time={minutes}",
        "--output=/dev/null",
        f"--comment=asrpt:profile={job.profile}",
    ]
    variables = {"DEMO_ITERATIONS": str(job.iterations)}  # not by --export: Slurm 26.05 would then need a login shell
    return lab.run([*command, *options], user=job.user, input=script, env=variables).stdout.strip()


@contextmanager
def asrptd(lab: Lab, mode: str, policy: str = PAPER, log_level: str = "info") -> Iterator[int]:
    """Run asrptd on the lab; yields its pid. Ended by SIGTERM, after 30 s by SIGKILL.

    Raises MachineError.
    """
    program = str(Path(sys.executable).parent / "asrptd")
    command = [program, "--mode", mode, "--policy", policy, "--log-level", log_level]
    path = lab.directory / "log" / (f"asrptd-{mode}.log" if mode == "shadow" else f"asrptd-{mode}-{policy}.log")
    with path.open("ab") as log:
        # a session of its own: on Ctrl-C, this process ends the daemon in order
        daemon = subprocess.Popen(command, env=lab.env, stdout=log, stderr=log, start_new_session=True)
    try:
        time.sleep(2.0)
        if daemon.poll() is not None:
            raise MachineError(f"asrptd exited immediately: {tail(path)}")
        yield daemon.pid
    finally:
        with interrupts_deferred():
            _end(daemon)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(timeout=30)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def play(
    lab: Lab,
    jobs: Sequence[DemoJob],
    progress: Progress,
    title: str,
    longest_s: float = LONGEST_ROUND_S,
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


def run(lab: Lab, demo: Demo, jobs: Sequence[DemoJob]) -> dict[str, Any]:
    """Run all rounds. Returns the contents of demo.json."""
    backfill, asrpt, default = _rounds(lab, demo, jobs)
    shown = {"backfill": backfill, PAPER: asrpt, demo.default_title: default}
    Console().print(table(shown))
    for name, found in list(shown.items())[1:]:
        print(summary(backfill, found, name))
    for name, found in shown.items():
        if found.completed < len(jobs):
            lost = len(jobs) - found.completed
            print(
                f"demo: {lost} of {len(jobs)} jobs did not complete under {name} and are not counted", file=sys.stderr
            )
    return {
        "jobs": len(jobs),
        "completed_backfill": backfill.completed,
        "completed_asrpt": asrpt.completed,
        "completed_default": default.completed,
        "avg_jct_backfill_s": backfill.avg_jct_s,
        "avg_jct_asrpt_s": asrpt.avg_jct_s,
        "avg_jct_default_s": default.avg_jct_s,
        "ratio": ratio(backfill, asrpt),
        "ratio_default": ratio(backfill, default),
        "policy_default": demo.default_policy,
        "backfill": asdict(backfill),
        "asrpt": asdict(asrpt),
        "default": asdict(default),
        "made": _provenance(lab, demo.shape, jobs),
    }


def _rounds(lab: Lab, demo: Demo, jobs: Sequence[DemoJob]) -> tuple[Round, Round, Round]:
    """Run backfill, the paper's policy and the default policy; the last two with the same predictions."""
    titles = [f"{title:<14}" for title in ("Slurm backfill", PAPER, demo.default_title)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        with asrptd(lab, "shadow"):
            first = play(lab, jobs, progress, f"1/{ROUNDS} {titles[0]}")
        admin = str(Path(sys.executable).parent / "asrpt-admin")
        lab.run([admin, "retrain"], timeout_s=120)
        with asrptd(lab, "enforce", PAPER):
            second = play(lab, jobs, progress, f"2/{ROUNDS} {titles[1]}")
        with asrptd(lab, "enforce", demo.default_policy):
            third = play(lab, jobs, progress, f"3/{ROUNDS} {titles[2]}")
    return (
        measure(jobs, first, predicted=False),
        measure(jobs, second, predicted=True),
        measure(jobs, third, predicted=True),
    )


def _provenance(lab: Lab, shape: Shape, jobs: Sequence[DemoJob]) -> dict[str, Any]:
    """What is needed to reproduce the results."""
    settings = load_settings(lab.settings_path)
    slurm = parse_config(lab.run(["scontrol", "show", "config"]).stdout)
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "slurm_asrpt": __version__,
        "trace": PHILLY.name,
        "shape": asdict(shape),
        "work_gpu_s": sum(job.gpus * job.ideal_s for job in jobs),
        "nodes": lab.spec.nodes,
        "fabric": settings.fabric.model_dump(),
        "policy": settings.policy.model_dump(),
        "daemon": settings.daemon.model_dump(mode="json", exclude={"mode"}),
        "slurm": {name: slurm.get(name, "") for name in RECORDED_SETTINGS} | {"slurm_conf_extra": SLURM_CONF},
    }


def parse_options(arguments: Sequence[str] | None) -> Demo:
    """Parse the command line. Raises InputError."""
    parser = Parser(prog="demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=Shape.jobs, help="number of jobs (default %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=Shape.seed, help="random seed for the choice of models (default %(default)s)"
    )
    parser.add_argument(
        "--load", type=float, default=Shape.load, help="requested work over capacity (default %(default)s)"
    )
    parser.add_argument(
        "--span", type=float, default=Shape.span_s, help="seconds in which jobs arrive (default %(default)s)"
    )
    parser.add_argument("--tau", type=float, default=PolicySettings().tau, help="policy.tau (default %(default)s)")
    names = ", ".join(policy_names())
    parser.add_argument(
        "--default-policy",
        default=DEFAULT_POLICY,
        metavar="NAME",
        help=f"policy of round three: {names} (default %(default)s)",
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="file for the results (default %(default)s)")
    parser.add_argument("--base-port", type=int, default=BASE_PORT, help="first port (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the cluster's files (logs, audit trail)")
    options = parser.parse_args(arguments)
    shape = Shape(options.jobs, options.span, options.load, options.seed)
    try:
        shape.check()
    except ValueError as error:
        raise InputError(str(error)) from None
    if options.span > LONGEST_ROUND_S / 2:
        raise InputError(
            f"--span {options.span:g}: must be at most {LONGEST_ROUND_S / 2:g} (a round ends after {LONGEST_ROUND_S:g})"
        )
    parse_settings({"policy": {"tau": options.tau}}, "--tau")
    if options.default_policy not in policy_names():
        raise InputError(f"--default-policy {options.default_policy}: unknown policy; valid: {names}")
    return Demo(shape, options.output, options.base_port, options.keep, options.tau, options.default_policy)


def _check_output(path: Path) -> None:
    """Raises InputError if the results cannot be written. Checked before the rounds."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise InputError(f"--output {path}: is a directory; specify a file")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".demo."):
            pass
    except OSError as error:
        raise InputError(f"--output {path}: cannot be written ({error.strerror}); specify another file") from None


def _spec(demo: Demo, directory: Path) -> LabSpec:
    settings: dict[str, dict[str, Any]] = {
        "daemon": {"interval_s": 0.5, "lease_s": 60},
        "fabric": {"inter_bytes_per_s": FABRIC.inter, "intra_bytes_per_s": FABRIC.intra},
        "policy": {"name": PAPER, "tau": demo.tau},
    }
    return LabSpec(directory, NODES, demo.base_port, USERS, slurm_conf_extra=SLURM_CONF, settings=settings)


def _jobs(shape: Shape, spec: LabSpec) -> list[DemoJob]:
    """Raises InputError if the trace has too few jobs."""
    nodes = [Node(node.name, node.gpus, number) for number, node in enumerate(spec.node_list)]
    try:
        return make_workload(read_trace(PHILLY), nodes, FABRIC, spec.user_names, shape)
    except ValueError as error:
        raise InputError(f"--jobs {shape.jobs}: {error}") from None


def plan(demo: Demo) -> str:
    """What the demo will do, and how long it takes."""
    shape = demo.shape
    work_off = max(0.0, shape.load - 1) * shape.span_s
    minutes = max(1, round((ROUNDS * (shape.span_s + work_off + LONGEST_S) + UP_AND_DOWN_S) / 60))
    return (
        f"{shape.jobs} jobs on a real Slurm with {NODES} GPUs on this machine, in {ROUNDS} rounds:\n"
        f"backfill, {PAPER}, {demo.default_policy}. About {minutes} min. Ctrl-C stops everything."
    )


def perform(demo: Demo) -> dict[str, Any]:
    """Run the demo; the cluster is shut down when this returns. Raises AsrptError, KeyboardInterrupt."""
    _check_output(demo.output)
    spec = _spec(demo, Path(tempfile.gettempdir()) / f"asrpt-demo-{os.getpid()}")
    jobs = _jobs(demo.shape, spec)
    console.print(plan(demo), highlight=False, soft_wrap=True)
    with console.status(f"starting a Slurm cluster with {NODES} GPUs in {spec.directory}"):
        lab = up(spec)
    try:
        return run(lab, demo, jobs)
    finally:
        with interrupts_deferred(), console.status("stopping the cluster"):
            lab.down(purge=not demo.keep)
        if demo.keep:
            console.print(f"logs and audit trail are in {spec.directory}", highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 success, 1 failure, 2 bad input, 130 interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up after SIGTERM as after Ctrl-C
    try:
        demo = parse_options(arguments)
        found = perform(demo)
        replace_file(demo.output, (json.dumps(found, indent=2) + "\n").encode())
    except KeyboardInterrupt:
        print("demo: interrupted; the cluster has been stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        print(f"demo: {error.filename}: {error.strerror}", file=sys.stderr)
        return MachineError.exit_code
    except AsrptError as error:
        print(f"demo: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    print(f"results written to {demo.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
