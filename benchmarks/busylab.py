"""A lab with all GPUs in use and a queue, and a user who keeps working there."""

from __future__ import annotations

import itertools
import os
import random
import shlex
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from benchmarks.training_rounds import SLURM_CONF
from slurm_asrpt.config.settings import DaemonSettings, GroupSettings, SlurmSettings
from slurm_asrpt.errors import MachineError
from slurm_asrpt.files import replace_file
from slurm_asrpt.hook.hook_conf import write_hook_conf
from slurm_asrpt.hook.table import FILE_NAME, Entry, render_table
from slurm_asrpt.hook.tag import parse_tag
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.spec import LabSpec
from slurm_asrpt.profile.schema import library_names, load_profile
from slurm_asrpt.slurm import writeback
from slurm_asrpt.slurm.cli import CliClient
from slurm_asrpt.slurm.records import PENDING, Update

T = TypeVar("T")
MAX_GPUS = 32
GROUPS_A_USER = 50
CHURN_S = 2.0
"""Seconds between two job ends, as on 250 servers with jobs of eight minutes each."""
PAUSE_S = 0.3
RULES_CONF = """
AccountingStorageEnforce=associations,limits,qos
PriorityWeightQOS=100000
PreemptType=preempt/qos
PreemptMode=REQUEUE"""
RULES = (
    "add qos scavenger",
    "add qos high Priority=1000 Preempt=scavenger",
    "modify user asrpt1,asrpt2,asrpt3,asrpt4 set qos+=high,scavenger",
    "modify qos normal set MaxTRESPerUser=gres/gpu=2000",
    "modify user asrpt2 set MaxJobs=4",
)
"""Rules of a site, for sacctmgr. asrpt1 has all 2000 GPUs of the lab, and asrpt2 may have few jobs: both are held."""
RULED = (*7 * ("",), "--nice=100", "--qos=high", "--qos=scavenger")
"""Options of pending jobs where these rules are in force."""
console = Console(stderr=True)


def replay_spec(nodes: str, base_port: int, **daemon: float) -> LabSpec:
    """A lab for replays of traces: four users, a decision every second. daemon: further settings of that section."""
    settings = {"daemon": {"interval_s": 1.0, "lease_s": 60, **daemon}}
    return LabSpec(nodes=nodes, base_port=base_port, users=4, slurm_conf_extra=SLURM_CONF, settings=settings)


@contextmanager
def big_lab(spec: LabSpec) -> Iterator[Lab]:
    """A lab with this spec in its own directory; SIGTERM also stops it."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    directory = Path(tempfile.mkdtemp(prefix="asrpt-bench-"))
    directory.rmdir()
    found = up(LabSpec(**{**vars(spec), "directory": directory}))
    try:
        yield found
    finally:
        found.down(purge=True)


def set_rules(lab: Lab, commands: Sequence[str]) -> None:
    """Run commands of sacctmgr."""
    for command in commands:
        lab.run(["sacctmgr", "-i", *shlex.split(command)])
    if commands:
        time.sleep(1.0)  # slurmdbd sends its changes to slurmctld
        lab.restart_slurmctld()  # otherwise new associations have no fair share for five minutes


def client(lab: Lab) -> CliClient:
    return CliClient(SlurmSettings(conf=str(lab.slurm_conf), timeout_s=600.0))


@dataclass(frozen=True)
class Recurring:
    """A recurring training job; its script has the same words each time, so it is in the same group."""

    user: str
    number: int
    profile: str
    gpus: int

    def submit(self, lab: Lab, *options: str) -> str:
        command = ["sbatch", "--parsable", f"--job-name=train{self.number}", "--output=/dev/null"]
        command += [f"--ntasks={self.gpus}", "--gpus-per-task=1", f"--comment=asrpt:profile={self.profile}"]
        script = f"#!/bin/sh\nexec sleep 3600 # train{self.number}\n"
        return lab.run([*command, *options], user=self.user, input=script).stdout.strip()


def recurring(users: Sequence[str]) -> list[Recurring]:
    """The jobs of each user: models of Table I on up to MAX_GPUS GPUs."""
    draw = random.Random(1)
    sizes = {name: load_profile(name, []).gpus for name in library_names()}
    names = [name for name, gpus in sizes.items() if gpus <= MAX_GPUS]
    chosen = [(user, number, draw.choice(names)) for user in users for number in range(GROUPS_A_USER)]
    return [Recurring(user, number, name, sizes[name]) for user, number, name in chosen]


def occupy(lab: Lab, pending: int, more: Sequence[str] = ("",)) -> None:
    """Fill every GPU and queue ``pending`` jobs with tags and predictions; none has a lease yet.

    more: options, of which each pending job gets one.
    """
    write_hook_conf(lab.paths.hook, [lab.spec.partitions[0]], 0, time.time() + 86400, GroupSettings())
    known, draw = recurring(lab.spec.user_names), random.Random(2)
    _teach(lab, known)
    _run_on_every_node(lab, draw)
    lab.run(["scontrol", "update", f"PartitionName={lab.spec.partitions[0]}", "State=DOWN"])  # or Slurm tries each
    wanted = [(draw.choice(known), f"--time={draw.randrange(60, 2880)}") for _ in range(pending)]
    options = [(job, [time, *filter(None, [random.Random(n).choice(more)])]) for n, (job, time) in enumerate(wanted)]
    _each(lambda job: job[0].submit(lab, *job[1]), options, "pending jobs")
    lab.run(["scontrol", "update", f"PartitionName={lab.spec.partitions[0]}", "State=UP"])


def _teach(lab: Lab, known: Sequence[Recurring]) -> None:
    """Write a table with a prediction for each group; one held job of each is submitted and cancelled to find it."""
    _each(lambda job: job.submit(lab, "--hold"), known, "groups")
    tags = [parse_tag(job.admin_comment) for job in client(lab).jobs()]
    draw = random.Random(3)
    lengths = {tag.group: round(draw.lognormvariate(9, 1.5)) + 2 for tag in tags if tag}
    table = render_table({group: Entry(n, n // 2, 2 * n) for group, n in lengths.items()})
    replace_file(lab.paths.hook / FILE_NAME, table)
    lab.run(["scancel", "--state=PENDING"])


def _run_on_every_node(lab: Lab, draw: random.Random) -> None:
    nodes = lab.spec.node_list

    def start(gpus: int) -> None:
        options = ["--nodes=1", f"--gpus-per-node={gpus}", "--output=/dev/null", f"--time={draw.randrange(60, 2880)}"]
        lab.run(["sbatch", *options], user=lab.spec.user_names[0], input="#!/bin/sh\nexec sleep 36000\n")

    _each(start, [node.gpus for node in nodes], "running jobs")
    deadline = time.monotonic() + 120.0
    while lab.job_states()["running"] < len(nodes):
        if time.monotonic() > deadline:
            raise MachineError("not every node has a job after two minutes; the machine is too busy")
        time.sleep(0.5)


def _each(action: Callable[[T], object], items: Sequence[T], title: str) -> None:
    with ThreadPoolExecutor(16) as pool:  # sbatch mostly waits for slurmctld
        for _ in track(pool.map(action, items), title, len(items), console=console, disable=not console.is_terminal):
            pass


def lease_all(lab: Lab, daemon: DaemonSettings) -> float:
    """Write leases that expire at spread times, as under a long-running daemon; return the seconds that this took."""
    draw, lease_s, renewal_s = random.Random(4), daemon.lease_s, daemon.renewal_s
    return _update_all(lab, lambda job_id: writeback.lease(job_id, draw.uniform(renewal_s, lease_s)))


def hand_over_all(lab: Lab) -> float:
    """Remove all leases, so that plain Slurm can start any job; return the seconds that this took."""
    return _update_all(lab, writeback.hand_over)


def _update_all(lab: Lab, change: Callable[[str], Update]) -> float:
    slurm = client(lab)
    waiting = [job.job_id for job in slurm.jobs() if job.state == PENDING]
    began = time.perf_counter()
    slurm.update([change(job_id) for job_id in waiting])
    return time.perf_counter() - began


@dataclass
class Bystander:
    """A user who submits, lists and cancels jobs, in a thread; running jobs end meanwhile.

    sbatch, squeue: seconds of each call.
    """

    lab: Lab
    sbatch: list[float] = field(default_factory=list)
    squeue: list[float] = field(default_factory=list)

    def __enter__(self) -> Bystander:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        running = [job.job_id for job in client(self.lab).jobs() if job.state == "RUNNING"]
        churn = time.monotonic()
        for job in itertools.cycle(recurring(self.lab.spec.user_names)):
            if self._stop.wait(PAUSE_S):
                return
            job_id = _timed(self.sbatch, partial(job.submit, self.lab, "--time=600"))
            _timed(self.squeue, partial(self.lab.run, ["squeue", "--me"], job.user))
            self.lab.run(["scancel", job_id], user=job.user)
            if running and time.monotonic() > churn + CHURN_S:
                churn = time.monotonic()
                self.lab.run(["scancel", running.pop()])


def _timed(seconds: list[float], action: Callable[[], T]) -> T:
    began = time.perf_counter()
    found = action()
    seconds.append(time.perf_counter() - began)
    return found


def cpu_s(pid: int, children: bool = False) -> float:
    """CPU seconds of a process so far; with ``children``, also those of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if children else 13])) / os.sysconf("SC_CLK_TCK")


def rss_mb(pid: int) -> float:
    """Resident memory of a process in MB."""
    return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
