"""Windows of real logs, and the figures of policies in them, for ``benchmarks.reallogs``."""

from __future__ import annotations

import hashlib
import inspect
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import slurm_asrpt
from benchmarks import priced_bound
from slurm_asrpt.core.policies.registry import policy_class
from slurm_asrpt.sim import metrics
from slurm_asrpt.sim.description import PERFECT, Cluster, Options
from slurm_asrpt.sim.engine import Result, simulate_named
from slurm_asrpt.sim.job_table import Floats, JobTable
from slurm_asrpt.sim.metrics import percentile
from slurm_asrpt.sim.scenario import parse_policy
from slurm_asrpt.sim.workload import Workload, build
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.samples import NAMED
from slurm_asrpt.traces.sources import column_titles, fingerprint, load_trace

ROOT = Path(__file__).parents[1]
STORE = ROOT / "build" / "reallogs"
VARIABLE = "ASRPT_TRACES"
GPUS = 8
SHUFFLED = "shuffled"
LEARNED = ("expected", "forest")
PREDICTORS = (*LEARNED, PERFECT, SHUFFLED)
BLIND = ("easy-backfill", "fifo", "wcs-subtime")
"""Policies that use no predictions."""

PARTS = 3
LEAST_JOBS = 100
"""Jobs of a window; parts of a log with fewer are left out."""
LEAST_QUEUE = 700
"""Jobs of a virtual cluster that counts as a log of its own."""
BOUND_S = 10.0
"""Run time of shorter jobs in the bounded slowdown, seconds."""


@dataclass(frozen=True)
class Source:
    """A log. servers: its two cluster sizes; empty: what its own arrivals load to 1, and twice that. queues: whether
    each virtual cluster is a log. whole: whether the whole log is one, too: not that of separate clusters. gpus: the
    title of the column that counts as GPUs."""

    name: str
    file: str
    servers: tuple[int, ...] = ()
    queues: bool = False
    whole: bool = True
    gpus: str = ""


PUBLISHED = (
    Source("philly", "msr-philly-2017/jobs.csv.gz", (20, 40), queues=True),
    Source("helios", "helios-venus-2vc-2020/jobs.csv.gz"),
    Source("itp", "msr-itp-2021/jobs.csv.gz", queues=True, whole=False),
    Source("nasa", "nasa-ipsc-1993/jobs.csv.gz", (16, 32)),
    Source("ricc", "riken-ricc-2010/jobs.csv.gz", (64, 128)),
    Source("nrel", "nrel-eagle-2019-sample/jobs_raw.csv.gz", gpus="nodes_req"),
)
SAMPLES = tuple(Source(name, str(path)) for name, path in NAMED.items())


@dataclass(frozen=True)
class Log:
    """A log, or one virtual cluster of it. edges: the times that cut the whole log into parts."""

    name: str
    path: Path
    trace: Trace
    servers: tuple[int, ...]
    edges: tuple[float, ...]
    held_out: int


@dataclass(frozen=True)
class Cell:
    """first, history, jobs: the window begins at this row; jobs to learn from before it; jobs in it."""

    log: str
    first: int
    history: int
    jobs: int
    servers: int
    load: float
    models: str
    seed: int
    held_out: bool
    predictors: tuple[str, ...]


def traces_folder(chosen: str) -> Path:
    """Where the published traces are."""
    beside = (parent / "shared" / "traces" for parent in ROOT.parents)
    found = chosen or os.environ.get(VARIABLE, "")
    return Path(found) if found else next((path for path in beside if path.is_dir()), ROOT / "shared" / "traces")


def logs(folder: Path) -> list[Log]:
    """All logs, or the samples if there are none in the folder."""
    present = [source for source in PUBLISHED if (folder / source.file).is_file()]
    return [log for source in present or SAMPLES for log in _logs_of(source, folder / source.file)]


def _logs_of(source: Source, path: Path) -> Iterable[Log]:
    whole = _read(path, source.gpus)
    submit = whole.jobs["submit_s"].to_numpy()
    edges = (*(float(submit[len(submit) * part // PARTS]) for part in range(PARTS)), math.inf)
    held_out = int(hashlib.sha256(source.name.encode()).hexdigest(), 16) % PARTS
    if source.whole:
        yield Log(source.name, path, whole, source.servers or sizes(whole), edges, held_out)
    for queue, jobs in whole.jobs.groupby("queue") if source.queues else ():
        if len(jobs) >= LEAST_QUEUE:
            own = Trace(whole.name, jobs.reset_index(drop=True), len(jobs))
            yield Log(f"{source.name}/{queue}", path, own, sizes(own), edges, held_out)


@cache
def _read(path: Path, gpus: str) -> Trace:
    if not gpus:
        return load_trace(str(path), processors_as_gpus=True)
    titles = ("job_id=job_id", "submit_s=submit_time", "duration_s=run_time", "user=user", "group=name")
    columns = column_titles([*titles, "time_limit_s=wallclock_req", f"gpus={gpus}"])
    return load_trace(str(path), columns=columns, processors_as_gpus=True)


def sizes(trace: Trace) -> tuple[int, int]:
    """The servers that the log's own arrivals load to 1 (at least those of its largest job), and twice as many."""
    jobs = trace.jobs
    span = float(jobs["submit_s"].iloc[-1] - jobs["submit_s"].iloc[0])
    busy = float((jobs["gpus"] * jobs["duration_s"]).sum()) / max(span, 1.0)
    least = max(math.ceil(busy / GPUS), math.ceil(float(jobs["gpus"].max()) / GPUS))
    return least, 2 * least


def windows(log: Log, count: int, most: int, seed: int, held_out: bool) -> list[tuple[int, int, int]]:
    """(first row, jobs to learn from, jobs) of windows drawn from the held-out part, or from the others.

    ``count`` windows of up to ``most`` jobs, the parts in turn; fewer if a part has too few jobs.
    """
    submit = log.trace.jobs["submit_s"].to_numpy()
    rng = np.random.default_rng([seed, int(hashlib.sha256(log.name.encode()).hexdigest()[:8], 16)])
    begin = max(1, len(submit) // 20)  # some jobs to learn from
    parts = []
    for part in range(PARTS):
        low, high = (int(place) for place in np.searchsorted(submit, log.edges[part : part + 2]))
        if (part == log.held_out) == held_out and high - max(low, begin) >= LEAST_JOBS:
            parts.append((max(low, begin), high))
    found = set()
    for number in range(count) if parts else ():
        low, high = parts[(number + seed) % len(parts)]
        jobs = min(most, high - low)
        first = int(rng.integers(low, high - jobs + 1))
        found.add((first, min(first, most), jobs))
    return sorted(found)


# one cell


@cache
def log_table(folder: Path) -> Mapping[str, Log]:
    return {log.name: log for log in logs(folder)}


def workload(log: Log, cell: Cell, predictor: str) -> Workload:
    """The jobs of a cell with the predictions of one kind."""
    part = log.trace.slice(cell.first - cell.history, cell.history + cell.jobs)
    known = predictor if predictor in LEARNED else PERFECT
    options = Options(
        models=cell.models,
        load=cell.load,
        history=(cell.history + 0.5) / (cell.history + cell.jobs),
        predictor=known,
        seed=cell.seed,
    )
    made = build(part, Cluster(servers=cell.servers, gpus=GPUS), options)
    return replace(made, table=shuffled(made, cell.seed)) if predictor == SHUFFLED else made


def shuffled(made: Workload, seed: int) -> JobTable:
    """The jobs, each predicted to run as long as another one."""
    alphas = np.nan_to_num(made.table.best_alphas(made.cluster.nodes, made.cluster.fabric), nan=1.0)
    others = np.random.default_rng(seed).permutation(made.table.iterations * alphas)
    return replace(made.table, predicted=others / alphas, learning=None)


class Jobs:
    """A workload that is built when a simulation needs it."""

    def __init__(self, log: Log, cell: Cell, predictor: str) -> None:
        self.log, self.cell, self.predictor = log, cell, predictor
        self._made: Workload | None = None

    @property
    def made(self) -> Workload:
        if self._made is None:
            self._made = workload(self.log, self.cell, self.predictor)
        return self._made


def figures(lazy: Jobs, text: str, fresh: bool) -> dict[str, Any]:
    """The figures of one policy, from an earlier run if nothing has changed."""
    spec = parse_policy(text)
    blind = spec.name in BLIND
    kind = PERFECT if blind else lazy.predictor
    about = [kind, spec.text, _file(lazy.log.path), code(spec.name, kind, lazy.cell.models)]

    def simulated() -> dict[str, Any]:
        cluster, table = lazy.made.cluster, lazy.made.table
        began = time.process_time()
        result = simulate_named(spec.name, cluster.nodes, table, cluster.fabric, spec.settings)
        return {
            **measure(result, cluster),
            "notes": lazy.made.notes,
            "seconds": round(time.process_time() - began, 3),
        }

    return _stored(lazy.cell, about, simulated, fresh)


def least_mean(lazy: Jobs, possible_s: float, fresh: bool) -> float:
    """A lower bound on the mean completion time of every schedule of a cell, seconds (docs/decisions/0006).

    possible_s: the mean of some schedule.
    """
    sources = [Path(inspect.getfile(module)).read_text() for module in (metrics, priced_bound)]
    about = ["bound", possible_s, _file(lazy.log.path), code("fifo", PERFECT, lazy.cell.models), *sources]

    def bound() -> dict[str, Any]:
        cluster, table = lazy.made.cluster, lazy.made.table
        can_run = ~np.isnan(table.best_alphas(cluster.nodes, cluster.fabric))
        jobs, submitted = int(can_run.sum()), float(table.submit[can_run].sum())
        ends = priced_bound.priced_bound(table, cluster.nodes, cluster.fabric, submitted + jobs * possible_s)
        sound_s = metrics.bounds(table, cluster)["sound"]
        return {"priced_s": (ends - submitted) / jobs, "sound_s": sound_s}

    return float(max(_stored(lazy.cell, about, bound, fresh).values()))


def _stored(cell: Cell, about: list[Any], compute: Callable[[], dict[str, Any]], fresh: bool) -> dict[str, Any]:
    """Figures of a cell, from an earlier run if nothing has changed. about: all else that they depend on."""
    window = {key: value for key, value in asdict(cell).items() if key not in ("predictors", "held_out")}
    store = STORE / f"{hashlib.sha256(json.dumps([window, *about]).encode()).hexdigest()[:32]}.json"
    if store.is_file() and not fresh:
        return dict(json.loads(store.read_text()))
    found = compute()
    STORE.mkdir(parents=True, exist_ok=True)
    draft = store.with_suffix(f".{os.getpid()}")
    draft.write_text(json.dumps(found))
    draft.replace(store)
    return found


def measure(result: Result, cluster: Cluster) -> dict[str, Any]:
    """Mean completion time, waits, slowdowns; completion by size class; seconds."""
    table, ended = result.table, result.ended
    can_run = int((~np.isnan(table.best_alphas(cluster.nodes, cluster.fabric))).sum())
    if len(ended) != can_run:
        raise RuntimeError(f"{can_run - len(ended)} jobs did not end")
    alphas = table.best_alphas(cluster.nodes, cluster.fabric)[ended]
    alone = table.iterations[ended] * alphas
    jct, waits, gpus = result.completion_times, result.waits[ended], table.gpus[ended]
    bounded = np.maximum(1.0, jct / np.maximum(alone, BOUND_S))
    used = float((gpus * table.iterations[ended] * result.alpha[ended]).sum())
    return {
        "mean_s": float(jct.mean()),
        "bounded_slowdown": float(bounded.mean()),
        "worst_slowdown": float(bounded.max()),
        "mean_wait_s": float(waits.mean()),
        "p99_wait_s": percentile(waits, 99),
        "max_wait_s": float(waits.max()),
        "waited": float((waits > 0).mean()),
        "placement_loss": used / float((gpus * alone).sum()) - 1,
        "too_large": len(table) - can_run,
        "sizes": _by_size(gpus, jct),
    }


def _by_size(gpus: Any, jct: Floats) -> dict[str, dict[str, float]]:
    kinds = {
        "1": gpus == 1,
        f"2-{GPUS - 1}": (gpus > 1) & (gpus < GPUS),
        f"{GPUS}": gpus == GPUS,
        f">{GPUS}": gpus > GPUS,
    }
    return {
        name: {"jobs": int(here.sum()), "mean_s": float(jct[here].mean())} for name, here in kinds.items() if here.any()
    }


@cache
def _file(path: Path) -> str:
    return fingerprint(path)


@cache
def code(policy: str, predictor: str, models: str) -> str:
    """A hash of the sources that a policy's result depends on: not of other policies, nor of predictors not used."""
    base = Path(slurm_asrpt.__file__).parent
    own = Path(inspect.getfile(policy_class(policy)))
    policies = base / "core" / "policies"
    packages = [path for path in policies.iterdir() if path.is_dir() and path != own.parent]
    files = [path for path in (base / "core").rglob("*.py") if not any(other in path.parents for other in packages)]
    files += [own, *(base / "sim" / f"{name}.py" for name in ("engine", "job_table", "workload"))]
    files += (base / "traces").glob("*.py")
    if predictor in LEARNED:
        files += [*(base / "predict" / "predictors").glob("*.py"), base / "hook" / "table.py"]
        files += [base / "sim" / "predictors.py"]
    if models != "none":
        files += [*(base / "profile").glob("*.py"), *(base / "profile" / "library").iterdir()]
    here = (_read, workload, shuffled, measure, _by_size)
    digest = hashlib.sha256("".join([inspect.getsource(each) for each in here]).encode())
    for path in sorted(set(files)):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()
