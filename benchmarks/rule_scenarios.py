"""The scenarios of benchmarks.rules: a site's rules, the jobs that meet them, and what an admin does meanwhile."""

from __future__ import annotations

import os
import random
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from benchmarks.rule_figures import Limit, Played, longest_idle_s, makespan_s, mean_completion_s, steps
from slurm_asrpt.errors import MachineError
from slurm_asrpt.lab import processes
from slurm_asrpt.lab.accounting import start_slurmdbd
from slurm_asrpt.lab.cluster import Lab

ENFORCE, ORDER = "enforce", "order"
USERS = ("asrpt1", "asrpt2", "asrpt3", "asrpt4")
QUICK: Mapping[str, Any] = {"interval_s": 1.0, "lease_s": 60}
"""Jobs of some seconds instead of some minutes: the interval is a fraction of the default, too."""
LEAF = 4
"""Nodes under each switch of scenario topology."""
LIMITS = "AccountingStorageEnforce=associations,limits,qos"


@dataclass(frozen=True)
class Work:
    """Equal jobs of a user. ask: the request, ``--gpus`` if empty. fixed: ``--scale`` does not change the count.

    tasks: each is an array of so many, of which ``at_once`` run at a time.
    vary: lengths differ from ``seconds`` by up to this share. They depend on the job's number, so all sides have the
    same lengths. across: a job whose nodes are under several switches of LEAF nodes takes this many times as long.
    begin_s: each may begin so many seconds after its submission. interactive: they are started with srun, whose user
    waits for them. after: a condition and a role, as in ``afterok:train``: each job depends on the job of that role
    with the same number. fails: their exit code is 1.
    """

    role: str
    user: str
    count: int
    seconds: float
    gpus: int = 1
    at_s: float = 0.0
    every_s: float = 0.0
    options: str = ""
    ask: str = ""
    fixed: bool = False
    tasks: int = 0
    at_once: int = 1
    vary: float = 0.0
    across: float = 1.0
    begin_s: float = 0.0
    interactive: bool = False
    after: str = ""
    fails: bool = False

    def stretched(self, by: float) -> Work:
        times = {name: getattr(self, name) * by for name in ("seconds", "at_s", "every_s", "begin_s")}
        return replace(self, **times)

    def command(self, stamp: bool, first: str = "") -> list[str]:
        """sbatch. stamp: the job writes its time of start into its user's home directory. first: what it depends on."""
        minutes = max(1, -(-int(2 * self.seconds) // 60))
        if self.interactive:
            ask = shlex.split(self.ask or f"-n1 --gpus={self.gpus}")
            return ["srun", f"--time={minutes}", *ask, *shlex.split(self.options), "sleep", f"{self.seconds:g}"]
        script = ("date +%s.%N >started.$SLURM_JOB_ID; " if stamp else "") + self._sleep()
        script += "; exit 1" if self.fails else ""
        words = ["sbatch", "--parsable", f"--job-name={self.role}", f"--time={minutes}", "--output=/dev/null"]
        words += shlex.split(self.ask or f"--gpus={self.gpus}") + shlex.split(self.options)
        words += [f"--array=0-{self.tasks - 1}%{self.at_once}"] if self.tasks else []
        words += [f"--begin=now+{round(self.begin_s)}"] if self.begin_s else []
        words += [f"--dependency={self.after.partition(':')[0]}:{first}"] if first else []
        return [*words, "--wrap", script]

    def ids(self, job_id: str) -> list[str]:
        """Those of sacct for a job, for the first part of a heterogeneous one, or for the tasks of an array."""
        if " : " in self.ask:
            return [f"{job_id}+0"]
        return [f"{job_id}_{number}" for number in range(self.tasks)] or [job_id]

    def _sleep(self) -> str:
        if self.across > 1:
            leaves = f"scontrol show hostnames | tr -d n | awk '{{print int(($1 - 1) / {LEAF})}}' | sort -u | wc -l"
            return f"sleep {self.seconds:g}; [ $({leaves}) = 1 ] || sleep {self.seconds * (self.across - 1):g}"
        if not self.vary:
            return f"sleep {self.seconds:g}"
        least, spread = round(1000 * self.seconds * (1 - self.vary)), round(20 * self.seconds * self.vary)
        length = f"ms=$(({least} + {spread} * (SLURM_JOB_ID * 37 % 101)))"
        return f"{length}; sleep $((ms / 1000)).$(printf %03d $((ms % 1000)))"


@dataclass
class Site:
    """A lab while a scenario is played. ids: of the submitted jobs, by role. asrptd: its pid, 0 on the plain side.

    start: starts another asrptd, returns its pid.
    """

    lab: Lab
    asrptd: int = 0
    ids: dict[str, list[str]] = field(default_factory=dict)
    start: Callable[[], int] = lambda: 0

    def first(self, work: Work) -> str:
        """The job that the next job of this work depends on, "" for none."""
        condition, _, role = work.after.partition(":")
        return self.ids[role][len(self.ids.get(work.role, []))] if condition else ""


Act = tuple[float, Callable[[Site], object]]
"""Seconds after the first submission, and what an admin does then."""


def _makespan(scenario: Scenario, played: Played) -> float:
    return makespan_s(played, scenario.measured)


def _median_latency(scenario: Scenario, played: Played) -> float:
    return median(played.latencies or [played.until - played.began])


def _mean_completion(scenario: Scenario, played: Played) -> float:
    return mean_completion_s(played, scenario.measured)


def _longest_idle(scenario: Scenario, played: Played) -> float:
    return longest_idle_s(list(steps(played, scenario.limits)), played.began + scenario.ruled_from_s)


def _nothing(lab: Lab) -> None:
    """The default preparation."""


@dataclass(frozen=True)
class Scenario:
    """A site with a rule, and its jobs.

    takes_s: expected seconds of a side under plain Slurm. accounting: commands of sacctmgr. limits: the limits again,
    for utilisation and obeyed. before: pairs of roles; jobs of the first go before jobs of the second, from
    ``ruled_from_s`` on. preempts: the first preempt the second. measured: roles that count for the completion; empty:
    all but ``never``, which never start. measure: the seconds that are compared. daemon: settings; empty: the defaults.
    managed: asrptd's partitions. prepare: changes the lab before asrptd starts. stamp: jobs record when they start.
    recurs: the same jobs have run before: asrptd has learned their lengths from them. topology: as asrpt-lab's.
    policy: settings of asrptd's policy. threads: of each core.
    """

    name: str
    about: str
    takes_s: float
    works: Sequence[Work]
    nodes: str = "4x8"
    topology: str = ""
    cpus: int = 64
    threads: int = 1
    multifactor: bool = True
    slurm_conf: str = ""
    accounting: Sequence[str] = ()
    managed: Sequence[str] = ("gpu",)
    daemon: Mapping[str, Any] = field(default_factory=lambda: QUICK)
    policy: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[Lab], None] = _nothing
    acts: Sequence[Act] = ()
    limits: Sequence[Limit] = ()
    before: Sequence[tuple[str, str]] = ()
    preempts: Sequence[tuple[str, str]] = ()
    ruled_from_s: float = 0.0
    measured: Sequence[str] = ()
    never: Sequence[str] = ()
    modes: Sequence[str] = (ENFORCE, ORDER)
    measure: Callable[[Scenario, Played], float] = _makespan
    stamp: bool = False
    recurs: bool = False

    def stretched(self, by: float) -> Scenario:
        """The same scenario with all times multiplied, those of asrptd's settings too."""
        if by == 1.0:
            return self
        return replace(
            self,
            takes_s=self.takes_s * by,
            works=[work.stretched(by) for work in self.works],
            acts=[(at * by, act) for at, act in self.acts],
            limits=[limit._replace(until_s=limit.until_s * by) for limit in self.limits],
            ruled_from_s=self.ruled_from_s * by,
            daemon={key: type(value)(value * by) for key, value in self.daemon.items()},
        )

    def submissions(self, scale: float) -> list[tuple[float, Work]]:
        """The jobs with their times. Jobs with the same time are mixed, equally on each side."""
        draw = random.Random(self.name)
        each = [(at, draw.random(), work) for work in self.works for at in _times(work, scale)]
        return [(at, work) for at, _, work in sorted(each, key=lambda one: one[:2])]


def _times(work: Work, scale: float) -> Iterator[float]:
    count = work.count if work.fixed else max(1, round(work.count * scale))
    return (work.at_s + number * work.every_s for number in range(count))


def admin(command: str) -> Callable[[Site], object]:
    return lambda site: site.lab.run(shlex.split(command))


def _raise_and_top(site: Site) -> None:
    """An admin sets the priority of some jobs, and moves others to the top of their user's."""
    site.lab.run(["scontrol", "update", f"JobId={','.join(site.ids['raised'])}", "Priority=10000000"])
    site.lab.run(["scontrol", "top", ",".join(site.ids["topped"])])


def _kill(site: Site) -> None:
    if site.asrptd:
        os.kill(site.asrptd, signal.SIGKILL)


def _restart_asrptd(site: Site) -> None:
    """asrptd dies, and its unit starts it again."""
    _kill(site)
    site.asrptd = site.start()


def _restart_slurmctld(site: Site) -> None:
    """In order: if it crashes, Slurm drains nodes on which jobs have just started, by chance on either side."""
    site.lab.stop_slurmctld()
    site.lab.start_slurmctld()


def _restart_slurmd(node: str) -> Callable[[Site], object]:
    """An update of the package: the node's jobs go on."""

    def act(site: Site) -> None:
        site.lab.stop_node(node)
        site.lab.start_node(node)

    return act


def _blockers(seconds: float) -> Work:
    """A job on all GPUs of each node, so that a queue builds up."""
    return Work("blocker", "asrpt4", 4, seconds, gpus=8, options="-N1", fixed=True)


def _others(count: int, seconds: float, gpus: int = 1, at_s: float = 0.0) -> list[Work]:
    """Jobs of three users without a limit."""
    return [Work("others", user, count, seconds, gpus, at_s) for user in USERS[1:]]


# Recurring jobs of several groups: user, GPUs, seconds, count

_GROUPS = (
    *(("asrpt1", 1, 2, 14), ("asrpt1", 2, 6, 12), ("asrpt1", 1, 20, 8), ("asrpt1", 2, 60, 4)),
    *(("asrpt2", 1, 3, 14), ("asrpt2", 4, 10, 10), ("asrpt2", 1, 30, 7), ("asrpt2", 2, 45, 5)),
    *(("asrpt3", 2, 4, 14), ("asrpt3", 1, 12, 12), ("asrpt3", 4, 15, 8), ("asrpt3", 1, 60, 4)),
    *(("asrpt4", 8, 5, 10), ("asrpt4", 2, 12, 10), ("asrpt4", 2, 25, 7), ("asrpt4", 4, 40, 4)),
)


_WIDE_GROUPS = (
    *(("asrpt1", 8, 4, 100), ("asrpt2", 16, 5, 24)),
    *(("asrpt3", 1, 30, 40), ("asrpt3", 2, 20, 30), ("asrpt4", 4, 12, 16)),
)

_LABORATORY_GROUPS = (
    *(("asrpt1", 8, 5, 8), ("asrpt2", 4, 8, 5)),
    *(("asrpt3", 2, 7, 9), ("asrpt4", 1, 9, 20)),
)


def _recurring(groups: Sequence[tuple[str, int, int, int]], span_s: float) -> list[Work]:
    """The jobs of each group arrive evenly within the span, those of different groups at different times."""
    return [
        Work(f"{user}-{seconds}s", user, count, seconds, gpus, number * 0.4, span_s / count, vary=0.3)
        for number, (user, gpus, seconds, count) in enumerate(groups)
    ]


# Power saving: programs that really start and stop slurmd, as a cloud does

_POWER = """\
#!{python}
import subprocess, sys
from pathlib import Path
from slurm_asrpt.lab import machine, processes
from slurm_asrpt.lab.cluster import load
lab = load(Path({directory!r}))
sys.stderr = (lab.paths.log / "power.log").open("a")
print(sys.argv, file=sys.stderr, flush=True)
names = subprocess.run(["scontrol", "show", "hostnames", sys.argv[1]], env=lab.env, capture_output=True, text=True)
for name in names.stdout.split():
    {action}
"""
_RESUME = """\
command = [machine.program("slurmd"), "-D", "-b", "-N", name, "-f", str(lab.slurm_conf)]
    processes.start(f"slurmd.{name}", command, lab.env, lab.paths.log / f"{name}.out", lab.paths.pids)"""
_SUSPEND = """\
daemon = processes.read_daemon(lab.paths.pids / f"slurmd.{name}.pid")
    processes.end([daemon] if daemon else [], patience_s=2.0)  # an idle slurmd may ignore SIGTERM"""
_CLOUD = """
SuspendProgram={etc}/suspend
ResumeProgram={etc}/resume
SuspendTime={suspend_s}
SuspendTimeout=15
ResumeTimeout=60
PrivateData=cloud
"""
POWERED_DOWN = ("n3", "n4")


def power_down(lab: Lab) -> None:
    """Make two nodes cloud nodes and power them down. Raises MachineError."""
    save_power(lab, POWERED_DOWN, 3600)


def power_cycles(lab: Lab) -> None:
    """The same with three of four, which Slurm powers down again after ten idle seconds."""
    save_power(lab, ("n2", *POWERED_DOWN), 10)


def save_power(lab: Lab, nodes: Sequence[str], suspend_s: int) -> None:
    """Make these nodes cloud nodes and power them down; suspend_s: SuspendTime. Raises MachineError."""
    etc = lab.paths.etc
    for name, action in (("suspend", _SUSPEND), ("resume", _RESUME)):
        (etc / name).write_text(_POWER.format(python=sys.executable, directory=str(lab.directory), action=action))
        (etc / name).chmod(0o755)
    lab.stop_slurmctld()
    lines = lab.slurm_conf.read_text(encoding="utf-8").splitlines()
    cloud = tuple(f"NodeName={name} " for name in nodes)
    lines = [line.replace("State=UNKNOWN", "State=CLOUD") if line.startswith(cloud) else line for line in lines]
    lab.slurm_conf.write_text("\n".join(lines) + _CLOUD.format(etc=etc, suspend_s=suspend_s), encoding="utf-8")
    lab.start_slurmctld()
    lab.wait_for_nodes()
    lab.run(["scontrol", "update", f"NodeName={','.join(nodes)}", "State=POWER_DOWN_FORCE"])
    deadline = time.monotonic() + 60.0
    while not (states := _node_states(lab, nodes)) or not all(state.endswith("~") for state in states):
        if time.monotonic() > deadline:
            raise MachineError(f"the nodes are not powered down after a minute: {states}")
        time.sleep(0.5)


def _node_states(lab: Lab, nodes: Sequence[str]) -> list[str]:
    return lab.run(["sinfo", "-h", "-N", "-n", ",".join(nodes), "-p", "gpu", "-o", "%T"]).stdout.split()


def reserve(lab: Lab, *flags: str) -> None:
    """Reserve half of the nodes for a user."""
    words = "ReservationName=owned StartTime=now Duration=60 Users=asrpt2 Nodes=n[3-4]"
    lab.run(["scontrol", "create", "reservation", *words.split(), *flags])


def reserve_magnetic(lab: Lab) -> None:
    """The same, in a reservation that draws the user's jobs."""
    reserve(lab, "Flags=MAGNETIC")


def _maintain(site: Site) -> None:
    """A node will be maintained for half a minute, a minute from now."""
    words = "ReservationName=maintenance StartTime=now+60 Duration=00:00:30 Users=root Nodes=n4 Flags=MAINT"
    site.lab.run(["scontrol", "create", "reservation", *words.split()])


_RESERVE_ALL = (
    "scontrol create reservation ReservationName=maintenance StartTime=now+150 Duration=00:01:00 Users=root Nodes=ALL"
    " Flags=MAINT"
)


def bill(lab: Lab) -> None:
    """A GPU costs one unit, and eight CPUs as well."""
    words = "TRESBillingWeights=CPU=0.125,GRES/gpu=1.0"
    lab.run(["scontrol", "update", "PartitionName=gpu", words])


def give_qos(lab: Lab) -> None:
    """A partition gets its QOS: in slurm.conf, slurmctld would not know it at its first start."""
    lab.run(["scontrol", "update", "PartitionName=debug", "QOS=debugging"])


def _reserve_cores(lab: Lab) -> None:
    """Three quarters of the cores of two nodes, but none of their GPUs, are for a class."""
    words = "ReservationName=class StartTime=now Duration=60 Users=asrpt2 Nodes=n[1-2] CoreCnt=48,48"
    lab.run(["scontrol", "create", "reservation", *words.split()])


def label(lab: Lab) -> None:
    """Two nodes have one feature, two have another."""
    for nodes, feature in (("n[1-2]", "fast"), ("n[3-4]", "slow")):
        lab.run(
            ["scontrol", "update", f"NodeName={nodes}", f"AvailableFeatures={feature}", f"ActiveFeatures={feature}"]
        )


def two_sockets(lab: Lab) -> None:
    """Half of each node's cores and GPUs are on either socket; the nodes keep four cores for themselves."""
    conf, gres = lab.slurm_conf, lab.paths.etc / "gres.conf"
    text = re.sub(r"Sockets=1 CoresPerSocket=(\d+)", _halved, conf.read_text(encoding="utf-8"))
    text = text.replace(" State=UNKNOWN", " CoreSpecCount=4 MemSpecLimit=12000 State=UNKNOWN")
    conf.write_text(text, encoding="utf-8")
    bound = r"\1[0-3] Cores=0-31\n\1[4-7] Cores=32-63"
    gres.write_text(re.sub(r"(?m)^(.*)\[0-7\]$", bound, gres.read_text(encoding="utf-8")), encoding="utf-8")
    lab.restart()
    label(lab)


def local_disks(lab: Lab) -> None:
    """All nodes have 800 GB of local scratch, and two of them two NVMe disks each."""
    conf, gres = lab.slurm_conf, lab.paths.etc / "gres.conf"
    text = re.sub("(?m)^GresTypes=.*$", "GresTypes=gpu,nvme,scratch", conf.read_text(encoding="utf-8"))
    text = re.sub("(?m)^(NodeName=n[23] .*Gres=gpu:8)", r"\1,nvme:2", text)
    conf.write_text(re.sub("(?m)^(NodeName=.*Gres=gpu:8[^ ]*)", r"\1,scratch:800G", text), encoding="utf-8")
    with gres.open("a", encoding="utf-8") as file:
        file.write("NodeName=n[1-4] Name=scratch Count=800G Flags=CountOnly\nNodeName=n[2,3] Name=nvme Count=2\n")
    lab.restart()


def _halved(cores: re.Match[str]) -> str:
    return f"Sockets=2 CoresPerSocket={int(cores[1]) // 2}"


def _drain(site: Site) -> None:
    site.lab.run(["scontrol", "update", "NodeName=n2", "State=DRAIN", "Reason=disk"])


def _down(site: Site) -> None:
    """A node fails: Slurm requeues its jobs."""
    site.lab.run(["scontrol", "update", "NodeName=n3", "State=DOWN", "Reason=power"])


def _resume(node: str) -> Callable[[Site], object]:
    """Bring a node back, unless Slurm has done so by itself, as its slurmd was never gone."""
    return lambda site: site.lab.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], check=False)


def _pending(site: Site, role: str) -> list[str]:
    """The jobs of a role that wait, by id."""
    listed = site.lab.run(["squeue", "-h", "-t", "PD", "-o", "%A"]).stdout.split()
    return [job_id for job_id in site.ids[role] if job_id in listed]


def _hold(site: Site) -> None:
    """An admin holds half of the pending jobs of a user."""
    for job_id in _pending(site, "small")[::2]:
        site.lab.run(["scontrol", "hold", job_id], check=False)


def _release(site: Site) -> None:
    for job_id in _pending(site, "small"):
        site.lab.run(["scontrol", "release", job_id], check=False)


def _change(site: Site) -> None:
    """An admin gives some pending jobs another size, and others another time limit."""
    for number, job_id in enumerate(_pending(site, "medium")):
        change = "TimeLimit=3" if number % 2 else "Gres=gpu:3"
        site.lab.run(["scontrol", "update", f"JobId={job_id}", change], check=False)


def _update(role: str, every: int, *changes: str) -> Callable[[Site], object]:
    """Owners change some of their pending jobs: each of every so many gets one of the changes."""

    def act(site: Site) -> None:
        for number, job_id in enumerate(_pending(site, role)[::every]):
            change = changes[number % len(changes)].split()
            site.lab.run(["scontrol", "update", f"JobId={job_id}", *change], check=False)

    return act


def _stop_slurmdbd(site: Site) -> None:
    daemon = processes.read_daemon(site.lab.paths.pids / "slurmdbd.pid")
    processes.end([daemon] if daemon else [], patience_s=5.0)


def _start_slurmdbd(site: Site) -> None:
    start_slurmdbd(site.lab.paths, site.lab.env)


def _on_running(verb: str, role: str, most: int) -> Callable[[Site], object]:
    """An admin requeues or suspends some running jobs of a role."""

    def act(site: Site) -> None:
        running = site.lab.run(["squeue", "-h", "-t", "R", "-n", role, "-o", "%A"]).stdout.split()
        for job_id in running[:most]:
            site.lab.run(["scontrol", verb, job_id], check=False)

    return act


def _cancel(role: str, every: int) -> Callable[[Site], object]:
    """A user cancels every so many of the jobs of a role, whether they wait or run."""
    return lambda site: site.lab.run(["scancel", *site.ids[role][::every]], check=False)


def _throttle(site: Site) -> None:
    """More tasks of an array may run at a time, and then fewer."""
    for job_id, most in zip(site.ids["tasks"], (12, 2), strict=False):
        site.lab.run(["scontrol", "update", f"JobId={job_id}", f"ArrayTaskThrottle={most}"], check=False)


def _resume_jobs(site: Site) -> None:
    for job_id in site.lab.run(["squeue", "-h", "-t", "S", "-o", "%A"]).stdout.split():
        site.lab.run(["scontrol", "resume", job_id], check=False)


LIMITS_USER = Scenario(
    "limits_user",
    "QOS MaxTRESPU=gres/gpu=8; 200 jobs of 10 s of a user, 3 x 40 of 25 s of others",
    262,
    [
        Work(user, user, 40 if number else 200, 25 if number else 10, at_s=min(number, 1))
        for number, user in enumerate(USERS)
    ],
    slurm_conf=LIMITS,
    accounting=["modify qos normal set MaxTRESPerUser=gres/gpu=8"],
    limits=[Limit((user,), 8) for user in USERS],
)

NO_RULES = Scenario(
    "no_rules",
    "no rules, no weights: recurring jobs of 16 groups, 2 to 60 s on 1 to 8 GPUs, at 1.2 times the capacity",
    170,
    _recurring(_GROUPS, 120),
    slurm_conf="PriorityWeightAge=0\nPriorityWeightJobSize=0\nPriorityWeightFairshare=0",
    measure=_mean_completion,
    recurs=True,
)

SCENARIOS = [
    NO_RULES,
    replace(
        NO_RULES,
        name="no_rules_scatter",
        about="no_rules with policy.scatter",
        policy={"scatter": True},
        modes=(ENFORCE,),
    ),
    replace(
        NO_RULES,
        name="wide",
        about="no rules: 124 recurring short jobs on one and two whole nodes among 86 longer small ones, at load 1.3",
        takes_s=260,
        works=[replace(work, options=f"-N{-(-work.gpus // 8)}") for work in _recurring(_WIDE_GROUPS, 200)],
    ),
    replace(
        NO_RULES,
        name="laboratory",
        about="no rules: one server, 8 recurring jobs that need all of it among 34 smaller ones, at load 0.9",
        takes_s=140,
        nodes="1x8",
        works=[replace(work, options="-N1") for work in _recurring(_LABORATORY_GROUPS, 110)],
    ),
    LIMITS_USER,
    replace(
        LIMITS_USER, name="basic_priority", about="limits_user with priority/basic", multifactor=False, modes=(ENFORCE,)
    ),
    Scenario(
        "limits_account",
        "account with GrpTRES=gres/gpu=4 and 24 jobs; 3 x 30 jobs of others",
        60,
        [Work("limited", "asrpt1", 24, 8, options="-A small"), *_others(30, 10, 2, at_s=1)],
        slurm_conf=LIMITS,
        accounting=[
            "add account small",
            "add user asrpt1 account=small",
            "modify account small set GrpTRES=gres/gpu=4",
        ],
        limits=[Limit(("limited",), 4)],
    ),
    Scenario(
        "limits_jobs",
        "QOS MaxJobsPerUser=2, and MaxJobs=2 of a user: 12 jobs of 6 s each; 3 x 30 jobs of others",
        60,
        [
            Work("qos", "asrpt1", 12, 6, options="--qos=two"),
            Work("association", "asrpt2", 12, 6),
            *[Work("others", user, 45, 10, 2, at_s=1) for user in USERS[2:]],
        ],
        slurm_conf=LIMITS,
        accounting=[
            "add qos two MaxJobsPerUser=2",
            "modify user asrpt1 set qos+=two",
            "modify user asrpt2 set MaxJobs=2",
        ],
        limits=[Limit(("qos",), 2), Limit(("association",), 2)],
    ),
    Scenario(
        "limits_association",
        "a user with GrpTRES=gres/gpu=4 and 24 jobs; 3 x 30 jobs of others",
        60,
        [Work("limited", "asrpt1", 24, 8), *_others(30, 10, 2, at_s=1)],
        slurm_conf=LIMITS,
        accounting=["modify user asrpt1 set GrpTRES=gres/gpu=4"],
        limits=[Limit(("limited",), 4)],
    ),
    Scenario(
        "limits_too_big",
        "a 12-GPU job over its MaxTRESPU=gres/gpu=8 is first in the queue; 4 x 30 jobs behind it",
        80,
        [
            Work("too_big", "asrpt1", 1, 10, gpus=12, fixed=True),
            *[Work(user, user, 30, 10, 2, at_s=1) for user in USERS],
        ],
        slurm_conf=LIMITS,
        accounting=["modify qos normal set MaxTRESPerUser=gres/gpu=8"],
        limits=[Limit((user,), 8) for user in USERS] + [Limit(("too_big",), 0)],
        never=["too_big"],
    ),
    Scenario(
        "limits_stream",
        "account with GrpTRES=gres/gpu=4, and jobs of 1 GPU all the time; one of its jobs needs 4; patience of 30 s",
        150,
        [
            Work("stream", "asrpt1", 60, 10, 1, 0, 2, "-A small"),
            Work("four", "asrpt2", 1, 10, 4, at_s=10, options="-A small -N1", fixed=True),
            *[replace(work, every_s=4) for work in _others(30, 10, 2, at_s=1)],
        ],
        slurm_conf=LIMITS,
        accounting=[
            "add account small",
            "add user asrpt1,asrpt2 account=small",
            "modify account small set GrpTRES=gres/gpu=4",
        ],
        policy={"patience_s": 30},
        limits=[Limit(("stream", "four"), 4)],
        measured=["four"],
        modes=(ENFORCE,),
    ),
    Scenario(
        "limits_freed",
        "QOS MaxJobsPerUser=1: 6 short jobs behind one of 40 s, and 4 jobs whose limit is raised after 40 s",
        75,
        [
            Work("freed", "asrpt1", 1, 40, options="--qos=one", fixed=True),
            Work("freed", "asrpt1", 6, 4, at_s=1, options="--qos=one", fixed=True),
            Work("raised", "asrpt2", 4, 30, options="--qos=raised", fixed=True),
        ],
        slurm_conf=LIMITS,
        accounting=[
            "add qos one,raised MaxJobsPerUser=1",
            "modify user asrpt1,asrpt2 set qos+=one,raised",
        ],
        acts=[(40.0, admin("sacctmgr -i modify qos raised set MaxJobsPerUser=10"))],
        limits=[Limit(("freed",), 1), Limit(("raised",), 1, until_s=40)],
    ),
    Scenario(
        "qos_priority",
        "PriorityWeightQOS; jobs with a high QOS among others on full GPUs",
        75,
        [
            _blockers(25),
            *[Work("normal", user, 24, 8, 2, at_s=2) for user in USERS[:2]],
            *[Work("high", user, 16, 8, 2, at_s=2, options="--qos=high") for user in USERS[:3]],
        ],
        slurm_conf=f"{LIMITS}\nPriorityWeightQOS=100000",
        accounting=["add qos high Priority=1000", f"modify user {','.join(USERS)} set qos+=high"],
        before=[("high", "normal")],
    ),
    Scenario(
        "nice",
        "jobs with --nice=10000, submitted first, among others on full GPUs",
        75,
        [
            _blockers(25),
            Work("nice", "asrpt1", 48, 8, 2, at_s=2, options="--nice=10000"),
            *[Work("others", user, 16, 8, 2, at_s=2.1) for user in USERS[:3]],
        ],
        before=[("others", "nice")],
    ),
    Scenario(
        "admin_priority",
        "scontrol update Priority= and scontrol top on jobs at the end of the queue",
        75,
        [
            _blockers(40),
            Work("others1", "asrpt1", 40, 8, 2, at_s=2),
            Work("others2", "asrpt2", 40, 8, 2, at_s=2),
            Work("raised", "asrpt1", 6, 8, 2, at_s=2.1, fixed=True),
            Work("topped", "asrpt2", 6, 8, 2, at_s=2.1, fixed=True),
        ],
        acts=[(25.0, _raise_and_top)],
        before=[("raised", "others1"), ("raised", "others2"), ("topped", "others2")],
        ruled_from_s=25.0,
    ),
    Scenario(
        "tiers",
        "partitions with PriorityTier 10 and 1 on the same nodes",
        75,
        [
            _blockers(25),
            *[Work("low", user, 24, 8, 2, at_s=2) for user in USERS[:2]],
            *[Work("urgent", user, 16, 8, 2, at_s=2.1, options="-p urgent") for user in USERS[:3]],
        ],
        slurm_conf="PartitionName=urgent Nodes=n[1-4] PriorityTier=10 MaxTime=INFINITE State=UP",
        managed=("gpu", "urgent"),
        before=[("urgent", "low")],
    ),
    Scenario(
        "preempt_qos",
        "QOS normal preempts QOS scavenger (REQUEUE), which fills the GPUs",
        220,
        [
            Work("scavenger", "asrpt1", 16, 60, 2, options="--qos=scavenger --requeue", fixed=True),
            *[Work("normal", user, 20, 32, 2, at_s=20, every_s=1) for user in USERS[1:3]],
        ],
        slurm_conf=f"{LIMITS}\nPreemptType=preempt/qos\nPreemptMode=REQUEUE",
        accounting=[
            "add qos scavenger",
            "modify qos normal set Preempt=scavenger",
            f"modify user {','.join(USERS)} set qos+=scavenger",
        ],
        before=[("normal", "scavenger")],
        preempts=[("normal", "scavenger")],
        measured=["normal"],
    ),
    Scenario(
        "preempt_tiers",
        "three partitions, preempt/partition_prio: urgent jobs of 4 to 16 GPUs preempt those of both others",
        260,
        [
            Work("low", "asrpt1", 24, 40, 2, options="--requeue", fixed=True),
            *[Work("middle", user, 20, 15, 2, 10, 2.4, options="-p middle --requeue") for user in USERS[1:3]],
            Work("high", "asrpt4", 8, 10, 4, 20, 5, options="-p high -N1"),
            Work("wide", "asrpt4", 5, 10, 16, 22, 12, ask="-p high -N2 --gpus-per-node=8"),
        ],
        slurm_conf=(
            f"{LIMITS}\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
            "PartitionName=middle Nodes=n[1-4] PriorityTier=5 MaxTime=INFINITE State=UP\n"
            "PartitionName=high Nodes=n[1-4] PriorityTier=10 MaxTime=INFINITE State=UP"
        ),
        managed=("gpu", "middle", "high"),
        before=[(one, two) for one in ("high", "wide") for two in ("middle", "low")] + [("middle", "low")],
        preempts=[("high", "middle"), ("wide", "middle"), ("high", "low"), ("wide", "low"), ("middle", "low")],
        measured=["middle", "high", "wide"],
    ),
    Scenario(
        "left_contiguous",
        "--contiguous -N4 under a stream of small jobs at 1.5 times the capacity",
        150,
        [
            Work("before", "asrpt1", 36, 20, 2, every_s=1 / 1.2, fixed=True),
            Work("contiguous", "asrpt2", 1, 10, 32, at_s=30, ask="--contiguous -N4 --gpus-per-node=8", fixed=True),
            Work("after", "asrpt1", 108, 20, 2, at_s=30.5, every_s=1 / 1.2),
        ],
        before=[("contiguous", "after")],
        measured=["contiguous"],
    ),
    Scenario(
        "cpu_only",
        "a stream of CPU-only jobs that fill the CPUs, and 28 GPU jobs",
        170,
        [
            Work("cpu", "asrpt1", 16, 10, 0, ask="-N1 -n1 -c4", fixed=True),
            Work("cpu", "asrpt1", 110, 10, 0, at_s=1, every_s=1.1, ask="-N1 -n1 -c4", fixed=True),
            Work("gpu", "asrpt2", 28, 10, 1, at_s=20, options="-c4", fixed=True),
        ],
        nodes="2x8",
        cpus=16,
        measured=["gpu"],
    ),
    Scenario(
        "shared_nodes",
        "a partition of CPU-only jobs may use 16 of 64 CPUs of each GPU node (MaxCPUsPerNode); 60 GPU jobs beside them",
        130,
        [
            *[Work("cpu", "asrpt1", 40, 10, 0, 0.5 * n, 2, ask=f"-N1 -n1 -c{n} -p cpu", vary=0.3) for n in (3, 5)],
            Work("large_cpu", "asrpt2", 8, 10, 0, 4, 10, ask="-N1 -n1 -c14 -p cpu"),
            *[Work("gpu", user, 30, 12, 4, number, 2.6, options="-N1 -c20") for number, user in enumerate(USERS[2:])],
        ],
        slurm_conf="PartitionName=cpu Nodes=n[1-4] MaxTime=INFINITE MaxCPUsPerNode=16 State=UP",
        managed=("gpu", "cpu"),
        measure=_mean_completion,
    ),
    Scenario(
        "powered_down",
        "two of four nodes are powered down; jobs for one and for both",
        100,
        [
            Work("fill", "asrpt1", 2, 100, 8, options="-N1", fixed=True),
            Work("small", "asrpt2", 4, 10, 1, at_s=2, fixed=True),
            Work("both", "asrpt3", 1, 10, 16, at_s=4, options="-N2", fixed=True),
        ],
        prepare=power_down,
        modes=(ENFORCE,),
        measured=["small", "both"],
    ),
    Scenario(
        "power_cycles",
        "three of four nodes are powered down whenever they are idle for ten seconds: three rushes of jobs, with lulls",
        260,
        [
            Work(role, user, count, seconds, gpus, at_s + 0.5 * number, every_s, options="-N1", fixed=True)
            for at_s in (0, 75, 150)
            for number, (role, user, count, seconds, gpus, every_s) in enumerate(
                (
                    ("small", "asrpt1", 14, 10, 1, 1.5),
                    ("medium", "asrpt2", 10, 15, 4, 2),
                    ("node", "asrpt3", 5, 12, 8, 4),
                )
            )
        ]
        + [Work("wide", "asrpt4", 1, 12, 16, at_s, ask="-N2 --gpus-per-node=8", fixed=True) for at_s in (8, 80, 154)],
        prepare=power_cycles,
        modes=(ENFORCE,),
        measure=_mean_completion,
    ),
    Scenario(
        "magnetic",
        "a magnetic reservation on half of the nodes; its owner's jobs behind a queue of others",
        90,
        [
            Work("others", "asrpt1", 64, 10, 2, fixed=True),
            Work("owner", "asrpt2", 16, 10, 2, at_s=10, fixed=True),
        ],
        prepare=reserve_magnetic,
        limits=[Limit(("others",), 16)],
        measured=["owner"],
    ),
    Scenario(
        "reservation",
        "a reservation on half of the nodes: 48 jobs of its user that name it, 16 that do not, 48 of others",
        140,
        [
            Work("named", "asrpt2", 48, 16, 2, options="--reservation=owned", fixed=True),
            Work("outside", "asrpt2", 16, 16, 2, fixed=True),
            Work("others", "asrpt1", 48, 16, 2, fixed=True),
        ],
        prepare=reserve,
        limits=[Limit(("named",), 16), Limit(("others", "outside"), 16)],
    ),
    Scenario(
        "topology",
        "topology/tree, two switches: 20 jobs of 16 GPUs, three times as long across both, among 100 small ones",
        170,
        [
            *[Work("small", user, 50, 14, 2, number, 2.4) for number, user in enumerate(USERS[:2])],
            Work("wide", "asrpt3", 20, 16, 16, 3, 6, ask="--gpus=16", across=3),
        ],
        nodes=f"{2 * LEAF}x8",
        topology=f"tree:2x{LEAF}",
        measure=_mean_completion,
    ),
    Scenario(
        "odd_servers",
        "servers of 7 GPUs: 24 jobs of 8 GPUs, which fill no number of servers, among 120 small ones",
        170,
        [
            *[Work("small", user, 60, 14, 1, number, 2) for number, user in enumerate(USERS[:2])],
            Work("eight", "asrpt3", 24, 14, 8, 3, 5),
        ],
        nodes="4x7",
        measure=_mean_completion,
    ),
    Scenario(
        "mixture",
        "220 jobs and 80 array tasks of 17 kinds: singletons, licenses, --begin, --exclusive, several partitions, ...",
        230,
        [
            Work("array", "asrpt1", 4, 6, 1, 0, 25, tasks=20, at_once=4),
            Work("one", "asrpt1", 40, 10, 1, 1, 3),
            Work("two_nodes", "asrpt2", 12, 12, 8, 2, 10, ask="-N2 --gpus-per-node=4"),
            Work("tasks", "asrpt2", 15, 10, 4, 3, 8, ask="-n4 --gpus-per-task=1"),
            Work("gres", "asrpt3", 15, 12, 3, 4, 8, ask="--gres=gpu:3 -N1"),
            Work("exclusive", "asrpt3", 8, 10, 8, 5, 15, ask="--gpus=1 -N1 --exclusive"),
            Work("cpus", "asrpt4", 15, 12, 2, 6, 8, ask="--gpus=2 --cpus-per-gpu=16"),
            Work("singleton", "asrpt1", 10, 8, 2, 7, options="-d singleton"),
            Work("begin", "asrpt2", 10, 8, 1, 8, begin_s=25),
            Work("license", "asrpt3", 20, 8, 1, 9, 2, options="-L simulator:1"),
            Work("high", "asrpt4", 10, 10, 2, 10, 10, options="--qos=high"),
            Work("nice", "asrpt1", 10, 10, 2, 11, 5, options="--nice=1000"),
            Work("either", "asrpt2", 15, 8, 1, 12, 5, options="-p gpu,second"),
            Work("contiguous", "asrpt3", 6, 8, 4, 13, 15, ask="-N2 --contiguous --gpus-per-node=2"),
            Work("cpu", "asrpt4", 20, 10, 0, 14, 4, ask="-n1 -c8"),
            Work("large", "asrpt4", 4, 12, 16, 15, 25, ask="--gpus=16"),
            Work("ranged", "asrpt2", 10, 10, 6, 16, 10, ask="-N1-3 --gpus=6"),
        ],
        slurm_conf=(
            f"{LIMITS}\nPriorityWeightQOS=100000\nLicenses=simulator:3\n"
            "PartitionName=second Nodes=n[1-4] MaxTime=INFINITE State=UP"
        ),
        accounting=[
            "add qos high Priority=1000",
            f"modify user {','.join(USERS)} set qos+=high",
            "modify user asrpt4 set GrpTRES=gres/gpu=24",
        ],
        managed=("gpu", "second"),
        limits=[
            Limit(("array",), 16),
            Limit(("singleton",), 2),
            Limit(("license",), 3),
            Limit(("cpus", "high", "large"), 24),
        ],
        measure=_mean_completion,
    ),
    Scenario(
        "constraints",
        "225 jobs of 17 kinds: features, named nodes, memory, het jobs, tasks by GPU, GrpTRESRunMins, ...",
        230,
        [
            Work("feature", "asrpt1", 20, 10, 2, 0, 5, ask="--gpus=2 -C fast"),
            Work("or", "asrpt1", 15, 8, 1, 1, 6, ask="--gpus=1 -C 'fast|slow'"),
            Work("matching", "asrpt2", 6, 10, 4, 2, 15, ask="-N2 --gpus-per-node=2 -C '[fast*1&slow*1]'"),
            Work("named", "asrpt2", 12, 10, 1, 3, 8, ask="--gpus=1 -w n2"),
            Work("without", "asrpt2", 12, 10, 2, 4, 8, ask="--gpus=2 -N1 -x n1,n2"),
            Work("memory", "asrpt3", 20, 10, 1, 5, 4, ask="--gpus=1 --mem=200G"),
            Work("by_gpu", "asrpt3", 15, 10, 2, 6, 6, ask="--gpus=2 -N1 --mem-per-gpu=60G"),
            Work("tasks", "asrpt3", 10, 12, 8, 7, 10, ask="-N2 --ntasks-per-node=4 --gpus-per-task=1"),
            Work("by_task", "asrpt3", 12, 8, 2, 8, 8, ask="--gpus=2 -N1 --ntasks-per-gpu=4 -c4"),
            Work("het", "asrpt1", 8, 10, 3, 9, 12, ask="--gpus=1 -n1 : --gpus=2 -n1"),
            Work("deadline", "asrpt4", 10, 8, 1, 10, 8, ask="--gpus=1 --deadline=now+300"),
            Work("spread", "asrpt1", 8, 10, 4, 11, 12, ask="-N4 --spread-job --gpus-per-node=1"),
            Work("fewest", "asrpt2", 8, 10, 8, 12, 12, ask="--gpus=8 --use-min-nodes"),
            Work("sockets", "asrpt1", 12, 8, 2, 13, 8, ask="--gpus=2 -N1 -n4 --ntasks-per-socket=4"),
            Work("shared", "asrpt2", 15, 8, 1, 14, 6, ask="--gpus=1 -s"),
            Work("minutes", "asrpt4", 30, 10, 2, 15, 3, ask="--gpus=2 -N1"),
            Work("large", "asrpt1", 12, 12, 12, 16, 9, ask="-N2 --gpus-per-node=6"),
        ],
        slurm_conf=f"{LIMITS}\nPriorityWeightFairshare=100000",
        accounting=[
            "modify user asrpt4 set GrpTRESRunMins=gres/gpu=8",
            "modify qos normal set MaxTRESPerJob=gres/gpu=16",
        ],
        prepare=label,
        limits=[Limit(("minutes", "deadline"), 8)],
        measure=_mean_completion,
    ),
    Scenario(
        "two_sockets",
        "nodes of two sockets with half of the GPUs each, which keep four cores for themselves: 13 kinds of requests",
        230,
        [
            Work("one", "asrpt1", 60, 10, 1, 0, 2, ask="--gpus=1 -n1 -c8"),
            Work("bound", "asrpt2", 30, 10, 1, 0.5, 4, ask="--gres=gpu:1 -n1 -c8 --gres-flags=enforce-binding"),
            Work("bound_two", "asrpt2", 15, 12, 2, 1, 8, ask="--gres=gpu:2 -n1 -c14 --gres-flags=enforce-binding"),
            Work("many_cores", "asrpt3", 15, 10, 1, 2, 8, ask="--gpus=1 -n1 -c24"),
            Work("by_task", "asrpt3", 20, 12, 4, 3, 6, ask="-N1 -n4 --gpus-per-task=1 -c7"),
            Work("by_socket", "asrpt1", 10, 10, 4, 4, 12, ask="-N1 --gpus-per-socket=2 --sockets-per-node=2 -n2"),
            Work("tasks_by_socket", "asrpt1", 10, 10, 2, 5, 12, ask="-N1 -n4 --ntasks-per-socket=2 --gpus=2"),
            Work("one_socket", "asrpt4", 10, 10, 4, 6, 12, ask="-N1 -n1 -c28 --gres=gpu:4 --sockets-per-node=1"),
            Work("node", "asrpt4", 10, 12, 8, 7, 12, ask="-N1 --gpus-per-node=8 --ntasks-per-node=8 -c7"),
            Work("wide", "asrpt2", 5, 12, 16, 8, 24, ask="-N2 --gpus-per-node=8 --ntasks-per-node=8 -c7"),
            Work("preferred", "asrpt3", 20, 10, 1, 9, 6, ask="--gpus=1 -n1 -c6 --prefer=fast"),
            Work("overcommitted", "asrpt4", 10, 10, 2, 10, 12, ask="-N1 -n32 -O --gpus=2"),
            Work("memory", "asrpt1", 20, 10, 1, 11, 6, ask="--gpus=1 -n1 -c2 --mem=120G"),
        ],
        prepare=two_sockets,
        measure=_mean_completion,
    ),
    Scenario(
        "local_disks",
        "jobs with scratch or NVMe disks of their nodes (other generic resources), scarcer than GPUs, among others",
        230,
        [
            Work("small", "asrpt1", 60, 10, 1, 0, 1.6),
            Work("scratch", "asrpt2", 40, 12, 1, 0.3, 2.4, ask="--gres=gpu:1,scratch:300G -n1"),
            Work("disk", "asrpt3", 25, 10, 1, 0.6, 3, ask="--gres=gpu:1,nvme:1 -n1"),
            Work("pair", "asrpt2", 20, 15, 2, 1, 5, ask="-N1 --gpus=2 --gres=scratch:100G"),
            Work("node", "asrpt4", 10, 12, 8, 2, 10, ask="-N1 --gres=gpu:8,scratch:400G"),
            Work("wide", "asrpt4", 5, 15, 16, 5, 20, ask="-N2 --gpus-per-node=8"),
            Work("disks", "asrpt1", 10, 12, 4, 7, 10, ask="-N1 --gres=gpu:4,nvme:2"),
        ],
        prepare=local_disks,
        measure=_mean_completion,
    ),
    Scenario(
        "short_of_cpus",
        "one GPU and half of the CPUs, half of the memory or a disk of a node: such jobs among others of few GPUs",
        230,
        [
            Work("cpus", "asrpt1", 40, 20, 1, 0, 2, ask="--gpus=1 -n1 -c30"),
            Work("memory", "asrpt2", 20, 15, 1, 0.4, 4, ask="--gpus=1 -n1 -c1 --mem=240G"),
            Work("disk", "asrpt3", 20, 15, 1, 0.8, 4, ask="--gres=gpu:1,nvme:1 -n1"),
            Work("small", "asrpt3", 60, 25, 1, 1, 1.4, ask="--gpus=1 -n1 -c1 --mem=4G", vary=0.3),
            Work("pair", "asrpt4", 30, 30, 2, 1.2, 2.8, ask="--gpus=2 -N1 -n1 -c1 --mem=4G", vary=0.3),
        ],
        prepare=local_disks,
        measure=_mean_completion,
    ),
    Scenario(
        "interactive",
        "120 jobs of srun by two users, whose users wait for them, among 180 of sbatch at 1.2 times the capacity",
        170,
        [
            Work("srun", "asrpt1", 80, 8, 1, 0.3, 1.5, interactive=True),
            Work("srun_two", "asrpt2", 40, 10, 2, 0.6, 3, interactive=True),
            Work("small", "asrpt3", 100, 10, 1, 0, 1.2),
            Work("medium", "asrpt4", 60, 20, 2, 0.5, 2),
            Work("node", "asrpt3", 20, 12, 8, 0.7, 6, ask="-N1 --gpus-per-node=8"),
        ],
        measure=_mean_completion,
    ),
    Scenario(
        "churn",
        "two GPU types, arrays; pending and running jobs are cancelled, arrays changed, jobs requeued and suspended",
        200,
        [
            Work("small", "asrpt1", 60, 10, 1, 0, 1.6),
            Work("typed", "asrpt2", 30, 12, 2, 0.5, 3, ask="--gpus=h100:2 -N1 --requeue"),
            Work("other", "asrpt3", 20, 12, 4, 1, 4, ask="-N1 --gpus-per-node=a100:4"),
            Work("both", "asrpt3", 6, 10, 12, 2, 15, ask="-N2 --gpus-per-node=6"),
            Work("tasks", "asrpt4", 3, 6, 1, 3, 20, tasks=40, at_once=6),
            Work("cancelled", "asrpt4", 40, 10, 2, 4, 0.5),
            Work("wide", "asrpt2", 6, 12, 16, 5, 16, ask="-N2 --gpus-per-node=8"),
        ],
        nodes="2x8:h100,2x8:a100",
        acts=[
            (20.0, _cancel("cancelled", 2)),
            (30.0, _throttle),
            (35.0, _on_running("requeue", "typed", 3)),
            (45.0, _cancel("cancelled", 1)),
            (60.0, _on_running("suspend", "small", 3)),
            (75.0, _resume_jobs),
        ],
        never=["cancelled"],
        measure=_mean_completion,
    ),
    Scenario(
        "admin_day",
        "a node is drained, one fails, both come back; jobs are held, released, changed, requeued",
        200,
        [
            Work("small", "asrpt1", 80, 10, 1, 0, 1.2),
            Work("medium", "asrpt2", 50, 15, 2, 0.5, 2, ask="-N1 --gres=gpu:2 --requeue"),
            Work("node", "asrpt3", 16, 12, 8, 1, 6, ask="-N1 --gpus-per-node=8 --requeue"),
            Work("wide", "asrpt4", 8, 15, 16, 1.5, 12, ask="-N2 --gpus-per-node=8 --requeue"),
        ],
        acts=[
            (20.0, _drain),
            (30.0, _hold),
            (40.0, _change),
            (50.0, _resume("n2")),
            (60.0, _on_running("requeue", "medium", 4)),
            (70.0, _release),
            (80.0, _down),
            (100.0, _resume("n3")),
        ],
        measure=_mean_completion,
    ),
    Scenario(
        "restless",
        "owners change their pending jobs in twelve ways, hold and release them; slurmdbd is away for half a minute",
        200,
        [
            Work("small", "asrpt1", 90, 10, 1, 0, 1.1),
            Work("medium", "asrpt2", 60, 15, 2, 0.5, 1.7, options="-N1"),
            Work("tasks", "asrpt3", 3, 8, 1, 1, 20, tasks=20, at_once=10),
            Work("node", "asrpt3", 14, 12, 8, 1.5, 7, ask="-N1 --gpus-per-node=8"),
            Work("wide", "asrpt4", 7, 15, 16, 2, 14, ask="-N2 --gpus-per-node=8"),
        ],
        slurm_conf=(f"{LIMITS}\nPriorityWeightQOS=100000\nPartitionName=second Nodes=n[1-4] MaxTime=INFINITE State=UP"),
        accounting=[
            "add qos high Priority=1000",
            f"modify user {','.join(USERS)} set qos+=high",
            "modify qos normal set MaxTRESPerUser=gres/gpu=16",
        ],
        managed=("gpu", "second"),
        prepare=label,
        acts=[
            (12.0, _update("small", 2, "TimeLimit=3", "Nice=100", "Partition=second", "QOS=high")),
            (18.0, _update("medium", 2, "ReqNodeList=n2", "ExcNodeList=n[1-2]", "Features=fast", "Partition=second")),
            (24.0, _update("node", 1, "QOS=high", "ReqNodeList=n3")),
            (26.0, _hold),
            (30.0, _stop_slurmdbd),
            (36.0, _update("tasks", 1, "TimeLimit=2", "Nice=50")),
            (40.0, _update("medium", 3, "NumNodes=1-2", "StartTime=now+20", "Gres=gpu:3", "MinCPUsNode=4")),
            (46.0, _release),
            (50.0, _update("wide", 1, "Partition=second", "TimeLimit=3")),
            (56.0, _cancel("tasks", 2)),
            (60.0, _start_slurmdbd),
            (66.0, _update("small", 3, "Features=slow", "StartTime=now+15", "ReqNodeList=n1")),
            (74.0, _update("medium", 2, "Features=", "ReqNodeList=", "ExcNodeList=")),
        ],
        measure=_mean_completion,
    ),
    Scenario(
        "pipelines",
        "chains by --dependency, failing jobs and their repair, arrays by aftercorr, singletons, jobs over their limit",
        200,
        [
            Work("prepare", "asrpt1", 30, 5, 1, 0, 3),
            Work("train", "asrpt1", 30, 14, 4, 0.1, 3, options="-N1", after="afterok:prepare"),
            Work("evaluate", "asrpt1", 30, 5, 1, 0.2, 3, after="afterok:train"),
            Work("failing", "asrpt2", 30, 3, 2, 1, 3, fails=True),
            Work("repair", "asrpt2", 30, 8, 2, 1.1, 3, after="afternotok:failing"),
            Work("lost", "asrpt2", 30, 8, 2, 1.2, 3, options="--kill-on-invalid-dep=yes", after="afterok:failing"),
            Work("shards", "asrpt3", 4, 6, 1, 2, 20, tasks=10, at_once=10),
            Work("trained", "asrpt3", 4, 8, 2, 2.1, 20, tasks=10, at_once=10, after="aftercorr:shards"),
            Work("segments", "asrpt4", 10, 9, 8, 3, 2, ask="-N1 --gpus-per-node=8 -d singleton"),
            Work("overtime", "asrpt4", 3, 200, 1, 4, 20, options="--time=1"),
            Work("others", "asrpt4", 60, 10, 1, 5, 1.5),
        ],
        never=["lost"],
        limits=[Limit(("segments",), 8)],
        measure=_mean_completion,
    ),
    Scenario(
        "whole_site",
        "all of a site's rules at once: account tree, fair share, QOS, preemption, tiers, partition QOS, maintenance",
        260,
        [
            Work("small", "asrpt1", 50, 10, 1, 0, 2, options="-A optics"),
            Work("pair", "asrpt2", 25, 12, 2, 0.5, 4, options="-A waves -N1"),
            Work("wide", "asrpt2", 4, 12, 16, 2, 25, ask="-N2 --gpus-per-node=8 -A waves"),
            Work("scavenger", "asrpt3", 14, 40, 2, 0, 1, "--qos=scavenger --requeue", fixed=True),
            Work("node", "asrpt3", 8, 12, 8, 5, 12, ask="-N1 --gpus-per-node=8"),
            Work("debug", "asrpt3", 24, 5, 1, 3, 4, options="-p debug"),
            Work("high", "asrpt4", 12, 8, 2, 10, 8, options="--qos=high"),
            Work("grant", "asrpt4", 24, 10, 2, 1, 3, options="-A grant"),
            Work("either", "asrpt4", 20, 8, 1, 6, 5, options="-p gpu,long"),
            Work("tasks", "asrpt1", 2, 8, 1, 4, 40, options="-A optics", tasks=20, at_once=5),
        ],
        slurm_conf=(
            f"{LIMITS}\nPreemptType=preempt/qos\nPreemptMode=REQUEUE\nPriorityWeightQOS=100000\n"
            "PriorityWeightFairshare=20000\nPriorityWeightAge=1000\nPriorityCalcPeriod=1\n"
            "PartitionName=debug Nodes=n[1-4] PriorityTier=10 MaxTime=2 State=UP\n"
            "PartitionName=long Nodes=n[1-3] MaxTime=INFINITE State=UP"
        ),
        accounting=[
            "add qos scavenger UsageFactor=0.1",
            "add qos high Priority=1000",
            "add qos debugging MaxTRESPerUser=gres/gpu=2 MaxWall=2",
            "modify qos normal,high set Preempt=scavenger",
            "add account physics,grant",
            "add account optics,waves parent=physics",
            "add user asrpt1 account=optics",
            "add user asrpt2 account=waves",
            "add user asrpt4 account=grant",
            "modify account physics set GrpTRES=gres/gpu=20",
            "modify account grant set GrpTRESMins=gres/gpu=3",
            f"modify user {','.join(USERS)} set qos+=scavenger,high",
        ],
        managed=("gpu", "debug", "long"),
        prepare=give_qos,
        acts=[
            (30.0, _maintain),
            (110.0, admin("sacctmgr -i modify account grant set GrpTRESMins=gres/gpu=-1")),
        ],
        limits=[
            Limit(("small", "pair", "wide", "tasks"), 20),
            Limit(("debug",), 2),
        ],
        before=[("high", "either")],
        measured=["small", "pair", "wide", "node", "debug", "high", "grant", "either", "tasks"],
        measure=_mean_completion,
    ),
    Scenario(
        "maintenance",
        "all nodes are maintained for half a minute, 150 s from now: jobs with limits of 1, 2 and 3 minutes",
        230,
        [
            Work("one", "asrpt1", 70, 10, 1, 0, 2, options="--time=1"),
            Work("two", "asrpt2", 40, 12, 2, 0.5, 3.5, options="-N1 --time=2"),
            Work("long", "asrpt3", 20, 15, 4, 1, 7, options="-N1 --time=3"),
            Work("node", "asrpt4", 12, 12, 8, 2, 11, ask="-N1 --gpus-per-node=8", options="--time=1"),
            Work("wide", "asrpt4", 5, 12, 16, 3, 30, ask="-N2 --gpus-per-node=8", options="--time=2"),
        ],
        acts=[
            (1.0, admin(_RESERVE_ALL)),
            (185.0, admin("scontrol delete reservation=maintenance")),
        ],
        measure=_mean_completion,
    ),
    Scenario(
        "overlapping",
        "two partitions on the same nodes with as many jobs each, of which asrptd manages one",
        200,
        [
            *[
                Work(f"{where}_{role}", user, count, seconds, gpus, at_s, 110 / count, options=f"-N1 -p {partition}")
                for where, partition, user in (("managed", "gpu", "asrpt1"), ("other", "other", "asrpt2"))
                for role, count, seconds, gpus, at_s in (
                    ("one", 60, 10, 1, 0),
                    ("two", 30, 12, 2, 1),
                    ("node", 8, 12, 8, 2),
                )
            ],
        ],
        measured=["managed_one", "managed_two", "managed_node"],
        measure=_mean_completion,
    ),
    Scenario(
        "limits_nodes",
        "QOS MaxTRESPerUser=node=2: 120 jobs of 1 GPU of a user, which share nodes; 3 x 30 of 2 GPUs of others",
        110,
        [Work("limited", "asrpt1", 120, 10, 1, 0, 0.3), *_others(30, 10, 2, at_s=1)],
        slurm_conf=LIMITS,
        accounting=["add qos two MaxTRESPerUser=node=2", "modify user asrpt1 set qos=two defaultqos=two"],
        measure=_mean_completion,
    ),
    Scenario(
        "typed_limits",
        "QOS MaxTRESPerUser=gres/gpu:h100=4 on nodes of two types: jobs of a user that name the type, and that do not",
        110,
        [
            Work("typed", "asrpt1", 40, 10, 1, 0, 0.5, ask="--gpus=h100:1 -N1"),
            Work("typed_two", "asrpt1", 12, 10, 2, 0.2, 2, ask="-N1 --gres=gpu:h100:2"),
            Work("untyped", "asrpt1", 30, 10, 1, 0.3, 1, ask="--gpus=1 -N1"),
            *[replace(work, every_s=1) for work in _others(40, 10, 2, at_s=1)],
        ],
        nodes="2x8:h100,2x8:a100",
        slurm_conf=f"{LIMITS}\nAccountingStorageTRES=gres/gpu,gres/gpu:h100,gres/gpu:a100",
        accounting=["modify qos normal set MaxTRESPerUser=gres/gpu:h100=4"],
        measure=_mean_completion,
    ),
    Scenario(
        "run_minutes",
        "a user with GrpTRESRunMins=gres/gpu=12: 8 jobs of 150 s with limits of 3 minutes; 3 x 12 of others",
        280,
        [
            Work("limited", "asrpt1", 8, 150, options="--time=3", fixed=True),
            *_others(12, 24, 2, at_s=1),
        ],
        slurm_conf=f"{LIMITS}\nPriorityCalcPeriod=1",
        accounting=["modify user asrpt1 set GrpTRESRunMins=gres/gpu=12"],
        measured=["limited"],
        measure=_mean_completion,
    ),
    Scenario(
        "billing",
        "TRESBillingWeights, and a QOS with MaxTRESPerUser=billing=8: 60 jobs with few and many CPUs; 3 x 30 of others",
        110,
        [
            Work("few", "asrpt1", 40, 10, options="-n1 -c2"),
            Work("many", "asrpt1", 20, 10, options="-N1 -n1 -c16", at_s=0.1),
            *_others(30, 10, 2, at_s=1),
        ],
        slurm_conf=LIMITS,
        accounting=["modify qos normal set MaxTRESPerUser=billing=8"],
        prepare=bill,
        measure=_mean_completion,
    ),
    Scenario(
        "safe",
        "AccountingStorageEnforce=safe: 48 jobs of an account with 16 GPU-minutes, 3 x 40 of others",
        110,
        [
            Work("limited", "asrpt1", 40, 10, options="-A small --time=1"),
            Work("limited_two", "asrpt1", 8, 10, 2, options="-A small -N1 --time=2"),
            *_others(40, 10, 2, at_s=1),
        ],
        slurm_conf="AccountingStorageEnforce=associations,limits,qos,safe\nPriorityCalcPeriod=1",
        accounting=[
            "add account small",
            "add user asrpt1 account=small",
            "modify account small set GrpTRESMins=gres/gpu=16",
        ],
        measure=_mean_completion,
    ),
    Scenario(
        "fairshare",
        "PriorityWeightFairshare: a user has had all GPUs for a minute and more, when two others submit",
        150,
        [
            Work("heavy", "asrpt1", 224, 10, 2),
            *[Work("light", user, 24, 8, 2, at_s=80, every_s=0.5) for user in USERS[1:3]],
        ],
        slurm_conf=f"{LIMITS}\nPriorityWeightFairshare=100000\nPriorityCalcPeriod=1\nPriorityWeightAge=0",
        before=[("light", "heavy")],
        ruled_from_s=80.0,
    ),
    Scenario(
        "backlog",
        "1,200 jobs and 1,000 array tasks are there at once, 2 to 12 s on 1 to 8 GPUs",
        420,
        [
            *[Work(user, user, 280, 3, 1, number / 10, vary=0.5) for number, user in enumerate(USERS)],
            Work("pair", "asrpt2", 60, 8, 2, 1, vary=0.5),
            Work("node", "asrpt3", 20, 10, 8, 1, ask="-N1 --gpus-per-node=8"),
            Work("tasks", "asrpt4", 2, 3, 1, 2, tasks=500, at_once=500),
        ],
        measure=_mean_completion,
    ),
    Scenario(
        "restarts",
        "slurmctld and a slurmd are restarted, asrptd is killed, scontrol reconfigure, the partition is down for 10 s",
        200,
        [
            Work("small", "asrpt1", 100, 10, 1, 0, 1.2),
            Work("medium", "asrpt2", 50, 15, 2, 0.5, 2.4, ask="-N1 --gres=gpu:2"),
            Work("node", "asrpt3", 16, 12, 8, 1, 7, ask="-N1 --gpus-per-node=8"),
            Work("wide", "asrpt4", 8, 15, 16, 1.5, 14, ask="-N2 --gpus-per-node=8"),
            Work("tasks", "asrpt4", 3, 8, 1, 2, 30, tasks=20, at_once=6),
        ],
        acts=[
            (20.0, _restart_slurmctld),
            (40.0, _restart_asrptd),
            (55.0, admin("scontrol reconfigure")),
            (65.0, _restart_slurmd("n2")),
            (75.0, admin("scontrol update PartitionName=gpu State=DOWN")),
            (85.0, admin("scontrol update PartitionName=gpu State=UP")),
        ],
        modes=(ENFORCE,),
        measure=_mean_completion,
    ),
    Scenario(
        "slices",
        "nodes with whole GPUs and MIG slices: jobs by type, by --gpus without a type, of several slices",
        200,
        [
            Work("slice", "asrpt1", 80, 10, 1, 0, 1.3, ask="--gpus=1g.10gb:1"),
            Work("slices", "asrpt2", 30, 12, 2, 0.5, 3, ask="-N1 --gpus-per-node=1g.10gb:2"),
            Work("gres", "asrpt2", 20, 12, 1, 0.7, 5, ask="-N1 --gres=gpu:a100:1"),
            Work("whole", "asrpt3", 30, 14, 2, 1, 4, ask="-N1 --gpus-per-node=a100:2"),
            Work("wide", "asrpt3", 8, 12, 4, 2, 15, ask="-N2 --gpus-per-node=a100:2"),
            Work("any", "asrpt4", 40, 8, 1, 3, 3, ask="--gpus=1"),
        ],
        nodes="3x2:a100+7:1g.10gb",
        limits=[Limit(("gres", "whole", "wide"), 6), Limit(("slice", "slices"), 21)],
        measure=_mean_completion,
    ),
    Scenario(
        "exclusive_user",
        "200 jobs of four users in a partition with ExclusiveUser=YES: no node has jobs of two users",
        150,
        [
            Work(role, user, count, 10, gpus, number + 0.3 * gpus, 100 / count, "-N1 -p own", vary=0.3)
            for number, user in enumerate(USERS)
            for role, count, gpus in (("one", 25, 1), ("two", 15, 2), ("four", 10, 4))
        ],
        slurm_conf="PartitionName=own Nodes=n[1-4] MaxTime=INFINITE State=UP ExclusiveUser=YES",
        managed=("gpu", "own"),
        modes=(ENFORCE,),
        measure=_mean_completion,
    ),
    Scenario(
        "unhurried",
        "SchedulerParameters of a busy site: defer, batch_sched_delay=12, sched_min_interval=2000000, bf_interval=30",
        230,
        [
            Work("small", "asrpt1", 60, 30, 1, 0, 2, vary=0.5),
            Work("medium", "asrpt2", 30, 40, 2, 0.5, 4, options="-N1", vary=0.5),
            Work("node", "asrpt3", 8, 30, 8, 1, 15, ask="-N1 --gpus-per-node=8"),
            Work("wide", "asrpt4", 4, 30, 16, 1.5, 30, ask="-N2 --gpus-per-node=8"),
            Work("cpu", "asrpt4", 20, 10, 0, 3, 6, ask="-n1 -c8"),
        ],
        slurm_conf=(
            "SchedulerParameters=defer,batch_sched_delay=12,sched_min_interval=2000000,sched_interval=60,bf_interval=30,"
            "bf_continue,default_queue_depth=100,partition_job_depth=50,max_rpc_cnt=150"
        ),
        daemon={},
        modes=(ENFORCE,),
        measure=_mean_completion,
    ),
    Scenario(
        "one_task_per_core",
        "CR_ONE_TASK_PER_CORE and CR_Pack_Nodes on cores of two threads, a partition with LLN: jobs of many tasks",
        150,
        [
            Work("tasks", "asrpt1", 40, 10, 1, 0, 2.5, ask="-N1 -n8 --gpus=1"),
            Work("by_gpu", "asrpt1", 30, 10, 2, 0.5, 3, ask="-N1 -n2 --gpus-per-task=1"),
            Work("threads", "asrpt2", 30, 10, 1, 1, 3, ask="-n1 -c8 --gpus=1"),
            Work("odd", "asrpt2", 20, 10, 2, 1.5, 5, ask="-N1 -n3 -c3 --gpus=2"),
            Work("memory", "asrpt3", 20, 10, 1, 2, 5, ask="-N1 -n6 --gpus=1 --mem-per-cpu=8G"),
            Work("node", "asrpt4", 8, 12, 8, 2.5, 12, ask="-N1 --gpus-per-node=8 --ntasks-per-node=8"),
            Work("wide", "asrpt4", 4, 12, 16, 3, 25, ask="-N2 --gpus-per-node=8 --ntasks-per-node=8"),
            Work("cpu", "asrpt3", 20, 10, 0, 4, 4, ask="-n12"),
        ],
        slurm_conf=(
            "SelectTypeParameters=CR_Core_Memory,CR_ONE_TASK_PER_CORE,CR_Pack_Nodes\n"
            "PartitionName=least Nodes=n[1-4] MaxTime=INFINITE State=UP LLN=YES"
        ),
        managed=("gpu", "least"),
        threads=2,
        measure=_mean_completion,
    ),
    Scenario(
        "qos_removed",
        "40 jobs of a user wait with a QOS of high priority, which an admin takes from the user; 3 x 40 jobs of others",
        110,
        [Work("high", "asrpt1", 40, 10, 1, options="--qos=high"), *_others(40, 10, 2, at_s=1)],
        slurm_conf=f"{LIMITS}\nPriorityWeightQOS=100000",
        accounting=["add qos high Priority=1000 MaxTRESPerUser=gres/gpu=8", "modify user asrpt1 set qos+=high"],
        acts=[(6.0, admin("sacctmgr -i modify user asrpt1 set qos-=high"))],
        measured=["others"],
        never=["high"],
        measure=_mean_completion,
    ),
    Scenario(
        "moving_nodes",
        "an admin moves nodes between partitions, one of them hidden, changes features, limits and the default",
        200,
        [
            Work("small", "asrpt1", 80, 10, 1, 0, 1.2),
            Work("medium", "asrpt2", 40, 15, 2, 0.5, 2.5, options="-N1 --time=2 -p gpu"),
            Work("fast", "asrpt2", 20, 10, 1, 0.7, 5, options="-C fast -p gpu"),
            Work("hidden", "asrpt3", 40, 10, 1, 1, 2.5, options="-p hidden"),
            Work("either", "asrpt3", 20, 10, 2, 1.2, 5, options="-p gpu,hidden -N1"),
            Work("node", "asrpt4", 8, 12, 8, 1.5, 12, ask="-N1 --gpus-per-node=8"),
            Work("wide", "asrpt4", 4, 15, 16, 2, 25, ask="-N2 --gpus-per-node=8", options="-p gpu"),
        ],
        nodes="5x8",
        slurm_conf=("PartitionName=hidden Nodes=n[4-5] MaxTime=INFINITE State=UP Hidden=YES"),
        managed=("gpu", "hidden"),
        prepare=label,
        acts=[
            (10.0, admin("scontrol update PartitionName=gpu Nodes=n[1-3]")),
            (30.0, admin("scontrol update PartitionName=hidden Nodes=n[3-5]")),
            (45.0, admin("scontrol update NodeName=n1 AvailableFeatures=slow ActiveFeatures=slow")),
            (50.0, admin("scontrol update PartitionName=gpu MaxTime=1")),
            (60.0, admin("scontrol update PartitionName=hidden Nodes=n5")),
            (65.0, admin("scontrol update PartitionName=gpu Nodes=n[1-4] MaxTime=INFINITE")),
            (80.0, admin("scontrol update PartitionName=hidden Default=YES")),
            (90.0, admin("scontrol update NodeName=n1 AvailableFeatures=fast ActiveFeatures=fast")),
        ],
        measure=_mean_completion,
    ),
    Scenario(
        "condo",
        "three groups own a node or two each; in a partition whose jobs they preempt, all may use what is idle",
        220,
        [
            Work("own_one", "asrpt1", 40, 10, 1, 0, 3, options="-A one -p one"),
            Work("own_two", "asrpt2", 25, 15, 2, 0.5, 5, options="-A two -p two -N1"),
            Work("own_three", "asrpt3", 10, 12, 8, 1, 12, ask="-N1 --gpus-per-node=8", options="-A three -p three"),
            Work("both_one", "asrpt1", 25, 12, 2, 1.5, 5, options="-A one -p one,shared -N1 --requeue"),
            Work("both_two", "asrpt2", 15, 12, 4, 2, 8, options="-A two -p two,shared -N1 --requeue"),
            Work("shared", "asrpt4", 40, 15, 1, 2.5, 3, options="-p shared --requeue"),
            Work("shared_wide", "asrpt4", 5, 12, 16, 3, 25, ask="-N2 --gpus-per-node=8", options="-p shared --requeue"),
        ],
        slurm_conf=(
            f"{LIMITS}\nPreemptType=preempt/partition_prio\nPreemptMode=REQUEUE\n"
            "PartitionName=one Nodes=n1 PriorityTier=10 PreemptMode=OFF AllowAccounts=one MaxTime=INFINITE State=UP\n"
            "PartitionName=two Nodes=n2 PriorityTier=10 PreemptMode=OFF AllowAccounts=two MaxTime=INFINITE State=UP\n"
            "PartitionName=three Nodes=n[3-4] PriorityTier=10 PreemptMode=OFF AllowAccounts=three State=UP\n"
            "PartitionName=shared Nodes=n[1-4] PriorityTier=1 PreemptMode=REQUEUE MaxTime=INFINITE State=UP"
        ),
        accounting=[
            "add account one,two,three",
            "add user asrpt1 account=one",
            "add user asrpt2 account=two",
            "add user asrpt3 account=three",
        ],
        managed=("gpu", "one", "two", "three", "shared"),
        measure=_mean_completion,
    ),
    Scenario(
        "core_reservation",
        "48 of 64 cores of two nodes are reserved for a class; jobs with four cores for each GPU",
        150,
        [
            Work("one", "asrpt1", 90, 10, 1, 0, 1, options="-N1 -n1 -c4"),
            Work("two", "asrpt3", 40, 12, 2, 0.5, 2, options="-N1 -n2 -c4"),
            Work("node", "asrpt4", 6, 12, 8, 1, 12, ask="-N1 --gpus-per-node=8 -n8 -c4"),
            Work("class", "asrpt2", 30, 6, 0, 5, 3, ask="-n1 -c8 --reservation=class"),
        ],
        prepare=_reserve_cores,
        measured=["one", "two", "node"],
        measure=_mean_completion,
    ),
    Scenario(
        "partition_limits",
        "EnforcePartLimits=NO: jobs over MaxTime and MaxNodes of a partition, QOS that let them, jobs without a limit",
        150,
        [
            Work("over_time", "asrpt1", 20, 10, 1, 0, 2, options="-p short --time=10"),
            Work("over_nodes", "asrpt1", 10, 10, 16, 0.5, 4, ask="-N2 --gpus-per-node=8", options="-p short"),
            Work("longer", "asrpt2", 25, 10, 1, 1, 3, options="-p short --time=10 --qos=long"),
            Work("wider", "asrpt2", 5, 10, 16, 1.5, 20, ask="-N2 --gpus-per-node=8", options="-p short --qos=long"),
            Work("timeless", "asrpt3", 50, 10, 1, 2, 2, options="--time=UNLIMITED"),
            Work("either", "asrpt4", 30, 10, 2, 2.5, 3, options="-p short,gpu -N1 --time=10"),
            Work("either_long", "asrpt4", 20, 10, 2, 3, 4, options="-p short,gpu -N1 --time=10 --qos=long"),
            Work("cpu", "asrpt3", 20, 10, 0, 3.5, 4, ask="-n1 -c16", options="--time=UNLIMITED"),
            Work("node", "asrpt4", 6, 10, 8, 4, 15, ask="-N1 --gpus-per-node=8"),
        ],
        slurm_conf=(f"{LIMITS}\nEnforcePartLimits=NO\nPartitionName=short Nodes=n[1-4] MaxTime=2 MaxNodes=1 State=UP"),
        accounting=[
            "add qos long Flags=PartitionTimeLimit,PartitionMaxNodes",
            "modify user asrpt2,asrpt4 set qos+=long",
        ],
        managed=("gpu", "short"),
        never=["over_time", "over_nodes"],
        measure=_mean_completion,
    ),
    Scenario(
        "idle_start",
        "a job every few seconds on idle GPUs; seconds are the median from sbatch to the job's first command",
        110,
        [Work("job", "asrpt1", 24, 2, every_s=4.4)],
        nodes="2x8",
        daemon={},
        measure=_median_latency,
        stamp=True,
    ),
    Scenario(
        "asrptd_killed",
        "asrptd is killed with a queue; seconds are the longest time in which most GPUs are idle",
        90,
        [Work("job", user, 40, 10, 2, fixed=True) for user in USERS[:3]],
        daemon={},
        acts=[(25.0, _kill)],
        ruled_from_s=25.0,
        modes=(ENFORCE,),
        measure=_longest_idle,
    ),
]
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}
