"""A scenario of benchmarks.rules: a site with a rule, the jobs that meet it, and what an admin does meanwhile."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from benchmarks.rules.figures import Limit, Played, longest_idle_s, makespan_s, mean_completion_s, steps
from slurm_asrpt.lab.cluster import Lab

ENFORCE, ORDER = "enforce", "order"
USERS = ("asrpt1", "asrpt2", "asrpt3", "asrpt4")
QUICK: Mapping[str, Any] = {"interval_s": 1.0, "lease_s": 60}
"""Jobs of some seconds instead of some minutes: the interval is a fraction of the default, too."""
LEAF = 4
"""Nodes under each switch of scenario topology."""
LIMITS = "AccountingStorageEnforce=associations,limits,qos"
"""In slurm.conf: without it, Slurm enforces no limits and knows no QOS."""


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


def makespan(scenario: Scenario, played: Played) -> float:
    return makespan_s(played, scenario.measured)


def median_latency(scenario: Scenario, played: Played) -> float:
    return median(played.latencies or [played.until - played.began])


def mean_completion(scenario: Scenario, played: Played) -> float:
    return mean_completion_s(played, scenario.measured)


def longest_idle(scenario: Scenario, played: Played) -> float:
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
    measure: Callable[[Scenario, Played], float] = makespan
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


# what scenarios of several subjects have


def admin(command: str) -> Callable[[Site], object]:
    """An admin types this command."""
    return lambda site: site.lab.run(shlex.split(command))


def label(lab: Lab) -> None:
    """Two nodes have one feature, two have another."""
    for nodes, feature in (("n[1-2]", "fast"), ("n[3-4]", "slow")):
        lab.run(
            ["scontrol", "update", f"NodeName={nodes}", f"AvailableFeatures={feature}", f"ActiveFeatures={feature}"]
        )


def blockers(seconds: float) -> Work:
    """A job on all GPUs of each node, so that a queue builds up."""
    return Work("blocker", "asrpt4", 4, seconds, gpus=8, options="-N1", fixed=True)


def others(count: int, seconds: float, gpus: int = 1, at_s: float = 0.0) -> list[Work]:
    """Jobs of three users without a limit."""
    return [Work("others", user, count, seconds, gpus, at_s) for user in USERS[1:]]
