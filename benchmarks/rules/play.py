"""One side of a scenario: a lab of its own, the jobs that are submitted there, and what Slurm and asrptd recorded."""

from __future__ import annotations

import json
import math
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.busylab import big_lab, set_rules
from benchmarks.rules import figures
from benchmarks.rules.figures import Played, Run
from benchmarks.rules.scenario import ENFORCE, USERS, Scenario, Site, Work
from slurm_asrpt.audit.trail import FILE_NAME as AUDIT
from slurm_asrpt.audit.trail import entries
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.config.settings import DaemonSettings
from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab.asrptd import asrptd
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.lab.spec import LabSpec

PLAIN = "plain"
SHADOW = "shadow"
LEARNING = "learning"
"""The side on which recurring jobs first run; its history is what the others learn from."""
REFUSED = ("not-started", "pin-failed", "fence-refused")
BEGUN = "no longer pending"
"""In Slurm's refusal to touch a job that it has just started by itself, as one that was released ahead."""
INTERACTIVE_S, ANSWERED_S = 3600.0, 20.0
"""For srun's jobs at most, and until Slurm knows one."""
LONGEST = 2.0
"""A side is cut off after this many times the expected duration, and a minute."""
RECORDED_S = 15.0
"""Within this time, the end of the last job is in slurmdbd."""
SEEN_S = 5.0
"""Within this time, asrptd has recorded a job that has ended."""
LEARNED_BEFORE_S = 3600
RUN_TIMES = (
    *("submit_time", "start_time", "end_time"),
    *("forecast_made", "forecast_low", "forecast_median", "forecast_high"),
)
"""The times in a run of the history, in seconds since the epoch, 0 for none."""


class Job(NamedTuple):
    """A submitted job. at: seconds since the epoch, when its user ran sbatch. able: it may start from then on.

    needs: the job that it depends on, "" for none.
    """

    role: str
    gpus: int
    at: float
    able: float = 0.0
    needs: str = ""


Jobs = dict[str, Job]
"""By their ids."""


@dataclass
class Side:
    """One side of a scenario. late_s: mean delay of the submissions. states: of runs. events: of the audit trail.

    history: the recorded runs as JSON lines. report: what shadow-report prints.
    """

    played: Played
    late_s: float
    states: Mapping[str, int]
    events: Mapping[str, int]
    history: str = ""
    report: Mapping[str, Any] = field(default_factory=dict)


class Conditions(NamedTuple):
    """Of all sides that are compared. scale: of the number of jobs. logs: a folder to keep logs and records in."""

    port: int
    speed: float = 1.0
    scale: float = 1.0
    logs: Path | None = None


def play(scenario: Scenario, name: str, under: Conditions, history: str = "") -> Side:
    """Play one side. history: runs to learn from. Raises AsrptError."""
    mode = SHADOW if name == LEARNING or (name == PLAIN and scenario.recurs) else name
    with site(scenario, mode, under.port, under.speed, history) as there:
        began = there.lab.time()
        jobs, late = submit_all(scenario, there, began, under.scale)
        deadline = began + LONGEST * max(1.0, under.scale) * scenario.takes_s + 60.0
        until = wait(scenario, there, jobs, deadline)
        if until < deadline:
            wait_for_records(scenario, there.lab, jobs)
        text = sacct(there.lab)
        runs, states = parse_runs(text, jobs)
        runs = [run for run in runs if run.since < until]
        until = min(until, max((run.end for run in runs if run.role not in scenario.never), default=until))
        gpus = sum(node.gpus for node in there.lab.spec.node_list)
        latencies = read_latencies(there.lab, jobs) if scenario.stamp else []
        first = min(job.at for job in jobs.values())
        side = Side(Played(runs, gpus, first, until, latencies), late, states, events(there.lab, mode))
        if mode == SHADOW:
            since = datetime.fromtimestamp(int(began)).isoformat()
            time.sleep(SEEN_S)
            side.history = admin(there.lab, "history", "export", "--format", "jsonl")
            side.report = json.loads(admin(there.lab, "shadow-report", "--since", since, "--json"))
        if under.logs:
            keep_logs(there.lab, text, side, under.logs / f"{scenario.name}-{name}")
        return side


def lab_spec(scenario: Scenario, port: int, speed: float = 1.0) -> LabSpec:
    daemon = dict(scenario.daemon) or {"interval_s": DaemonSettings().interval_s}
    settings = {"daemon": daemon, "slurm": {"partitions": list(scenario.managed)}, "policy": dict(scenario.policy)}
    return LabSpec(
        nodes=scenario.nodes,
        topology=scenario.topology,
        base_port=port,
        users=len(USERS),
        cpus=scenario.cpus,
        threads=scenario.threads,
        accounting=True,
        multifactor=scenario.multifactor,
        slurm_conf_extra=scenario.slurm_conf,
        settings=settings,
        speed=speed,
    )


@contextmanager
def site(scenario: Scenario, mode: str, port: int, speed: float = 1.0, history: str = "") -> Iterator[Site]:
    """A new lab with the rules of the scenario; asrptd runs unless the mode is PLAIN. history: runs to learn from."""
    with big_lab(lab_spec(scenario, port, speed)) as lab:
        set_rules(lab, scenario.accounting)
        scenario.prepare(lab)
        if history:
            file = lab.paths.log / "history.jsonl"
            file.write_text(an_hour_ago(history, lab.time()), encoding="utf-8")
            admin(lab, "history", "import", "--jsonl", str(file))
            admin(lab, "retrain")
        if mode == PLAIN:
            yield Site(lab)
            return
        with ExitStack() as daemons:

            def start() -> int:
                return daemons.enter_context(asrptd(lab, mode, DEFAULT_POLICY))

            pid = start()
            _wait_until_it_schedules(lab)
            yield Site(lab, pid, start=start)


def an_hour_ago(history: str, now: float) -> str:
    """The runs, moved back in time as one so that the last of them ended an hour before ``now``.

    The clock of an accelerated lab has gone ahead of that of the next lab, so the runs that taught would look like
    runs of the side itself, and shadow-report would count those after its ``--since``.
    """
    runs = [json.loads(line) for line in history.splitlines()]
    back = max((run["end_time"] for run in runs), default=0) - int(now) + LEARNED_BEFORE_S
    return "".join(json.dumps(run | {key: run[key] - back for key in RUN_TIMES if run.get(key)}) + "\n" for run in runs)


def admin(lab: Lab, *words: str) -> str:
    """The output of asrpt-admin. Raises SlurmError."""
    program = str(Path(sys.executable).parent / "asrpt-admin")
    return lab.run([program, *words], timeout_s=120.0).stdout


def _wait_until_it_schedules(lab: Lab) -> None:
    deadline = time.monotonic() + 60.0
    while not (lab.paths.asrpt / "run" / "status.json").exists():
        if time.monotonic() > deadline:
            raise MachineError("asrptd has not scheduled after a minute")
        time.sleep(0.2)


def submit_all(scenario: Scenario, there: Site, began: float, scale: float) -> tuple[Jobs, float]:
    """Submit the jobs when they are due, and do what the admin does; returns the jobs and the mean delay."""
    jobs, late = Jobs(), list[float]()
    todo: list[tuple[float, Any]] = sorted([*scenario.submissions(scale), *scenario.acts], key=lambda one: one[0])
    for due, action in todo:
        time.sleep(max(0.0, began + due - there.lab.time()) / there.lab.spec.speed)
        if not isinstance(action, Work):
            action(there)
            continue
        at = there.lab.time()
        late.append(at - began - due)
        needed = action.ids(there.first(action))
        job_id = submit(action, there, scenario.stamp, len(jobs))
        for name, needs in zip(action.ids(job_id), needed, strict=True):
            jobs[name] = Job(action.role, action.gpus, at, at + action.begin_s, needs)
        there.ids.setdefault(action.role, []).append(job_id)
    return jobs, fmean(late)


def submit(work: Work, there: Site, stamp: bool, number: int) -> str:
    """Submit a job; returns its id. Raises SlurmError. number: different for each."""
    lab, command = there.lab, work.command(stamp, there.first(work))
    if not work.interactive:
        return lab.run(command, user=work.user).stdout.strip()
    name = f"{work.role}-{number}"
    words = [*command[:1], f"--job-name={name}", *command[1:]]
    again = {"user": work.user, "check": False, "timeout_s": INTERACTIVE_S}
    threading.Thread(target=lab.run, args=(words,), kwargs=again, daemon=True).start()
    deadline = time.monotonic() + ANSWERED_S
    while not (found := lab.run(["squeue", "-h", "-a", "-t", "all", "-n", name, "-o", "%A"]).stdout.split()):
        if time.monotonic() > deadline:
            raise MachineError(f"{name}: srun has not submitted a job")
        time.sleep(0.05)
    return found[0]


def wait(scenario: Scenario, there: Site, jobs: Jobs, deadline: float) -> float:
    """Wait until all jobs have ended except those that never start; returns the lab's time."""
    never = {job_id for job_id, job in jobs.items() if job.role in scenario.never}
    while set(there.lab.run(["squeue", "-h", "-o", "%A"]).stdout.split()) - never and there.lab.time() < deadline:
        time.sleep(1.0)
    return there.lab.time()


def wait_for_records(scenario: Scenario, lab: Lab, jobs: Jobs) -> None:
    """Wait until slurmdbd knows the end of the last job."""
    deadline = time.monotonic() + RECORDED_S
    while time.monotonic() < deadline:
        runs, _ = parse_runs(sacct(lab), jobs)
        if all(run.end < figures.NEVER for run in runs if run.role not in scenario.never):
            return
        time.sleep(1.0)


def sacct(lab: Lab) -> str:
    """The records of all runs, times in seconds since the epoch."""
    columns = "JobID,JobName,User,State,Submit,Eligible,Start,End,NodeList"
    return lab.run(["sacct", "-aDXPn", "-S", "now-1day", "-o", columns], env={"SLURM_TIME_FORMAT": "%s"}).stdout


def parse_runs(text: str, jobs: Jobs) -> tuple[list[Run], Counter[str]]:
    """The runs of the jobs, and how many are in each state. text: from ``sacct``."""
    submits = {job_id: [math.floor(job.at)] for job_id, job in jobs.items()}
    times, states = {job_id: list[tuple[float, float]]() for job_id in jobs}, Counter[str]()
    for line in text.splitlines():
        job_id, _, _, state, submit, _, start, end, _ = line.split("|")
        if job_id in times and start.isdigit() and not state.startswith("PENDING"):
            submits[job_id].append(int(submit))
            times[job_id].append((float(start), float(end) if end.isdigit() else figures.NEVER))
            states[state.partition(" ")[0]] += 1
    first = {job_id: float(min(found[1:] or found)) for job_id, found in submits.items()}
    ends = {name: max((end for _, end in found), default=figures.NEVER) for name, found in times.items()}
    each = [
        figures.in_order(name, job.role, job.gpus, first[name], times[name], max(job.able, ends.get(job.needs, 0.0)))
        for name, job in jobs.items()
    ]
    return [run for runs in each for run in runs], states


def read_latencies(lab: Lab, jobs: Jobs) -> list[float]:
    """Seconds from sbatch to the first command of each job that has started."""
    homes = [lab.home(user) for user in USERS]
    files = [(home / f"started.{job_id}", job.at) for home in homes for job_id, job in jobs.items()]
    return [float(path.read_text(encoding="ascii")) - at for path, at in files if path.exists()]


def events(lab: Lab, mode: str) -> Counter[str]:
    """How often asrptd started jobs, and Slurm refused it. Only in mode enforce does it write starts."""
    if mode != ENFORCE:
        return Counter()
    told = [entry for entry in entries(lab.paths.asrpt / "state") if BEGUN not in entry.get("error", "")]
    found = Counter(entry["event"] for entry in told)
    return Counter({name: found[name] for name in ("start", *REFUSED, "left")})


def keep_logs(lab: Lab, sacct: str, side: Side, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(lab.paths.log, folder)
    (folder / "sacct.txt").write_text(sacct, encoding="utf-8")
    if side.report:
        (folder / "history.jsonl").write_text(side.history, encoding="utf-8")
        (folder / "shadow-report.json").write_text(json.dumps(side.report, indent=2) + "\n", encoding="utf-8")
    audit = lab.paths.asrpt / "state" / AUDIT
    if audit.exists():
        shutil.copyfile(audit, folder / AUDIT)
