"""One side of a queue: a lab of its own, the acts at their times, and what came of them."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from benchmarks.rules import play as rules
from benchmarks.rules.scenario import Scenario
from slurm_asrpt.audit.trail import FILE_NAME, entries
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.lab.cluster import Lab
from tests.trials.queues.draw import Act
from tests.trials.queues.sites import Site

QUIET_S = {rules.PLAIN: 30.0, "enforce": 80.0, "order": 80.0}
"""A side is over when nothing has changed for so long: asrptd waits before it tries a refused start again."""
LONGEST_S = 240.0
"""After the last act."""
INTERACTIVE_S = 900.0
SETTLED_S = 4.0
"""asrptd's last cycle, and slurmctld's update of reasons."""
STUCK = ("JobHeldUser", "JobHeldAdmin", "DependencyNeverSatisfied", "Dependency")
"""Reasons of jobs that will not start by themselves; where all waiting jobs have these, none starts."""
STUCK_S = 8.0
ACTIVE = "PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING"
HELD = ("RESV_DEL_HOLD", "REQUEUE_HOLD", "SPECIAL_EXIT")
"""Other states of pending jobs, as scontrol shows them."""
FIELDS = re.compile(
    r"(?:^|\s)(JobId|ArrayJobId|ArrayTaskId|HetJobOffset|JobName|JobState|Reason|Restarts|ExitCode|SubmitTime"
    r"|EligibleTime|StartTime|EndTime|ReqNodeList|NumNodes|SiteFactor)=(\S*)"
)


TIMES = ("submit", "eligible", "start", "end")


class Done(NamedTuple):
    """What came of an act. states: of its job just before. said: what the command printed on standard error."""

    ok: bool
    states: tuple[str, ...]
    said: str


class Outcome(NamedTuple):
    """Of a job or task when all is over. start: seconds since the epoch, 0 if it has none."""

    state: str
    exit_code: str
    reason: str
    restarts: int
    submit: float
    eligible: float
    start: float
    end: float
    nodes: str
    pinned: str

    @property
    def ended(self) -> bool:
        return self.state not in (*ACTIVE.split(","), *HELD)


@dataclass
class Side:
    """done: None for acts on jobs that were never submitted. outcomes: by ``j3``, ``j3_1`` or ``j3+0``.

    log: asrptd's warnings and errors. shown: states by ``asrptd-status`` of what it takes for alive. events: of the
    audit trail with their reasons. disabled: when all jobs had been given back to Slurm, seconds since the
    epoch. left: the jobs that were pending then.
    """

    done: list[Done | None]
    outcomes: Mapping[str, Outcome]
    log: list[str] = field(default_factory=list)
    shown: Mapping[str, str] = field(default_factory=dict)
    events: Mapping[str, int] = field(default_factory=dict)
    disabled: float = 0.0
    left: Mapping[str, Outcome] = field(default_factory=dict)


def scenario(site: Site) -> Scenario:
    """The site, for ``benchmarks.rules``."""

    def prepare(lab: Lab) -> None:
        _forget_late_and_requeue_soon(lab)
        site.prepare(lab)

    return Scenario(
        name="queue",
        about="",
        takes_s=0,
        works=(),
        nodes=site.nodes,
        topology=site.topology,
        slurm_conf="\n".join(site.conf),
        accounting=site.rules,
        managed=("gpu", *site.managed),
        prepare=prepare,
    )


def _forget_late_and_requeue_soon(lab: Lab) -> None:
    """Slurm shows ended jobs for an hour, and starts requeued ones again after 13 s."""
    text = lab.slurm_conf.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^(AuthInfo=.*)$", r"\1,cred_expire=12", text)
    text = re.sub(r"(?m)^MinJobAge=.*\n", "", text)
    lab.slurm_conf.write_text(f"{text}MinJobAge=3600\n", encoding="utf-8")
    lab.restart()


def play(site: Site, acts: Sequence[Act], mode: str, port: int, keep: Path | None) -> Side:
    """Play the acts in a new lab. mode: of asrptd, or "plain" for none. keep: a folder for logs. Raises AsrptError."""
    with rules.site(scenario(site), mode, port) as there:
        lab = there.lab
        player = Player(lab)
        done = player.play(acts)
        wait(lab, QUIET_S[mode])
        time.sleep(SETTLED_S)
        side = Side(done, player.outcomes(acts))
        if there.asrptd:
            side.shown = shown(lab, player.names(acts))
            refused = _disable(lab)
            time.sleep(SETTLED_S)
            side.disabled = lab.time()
            side.log = [*refused, *complaints(lab)]
            side.events = events(lab)
            side.left = {name: one for name, one in player.outcomes(acts).items() if one.state == "PENDING"}
        if keep:
            keep_logs(lab, keep / mode)
        return side


def _disable(lab: Lab) -> list[str]:
    """Let asrptd hand all jobs back to Slurm. Returns what it could not."""
    try:
        rules.admin(lab, "disable")
    except SlurmError as error:
        return [one_line(error)]
    return []


class Player:
    """Submits the jobs and does what is done to them. ids: numbers of the jobs by name."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._ids: dict[str, str] = {}
        self._interactive: set[str] = set()

    def play(self, acts: Sequence[Act]) -> list[Done | None]:
        began = time.monotonic()
        done = []
        for act in acts:
            time.sleep(max(0.0, began + act.at_s - time.monotonic()))
            done.append(self._do(act))
        return done

    def _do(self, act: Act) -> Done | None:
        needed = [*act.others, *([] if act.submits or not act.job else [act.job])]
        ids = {name: self._id(name) for name in needed}
        if not all(ids.values()):
            return None
        words = [word.format(**ids) if "{" in word else word for word in act.words]
        user = None if act.user == "root" else act.user
        if act.words[0] in ("srun", "salloc"):
            self._interactive.add(act.job)
            again = {"user": user, "check": False, "timeout_s": INTERACTIVE_S}
            threading.Thread(target=self._lab.run, args=(words,), kwargs=again, daemon=True).start()
            return Done(True, (), "")
        states = self._states(ids.get(act.job, ""))
        result = self._lab.run(words, user=user, check=False, timeout_s=90.0)
        if act.submits and not result.returncode:
            self._ids[act.job] = result.stdout.strip().partition(";")[0]
        return Done(not result.returncode, states, result.stderr.strip())

    def _id(self, name: str) -> str:
        if name in self._interactive and name not in self._ids:
            listed = self._lab.run(["squeue", "-h", "-a", "-t", "all", "-n", name, "-o", "%A"]).stdout.split()
            if listed:
                self._ids[name] = listed[0]
        return self._ids.get(name, "")

    def _states(self, job_id: str) -> tuple[str, ...]:
        if not job_id:
            return ()
        return tuple(sorted(set(self._lab.run(["squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T"]).stdout.split())))

    def names(self, acts: Sequence[Act]) -> dict[str, str]:
        """The jobs' names by their numbers."""
        return {job_id: act.job for act in acts if act.submits and (job_id := self._id(act.job))}

    def outcomes(self, acts: Sequence[Act]) -> dict[str, Outcome]:
        listed = self._lab.run(["scontrol", "-o", "show", "job"], env={"SLURM_TIME_FORMAT": "%s"}).stdout
        return outcomes(listed, self.names(acts))


def outcomes(listed: str, names: Mapping[str, str]) -> dict[str, Outcome]:
    """From ``scontrol -o show job``, times in seconds. names: of the jobs by number."""
    found = {}
    for line in listed.splitlines():
        job = dict(FIELDS.findall(line))
        array = job.get("ArrayJobId") or job.get("JobId", "")
        first = str(int(job["JobId"]) - int(job["HetJobOffset"])) if "HetJobOffset" in job else array
        for suffix in suffixes(job):
            if first in names:
                found[names[first] + suffix] = _outcome(job)
    return found


def suffixes(job: Mapping[str, str]) -> list[str]:
    """``_1`` for a task of an array, several for its waiting tasks; ``+0`` for a component of a heterogeneous job."""
    if "HetJobOffset" in job:
        return [f"+{job['HetJobOffset']}"]
    if "ArrayTaskId" not in job:
        return [""]
    numbers: list[int] = []
    for part in job["ArrayTaskId"].partition("%")[0].split(","):
        low, high, step = re.fullmatch(r"(\d+)(?:-(\d+))?(?::(\d+))?", part).groups()  # type: ignore[union-attr]
        numbers += range(int(low), int(high or low) + 1, int(step or 1))
    return [f"_{number}" for number in numbers]


def _outcome(job: Mapping[str, str]) -> Outcome:
    times = {key: float(text) if (text := job.get(f"{key.capitalize()}Time", "")).isdigit() else 0.0 for key in TIMES}
    return Outcome(
        state=job["JobState"],
        exit_code=job["ExitCode"],
        reason=job["Reason"],
        restarts=int(job.get("Restarts", 0)),
        nodes=job.get("NumNodes", ""),
        pinned=job.get("ReqNodeList", "").replace("(null)", ""),
        **times,
    )


def wait(lab: Lab, quiet_s: float) -> None:
    """Until all jobs have ended but those that will not start by themselves, or nothing has changed for so long."""
    before, since = list[list[str]](), time.monotonic()
    deadline = since + LONGEST_S
    while time.monotonic() < deadline:
        listed = lab.run(["squeue", "-h", "-t", ACTIVE, "-o", "%i %T %r"]).stdout
        states = sorted(line.split()[:2] for line in listed.splitlines())
        if states != before or any(state == "RUNNING" for _, state in states):
            before, since = states, time.monotonic()
        stuck = all(line.split()[-1] in STUCK for line in listed.splitlines())
        if time.monotonic() > since + (min(STUCK_S, quiet_s) if stuck else quiet_s):
            return
        time.sleep(2.0)


def shown(lab: Lab, names: Mapping[str, str]) -> dict[str, str]:
    """The jobs of which ``asrpt-status`` speaks, with their states there."""
    program = str(Path(sys.executable).parent / "asrpt-status")
    found = json.loads(lab.run([program, "--json"]).stdout)["jobs"]
    numbers = [(row, re.match(r"\d+", row["job_id"])) for row in found]
    return {row["job_id"].replace(n[0], names.get(n[0], n[0]), 1): row["state"] for row, n in numbers if n}


def complaints(lab: Lab) -> list[str]:
    """Warnings, errors and tracebacks in asrptd's log."""
    lines = [line for path in lab.paths.log.glob("asrptd*.log") for line in path.read_text("utf-8").splitlines()]
    return [line for line in lines if re.search(r"Traceback|asrptd (WARNING|ERROR|CRITICAL)", line)]


def events(lab: Lab) -> Counter[str]:
    """What asrptd recorded about its starts, with the reasons that Slurm gave."""
    kept = ("start", "left", "vanished", "lease-refused", *rules.REFUSED)
    found: Counter[str] = Counter()
    for entry in entries(lab.paths.asrpt / "state"):
        if entry["event"] in kept:
            why = str(entry.get("error") or entry.get("reason") or entry.get("why") or "")
            found[" ".join([entry["event"], *([] if entry["event"] == "start" else [why])])] += 1
    return found


def keep_logs(lab: Lab, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(lab.paths.log, folder)
    listed = lab.run(["scontrol", "-o", "show", "job"]).stdout
    (folder / "jobs.txt").write_text(listed, encoding="utf-8")
    if (audit := lab.paths.asrpt / "state" / FILE_NAME).exists():
        shutil.copyfile(audit, folder / FILE_NAME)
