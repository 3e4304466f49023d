"""One side of a comparison: an accelerated lab, under plain Slurm or asrptd, where users submit a window's jobs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.errors import InputError, MachineError
from slurm_asrpt.history.csv_json import write_json_lines
from slurm_asrpt.history.store import COMPLETED, Run, Source
from slurm_asrpt.hook.group import dissect
from slurm_asrpt.lab import pace
from slurm_asrpt.lab.asrptd import asrptd
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.machine import identity
from slurm_asrpt.lab.site.jobs import GPUS, MOST_USERS, SiteJob, Window
from slurm_asrpt.lab.spec import LabSpec

PARTITION = "gpu"
RECORDED_S = 15.0
"""Within this time of the machine, the end of the last job is in the file."""
LOOK_S = 1.0
RETRAIN_S = 6 * 3600.0
"""asrptd learns from what has ended this often, in the lab's time. The packaged timer does so hourly; retraining takes
the machine's time."""
LEASE_S = 86400
REQUEUED = "PENDING"
"""The state of a run that ended by a requeue, in the file of jobcomp/filetxt."""
LINEAR_S = 30
"""bf_window_linear: with Slurm's default, backfill sees far ends so coarsely that it delays large jobs for hours."""
BACKFILL = (
    f"bf_interval=30,bf_continue,bf_resolution=300,bf_max_job_test=1000,bf_max_time=3600,bf_window_linear={LINEAR_S}"
)


@dataclass(frozen=True)
class Site:
    """How a site runs its Slurm. weights: of priority/multifactor. fewest: whether users ask for the fewest nodes.

    policy: of asrptd; "" for plain Slurm. small_first: PriorityFavorSmall. settings: of asrptd, by section.
    """

    name: str
    weights: str
    fewest: bool = True
    policy: str = ""
    small_first: bool = False
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def slurm_conf(self) -> str:
        given = [f"PriorityWeight{weight}" for weight in self.weights.split()]
        given += ["PriorityFavorSmall=YES"] if self.small_first else []
        given += ["OverTimeLimit=UNLIMITED"]  # or jobs would end by their limits for being late, or badly placed
        return "\n".join(["PriorityMaxAge=7-0", "PriorityDecayHalfLife=7-0", "KillWait=30", *given])

    @property
    def needs_accounting(self) -> bool:
        """Whether priorities need slurmdbd. Slurm ignores PriorityWeightAge without it, too."""
        return not {"Age=0", "Fairshare=0"} <= set(self.weights.split())


AGE = "Age=1000 Fairshare=0 JobSize=0"
FAIR = "Age=1000 Fairshare=10000 JobSize=0"
SIZE = "Age=1000 Fairshare=0 JobSize=1000"
NO_WEIGHTS = "Age=0 Fairshare=0 JobSize=0"

PLAIN = (Site("age", AGE), Site("fair-share", FAIR), Site("small-first", SIZE, small_first=True))
SCATTERED = Site("age, any nodes", AGE, fewest=False)
OURS = Site("asrptd", NO_WEIGHTS, policy=DEFAULT_POLICY)
"""As the admin guide advises: without weights, the predicted work decides."""
OURS_FAIR = Site("asrptd, fair-share", FAIR, policy=DEFAULT_POLICY)
PAPER = Site("asrptd, asrpt", NO_WEIGHTS, policy="asrpt")


@dataclass(frozen=True)
class Record:
    """What Slurm recorded of a job, in seconds of the lab since the window began. due: when it was to be submitted.

    state: of a job that was still running: RUNNING, and its end is its start and its run time.
    """

    due: float
    submit: float
    start: float
    end: float
    state: str


@dataclass(frozen=True)
class Played:
    """A side that has been played. records: in the order of the window's jobs. seconds: of the machine.

    pace: None in the simulator. ids: of the jobs in Slurm.
    """

    site: Site
    records: Sequence[Record]
    pace: pace.Pace | None
    seconds: float
    ids: Sequence[str] = ()


@dataclass(frozen=True)
class Setup:
    """speed: of the lab's clock. longest_s: the site's MaxTime. port: the lab's first. logs: where to keep them.

    stop: ends the side. to_the_end: play until the last job has ended, and not only until it has started: from then on
    nothing can change, as jobs without a model end after their run time.
    """

    speed: float
    longest_s: float
    port: int
    logs: Path | None = None
    stop: Event = field(default_factory=Event)
    to_the_end: bool = True

    def check(self) -> None:
        """Raises MachineError once ``stop`` is set."""
        if self.stop.is_set():
            raise MachineError("stopped")


class Queue(NamedTuple):
    """How many jobs have been submitted, wait, and run."""

    submitted: int
    waiting: int
    running: int

    @property
    def ended(self) -> int:
        return self.submitted - self.waiting - self.running


Listener = Callable[[Queue], None]
"""Called while a side is played."""


def play(site: Site, window: Window, setup: Setup, progress: Listener) -> Played:
    """Play the window on a lab of its own. Raises AsrptError."""
    lab = up(spec(site, window, setup))
    try:
        cost = pace.measure(lab)
        return play_on(lab, site, window, setup, progress, cost)
    finally:
        down(lab, site, setup)


def down(lab: Lab, site: Site, setup: Setup) -> None:
    """End the lab of a side; its logs and audit trail are kept if ``setup`` says so."""
    if setup.logs:
        _keep(lab, setup.logs / site.name)
    lab.down(purge=True)


def play_on(lab: Lab, site: Site, window: Window, setup: Setup, progress: Listener, cost: pace.Pace) -> Played:
    """Play the window on a lab that is up. Raises AsrptError."""
    began = time.monotonic()
    with ExitStack() as stack:
        learn = _start_asrptd(lab, site, window, stack, "debug" if setup.logs else "info")
        names, found = play_jobs(lab, window.jobs, site.fewest, setup, progress, learn)
    return Played(site, found, cost, time.monotonic() - began, names)


def play_jobs(
    lab: Lab,
    jobs: Sequence[SiteJob],
    fewest: bool,
    setup: Setup,
    progress: Listener,
    now_and_then: Callable[[], None] = lambda: None,
) -> tuple[list[str], list[Record]]:
    """Submit the jobs when they are due, until the last one has ended, or started. Returns their ids and records.

    Raises AsrptError.
    """
    looked = 0.0

    def each_look(submitted: int) -> Queue | None:
        """What there is to do now and then. Returns the queue, if it is time to look at it."""
        nonlocal looked
        setup.check()
        now_and_then()
        if time.monotonic() < looked + LOOK_S:
            return None
        progress(queue := _queue(lab, submitted))
        looked = time.monotonic()
        return queue

    names, start = submit_all(lab, jobs, fewest, setup.speed, each_look)
    while not ((queue := each_look(len(names))) and _over(queue, setup.to_the_end)):
        time.sleep(LOOK_S / 4)
    return names, records(lab, jobs, names, start, setup.to_the_end)


def _over(queue: Queue, to_the_end: bool) -> bool:
    return not queue.waiting and not (to_the_end and queue.running)


def _queue(lab: Lab, submitted: int) -> Queue:
    states = lab.run(["squeue", "-h", "-t", "PD,R,CG", "-o", "%t"]).stdout.split()
    waiting = states.count("PD")
    return Queue(submitted, waiting, len(states) - waiting)


def spec(site: Site, window: Window, setup: Setup) -> LabSpec:
    """The lab of a side, in a new directory. Raises InputError."""
    directory = Path(tempfile.mkdtemp(prefix="asrpt-site-"))
    directory.chmod(0o755)
    try:
        return _spec_in(directory, site, window, setup)
    except InputError:
        directory.rmdir()
        raise


def _spec_in(directory: Path, site: Site, window: Window, setup: Setup) -> LabSpec:
    return LabSpec(
        directory=directory,
        nodes=f"{window.servers}x{GPUS}",
        base_port=setup.port,
        users=MOST_USERS,
        partitions=(PARTITION,),
        accounting=site.needs_accounting,
        multifactor=True,
        scheduler_parameters=f"{BACKFILL},bf_window={round(setup.longest_s / 60)},default_queue_depth=1000",
        slurm_conf_extra=f"{site.slurm_conf}\n{completion_conf(directory)}",
        settings={"daemon": daemon_settings(setup.speed), **site.settings},
        speed=setup.speed,
    )


def daemon_settings(speed: float) -> dict[str, float]:
    """asrptd's settings on a fast clock, where a second of the machine's is minutes.

    It may be late by a few seconds of the machine, as on a busy controller. With leases of ten minutes, which are
    renewed 200 s before they end, Slurm would start waiting jobs by itself whenever asrptd is late.
    """
    return {"interval_s": max(30.0, speed / 2), "unpin_after_s": max(10.0, 2 * speed), "lease_s": LEASE_S}


def _start_asrptd(lab: Lab, site: Site, window: Window, stack: ExitStack, log_level: str) -> Callable[[], None]:
    """Start asrptd with what it learns from the jobs before the window. Returns what to do now and then."""
    if not site.policy:
        return lambda: None
    file = lab.paths.log / "history.jsonl"
    with file.open("w", encoding="utf-8") as output:
        write_json_lines(output, past_runs(window, lab.time()))
    admin = str(Path(sys.executable).parent / "asrpt-admin")
    lab.run([admin, "history", "import", "--jsonl", str(file)], timeout_s=300)
    lab.run([admin, "retrain"], timeout_s=300)
    stack.enter_context(asrptd(lab, "enforce", site.policy, log_level))
    retraining = Retraining(lab, [admin, "retrain"])
    stack.callback(retraining.end)
    return retraining.look


class Retraining:
    """Retrains when it is due, beside the cluster."""

    def __init__(self, lab: Lab, command: Sequence[str]) -> None:
        self._lab, self._command = lab, command
        self._due = lab.time() + RETRAIN_S
        self._process: subprocess.Popen[bytes] | None = None

    def look(self) -> None:
        if self._lab.time() >= self._due and (self._process is None or self._process.poll() is not None):
            self._due += RETRAIN_S
            with (self._lab.paths.log / "retrain.log").open("ab") as log:
                self._process = subprocess.Popen(self._command, env=self._lab.env, stdout=log, stderr=log)

    def end(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


def submit_all(
    lab: Lab, jobs: Sequence[SiteJob], fewest: bool, speed: float, each_look: Callable[[int], object]
) -> tuple[list[str], float]:
    """Submit the jobs when they are due. Returns their ids, and the lab's time at which the window began."""
    began, start = time.time(), lab.time()
    path = {"PATH": f"{lab.paths.bin}:/usr/bin:/bin"}
    names: list[str] = []
    for job in jobs:
        while (left := began + job.submit_s / speed - time.time()) > 0:
            time.sleep(min(left, LOOK_S / 4))
            each_look(len(names))
        each_look(len(names))
        done = lab.run(job.command(fewest), user=job.user, input=job.script, env=job.variables | path)
        names.append(done.stdout.strip())
    return names, start


def records(
    lab: Lab, jobs: Sequence[SiteJob], names: Sequence[str], start: float, to_the_end: bool = True
) -> list[Record]:
    """What slurmctld recorded of the jobs' last runs. to_the_end: all have ended. Raises MachineError.

    Not what slurmdbd did: where jobs last less than a second of the machine, it misses starts.
    """
    deadline = time.monotonic() + RECORDED_S
    running: dict[str, str] = {}
    while missing := set(names) - (rows := _completions(lab)).keys() - running.keys():
        if time.monotonic() > deadline:
            raise MachineError(f"slurmctld did not record the end of {len(missing)} jobs (first: {min(missing)})")
        time.sleep(LOOK_S)
        running = {} if to_the_end else _running(lab)
    found = []
    for job, name in zip(jobs, names, strict=True):
        if name in rows:
            submit, began, end = (_instant(rows[name][key]) - start for key in ("SubmitTime", "StartTime", "EndTime"))
            found.append(Record(job.submit_s, submit, began, end, rows[name]["JobState"]))
        else:
            began = _instant(running[name]) - start
            found.append(Record(job.submit_s, job.submit_s, began, began + job.run_s, "RUNNING"))
    return found


def _running(lab: Lab) -> dict[str, str]:
    """When the running jobs started."""
    lines = lab.run(["squeue", "-h", "-t", "R,CG", "-o", "%A %S"]).stdout.splitlines()
    return dict(line.split() for line in lines)


def _completions(lab: Lab) -> dict[str, dict[str, str]]:
    """The last run of each job that has ended."""
    last = {row["JobId"]: row for row in completed_runs(lab)}
    return {job_id: row for job_id, row in last.items() if row["JobState"] != REQUEUED}


def completed_runs(lab: Lab) -> list[dict[str, str]]:
    """The lines of the file of jobcomp/filetxt: one for each run of a job."""
    try:
        lines = _completion_file(lab.directory).read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return []
    return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def completion_conf(directory: Path) -> str:
    """The lines of slurm.conf with which ``records`` finds the ends of jobs of a lab in this directory."""
    return f"JobCompType=jobcomp/filetxt\nJobCompLoc={_completion_file(directory)}"


def _completion_file(directory: Path) -> Path:
    return directory / "log" / "jobcomp"


def past_runs(window: Window, now: float) -> Iterator[Run]:
    """The jobs before the window that had ended when it began, as asrptd would have recorded them in mode shadow."""
    settings = GroupSettings()
    for number, job in enumerate(window.known, start=1):
        end = now + job.submit_s + job.run_s
        uid = identity(job.user)[0]
        known = dissect(uid, job.name.encode(), job.script.encode(), b"", job.gpus, settings)
        yield Run(
            job_id=str(10**6 + number),
            start_time=round(end - job.run_s),
            submit_time=round(now + job.submit_s),
            end_time=round(end),
            state=COMPLETED,
            user=job.user,
            uid=uid,
            group_id=known.group,
            program=known.program,
            features=known.features,
            job_name=job.name,
            partition=PARTITION,
            gpus=job.gpus,
            profile=job.profile,
            iterations=job.iterations or max(1, round(job.run_s)),
            iterations_source=Source.REPORTED if job.profile else Source.ELAPSED,
            iterations_of=job.profile,
            work_s=round(job.run_s),
        )


def _keep(lab: Lab, folder: Path) -> None:
    """Keep logs and audit trail."""
    if not lab.paths.log.is_dir():
        return
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(lab.paths.log, folder / "log", ignore_dangling_symlinks=True)
    shutil.copytree(lab.paths.asrpt / "state", folder / "state")
