"""The default policy against all others on real logs: python -m benchmarks.reallogs --json

Logs: every trace with run times below the directory of published traces (``--traces``, or the variable ASRPT_TRACES, or
``../shared/traces`` beside the checkout), by virtual cluster where a log has several; without that directory the three
shipped samples. Processors, or nodes, of logs of CPU jobs count as GPUs; servers have 8.

A cell is a window of consecutive jobs of a log on one number of servers at one load, with one kind of models and of
predictions. The load is reached by stretching or compressing all times between submissions by one factor, so the log's
own pattern of arrivals stays; run times stay as they are. Predictors learn from up to as many jobs before the window,
and then only from jobs that have ended in the same simulation. ``perfect`` are the true run times, ``shuffled`` those
of another job of the window.

Each log is cut into thirds by time. One third, chosen by a hash of the log's name, is held out: no window comes from it
unless ``--held-out`` is given, and then all do. Do not tune on it.

Ratios are those of the policy under test (``--policy``) over others: ``mean_ratio`` over the least mean completion time
of all policies whose jobs request their fewest nodes (``nodes=fewest``, as with ``sbatch -N``), ``mean_ratio_all`` over
that of all, ``p99_wait_ratio`` over the 99th percentile of waits of the baseline that is best by mean (of those with
``nodes=fewest``), ``p99_wait_ratio_lowest`` over the lowest of them, ``size_ratio`` the largest over the size classes
of the mean completion time over that of ``easy-backfill:nodes=fewest``. Baselines are simulated once: their results are
kept under build/reallogs, by what went into them.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import slurm_asrpt
from slurm_asrpt.config.settings import DEFAULT_POLICY
from slurm_asrpt.core.policies.registry import BUILT_IN
from slurm_asrpt.sim.engine import Result, simulate_named
from slurm_asrpt.sim.job_table import Floats, JobTable
from slurm_asrpt.sim.metrics import percentile, slowdowns
from slurm_asrpt.sim.predictors import PERFECT
from slurm_asrpt.sim.scenario import parse_policy
from slurm_asrpt.sim.workload import Cluster, Options, Workload, build
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
FEWEST = ":nodes=fewest"
BLIND = ("easy-backfill", "fifo", "wcs-subtime")
"""Policies that use no predictions."""
BASELINES = (*BLIND, "spjf", "spwf", "wcs-duration", "wcs-workload")
OTHERS = ("asrpt", *BASELINES)
"""Not sjf-bco-online, which takes a minute per simulation, nor hlas: without preemption it is wcs-subtime."""
BACKFILL = "easy-backfill" + FEWEST

PARTS = 3
LEAST_JOBS = 100
"""Jobs of a window; parts of a log with fewer are left out."""
LEAST_QUEUE = 700
"""Jobs of a virtual cluster that counts as a log of its own."""
LEAST_CLASS = 20
"""Jobs of a size class that a goal covers."""
BOUND_S = 10.0
"""Run time of shorter jobs in the bounded slowdown, seconds."""
SHORT_WAIT_S = 60.0
"""Shorter waits count as this long in ratios, seconds."""
GOALS = {"mean": 1.02, "learned": 0.95, "perfect": 0.9, "p99_wait": 1.2, "size": 1.1, "shuffled": 1.05}


@dataclass(frozen=True)
class Source:
    """A log. servers: its two cluster sizes; empty: what its own arrivals load to 1, and twice that. queues: whether
    each virtual cluster is a log, too. gpus: the title of the column that counts as GPUs."""

    name: str
    file: str
    servers: tuple[int, ...] = ()
    queues: bool = False
    gpus: str = ""


PUBLISHED = (
    Source("philly", "msr-philly-2017/jobs.csv.gz", (20, 40), queues=True),
    Source("helios", "helios-venus-2vc-2020/jobs.csv.gz"),
    Source("itp", "msr-itp-2021/jobs.csv.gz", queues=True),
    Source("nasa", "nasa-ipsc-1993/jobs.csv.gz", (16, 32)),
    Source("ricc", "riken-ricc-2010/jobs.csv.gz", (64, 128)),
    Source("nrel", "nrel-eagle-2019-sample/jobs_raw.csv.gz", gpus="nodes_req"),
)
BY_QUEUE_ONLY = ("itp",)
"""Logs of separate clusters: the whole log is no workload."""
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
    if source.name not in BY_QUEUE_ONLY:
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
    return load_trace(str(path), "csv", columns=columns, processors_as_gpus=True)


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
def _log_table(folder: Path) -> Mapping[str, Log]:
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


def play(folder: Path, cell: Cell, under_test: Sequence[str], fresh: bool) -> list[dict[str, Any]]:
    """The results of all policies in a cell, for each kind of predictions."""
    warnings.simplefilter("ignore")
    log = _log_table(folder)[cell.log]
    rows = []
    for predictor in cell.predictors:
        made = _Lazy(log, cell, predictor)
        found = {
            text: _figures(made, text, fresh) for text in (*under_test, *OTHERS, *(name + FEWEST for name in OTHERS))
        }
        rows += [row(cell, predictor, text, found) for text in under_test]
    return rows


class _Lazy:
    """A workload that is built when a simulation needs it."""

    def __init__(self, log: Log, cell: Cell, predictor: str) -> None:
        self.log, self.cell, self.predictor = log, cell, predictor
        self._made: Workload | None = None

    @property
    def made(self) -> Workload:
        if self._made is None:
            self._made = workload(self.log, self.cell, self.predictor)
        return self._made


def _figures(lazy: _Lazy, text: str, fresh: bool) -> dict[str, Any]:
    """The figures of one policy, from an earlier run if nothing has changed."""
    spec = parse_policy(text)
    blind = spec.name in BLIND
    cell = {key: value for key, value in asdict(lazy.cell).items() if key not in ("predictors", "held_out")}
    kind = PERFECT if blind else lazy.predictor
    about = [cell, kind, spec.text, _file(lazy.log.path), code(spec.name, kind, lazy.cell.models)]
    store = STORE / f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()[:32]}.json"
    if store.is_file() and not fresh:
        return dict(json.loads(store.read_text()))
    cluster, table = lazy.made.cluster, lazy.made.table
    began = time.perf_counter()
    result = simulate_named(spec.name, cluster.nodes, table, cluster.fabric, spec.settings)
    found = {**measure(result, cluster), "notes": lazy.made.notes, "seconds": round(time.perf_counter() - began, 3)}
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
        "p999_slowdown": percentile(slowdowns(result, cluster), 99.9),
        "mean_wait_s": float(waits.mean()),
        "p99_wait_s": percentile(waits, 99),
        "max_wait_s": float(waits.max()),
        "waited": float((waits > SHORT_WAIT_S).mean()),
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
    module = BUILT_IN[policy].partition(":")[0].split(".")
    own = base.joinpath(*module[1:4])
    policies = base / "core" / "policies"
    packages = [path for path in policies.iterdir() if path.is_dir() and path != own]
    files = [path for path in (base / "core").rglob("*.py") if not any(other in path.parents for other in packages)]
    files += [base / "sim" / f"{name}.py" for name in ("engine", "job_table", "workload")]
    files += [*(base / "traces").glob("*.py"), Path(__file__)]
    if predictor in LEARNED:
        files += [*(base / "predict" / "predictors").glob("*.py"), base / "hook" / "table.py"]
        files += [base / "sim" / "predictors.py"]
    if models != "none":
        files += [*(base / "profile").glob("*.py"), *(base / "profile" / "library").iterdir()]
    digest = hashlib.sha256()
    for path in sorted(set(files)):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


# comparisons


def row(cell: Cell, predictor: str, text: str, found: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """One cell: figures of all policies, and ratios of the policy under test."""
    ours = found[text]
    fewest = {name: found[name + FEWEST] for name in OTHERS}
    every = {**{name: found[name] for name in OTHERS}, **{name + FEWEST: each for name, each in fewest.items()}}
    best, best_all = _least(fewest), _least(every)
    baseline, blind = (_least({name: fewest[name] for name in names}) for names in (BASELINES, BLIND))
    notes = dict(ours["notes"])
    return {
        "log": cell.log,
        "first": cell.first,
        "jobs": cell.jobs,
        "history": cell.history,
        "load": cell.load,
        "load_of_log": round(notes["load_of_trace"], 4),
        "servers": cell.servers,
        "models": cell.models,
        "predictor": predictor,
        "held_out": cell.held_out,
        "policy": text,
        "mean_s": ours["mean_s"],
        "best": best,
        "best_s": fewest[best]["mean_s"],
        "best_all": best_all,
        "mean_ratio": _ratio(ours["mean_s"], fewest[best]["mean_s"]),
        "mean_ratio_all": _ratio(ours["mean_s"], every[best_all]["mean_s"]),
        "blind_ratio": _ratio(ours["mean_s"], fewest[blind]["mean_s"]),
        "p99_wait_ratio": _waits(ours, fewest[baseline]),
        "p99_wait_ratio_lowest": min_ratio(ours, [fewest[name] for name in BASELINES]),
        "slowdown_ratio": _ratio(ours["bounded_slowdown"], min(each["bounded_slowdown"] for each in fewest.values())),
        "worst_ratio": _ratio(ours["worst_slowdown"], fewest[baseline]["worst_slowdown"]),
        **_size_ratio(ours["sizes"], found[BACKFILL]["sizes"]),
        "waited": round(found["fifo"]["waited"], 4),
        "policies": {name: {k: v for k, v in each.items() if k != "notes"} for name, each in found.items()},
    }


def _least(figures: Mapping[str, Mapping[str, Any]]) -> str:
    return min(figures, key=lambda name: float(figures[name]["mean_s"]))


def _ratio(ours: float, theirs: float) -> float:
    return round(ours / theirs, 4)


def _waits(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    return _ratio(max(ours["p99_wait_s"], SHORT_WAIT_S), max(theirs["p99_wait_s"], SHORT_WAIT_S))


def min_ratio(ours: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> float:
    """Over the lowest 99th percentile of waits."""
    return _waits(ours, min(others, key=lambda each: float(each["p99_wait_s"])))


def _size_ratio(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    ratios = {name: _ratio(ours[name]["mean_s"], theirs[name]["mean_s"]) for name in ours}
    counted = {name: each for name, each in ratios.items() if ours[name]["jobs"] >= LEAST_CLASS}
    worst = max(counted or ratios, key=lambda name: ratios[name])
    return {"size_ratio": ratios[worst], "size_worst": worst, "size_ratios": ratios}


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many cells keep each goal, by policy under test; cells in which nobody waits count too."""
    found: dict[str, Any] = {}
    for policy in dict.fromkeys(each["policy"] for each in rows):
        for held_out in (False, True):
            here = [each for each in rows if each["policy"] == policy and each["held_out"] == held_out]
            if here:
                found[f"{policy}{' (held out)' if held_out else ''}"] = goals(here)
    return found


def goals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The goals over these cells."""
    learned = [each for each in rows if each["predictor"] in LEARNED]
    perfect = [each for each in rows if each["predictor"] == PERFECT]
    worthless = [each for each in rows if each["predictor"] == SHUFFLED]
    told = learned + perfect
    return {
        "cells": len(rows),
        "mean": _kept(told, "mean_ratio", GOALS["mean"]),
        "mean_of_learned": _average(learned, GOALS["learned"]),
        "mean_of_perfect": _average(perfect, GOALS["perfect"]),
        "mean_all": _kept(told, "mean_ratio_all", GOALS["mean"]),
        "p99_wait": _kept(told, "p99_wait_ratio", GOALS["p99_wait"]),
        "size": _kept(told, "size_ratio", GOALS["size"]),
        "shuffled": _kept(worthless, "blind_ratio", GOALS["shuffled"]),
        "shuffled_mean": _kept(worthless, "mean_ratio", GOALS["mean"]),
    }


def _kept(rows: Sequence[Mapping[str, Any]], key: str, most: float) -> dict[str, Any] | None:
    if not rows:
        return None
    worst = max(rows, key=lambda each: float(each[key]))
    return {
        "goal": most,
        "kept": sum(each[key] <= most for each in rows),
        "of": len(rows),
        "average": round(fmean(each[key] for each in rows), 4),
        "worst": worst[key],
        "worst_in": name_of(worst),
    }


def _average(rows: Sequence[Mapping[str, Any]], most: float) -> dict[str, Any] | None:
    if not rows:
        return None
    found = fmean(each["mean_ratio"] for each in rows)
    return {"goal": most, "average": round(found, 4), "met": found < most}


def name_of(cell: Mapping[str, Any]) -> str:
    """``ricc@1200, 64 servers, load 1, none, expected``."""
    where = f"{cell['log']}@{cell['first']}, {cell['servers']} servers, load {cell['load']:g}"
    return f"{where}, {cell['models']}, {cell['predictor']}"


# output


def tables(rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any], console: Console) -> None:
    """Print the cells and the goals."""
    cells = Table(title="Mean completion time, and ratios over the best other policy with nodes=fewest")
    several = len({each["policy"] for each in rows}) > 1
    for title in ("log", "first", "jobs", "servers", "load", "models", "predictor", *(["policy"] if several else [])):
        cells.add_column(title)
    for title in ("mean", "best other", "", "mean /", "all /", "p99 wait /", "slowdown /", "size /", "blind /"):
        cells.add_column(title, justify="left" if title == "" else "right")
    for each in sorted(rows, key=lambda r: (r["held_out"], r["models"])):
        shuffled_one = each["predictor"] == SHUFFLED
        size = f"{_mark(each['size_ratio'], GOALS['size'])} ({each['size_worst']})"
        cells.add_row(
            each["log"] + (" (held out)" if each["held_out"] else ""),
            *(str(each[key]) for key in ("first", "jobs", "servers")),
            f"{each['load']:g}",
            *(each[key] for key in ("models", "predictor")),
            *([each["policy"]] if several else []),
            f"{each['mean_s'] / 3600:.2f} h",
            f"{each['best_s'] / 3600:.2f} h",
            each["best"],
            _mark(each["mean_ratio"], GOALS["mean"]),
            _mark(each["mean_ratio_all"], GOALS["mean"]),
            _mark(each["p99_wait_ratio"], GOALS["p99_wait"]),
            f"{each['slowdown_ratio']:.2f}",
            size,
            _mark(each["blind_ratio"], GOALS["shuffled"]) if shuffled_one else "",
        )
    console.print(cells)
    for policy, kept in found.items():
        goal = Table(title=f"{policy}: {kept['cells']} cells", title_justify="left")
        for title in ("goal", "at most", "cells that keep it", "average", "worst", "in"):
            goal.add_column(title)
        for name, each in kept.items():
            if isinstance(each, dict):
                cells_kept = f"{each['kept']} of {each['of']}" if "of" in each else "met" if each["met"] else "missed"
                worst = (f"{each['worst']:.3f}", each["worst_in"]) if "of" in each else ("", "")
                goal.add_row(name, f"{each['goal']:g}", cells_kept, f"{each['average']:.3f}", *worst)
        console.print(goal)


def _mark(value: float, most: float) -> str:
    text = f"{value:.3f}" if value < 10 else f"{value:.1f}"
    return f"[bold red]{text}[/]" if value > most else text


def plan(every: Iterable[Log], chosen: argparse.Namespace) -> list[Cell]:
    """The cells to simulate, the largest first."""
    found = []
    for log in every:
        if chosen.logs and not any(log.name == name or log.name.startswith(name + "/") for name in chosen.logs):
            continue
        for first, history, jobs in windows(log, chosen.windows, chosen.jobs, chosen.seed, chosen.held_out):
            for servers in log.servers[: chosen.sizes]:
                for load in chosen.loads:
                    for models in chosen.models:
                        if chosen.quick and models != "none" and load != 1.0:
                            continue
                        kinds = tuple(chosen.predictors)
                        if chosen.quick and models != "none":
                            kinds = kinds[:1]
                        window = (first, history, jobs, servers, load, models, chosen.seed, chosen.held_out)
                        found.append(Cell(log.name, *window, kinds))
    return sorted(found, key=lambda cell: -cell.jobs * len(cell.predictors))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--policy", nargs="+", default=[DEFAULT_POLICY], help="under test, such as asrpt-gated:KEY=VALUE"
    )
    parser.add_argument("--logs", nargs="+", default=[], help="of these; philly means with its virtual clusters")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 1.0, 1.2])
    parser.add_argument("--models", nargs="+", default=["none", "table1"])
    parser.add_argument("--predictors", nargs="+", choices=PREDICTORS)
    parser.add_argument("--jobs", type=int, default=6000, help="jobs of a window at most, and as many to learn from")
    parser.add_argument("--windows", type=int, help="windows of each log; default: 4, or 1 with --quick")
    parser.add_argument("--sizes", type=int, choices=(1, 2), help="cluster sizes of each log; default: 2, or 1")
    parser.add_argument("--seed", type=int, default=0, help="draws other windows")
    parser.add_argument("--held-out", action="store_true", help="run the windows that are held out, and only those")
    parser.add_argument("--quick", action="store_true", help="fewer cells, in at most 10 minutes on 2 cores")
    parser.add_argument("--fresh", action="store_true", help="simulate everything again")
    parser.add_argument("--traces", default="", help=f"directory of the published traces; or variable {VARIABLE}")
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout instead of tables")
    parser.add_argument("-o", "--output", type=Path, help="write the JSON object to this file as well")
    chosen = parser.parse_args()
    chosen.windows = chosen.windows or (1 if chosen.quick else 4)
    chosen.sizes = chosen.sizes or (1 if chosen.quick else 2)
    chosen.predictors = chosen.predictors or ([LEARNED[0], PERFECT, SHUFFLED] if chosen.quick else list(PREDICTORS))
    warnings.simplefilter("ignore")
    under_test = [parse_policy(text).text for text in chosen.policy]
    folder = traces_folder(chosen.traces)
    cells = plan(_log_table(folder).values(), chosen)
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    work = (delayed(play)(folder, cell, under_test, chosen.fresh) for cell in cells)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(cells))
        for found in Parallel(chosen.workers, return_as="generator_unordered")(work):
            rows += found
            bar.advance(task)
    rows.sort(key=lambda r: (r["log"], r["first"], r["servers"], r["load"], r["models"], r["predictor"]))
    document = {
        "traces": "published" if any((folder / source.file).is_file() for source in PUBLISHED) else "samples",
        "seed": chosen.seed,
        "seconds": round(time.monotonic() - began, 1),
        "summary": summary(rows),
        "cells": rows,
    }
    if chosen.output:
        chosen.output.write_text(json.dumps(document) + "\n")
    if chosen.json:
        print(json.dumps(document))
    else:
        tables(rows, document["summary"], Console(width=None if sys.stdout.isatty() else 200))
    return 0


if __name__ == "__main__":
    from benchmarks import reallogs  # workers find the functions of a module by its name

    sys.exit(reallogs.main())
