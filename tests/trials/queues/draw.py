"""What users and the admin do, drawn at random: no Slurm, no clock."""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tests.trials.queues.sites import USERS, Site

SUBMISSIONS = ("sbatch", "srun", "salloc")
REQUESTS = (
    *("--gpus=1", "--gpus=1", "--gpus=2", "--gpus=3", "--gpus=6", "--gres=gpu:1", "-N1 --gres=gpu:2"),
    *("-N1 --gpus-per-node=4", "-N2 --gpus-per-node=2", "-n2 --gpus-per-task=1", "-n4 --gpus-per-task=1 -c2"),
    *("-N1 --gpus=2 -c8", "-N1-2 --gpus=4", "--gpus=1 --mem=100G", "--gpus=2 --cpus-per-gpu=4", "--gpus=8"),
    *("-n1", "-n4", "-n1 -c16", "-N2 -n2 -c4", "-N1 --mem=0", "-n20 -c2", "-n1 --exclusive"),
)
UPDATES = (
    *("TimeLimit=1", "TimeLimit=4", "Nice=100", "NumNodes=1", "NumNodes=1-2", "NumNodes=2", "TresPerNode=gres:gpu:1"),
    *("TresPerNode=gres:gpu:2", "Gres=gpu:3", "NumCPUs=4", "MinCPUsNode=2", "MinMemoryNode=1000", "StartTime=now+6"),
    *("StartTime=now", "ReqNodeList=n2", "ReqNodeList=", "ExcNodeList=n1", "ExcNodeList=", "Requeue=0", "Comment=new"),
    *("Dependency=afterany:{other}", "Dependency=", "Deadline=now+1hour"),
)
OF_TASKS = ("ArrayTaskThrottle=1", "ArrayTaskThrottle=4", "ArrayTaskThrottle=0")


@dataclass(frozen=True)
class Act:
    """A command at a time, in seconds after the first one. job: the one that it submits or is about, "" for none.

    words: with ``{name}`` for the number of a job that was submitted before.
    """

    at_s: float
    user: str
    job: str
    words: tuple[str, ...]

    @property
    def submits(self) -> bool:
        return self.words[0] in SUBMISSIONS

    @property
    def others(self) -> list[str]:
        """The other jobs that it names."""
        text = " ".join(self.words)
        return [part.partition("}")[0] for part in text.split("{")[1:] if part.partition("}")[0] != self.job]


@dataclass
class Draw:
    """Draws the acts of a queue. users: of the jobs so far, by name."""

    rng: random.Random
    site: Site

    def __post_init__(self) -> None:
        self.users: dict[str, str] = {}
        self.arrays: dict[str, int] = {}

    def acts(self, jobs: int, over_s: float) -> list[Act]:
        """So many submissions, evenly spread, and what happens to the jobs afterwards; in order of time."""
        found = [Act(at, "root", "", tuple(shlex.split(command))) for at, command in self.site.acts]
        for number in range(jobs):
            found += self._job(f"j{number}", over_s * number / jobs)
        return sorted(found, key=lambda act: act.at_s)

    def _job(self, name: str, at_s: float) -> Iterator[Act]:
        kinds = (self._single, self._array, self._dependent, self._het, self._delayed, self._held, self._interactive)
        kind: Callable[[str], list[str]] = self.rng.choices(kinds, (40, 10, 18, self.site.het, 6, 8, 10))[0]
        words = kind(name)
        user = self.rng.choice(USERS)
        yield Act(at_s, user, name, tuple(words))
        yield from self._later(name, user, at_s, "--hold" in words)
        self.users[name] = user

    # submissions

    def _single(self, name: str) -> list[str]:
        return ["sbatch", "--parsable", f"-J{name}", "-o/dev/null", *self._request(), *self._script()]

    def _array(self, name: str) -> list[str]:
        self.arrays[name] = tasks = self.rng.randint(2, 8)
        throttle = self.rng.choice(("", "%1", "%2", "%3"))
        step = self.rng.choice(("", "", ":2"))
        command = self._single(name)
        return [*command[:3], f"--array=0-{tasks - 1}{step}{throttle}", *command[3:]]

    def _dependent(self, name: str) -> list[str]:
        if not self.users:
            return self._single(name)
        first = self.rng.choice(list(self.users)[-12:])
        kind = self.rng.choice(("afterok", "afterany", "afterany", "afterany", "afternotok", "after", "singleton"))
        if kind == "singleton":
            command = self._single("alone")
            return [*command[:3], "--dependency=singleton", *command[3:]]
        if first in self.arrays and self.rng.random() < 0.5:
            command = self._single(name)
            self.arrays[name] = tasks = self.arrays[first]
            return [*command[:3], f"--array=0-{tasks - 1}", f"--dependency=aftercorr:{{{first}}}", *command[3:]]
        command = self._single(name)
        return [*command[:3], f"--dependency={kind}:{{{first}}}", *command[3:]]

    def _het(self, name: str) -> list[str]:
        """Two components, the second without options of the site: a reservation or QOS of one is enough."""
        start = ["sbatch", "--parsable", f"-J{name}", "-o/dev/null"]
        both = [*self._request(), ":", *self.rng.choice(REQUESTS[:14]).split(), "-t2"]
        return [*start, *both, *self._script()]

    def _delayed(self, name: str) -> list[str]:
        command = self._single(name)
        return [*command[:3], f"--begin=now+{self.rng.randint(2, 25)}", *command[3:]]

    def _held(self, name: str) -> list[str]:
        command = self._single(name)
        return [*command[:3], "--hold", *command[3:]]

    def _interactive(self, name: str) -> list[str]:
        command = self.rng.choice(("srun", "srun", "salloc"))
        return [command, f"-J{name}", *self._request(), "sleep", str(self.rng.randint(1, 4))]

    def _request(self) -> list[str]:
        option = self.rng.choice(self.site.options or ("",)) if self.rng.random() < 0.5 else ""
        ask = self.rng.choice(REQUESTS)
        if "gpu" in option or "-N" in option:
            ask = "" if "gpu" in option else "--gpus=4"
        limit = "" if "-t" in option else f"-t{self.rng.choice((1, 2, 2, 3, 5))}"
        return f"{ask} {option} {limit}".split()

    def _script(self) -> list[str]:
        script = f"sleep {self.rng.choice((0, 1, 2, 3, 4, 6))}"
        script += self.rng.choice(("", "", "", "", "; srun sleep 1", "; exit 1", "; exit 3"))
        return ["--wrap", script]

    # what happens to jobs

    def _later(self, name: str, user: str, at_s: float, held: bool) -> Iterator[Act]:
        """A job that is held stays so for some seconds, and is changed in the meantime more often than not."""
        base = Act(at_s, user, name, ())
        job = f"{{{name}}}"
        if name in self.arrays and self.rng.random() < 0.4:
            job += f"_{self.rng.randrange(self.arrays[name])}"
        if held:
            count = self.rng.choice((0, 1, 1, 2))
            updates = [replace(base, at_s=at_s + 1 + n, words=self._update(f"{{{name}}}", name)) for n in range(count)]
            yield from updates
            yield replace(base, at_s=at_s + self.rng.randint(4, 15), words=("scontrol", "release", f"{{{name}}}"))
            return
        soon = at_s + self.rng.uniform(0.2, 8.0)
        what = self.rng.choices(("", "update", "cancel", "requeue", "hold", "requeuehold"), (55, 23, 7, 6, 6, 3))[0]
        if what == "update":
            yield replace(base, at_s=soon, words=self._update(job, name))
        elif what == "cancel":
            yield replace(base, at_s=soon, words=("scancel", job))
        elif what:
            yield replace(base, at_s=soon, words=("scontrol", what, job))
        if "hold" in what:
            yield replace(base, at_s=soon + self.rng.randint(2, 8), words=("scontrol", "release", job))

    def _update(self, job: str, name: str) -> tuple[str, ...]:
        known: Sequence[str] = [*UPDATES, *self.site.updates, *self.site.updates]
        change = self.rng.choice([*OF_TASKS, *known] if name in self.arrays else known)
        if "{other}" in change:
            change = change.replace("{other}", f"{{{self.rng.choice(list(self.users))}}}") if self.users else "Nice=7"
        return ("scontrol", "update", f"JobId={job}", change)
