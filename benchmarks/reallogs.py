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
of the mean completion time over that of ``easy-backfill:nodes=fewest``. ``bound_ratio`` is the smallest ``mean_ratio``
that any schedule could have (docs/decisions/0006), ``mean_ratio_fair`` is over the least mean of the other policies
that themselves keep the goals for size classes and p99 waits. Baselines are simulated once: their results are
kept under build/reallogs, by what went into them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

from joblib import Parallel, delayed
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from benchmarks.real_windows import (
    BLIND,
    LEARNED,
    PREDICTORS,
    PUBLISHED,
    SHUFFLED,
    VARIABLE,
    Cell,
    Jobs,
    Log,
    figures,
    least_mean,
    log_table,
    traces_folder,
    windows,
)
from slurm_asrpt.config import DEFAULT_POLICY
from slurm_asrpt.sim.description import PERFECT
from slurm_asrpt.sim.scenario import parse_policy

FEWEST = ":nodes=fewest"
BASELINES = (*BLIND, "spjf", "spwf", "wcs-duration", "wcs-workload")
OTHERS = ("asrpt", *BASELINES)
SELDOM = ("hlas", "sjf-bco-online")
"""Only with --all: without preemption, hlas is wcs-subtime; sjf-bco-online takes a minute per simulation."""
BACKFILL = "easy-backfill" + FEWEST
LEAST_CLASS = 20
"""Jobs of a size class that a goal covers."""
SHORT_WAIT_S = 60.0
"""Shorter waits count as this long in ratios, seconds."""
GOALS = {"mean": 1.02, "learned": 0.95, "perfect": 0.9, "p99_wait": 1.2, "size": 1.1, "shuffled": 1.05}


def play(
    folder: Path, cell: Cell, under_test: Sequence[str], fresh: bool, others: Sequence[str] = OTHERS
) -> list[dict[str, Any]]:
    """The results of all policies in a cell, for each kind of predictions."""
    warnings.simplefilter("ignore")
    log = log_table(folder)[cell.log]
    rows = []
    bound_s = 0.0
    for predictor in cell.predictors:
        made = Jobs(log, cell, predictor)
        found = {
            text: figures(made, text, fresh) for text in (*under_test, *others, *(name + FEWEST for name in others))
        }
        if not bound_s:  # the same for all predictions
            bound_s = least_mean(made, min(float(found[name]["mean_s"]) for name in BLIND), fresh)
        rows += [row(cell, predictor, text, found, bound_s, others) for text in under_test]
    return rows


# comparisons


def row(
    cell: Cell,
    predictor: str,
    text: str,
    found: Mapping[str, Mapping[str, Any]],
    bound_s: float,
    others: Sequence[str] = OTHERS,
) -> dict[str, Any]:
    """One cell: figures of all policies, and ratios of the policy under test. bound_s: no mean is below."""
    ours = found[text]
    fewest = {name: found[name + FEWEST] for name in others}
    every = {**{name: found[name] for name in others}, **{name + FEWEST: each for name, each in fewest.items()}}
    best, best_all = _least(fewest), _least(every)
    baseline, blind = (_least({name: fewest[name] for name in names}) for names in (BASELINES, BLIND))
    goals_of = {name: _goals_kept(each, found[BACKFILL], fewest[baseline]) for name, each in fewest.items()}
    fair = {name: fewest[name] for name, kept in goals_of.items() if all(kept.values())}
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
        "bound_s": bound_s,
        "bound_ratio": _ratio(bound_s, fewest[best]["mean_s"]),
        "best_keeps": goals_of[best],
        "best_fair": _least(fair) if fair else "",
        "mean_ratio_fair": _ratio(ours["mean_s"], fair[_least(fair)]["mean_s"]) if fair else None,
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


def _goals_kept(theirs: Mapping[str, Any], backfill: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, bool]:
    """Whether another policy itself keeps the goals for size classes and for long waits."""
    return {
        "size": _size_ratio(theirs["sizes"], backfill["sizes"])["size_ratio"] <= GOALS["size"],
        "p99_wait": _waits(theirs, baseline) <= GOALS["p99_wait"],
    }


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
        "mean_fair": _kept([each for each in told if each["best_fair"]], "mean_ratio_fair", GOALS["mean"]),
        "least_of_perfect": least(perfect),
        "conflicts": conflicts(told),
        "by_log": by_log(rows),
        "over_each": over_each(rows),
        "same_measure": same_measure(rows),
    }


def least(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The smallest average that any schedules could have, and the cells in which none keeps the goal for it."""
    if not rows:
        return None
    ratios = [float(each["bound_ratio"]) for each in rows]
    above = [name_of(each) for each in rows if each["bound_ratio"] > GOALS["perfect"]]
    return {"average": round(fmean(ratios), 4), "above_goal": len(above), "of": len(rows), "above_in": above}


def conflicts(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The cells that miss the goal for the mean, and which of the other goals the best other policy misses there."""
    return [
        {
            "cell": name_of(each),
            "mean_ratio": each["mean_ratio"],
            "best": each["best"],
            "best_misses": [name for name, kept in each["best_keeps"].items() if not kept],
            "best_fair": each["best_fair"],
            "mean_ratio_fair": each["mean_ratio_fair"],
        }
        for each in rows
        if each["mean_ratio"] > GOALS["mean"]
    ]


def by_log(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The average of ``mean_ratio`` by log and predictor."""
    groups: dict[str, dict[str, list[float]]] = {}
    for each in rows:
        groups.setdefault(each["log"], {}).setdefault(each["predictor"], []).append(each["mean_ratio"])
    return {log: {kind: round(fmean(found), 3) for kind, found in kinds.items()} for log, kinds in groups.items()}


def over_each(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The geometric average, by predictor, of the mean completion time over that of each other policy."""
    found: dict[str, dict[str, list[float]]] = {}
    for each in rows:
        for name, other in each["policies"].items():
            if name.endswith(FEWEST):
                ratio = each["mean_s"] / other["mean_s"]
                found.setdefault(name.removesuffix(FEWEST), {}).setdefault(each["predictor"], []).append(ratio)
    return {
        name: {kind: round(geometric_mean(ratios), 3) for kind, ratios in by_kind.items()}
        for name, by_kind in found.items()
    }


def same_measure(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Each other policy with ``nodes=fewest`` measured as the one under test is: over the best of all the others, the
    one under test among them. By policy and predictor: the cells that keep the goal, and the average."""
    found: dict[str, dict[str, list[float]]] = {}
    for each in rows:
        means = {name: float(of["mean_s"]) for name, of in each["policies"].items() if name.endswith(FEWEST)}
        means[each["policy"]] = each["mean_s"]
        for name, mean_s in means.items():
            least_s = min((theirs for other, theirs in means.items() if other != name), default=mean_s)
            found.setdefault(name.removesuffix(FEWEST), {}).setdefault(each["predictor"], []).append(mean_s / least_s)
    return {
        name: {
            kind: {"kept": sum(ratio <= GOALS["mean"] for ratio in ratios), "average": round(fmean(ratios), 3)}
            for kind, ratios in by_kind.items()
        }
        for name, by_kind in found.items()
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
    geometric = geometric_mean(each["mean_ratio"] for each in rows)
    return {"goal": most, "average": round(found, 4), "geometric": round(geometric, 4), "met": found < most}


def name_of(cell: Mapping[str, Any]) -> str:
    """``ricc@1200, 64 servers, load 1, none, expected``."""
    where = f"{cell['log']}@{cell['first']}, {cell['servers']} servers, load {cell['load']:g}"
    return f"{where}, {cell['models']}, {cell['predictor']}"


# output


def tables(rows: Sequence[Mapping[str, Any]], found: Mapping[str, Any], console: Console) -> None:
    """Print the cells and the goals."""
    console.print(_cells(rows))
    for policy, kept in found.items():
        kinds = [kind for kind in PREDICTORS if any(kind in found for found in kept["by_log"].values())]
        for title, table in _averages(policy, kept, kinds):
            console.print(title, table)
        console.print("Goals:", _goals(kept))
        _print_limits(kept, console)


def _cells(rows: Sequence[Mapping[str, Any]]) -> Table:
    cells = Table(title="Mean completion time, and ratios over the best other policy with nodes=fewest")
    several = len({each["policy"] for each in rows}) > 1
    for title in ("log", "first", "jobs", "servers", "load", "models", "predictor", *(["policy"] if several else [])):
        cells.add_column(title)
    for title in ("mean", "best other", "", *RATIOS):
        cells.add_column(title, justify="left" if title == "" else "right")
    for each in sorted(rows, key=lambda r: (r["held_out"], r["models"])):
        cells.add_row(
            each["log"] + (" (held out)" if each["held_out"] else ""),
            *(str(each[key]) for key in ("first", "jobs", "servers")),
            f"{each['load']:g}",
            *(each[key] for key in ("models", "predictor")),
            *([each["policy"]] if several else []),
            f"{each['mean_s'] / 3600:.2f} h",
            f"{each['best_s'] / 3600:.2f} h",
            each["best"],
            *_ratios(each),
        )
    return cells


RATIOS = ("mean /", "bound /", "all /", "p99 wait /", "slowdown /", "size /", "blind /")


def _ratios(cell: Mapping[str, Any]) -> tuple[str, ...]:
    """The columns RATIOS."""
    return (
        _mark(cell["mean_ratio"], GOALS["mean"]),
        f"{cell['bound_ratio']:.3f}",
        _mark(cell["mean_ratio_all"], GOALS["mean"]),
        _mark(cell["p99_wait_ratio"], GOALS["p99_wait"]),
        f"{cell['slowdown_ratio']:.2f}",
        f"{_mark(cell['size_ratio'], GOALS['size'])} ({cell['size_worst']})",
        _mark(cell["blind_ratio"], GOALS["shuffled"]) if cell["predictor"] == SHUFFLED else "",
    )


def _averages(policy: str, kept: Mapping[str, Any], kinds: Sequence[str]) -> Iterable[tuple[str, Table]]:
    """Tables with a column for each kind of predictions, and their titles."""
    logs = Table("log", *kinds)
    for log, ratios in kept["by_log"].items():
        logs.add_row(log, *(_mark(ratios[kind], GOALS["mean"]) if kind in ratios else "" for kind in kinds))
    yield f"{policy}: {kept['cells']} cells; the average of mean / by log:", logs
    each_other = Table("over", *kinds)
    for name, ratios in kept["over_each"].items():
        each_other.add_row(name, *(f"{ratios[kind]:.3f}" if kind in ratios else "" for kind in kinds))
    yield f"Mean completion time over that of each other policy with {FEWEST[1:]}, geometric:", each_other
    alike = Table("each policy over the best of the others", *kinds)
    for name, figures_of in kept["same_measure"].items():
        texts = (figures_of.get(kind) for kind in kinds)
        alike.add_row(name, *(f"{each['kept']} ({each['average']:.3f})" if each else "" for each in texts))
    yield f"Cells at most {GOALS['mean']:g}, and the average:", alike


def _goals(kept: Mapping[str, Any]) -> Table:
    goal = Table("goal", "at most", "cells that keep it", "average", "worst", "in")
    for name, each in kept.items():
        if isinstance(each, dict) and "goal" in each:
            cells_kept = f"{each['kept']} of {each['of']}" if "of" in each else "met" if each["met"] else "missed"
            worst = (
                (f"{each['worst']:.3f}", each["worst_in"])
                if "of" in each
                else (f"geometric: {each['geometric']:.3f}", "")
            )
            goal.add_row(name, f"{each['goal']:g}", cells_kept, f"{each['average']:.3f}", *worst)
    return goal


def _print_limits(kept: Mapping[str, Any], console: Console) -> None:
    """Print what no schedule can do, and which goals conflict."""
    if bound := kept["least_of_perfect"]:
        console.print(
            f"With true predictions, the average of mean / is at least {bound['average']:.3f} under any schedules, and"
            f" in {bound['above_goal']} of {bound['of']} cells none has one of {GOALS['perfect']:g} or less."
        )
    missed = Table(
        "above the goal for the mean", "mean /", "best other", "which misses", "best that misses none", "fair /"
    )
    for each in kept["conflicts"]:
        fair = "" if each["mean_ratio_fair"] is None else _mark(each["mean_ratio_fair"], GOALS["mean"])
        about = (each["best"], ", ".join(each["best_misses"]), each["best_fair"])
        missed.add_row(each["cell"], f"{each['mean_ratio']:.3f}", *about, fair)
    console.print(missed)


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


def parse() -> argparse.Namespace:
    """The command line, with what --quick stands for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--policy", nargs="+", default=[DEFAULT_POLICY], help="under test, such as asrpt-gated:KEY=VALUE"
    )
    parser.add_argument("--logs", nargs="+", default=[], help="of these; philly means with its virtual clusters")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.8, 1.0, 1.2])
    parser.add_argument("--models", nargs="+", default=["none", "table1"])
    parser.add_argument("--predictors", nargs="+", choices=PREDICTORS)
    parser.add_argument("--jobs", type=int, default=6000, help="jobs of a window at most, and as many to learn from")
    parser.add_argument("--windows", type=int, help="windows of each log; default: 2, or 1 with --quick")
    parser.add_argument("--sizes", type=int, choices=(1, 2), help="cluster sizes of each log; default: 2, or 1")
    parser.add_argument("--seed", type=int, default=0, help="draws other windows")
    parser.add_argument("--held-out", action="store_true", help="run the windows that are held out, and only those")
    parser.add_argument("--quick", action="store_true", help="fewer cells, in at most 10 minutes on 2 cores")
    parser.add_argument("--all", action="store_true", help=f"compare with {' and '.join(SELDOM)}, too")
    parser.add_argument("--fresh", action="store_true", help="simulate everything again")
    parser.add_argument("--traces", default="", help=f"directory of the published traces; or variable {VARIABLE}")
    parser.add_argument("-j", "--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout instead of tables")
    parser.add_argument("-o", "--output", type=Path, help="write the JSON object to this file as well")
    chosen = parser.parse_args()
    chosen.windows = chosen.windows or (1 if chosen.quick else 2)
    chosen.sizes = chosen.sizes or (1 if chosen.quick else 2)
    chosen.predictors = chosen.predictors or ([LEARNED[0], PERFECT, SHUFFLED] if chosen.quick else list(PREDICTORS))
    return chosen


def simulate(
    cells: Sequence[Cell], folder: Path, under_test: Sequence[str], chosen: argparse.Namespace
) -> list[dict[str, Any]]:
    """The figures of all cells; stderr shows how many are done."""
    others = (*OTHERS, *SELDOM) if chosen.all else OTHERS
    work = (delayed(play)(folder, cell, under_test, chosen.fresh, others) for cell in cells)
    columns = (TextColumn("simulating"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    rows: list[dict[str, Any]] = []
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=len(cells))
        for found in Parallel(chosen.workers, return_as="generator_unordered")(work):
            rows += found
            bar.advance(task)
    return sorted(rows, key=lambda r: (r["log"], r["first"], r["servers"], r["load"], r["models"], r["predictor"]))


def main() -> int:
    chosen = parse()
    warnings.simplefilter("ignore")
    under_test = [parse_policy(text).text for text in chosen.policy]
    folder = traces_folder(chosen.traces)
    began = time.monotonic()
    rows = simulate(plan(log_table(folder).values(), chosen), folder, under_test, chosen)
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
        tables(rows, document["summary"], Console(width=None if sys.stdout.isatty() else 230))
    return 0


if __name__ == "__main__":
    from benchmarks import reallogs  # workers find the functions of a module by its name

    sys.exit(reallogs.main())
