"""make demo: the same jobs on a real Slurm three times: under its own backfill, under asrpt, under the default policy.

Round one is Slurm as it comes, with asrptd in mode shadow to learn from it; then the predictor is trained, once; in
the other rounds asrptd is in mode enforce, with the paper's policy first. Nothing else differs: same cluster, same
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
"""The policy of round two: A-SRPT as published, whatever the default has become."""
ROUNDS = 3
FABRIC = Fabric(inter=12.5e9, intra=300e9)
"""100 Gbit/s between servers, NVLink inside: a common cluster of today, and kind to scattered jobs."""
LONGEST_ROUND_S = 600.0
UP_AND_DOWN_S = 25.0
# Time limits guide backfill but kill nobody: a job that Slurm scattered would otherwise be lost, not late.
SLURM_CONF = "OverTimeLimit=UNLIMITED"
TOLD = ("SLURM_VERSION", "SchedulerType", "SchedulerParameters", "SelectType", "SelectTypeParameters", "PriorityType")
"""What demo.json says of the Slurm that it was made with."""

console = Console(stderr=True)

DONE = "COMPLETED"


@dataclass(frozen=True)
class Round:
    """One way of scheduling the jobs. Times in seconds; lost_gpu_hours: beyond the best placement's run time.

    prediction_error: mean of |predicted - real| / real iterations; None for the round that learns.
    """

    completed: int
    avg_jct_s: float
    total_jct_s: float
    makespan_s: float
    lost_gpu_hours: float
    prediction_error: float | None


def measure(jobs: Sequence[DemoJob], records: Mapping[str, JobRecord], predicted: bool) -> Round:
    """Figures of a round over the jobs that completed; records by the job's name. Raises MachineError for none."""
    done = [(job, records[job.name]) for job in jobs if job.name in records and records[job.name].state == DONE]
    if not done:
        raise MachineError("no job completed; run it with --keep and see the logs in the lab's directory")
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


def table(rounds: Mapping[str, Round]) -> Table:
    """The rounds side by side by name; in brackets over the first one. Readable from 40 columns on."""
    first = next(iter(rounds.values()))
    shown = Table(title="Same jobs, same Slurm", caption="in brackets: over the first column")
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
    """Average completion time of a round over that under backfill; below 1 backfill is the slower one."""
    return other.avg_jct_s / backfill.avg_jct_s


def meaning(backfill: Round, other: Round, name: str) -> str:
    """The ratio in words. Completion time: from a job's submission to its end, so waiting counts."""
    change = ratio(backfill, other) - 1
    if abs(change) < 0.005:
        verdict = f"as long under {name} as under backfill"
    else:
        verdict = f"{abs(change):.0%} {'less' if change < 0 else 'more'} time under {name}"
    return f"ratio {1 + change:.2f}: from submission to end a job took {verdict} on average (below 1: {name} is better)"


@dataclass(frozen=True)
class Demo:
    """What is asked for: how much work, where the figures go, which ports, whether the lab's files stay.

    tau: policy.tau, for the policies that have it. default_policy: that of the third round.
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
    variables = {"DEMO_ITERATIONS": str(job.iterations)}  # not by --export, which makes Slurm ask for a login (26.05)
    return lab.run([*command, *options], user=job.user, input=script, env=variables).stdout.strip()


@contextmanager
def asrptd(lab: Lab, mode: str, policy: str = PAPER, log_level: str = "info") -> Iterator[int]:
    """The daemon beside the lab, its process id; ended by SIGTERM, by force if that takes too long.

    Raises MachineError.
    """
    program = str(Path(sys.executable).parent / "asrptd")
    command = [program, "--mode", mode, "--policy", policy, "--log-level", log_level]
    path = lab.directory / "log" / (f"asrptd-{mode}.log" if mode == "shadow" else f"asrptd-{mode}-{policy}.log")
    with path.open("ab") as log:
        # a session of its own: Ctrl-C is ours to hear, and we end the daemon in good order
        daemon = subprocess.Popen(command, env=lab.env, stdout=log, stderr=log, start_new_session=True)
    try:
        time.sleep(2.0)
        if daemon.poll() is not None:
            raise MachineError(f"asrptd ended at once: {tail(path)}")
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
    """Submit the jobs at their times and wait until all have ended; Slurm's last records of them by name.

    submitted: names by id of those that have been submitted already. What has not ended after ``longest_s`` is
    cancelled, so that it does not run into the next round.
    """
    task = progress.add_task(title, total=len(jobs))
    start = time.monotonic()
    names = dict(submitted)
    records: dict[str, JobRecord] = {}  # kept: Slurm forgets ended jobs after a few minutes
    there = set(names.values())
    waiting = [job for job in jobs if job.name not in there]
    while time.monotonic() - start < longest_s:
        while waiting and waiting[0].submit_s <= time.monotonic() - start:
            job = waiting.pop(0)
            names[submit(lab, job)] = job.name
        now = parse_jobs(lab.run(["squeue", "--json", "--states=all"]).stdout)
        records.update({names[r.job_id]: r for r in now if r.job_id in names})
        ended = sum(not _going(record) for record in records.values())
        progress.update(task, completed=ended)
        if ended == len(jobs):
            return records
        time.sleep(0.3)
    lab.cancel_jobs()
    return records


def _going(record: JobRecord) -> bool:
    return record.state == PENDING or record.state in RUNNING_STATES or not record.end_time


def run(lab: Lab, demo: Demo, jobs: Sequence[DemoJob]) -> dict[str, Any]:
    """All rounds; the figures as they go into demo.json."""
    backfill, asrpt, default = _rounds(lab, demo, jobs)
    shown = {"backfill": backfill, PAPER: asrpt, demo.default_title: default}
    Console().print(table(shown))
    for name, found in list(shown.items())[1:]:
        print(meaning(backfill, found, name))
    for name, found in shown.items():
        if found.completed < len(jobs):
            lost = len(jobs) - found.completed
            print(f"demo: {lost} of {len(jobs)} jobs did not complete under {name}, and do not count", file=sys.stderr)
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
        "made": _made(lab, demo.shape, jobs),
    }


def _rounds(lab: Lab, demo: Demo, jobs: Sequence[DemoJob]) -> tuple[Round, Round, Round]:
    """Backfill, the paper's policy, the default policy; the last two with the same predictions."""
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


def _made(lab: Lab, shape: Shape, jobs: Sequence[DemoJob]) -> dict[str, Any]:
    """How the figures were made: enough to make them again elsewhere."""
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
        "slurm": {name: slurm.get(name, "") for name in TOLD} | {"slurm_conf_extra": SLURM_CONF},
    }


def parse_options(arguments: Sequence[str] | None) -> Demo:
    """The demo that the command line asks for. Raises InputError."""
    parser = Parser(prog="demo", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=Shape.jobs, help="how many jobs (default %(default)s)")
    parser.add_argument("--seed", type=int, default=Shape.seed, help="draws the models (default %(default)s)")
    parser.add_argument("--load", type=float, default=Shape.load, help="work over capacity (default %(default)s)")
    parser.add_argument("--span", type=float, default=Shape.span_s, help="seconds of arrivals (default %(default)s)")
    parser.add_argument("--tau", type=float, default=PolicySettings().tau, help="policy.tau (default %(default)s)")
    names = ", ".join(policy_names())
    parser.add_argument(
        "--default-policy", default=DEFAULT_POLICY, metavar="NAME", help=f"round three: {names} (default %(default)s)"
    )
    parser.add_argument("--output", type=Path, default=OUTPUT, help="where the figures go (default %(default)s)")
    parser.add_argument("--base-port", type=int, default=BASE_PORT, help="first of the ports (default %(default)s)")
    parser.add_argument("--keep", action="store_true", help="leave the cluster's files (logs, audit trail) behind")
    options = parser.parse_args(arguments)
    shape = Shape(options.jobs, options.span, options.load, options.seed)
    try:
        shape.check()
    except ValueError as error:
        raise InputError(str(error)) from None
    if options.span > LONGEST_ROUND_S / 2:
        raise InputError(f"--span {options.span:g}: a round ends after {LONGEST_ROUND_S:g} s, so at most half of that")
    parse_settings({"policy": {"tau": options.tau}}, "--tau")
    if options.default_policy not in policy_names():
        raise InputError(f"--default-policy {options.default_policy}: no such policy; known: {names}")
    return Demo(shape, options.output, options.base_port, options.keep, options.tau, options.default_policy)


def _check_output(path: Path) -> None:
    """Raises InputError if the figures could not be written: known before the work, not after it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise InputError(f"--output {path}: a directory; name a file")
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".demo."):
            pass
    except OSError as error:
        raise InputError(f"--output {path}: cannot be written ({error.strerror}); name another file") from None


def _spec(demo: Demo, directory: Path) -> LabSpec:
    settings: dict[str, dict[str, Any]] = {
        "daemon": {"interval_s": 0.5, "lease_s": 60},
        "fabric": {"inter_bytes_per_s": FABRIC.inter, "intra_bytes_per_s": FABRIC.intra},
        "policy": {"name": PAPER, "tau": demo.tau},
    }
    return LabSpec(directory, NODES, demo.base_port, USERS, slurm_conf_extra=SLURM_CONF, settings=settings)


def _jobs(shape: Shape, spec: LabSpec) -> list[DemoJob]:
    """Raises InputError if the trace has too few."""
    nodes = [Node(node.name, node.gpus, number) for number, node in enumerate(spec.node_list)]
    try:
        return make_workload(read_trace(PHILLY), nodes, FABRIC, spec.user_names, shape)
    except ValueError as error:
        raise InputError(f"--jobs {shape.jobs}: {error}") from None


def plan(demo: Demo) -> str:
    """What is going to happen, and for how long."""
    shape = demo.shape
    work_off = max(0.0, shape.load - 1) * shape.span_s
    minutes = max(1, round((ROUNDS * (shape.span_s + work_off + LONGEST_S) + UP_AND_DOWN_S) / 60))
    return (
        f"{shape.jobs} jobs {ROUNDS} times on a real Slurm of {NODES} GPUs on this machine: its own backfill,\n"
        f"asrptd with {PAPER}, asrptd with {demo.default_policy}. About {minutes} min; Ctrl-C ends all of it."
    )


def perform(demo: Demo) -> dict[str, Any]:
    """The whole demo but for its file; the cluster is down when it returns. Raises AsrptError, KeyboardInterrupt."""
    _check_output(demo.output)
    spec = _spec(demo, Path(tempfile.gettempdir()) / f"asrpt-demo-{os.getpid()}")
    jobs = _jobs(demo.shape, spec)
    console.print(plan(demo), highlight=False, soft_wrap=True)
    with console.status(f"bringing up a Slurm cluster of {NODES} GPUs in {spec.directory}"):
        lab = up(spec)
    try:
        return run(lab, demo, jobs)
    finally:
        with interrupts_deferred(), console.status("taking the cluster down"):
            lab.down(purge=not demo.keep)
        if demo.keep:
            console.print(f"logs and audit trail: {spec.directory}", highlight=False, soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up after SIGTERM as after Ctrl-C
    try:
        demo = parse_options(arguments)
        found = perform(demo)
        replace_file(demo.output, (json.dumps(found, indent=2) + "\n").encode())
    except KeyboardInterrupt:
        print("demo: interrupted; the cluster has been taken down", file=sys.stderr)
        return EXIT_INTERRUPTED
    except OSError as error:
        print(f"demo: {error.filename}: {error.strerror}", file=sys.stderr)
        return MachineError.exit_code
    except AsrptError as error:
        print(f"demo: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    print(f"figures in {demo.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
