"""Fig. 5 of the A-SRPT paper on a real Slurm: its testbed as a lab of two servers with 7 GPUs, in accelerated time.

Needs root, as all labs do. Each run is a policy and a set of jobs on a lab of its own; a file keeps the results, and
runs that are in it are not played again. A run is over when its last job has started, because nothing can change then:
jobs sleep for as long as they would train. A run in which the machine was too slow for the lab's clock is played again.

The jobs and their predictions are those of the simulated Fig. 5. Each job is a recurrence group of its own, with its
prediction in the hook's table; a job of an unseen group has no entry.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean
from threading import Event
from typing import Any

import numpy as np

from papers.asrpt.simulations import ASRPT, BASELINES, DIVIDE, GATED, IDEAL
from papers.asrpt.workload import TESTBED_JOBS, TESTBED_SETS, Jobs, make
from slurm_asrpt.config.settings import GroupSettings
from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import unprofiled
from slurm_asrpt.errors import AsrptError, MachineError
from slurm_asrpt.files import replace_file
from slurm_asrpt.hook.group import dissect, owned
from slurm_asrpt.hook.table import FILE_NAME as TABLE
from slurm_asrpt.hook.table import Entry, render_table
from slurm_asrpt.lab.asrptd import asrptd
from slurm_asrpt.lab.cluster import up
from slurm_asrpt.lab.machine import identity
from slurm_asrpt.lab.site.figures import GOOD
from slurm_asrpt.lab.site.jobs import SiteJob
from slurm_asrpt.lab.site.sides import (
    BACKFILL,
    Record,
    Setup,
    completion_conf,
    daemon_settings,
    play_jobs,
)
from slurm_asrpt.lab.spec import LabSpec, parse_nodes
from slurm_asrpt.sim.engine import PERFECT, simulate_named
from slurm_asrpt.sim.job_table import JobTable

FIGURE = "fig5-lab"
FILE = Path(__file__).with_name("fig5_lab.json")
"""The recorded runs, which docs/reproduction.md shows."""
NODES, LARGEST_NODE = "2x7", 7
SCALE = 0.1
"""Of submissions and runtimes, as in the paper."""
SETS = TESTBED_SETS
SPEED, PORT, PORTS_A_LAB = 15.0, 27800, 20
USER, PARTITION = "asrpt1", "gpu"
AT_ONCE = "batch_sched_delay=0,sched_min_interval=1000,sched_interval=10"
MOST_LATE_S, MOST_LONGER_S = 10.0, 30.0
"""Of a run that counts: by how much jobs are submitted late, and run longer than they should, mean."""
TRIES = 3
LIMIT_MIN = 7 * 24 * 60
"""Time limit of all jobs: no policy of the figure uses it."""
POLICIES: Mapping[str, Mapping[str, float]] = {
    IDEAL: {"tau": 0.0},
    ASRPT: {"tau": 0.0},
    **{name: {} for name in (*BASELINES, GATED)},
}
"""The policies and their options."""

Result = Mapping[str, Any]
"""A run as JSON values. Times in seconds of the lab."""
Runs = Mapping[str, Result]
"""Results by the name of their run."""
OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class LabRun:
    """One policy on one set of jobs. number: of the set, from 0. jobs: only its first ones."""

    policy: str
    seed: int
    number: int
    jobs: int = TESTBED_JOBS

    @property
    def name(self) -> str:
        some = "" if self.jobs == TESTBED_JOBS else f", {self.jobs} jobs"
        return f"seed {self.seed}, set {self.number + 1}{some}, {self.policy}"

    @property
    def daemon_policy(self) -> str:
        return self.policy.removesuffix(PERFECT)


@dataclass(frozen=True)
class LabJob:
    """A job as it is submitted, and its prediction in seconds, 0 for none."""

    job: SiteJob
    predicted_s: int


def runs(seed: int, seeds: int, sets: int, jobs: int = TESTBED_JOBS) -> list[LabRun]:
    """All runs, set by set, so that a part of them compares all policies."""
    return [
        LabRun(policy, each, number, jobs)
        for each in range(seed, seed + seeds)
        for number in range(sets)
        for policy in POLICIES
    ]


def jobs_of(run: LabRun) -> list[LabJob]:
    """The jobs of a run, in the order of submission; times are whole seconds of the lab, and at least one."""
    workload = make(Jobs(divide=DIVIDE, testbed=run.number), run.seed)
    table, cluster = workload.table, workload.cluster
    alphas = table.best_alphas(cluster.nodes, cluster.fabric)
    actual, known = (np.maximum(1, np.rint(SCALE * work * alphas)) for work in (table.iterations, table.predicted))
    run_s, predicted = (each.astype(int).tolist() for each in (actual, np.where(table.predicted > 0, known, 0)))
    columns = zip(table.gpus.tolist(), (SCALE * table.submit).tolist(), run_s, predicted, strict=True)
    perfect = run.policy.endswith(PERFECT)
    made = [
        LabJob(_job(row, gpus, submit, seconds), seconds if perfect else foreseen)
        for row, (gpus, submit, seconds, foreseen) in enumerate(columns)
    ]
    return made[: run.jobs]


def _job(row: int, gpus: int, submit_s: float, run_s: int) -> SiteJob:
    """Its name has no digits: names that differ only in digits are of one group."""
    name = "job-" + "".join(chr(ord("a") + int(digit)) for digit in str(row))
    return SiteJob(name, USER, gpus, -(-gpus // LARGEST_NODE), LIMIT_MIN, float(run_s), submit_s)


def predictions(jobs: Sequence[LabJob]) -> dict[str, Entry]:
    """The entries of the hook's table. Raises AsrptError if two jobs are of one group."""
    uid, settings = identity(USER)[0], GroupSettings()
    found: dict[str, Entry] = {}
    groups = set()
    for each in jobs:
        known = dissect(uid, each.job.name.encode(), each.job.script.encode(), b"", each.job.gpus, settings)
        groups.add(known.group)
        if each.predicted_s:
            found[owned(uid, known.group)] = Entry.plain(each.predicted_s)
    if len(groups) < len(jobs):
        raise AsrptError(f"{len(jobs)} jobs are of {len(groups)} groups")
    return found


# playing


def load(file: Path) -> Runs:
    """The recorded runs; none if there is no file. Raises ValueError if it is damaged."""
    if not file.exists():
        return {}
    found: Runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
    return found


def by_policy(recorded: Runs) -> dict[str, list[Result]]:
    """The results of each policy, one for each set that all policies have played; empty if there is no such set.

    Of the largest sets only, if there are some of which only the first jobs were played.
    """
    sets: dict[tuple[int, int, int], dict[str, Result]] = {}
    for result in recorded.values():
        sets.setdefault((result["jobs"], result["seed"], result["set"]), {})[result["policy"]] = result
    played = {which: found for which, found in sorted(sets.items()) if found.keys() >= POLICIES.keys()}
    whole = [found for which, found in played.items() if which[0] == max(jobs for jobs, _, _ in played)]
    return {name: [found[name] for found in whole] for name in POLICIES} if whole else {}


def play_missing(
    file: Path, wanted: Sequence[LabRun], speed: float, port: int, labs: int, on_progress: OnProgress
) -> Runs:
    """Play the runs that are not in the file, ``labs`` at a time, and record each as soon as it is over.

    speed: of the labs' clocks. port: the first of the labs' ports. Ctrl-C ends the labs. Raises AsrptError.
    """
    recorded = dict(load(file))
    missing = [run for run in wanted if run.name not in recorded]
    ports, stop = SimpleQueue[int](), Event()
    for number in range(labs):
        ports.put(port + number * PORTS_A_LAB)
    with ThreadPoolExecutor(labs) as pool:
        playing = [pool.submit(_play_on_a_port, run, speed, ports, stop) for run in missing]
        try:
            for done, each in enumerate(as_completed(playing), start=len(wanted) - len(missing) + 1):
                run, result = each.result()
                recorded[run.name] = result
                file.parent.mkdir(parents=True, exist_ok=True)
                text = json.dumps({"runs": dict(sorted(recorded.items()))}, indent=1, ensure_ascii=False)
                replace_file(file, f"{text}\n".encode(), mode=None)
                on_progress(done, len(wanted), run.name)
        finally:
            stop.set()
            pool.shutdown(cancel_futures=True)
    return recorded


def _play_on_a_port(run: LabRun, speed: float, ports: SimpleQueue[int], stop: Event) -> tuple[LabRun, Result]:
    port = ports.get()
    try:
        return run, _in_time(run, Setup(speed, 60.0 * LIMIT_MIN, port, stop=stop, to_the_end=False))
    finally:
        ports.put(port)


def _in_time(run: LabRun, setup: Setup) -> Result:
    """A run that counts. Raises MachineError if the machine is too slow for the clock, AsrptError."""
    for _ in range(TRIES):
        found = play(run, setup)
        if found["late_s"] <= MOST_LATE_S and found["longer_s"] <= MOST_LONGER_S:
            return found
    text = f"jobs are submitted {found['late_s']:g} s late and run for {found['longer_s']:g} s longer than they should"
    raise MachineError(f"{run.name}: {text}, on a clock x{setup.speed:g}: the machine is too busy; use a lower --speed")


def play(run: LabRun, setup: Setup) -> Result:
    """Play one run on a lab of its own. Raises AsrptError."""
    jobs = jobs_of(run)
    lab = up(_spec(run, setup))
    try:
        table = lab.paths.hook / TABLE
        replace_file(table, render_table(predictions(jobs)))
        with asrptd(lab, "enforce", run.daemon_policy):
            _, found = play_jobs(lab, [each.job for each in jobs], False, setup, lambda queue: None)
    finally:
        lab.down(purge=True)
    return result_of(run, jobs, found, setup.speed)


def _spec(run: LabRun, setup: Setup) -> LabSpec:
    directory = Path(tempfile.mkdtemp(prefix="asrpt-fig5-"))
    directory.chmod(0o755)
    daemon = {**daemon_settings(setup.speed), "forecast_s": 0}  # forecasts change no decision
    return LabSpec(
        directory=directory,
        nodes=NODES,
        base_port=setup.port,
        users=1,
        partitions=(PARTITION,),
        multifactor=True,
        scheduler_parameters=f"{AT_ONCE},{BACKFILL}",
        slurm_conf_extra=f"OverTimeLimit=UNLIMITED\n{completion_conf(directory)}",
        settings={"daemon": daemon, "policy": dict(POLICIES[run.policy])},
        speed=setup.speed,
    )


# figures


def result_of(run: LabRun, jobs: Sequence[LabJob], records: Sequence[Record], speed: float) -> Result:
    """The figures of a run. late_s: from when jobs were due to their submission, mean.

    longer_s: by how much jobs that have ended ran longer than they should, mean.
    """
    first = min(each.submit for each in records)
    simulated = _simulated(run, jobs, records)
    return {
        "policy": run.policy,
        "seed": run.seed,
        "set": run.number,
        "jobs": len(jobs),
        "speed": speed,
        "mean_jct_s": round(fmean(each.end - each.submit for each in records), 1),
        "makespan_s": max(each.end for each in records) - first,
        "simulated_s": round(float((simulated.end - simulated.table.submit).mean()), 1),
        "simulated_makespan_s": round(float(simulated.end.max()), 1),
        "late_s": round(fmean(each.submit - each.due for each in records), 1),
        "longer_s": round(_longer_s(jobs, records), 1),
        "completed": sum(each.state in GOOD for each in records),
    }


def _longer_s(jobs: Sequence[LabJob], records: Sequence[Record]) -> float:
    pairs = zip(jobs, records, strict=True)
    found = [each.end - each.start - job.job.run_s for job, each in pairs if each.state != "RUNNING"]
    return fmean(found) if found else 0.0


def _simulated(run: LabRun, jobs: Sequence[LabJob], records: Sequence[Record]) -> Any:
    """The same jobs in the simulator, submitted when they were submitted to Slurm."""
    sizes = sorted({each.job.gpus for each in jobs})
    submit = np.array([each.submit for each in records])
    order = np.argsort(submit, kind="stable")

    def column(values: Sequence[float]) -> Any:
        return np.array(values, dtype=float)[order]

    table = JobTable(
        profiles=tuple(unprofiled(gpus) for gpus in sizes),
        submit=submit[order] - submit.min(),
        profile=np.array([sizes.index(each.job.gpus) for each in jobs], dtype=np.int64)[order],
        iterations=column([each.job.run_s for each in jobs]),
        predicted=column([float(each.predicted_s) for each in jobs]),
        time_limit=column([60.0 * LIMIT_MIN] * len(jobs)),
        groups=[jobs[at].job.name for at in order],
    )
    nodes = [Node(node.name, node.gpus, index) for index, node in enumerate(parse_nodes(NODES))]
    return simulate_named(run.daemon_policy, nodes, table, Fabric(1.25e9, 300e9), dict(POLICIES[run.policy]))
