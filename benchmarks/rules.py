"""Play a site's rules on a real Slurm, plain and under asrptd, with the same jobs: python -m benchmarks.rules --json

Each scenario (``--list``) has a site with a rule: limits, priorities, tiers, preemption, jobs that Slurm places, nodes
that are powered down. Users submit the same jobs at the same times, to a new lab with plain Slurm, then to one with
asrptd in each of ``--modes``. Times are those of slurmdbd.

``plain_s``, ``asrptd_s``: seconds from the first submission to the last end, or what ``--list`` says. Jobs that have
not ended in time (``unfinished``) count until then, so the value is a lower bound. ``ratio``: asrptd over plain.
``utilisation_ratio``: the same for GPU-seconds in use over those that jobs could have used within their limits, while
jobs are pending. ``refused_share``: starts that Slurm refused (not-started, pin-failed and fence-refused in the audit
trail) over starts; 0 in mode order, which starts nothing. ``obeyed``: share of the decisions in which the rule was
kept: pairs of jobs that were pending at the same time and that the rule orders, jobs that may preempt others, or starts
of jobs with a limit; null if there were none. ``mean_ratio``: ratio of mean completion times. Mode order has an object
of its own, ``order``, with the same keys. ``plain`` and ``asrptd``: more figures of each side, including mean waits by
role and ``sbatch_late_s``, the mean delay of submissions on a busy machine. ``--logs DIR`` keeps logs, audit trail and
sacct's records of each side, and the history and shadow-report's answer where asrptd is in mode shadow.

``--stretch 8 --speed 8``: jobs of minutes instead of seconds, in accelerated labs, in the same time. A start costs less
of a job then.

If the jobs of a scenario recur, they first run once in mode shadow, and each side learns from these runs (asrpt-admin
history import, retrain). On its plain side asrptd is in mode shadow, too; ``shadow`` has what asrpt-admin shadow-report
says of the plain side's jobs. Needs root.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks import rule_figures as figures
from benchmarks.busylab import big_lab, set_rules
from benchmarks.rule_figures import Played, Run
from benchmarks.rule_scenarios import BY_NAME, ENFORCE, ORDER, SCENARIOS, USERS, Scenario, Site, Work
from slurm_asrpt.audit.trail import FILE_NAME as AUDIT
from slurm_asrpt.audit.trail import entries
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.config.settings import DaemonSettings
from slurm_asrpt.errors import AsrptError, InputError, MachineError, one_line
from slurm_asrpt.lab.asrptd import asrptd
from slurm_asrpt.lab.cluster import Lab
from slurm_asrpt.lab.spec import LabSpec

PLAIN = "plain"
SHADOW = "shadow"
INTERACTIVE_S, ANSWERED_S = 3600.0, 20.0
"""For srun's jobs at most, and until Slurm knows one."""
LEARNING = "learning"
"""The side on which recurring jobs first run; its history is what the others learn from."""
REFUSED = ("not-started", "pin-failed", "fence-refused")
KEYS = ("plain_s", "asrptd_s", "ratio", "utilisation_ratio", "refused_share", "obeyed")
LONGEST = 2.0
"""A side is cut off after this many times the expected duration, and a minute."""
RECORDED_S = 15.0
"""Within this time, the end of the last job is in slurmdbd."""
LEARNED_BEFORE_S = 3600
RUN_TIMES = (
    *("submit_time", "start_time", "end_time"),
    *("forecast_made", "forecast_low", "forecast_median", "forecast_high"),
)
"""The times in a run of the history, in seconds since the epoch, 0 for none."""
SEEN_S = 5.0
"""Within this time, asrptd has recorded a job that has ended."""
console = Console(stderr=True)


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


def play(scenario: Scenario, name: str, options: argparse.Namespace, history: str = "") -> Side:
    """Play one side. Raises AsrptError."""
    mode = SHADOW if name == LEARNING or (name == PLAIN and scenario.recurs) else name
    with site(scenario, mode, options.port, options.speed, history) as there:
        began = there.lab.time()
        jobs, late = submit_all(scenario, there, began, options.scale)
        deadline = began + LONGEST * max(1.0, options.scale) * scenario.takes_s + 60.0
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
        if options.logs:
            keep_logs(there.lab, text, side, options.logs / f"{scenario.name}-{name}")
        return side


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
    found = Counter(entry["event"] for entry in entries(lab.paths.asrpt / "state"))
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


def measured(scenario: Scenario, side: Side) -> dict[str, Any]:
    """The figures of a side."""
    played = without_never(scenario, side.played)
    found = list(figures.steps(without_hopeless(scenario, side.played), scenario.limits))
    kept, decided = decisions(scenario, side.played)
    refused = sum(side.events.get(name, 0) for name in REFUSED)
    return {
        "seconds": scenario.measure(scenario, played),
        "makespan_s": figures.makespan_s(played, scenario.measured),
        "mean_completion_s": figures.mean_completion_s(played, scenario.measured),
        "utilisation": figures.utilisation(found),
        "longest_idle_s": figures.longest_idle_s(found, side.played.began),
        "refused_share": refused / max(1, side.events.get("start", 0)),
        "obeyed": figures.share(kept, decided),
        "decisions": decided,
        "mean_wait_s": figures.mean_waits_s(side.played),
        "unfinished": sum(run.end == figures.NEVER for run in played.runs),
        "states": dict(side.states),
        "events": dict(side.events),
        "sbatch_late_s": side.late_s,
    }


def decisions(scenario: Scenario, played: Played) -> tuple[int, int]:
    """Decisions in which the rules of the scenario were kept, and all that they decide."""
    ordered = figures.order_kept(played.runs, scenario.before, played.began + scenario.ruled_from_s)
    each = (
        ordered,
        figures.preemption_kept(played.runs, scenario.preempts),
        figures.limits_kept(played, scenario.limits),
    )
    return sum(kept for kept, _ in each), sum(decided for _, decided in each)


def without_never(scenario: Scenario, played: Played) -> Played:
    return played._replace(runs=[run for run in played.runs if run.role not in scenario.never])


def without_hopeless(scenario: Scenario, played: Played) -> Played:
    """Without the jobs that have never started and never would: no GPU could be in use for them."""
    return played._replace(runs=[r for r in played.runs if r.start < figures.NEVER or r.role not in scenario.never])


def compare(plain: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a scenario, for one mode."""
    return {
        "plain_s": plain["seconds"],
        "asrptd_s": ours["seconds"],
        "ratio": figures.over(ours["seconds"], plain["seconds"]),
        "utilisation_ratio": figures.share(ours["utilisation"], plain["utilisation"]),
        "refused_share": ours["refused_share"],
        "obeyed": ours["obeyed"],
        "obeyed_plain": plain["obeyed"],
        "mean_ratio": figures.over(ours["mean_completion_s"], plain["mean_completion_s"]),
        "unfinished": ours["unfinished"],
        "asrptd": dict(ours),
    }


def play_scenario(scenario: Scenario, options: argparse.Namespace) -> dict[str, Any]:
    """Plain Slurm, then each mode of asrptd that makes sense in the scenario."""
    modes = [mode for mode in options.modes if mode in scenario.modes]
    history = play(scenario, LEARNING, options).history if scenario.recurs else ""
    sides, report = {}, {}
    for mode in [PLAIN, *modes]:
        began = time.monotonic()
        side = play(scenario, mode, options, history)
        sides[mode], report = measured(scenario, side), report or shadow_report(side)
        seconds, took = sides[mode]["seconds"], time.monotonic() - began
        console.print(f"{scenario.name:20} {mode:8} {seconds:7.1f} s  (took {took:.0f} s)", highlight=False)
    compared = {mode: compare(sides[PLAIN], sides[mode]) for mode in modes}
    return {**compared.pop(ENFORCE, {}), **compared, **report, "plain": sides[PLAIN]}


def shadow_report(side: Side) -> dict[str, Any]:
    """What shadow-report said of the side: mean completion over the real one, of the policy and of Slurm simulated."""
    if not side.report:
        return {}
    *_, slurm, row = side.report["rows"]
    notes, keys = side.report["notes"], {name: row[name] for name in ("policy", "jobs", "mean_jct_s")}
    ratios = {"mean_ratio": row["jct_over_real"], "slurm_ratio": slurm["jct_over_real"]}
    return {SHADOW: {**keys, **ratios, "predicted_zero": notes["predicted_zero"]}}


def play_or_fail(scenario: Scenario, options: argparse.Namespace) -> dict[str, Any]:
    """The figures, or an object with ``error``: the other scenarios still take place."""
    try:
        return play_scenario(scenario, options)
    except AsrptError as error:
        console.print(f"{scenario.name:20} failed: {one_line(error)}", highlight=False)
        return {"error": one_line(error)}


def rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 4)
    return {name: rounded(each) for name, each in value.items()} if isinstance(value, dict) else value


def table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    shown = Table("scenario", "mode", *KEYS, "mean_ratio", "unfinished")
    for name, scenario in found.items():
        for mode, row in ((ENFORCE, scenario), (ORDER, scenario.get(ORDER, {}))):
            if "ratio" in row:
                shown.add_row(name, mode, *(_cell(row[key]) for key in (*KEYS, "mean_ratio", "unfinished")))
    return shown


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, int) else f"{value:.3g}"


def names(text: str, valid: Sequence[str], option: str) -> list[str]:
    """Raises InputError."""
    found = [name for name in text.split(",") if name]
    unknown = [name for name in found if name not in valid]
    if unknown:
        raise InputError(f"{option} {','.join(unknown)}: unknown; valid: {', '.join(valid)}")
    return found


def _list() -> None:
    shown = Table("scenario", "seconds a side", "modes", "what happens")
    for one in SCENARIOS:
        shown.add_row(one.name, f"{one.takes_s:g}", ", ".join(one.modes), one.about)
    Console().print(shown)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Raises InputError."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    parser.add_argument("--list", action="store_true", help="print the scenarios and exit")
    parser.add_argument("--only", default=",".join(BY_NAME), metavar="NAME,...", help="play these scenarios")
    parser.add_argument("--modes", default=f"{ENFORCE},{ORDER}", help="modes of asrptd (default %(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the number of jobs")
    parser.add_argument(
        "--stretch", type=float, default=1.0, help="multiply all times: each start costs asrptd about 1 s"
    )
    parser.add_argument(
        "--speed",
        type=float,
        default=1.0,
        help="of the labs' clocks: --stretch 8 --speed 8 takes no longer than neither",
    )
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep logs and records of each side here")
    parser.add_argument("--port", type=int, default=27000, help="first port of the lab, which uses 20")
    options = parser.parse_args(arguments)
    options.only = names(options.only, list(BY_NAME), "--only")
    options.modes = names(options.modes, [ENFORCE, ORDER], "--modes")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = parse(arguments)
        if options.list:
            _list()
            return 0
    except InputError as error:
        print(f"rules: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    scenarios = [BY_NAME[name].stretched(options.stretch) for name in options.only]
    found = {scenario.name: rounded(play_or_fail(scenario, options)) for scenario in scenarios}
    if options.json:
        print(json.dumps({"scenarios": found, "load_average": round(os.getloadavg()[0], 1)}))
    else:
        Console().print(table(found))
    return MachineError.exit_code if any("error" in scenario for scenario in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
