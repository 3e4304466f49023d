"""Days of real clusters on a real Slurm, in accelerated time, plain and under asrptd: python -m benchmarks.site --json

A cell is a window of a real log (``--logs``), on as many servers with 8 GPUs as its own arrivals load to 1, at one
load and in one regime. Users submit the same jobs with sbatch at the same times, to labs whose clocks go ``--speed``
times as fast as the machine's, with parameters of a site that tuned them: plain Slurm under each of a small grid of
settings (``plain``: priority by age, by fair share, small jobs first), and asrptd. The sides of a cell are played side
by side, ``--labs`` at a time.

Jobs take their time in the log, cut to ``--longest`` hours, the site's MaxTime. Times between submissions are stretched
by one factor so that the work of the window is ``--loads`` of what the cluster can do in its ``--hours``. Time limits
are those of the log; where it has none they are drawn: run time over limit is uniform between 0.05 and 1 (Mu'alem and
Feitelson 2001), rounded up to popular values (Tsafrir et al. 2005). Users ask for the fewest nodes (``-N``).

Regimes: in ``order`` all placements are equally fast. In ``placement`` jobs of a size that a model of Table I has train
it (asrpt-lab train), in ``mixed`` those of half of the groups; there Slurm also plays the jobs without ``-N`` (``age,
any nodes``), unless ``--plain`` or ``--quick`` leaves that out: a training on many nodes may then take days of the lab.

asrptd begins with what the jobs before the window teach, and is retrained every six hours of the lab.

``cells``: ratios of asrptd over the plain side with the least mean completion time (``best``): ``jct_ratio``,
``slowdown_ratio`` (bounded at a minute), ``p99_wait_ratio``, ``worst_user_ratio``, ``worst_size_ratio`` (of users and
size classes with 20 jobs), and more. ``over_bound``: mean completion over what no schedule can do better
(docs/decisions/0006). ``simulated``: the same jobs in asrpt-sim: mean completion over the real one, and the
Kolmogorov-Smirnov distance of waits, those below a minute being equal; ``paced_s`` is the range of ten simulations in
which jobs take as much longer as this machine makes them (``pace_s``). ``sides``: all figures. The machine must bear
the clock: ``submitted_late_s`` is how late one in 20 jobs was submitted at least, ``submitted_late_share`` the part of
the mean completion time that is such delay; a cell in which that is much is no evidence. ``late_s`` is how late jobs
of an idle lab ended, ``cpu`` what it takes. Needs root.

``--simulate`` plays the cells of regime ``order`` in asrpt-sim instead, Slurm as policy slurm-backfill: minutes for all
logs. In small windows, seconds decide whether a long job takes the last GPU for which short ones then wait for hours;
``--draws 10`` plays each cell ten times with jobs that take 0 to 20 s longer, and gives the figures of all together.
``--predictor perfect`` and ``--consent 0.5`` say what asrptd would gain if it knew run times, or might preempt so many
jobs (drawn by seed; they save their work on the signal, and take a minute to load it); plain Slurm stays as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from threading import Event
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.real_windows import VARIABLE, Log, log_table, traces_folder
from benchmarks.site.jobs import MIXED, ORDER, PLACEMENT, REGIMES, consents, draw
from benchmarks.site.side_by_side import results
from slurm_asrpt.errors import EXIT_INTERRUPTED, AsrptError, InputError, MachineError, one_line
from slurm_asrpt.lab.pace import bearable_for
from slurm_asrpt.lab.site import figures, simulated
from slurm_asrpt.lab.site.jobs import GPUS, Window
from slurm_asrpt.lab.site.sides import OURS, OURS_FAIR, PAPER, PLAIN, SCATTERED, Played, Setup, Site, play
from slurm_asrpt.lab.spec import ports

SLOWEST, FASTEST = 5.0, 120.0
BUSY_S, BUSIER = 1800.0, 1.25
"""The speed is what the machine bears in the busiest time of this length; more than on average, as it is short."""
LATE_SHARE = 0.02
"""If more than this share of the mean completion time is the delay of submissions, a cell is no evidence."""
LOADS = (0.8, 1.0, 1.2)
QUICK = ("philly/11cb48", "itp/cluster03", "itp/cluster02")
"""Logs whose busiest half hour two CPUs bear at a speed at which all takes 40 minutes."""
GOALS = {
    "slowdown_ratio": 0.5,
    "jct_ratio": 0.8,
    "p99_wait_ratio": 1.0,
    "worst_user_ratio": 1.1,
    "worst_size_ratio": 1.1,
}
console = Console(stderr=True)


class Cell(NamedTuple):
    log: str
    load: float
    regime: str
    seed: int


def sides_of(cell: Cell, options: argparse.Namespace) -> list[Site]:
    there = [*PLAIN, SCATTERED] if cell.regime != ORDER and not options.quick else PLAIN
    plain = [site for site in there if not options.plain or site.name in options.plain]
    return [*plain, OURS, *((OURS_FAIR, PAPER) if options.all else ())]


def play_cell(cell: Cell, log: Log, options: argparse.Namespace) -> dict[str, Any]:
    """The figures of a cell. Raises AsrptError."""
    servers = options.servers or log.servers[0]
    longest_s = options.longest * 3600
    window = draw(log, servers, cell.load, options.hours, longest_s, cell.regime, cell.seed, options.held_out)
    sites = sides_of(cell, options)
    if options.simulate:
        able = [site for site in sites if simulated.policy_of(site, longest_s)]
        consenting = np.flatnonzero(consents(window, options.consent, cell.seed)).tolist()
        assumed = simulated.Assumed(options.predictor, tuple(consenting))
        played = [simulated.play_draws(site, window, longest_s, options.draws, assumed) for site in able]
        window = replace(window, jobs=window.jobs * options.draws)
    else:
        played = play_sides(cell, window, sites, options)
    return row(cell, window, {each.site.name: each for each in played}, longest_s)


def play_sides(cell: Cell, window: Window, sites: Sequence[Site], options: argparse.Namespace) -> list[Played]:
    """Play the sides of a cell on labs. Raises AsrptError."""
    longest_s = options.longest * 3600
    speed = options.speed or bearable([job.submit_s for job in window.jobs], min(len(sites), options.labs))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    title = f"{cell.log} x{window.servers} load {cell.load:g} {cell.regime} seed {cell.seed}"
    stop = Event()
    with Progress(*columns, console=console) as progress, ThreadPoolExecutor(options.labs) as pool:

        def one(number: int) -> Played:
            site, port = sites[number], options.port + number * ports(window.servers)
            task = progress.add_task(f"{title}: {site.name}", total=len(window.jobs))
            logs = options.keep / title.replace("/", "-") if options.keep else None
            setup = Setup(speed, longest_s, port, logs, stop)
            try:
                return play(site, window, setup, lambda queue: progress.update(task, completed=queue.ended))
            except AsrptError as error:
                raise MachineError(f"{site.name}: {one_line(error)}") from error

        sides = [pool.submit(one, number) for number in range(len(sites))]
        return results(pool, sides, stop)


def bearable(submissions: Sequence[float], labs: int) -> float:
    """A speed at which submissions, starts and ends leave most of the CPUs idle, also in the busiest half hour.

    submissions: times in seconds, in order.
    """
    most = max(bisect_right(submissions, at + BUSY_S) - nth for nth, at in enumerate(submissions))
    return float(round(min(FASTEST, max(SLOWEST, BUSIER * bearable_for(most * labs, BUSY_S)))))


def late(sides: Mapping[str, Mapping[str, Any]]) -> float:
    """How late one in 20 jobs was submitted at least, on the side where they were latest, seconds of the lab."""
    return max(float(side["submitted_late_s"]["p95"]) for side in sides.values())


def late_share(sides: Mapping[str, Mapping[str, Any]]) -> float:
    """The part of the mean completion time that is the delay of submissions, on the side where it is largest."""
    return max(float(side["submitted_late_s"]["mean"]) / float(side["completion_s"]["mean"]) for side in sides.values())


def warn_if_late(cell: Cell, share: float) -> None:
    if share > LATE_SHARE:
        text = f"{share:.1%} of the mean completion time is the delay of submissions, so the cell is no evidence"
        print(f"benchmarks.site: {' '.join(map(str, cell))}: {text}; choose a lower --speed", file=sys.stderr)


def row(cell: Cell, window: Window, played: Mapping[str, Played], longest_s: float) -> dict[str, Any]:
    """The figures of a cell."""
    sides = {name: figures.figures(window, each.records) for name, each in played.items()}
    plain = [name for name, each in played.items() if not each.site.policy]
    best = min(plain, key=lambda name: float(sides[name]["completion_s"]["mean"]))
    ours = sides[OURS.name]
    records = played[OURS.name].records
    real = {name: each for name, each in played.items() if each.pace}
    compared = {name: simulated.compare(window, each, longest_s) for name, each in real.items()}
    costs = {name: {"late_s": each.pace.late_s, "cpu": each.pace.cpu} for name, each in real.items() if each.pace}
    return {
        **cell._asdict(),
        "servers": window.servers,
        "jobs": len(window.trace) - len(window.past),
        "speed": next((each.pace.speed for each in real.values() if each.pace), None),
        "completed": min(side["completed"] for side in sides.values()),
        "submitted_late_s": round(late(sides), 1),
        "submitted_late_share": round(late_share(sides), 4),
        "learned_from": len(window.past),
        "load_of_log": round(window.load_of_log, 3),
        "best": best,
        **figures.ratios(ours, sides[best]),
        "over_bound": round(ours["completion_s"]["mean"] / simulated.bound(window), 4),
        "best_over_bound": round(sides[best]["completion_s"]["mean"] / simulated.bound(window), 4),
        "waited_a_day_longer": figures.longer_by(records, played[best].records, figures.DAY_S),
        "simulated": {name: found for name, found in compared.items() if found},
        "sides": {
            name: {**side, **costs.get(name, {}), "took_s": round(played[name].seconds, 1)}
            for name, side in sides.items()
        },
    }


def cells(options: argparse.Namespace, names: Sequence[str]) -> list[Cell]:
    if options.quick:
        chosen = [name for name in QUICK if name in names] or names
        return [Cell(name, 1.0, regime, 1) for name, regime in zip(chosen, (ORDER, PLACEMENT, MIXED), strict=False)]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    regimes = [ORDER] if options.simulate else options.regimes
    return [Cell(*chosen) for chosen in product(names, options.loads, regimes, seeds)]


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the cells of a regime, with half of the 95% confidence interval where there are several."""
    found: dict[str, Any] = {}
    for regime in REGIMES:
        here = [each for each in rows if each["regime"] == regime]
        if here:
            found[regime] = {key: _mean([each[key] for each in here]) for key in GOALS}
    return found


def _mean(values: Sequence[float]) -> dict[str, float]:
    half = 1.96 * stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return {"mean": round(fmean(values), 4), "half_ci95": round(half, 4), "cells": len(values)}


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    shown = Table(title="asrptd over the best plain Slurm; below 1 is better")
    for title in (
        "cell",
        "jobs",
        "best plain",
        "completion",
        "slowdown",
        "p99 wait",
        "worst user",
        "worst size",
        "used",
    ):
        shown.add_column(title, justify="left" if title in ("cell", "best plain") else "right", overflow="fold")
    keys = (
        *("jct_ratio", "slowdown_ratio", "p99_wait_ratio", "worst_user_ratio", "worst_size_ratio"),
        "utilisation_ratio",
    )
    for each in rows:
        name = f"{each['log']} x{each['servers']} {each['load']:g} {each['regime']}"
        shown.add_row(name, str(each["jobs"]), each["best"], *(f"{each[key]:.2f}" for key in keys))
    return shown


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.site", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--quick", action="store_true", help="three cells, one of each regime, all jobs with -N")
    parser.add_argument("--logs", nargs="+", metavar="LOG", help="logs, as --list names them")
    parser.add_argument("--list", action="store_true", help="list the logs that are small enough")
    parser.add_argument("--loads", nargs="+", type=float, default=list(LOADS), metavar="LOAD")
    parser.add_argument("--regimes", nargs="+", choices=list(REGIMES), default=list(REGIMES))
    parser.add_argument("--seeds", type=int, default=2, help="windows per log (default %(default)s)")
    parser.add_argument("--first-seed", type=int, default=1, metavar="N", help="of these windows (default %(default)s)")
    parser.add_argument("--hours", type=float, default=24.0, help="time in which jobs arrive (default %(default)s)")
    parser.add_argument("--longest", type=float, default=24.0, help="MaxTime in hours (default %(default)s)")
    parser.add_argument("--servers", type=int, default=0, help="instead of what the log's own arrivals load to 1")
    parser.add_argument("--most-servers", type=int, default=24, help="larger logs are left out (default %(default)s)")
    parser.add_argument("--speed", type=float, default=0.0, help="of the labs' clocks; default: what the CPUs bear")
    parser.add_argument("--labs", type=int, default=5, help="labs at a time (default %(default)s)")
    parser.add_argument("--plain", nargs="+", metavar="NAME", help="only these settings of plain Slurm")
    parser.add_argument("--all", action="store_true", help="asrptd with fair share, and with policy asrpt, too")
    parser.add_argument("--simulate", action="store_true", help="in asrpt-sim, without labs; only the regime order")
    parser.add_argument(
        "--draws", type=int, default=1, help="with --simulate: play each cell so often, with seconds added to run times"
    )
    known = ["expected", "perfect"]
    parser.add_argument("--predictor", choices=known, default="expected", help="with --simulate: asrptd's")
    parser.add_argument(
        "--consent", type=float, default=0.0, metavar="SHARE", help="with --simulate: so many jobs may be preempted"
    )
    parser.add_argument("--held-out", action="store_true", help="windows of the third that nothing was tuned on")
    parser.add_argument("--traces", default="", help=f"directory of the traces (also {VARIABLE})")
    parser.add_argument("--port", type=int, default=19000, help="first port (default %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and audit trails here")
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the cells here, after each one")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = parse(arguments)
    if options.quick:
        options.hours, options.longest = min(options.hours, 12.0), min(options.longest, 8.0)
    logs = log_table(traces_folder(options.traces))
    fitting = [name for name, log in logs.items() if (options.servers or log.servers[0]) <= options.most_servers]
    if options.list:
        for name in fitting:
            print(f"{name}: {len(logs[name].trace)} jobs, {logs[name].servers[0]} servers")
        return 0
    names = options.logs or fitting
    unknown = [name for name in names if name not in logs]
    if unknown:
        print(f"benchmarks.site: no log {unknown[0]}; known: {', '.join(fitting)}", file=sys.stderr)
        return InputError.exit_code
    rows: list[dict[str, Any]] = []
    for cell in cells(options, names):
        try:
            rows.append(found := play_cell(cell, logs[cell.log], options))
            warn_if_late(cell, found["submitted_late_share"])
        except KeyboardInterrupt:
            print("benchmarks.site: interrupted; all labs have been stopped", file=sys.stderr)
            return EXIT_INTERRUPTED
        except AsrptError as error:
            print(f"benchmarks.site: {' '.join(map(str, cell))}: {one_line(error)}", file=sys.stderr)
            rows.append({**cell._asdict(), "error": one_line(error)})
        if options.output:
            options.output.write_text(json.dumps(rows) + "\n", encoding="utf-8")
    played = [each for each in rows if "error" not in each]
    if options.json:
        made = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "cpus": os.cpu_count(), "goals": GOALS}
        print(json.dumps({"cells": rows, "summary": summary(played), "made": {**made, **_shown(options)}}))
    else:
        Console().print(table(played))
    return 0 if len(played) == len(rows) else 1


def _shown(options: argparse.Namespace) -> dict[str, Any]:
    keys = ("hours", "longest", "speed", "labs", "held_out", "predictor", "consent")
    return {key: getattr(options, key) for key in keys} | {"gpus_a_server": GPUS}


if __name__ == "__main__":
    sys.exit(main())
