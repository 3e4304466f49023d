"""Check start intervals over days of a real Slurm in accelerated time: python -m benchmarks.start_intervals --json

Jobs of `pai-like` arrive at random in a lab whose clock goes ``--speed`` times as fast (asrpt-lab up --speed), more by
day and fewer by night (``--swing``), so that queues come and go. asrptd, in mode enforce, starts with what the jobs
before them teach, and retrains every six hours. Once a second of the machine, status.json is read as users see it.

``judged`` are the jobs of the first ``--hundred`` of the queue whose first estimate was made after ``--warm`` days, in
which asrptd learns how wrong its estimates are, and half a day or more before the last job arrived: later ones start
early, as nothing comes any more. ``all`` are those of all days. Of each: ``jobs`` with an estimate; ``upper``: share
whose interval has an upper end; ``inside``, ``early``, ``late``: shares of the jobs; ``closed``: the same of intervals
with an upper end; ``wait_s``, ``width_s``: medians of the wait from then on, and of the width, in the lab's seconds;
``open``: why there was no upper end. ``shown`` counts what users saw at all looks: of the estimates for the first
hundred, the share with an upper end, and of these intervals, the share that held; ``untold``: why others that the last
computation knew had no estimate.

``_95`` are 95% confidence intervals of a share, if each job is one trial; with ``together``, if the jobs of a forecast
fail together (benchmarks.start_coverage). ``queue``: most, and mean, of waiting jobs. ``calibration``: what asrpt-admin
calibration says. ``--records`` writes all estimates to a file. Needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.arrivals import swinging
from benchmarks.start_coverage import start_coverage
from slurm_asrpt.config.settings import load_settings
from slurm_asrpt.errors import EXIT_INTERRUPTED, AsrptError, one_line
from slurm_asrpt.forecast.calibration import calibration
from slurm_asrpt.history.store import FILE_NAME as HISTORY
from slurm_asrpt.history.store import History
from slurm_asrpt.lab import pace
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.site.jobs import GPUS, Window, fitting, window
from slurm_asrpt.lab.site.sides import OURS, Queue, Setup, Site, completed_runs, daemon_settings, down, play_on, spec
from slurm_asrpt.status.document import FILE_NAME as STATUS
from slurm_asrpt.traces.synthetic import pai_like

DAY_S = 86400.0
LARGEST = 0.5
"""Share of the cluster that the largest job asks for."""
LAST_S = DAY_S / 2
"""Estimates of this last part of the arrivals are not judged."""
UNTOLD_YET = "no estimate yet"
"""How status.json begins to say that the last computation did not know the job."""
QUICK = {"days": 3.6, "speed": 400.0}
"""About 14 minutes."""


@dataclass(frozen=True)
class Estimate:
    """What was shown of a waiting job. Times in seconds of the lab. latest: None without an upper end."""

    job: str
    rank: int
    seen: float
    made: float
    earliest: float
    latest: float | None
    open_end: str


@dataclass
class Watch:
    """Reads status.json while the lab plays. untold: jobs without an estimate in the last computation, by look."""

    lab: Lab
    hundred: int
    first: dict[str, Estimate] = field(default_factory=dict)
    looks: list[list[Estimate]] = field(default_factory=list)
    untold: Counter[str] = field(default_factory=Counter)
    waiting: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._file = load_settings(self.lab.settings_path).paths.run / STATUS

    def look(self, queue: Queue) -> None:
        self.waiting.append(queue.waiting)
        try:
            shown = json.loads(self._file.read_bytes())
        except (OSError, ValueError):
            return
        ranked = [job for job in shown["jobs"] if job.get("rank")]
        estimates = [self._estimate(job) for job in ranked if job.get("start_made")]
        for each in estimates:
            self.first.setdefault(each.job, each)
        self.looks.append([each for each in estimates if each.rank <= self.hundred])
        without = [
            job.get("start_unknown", "") for job in ranked if not job.get("start_made") and job["rank"] <= self.hundred
        ]
        self.untold.update(text for text in without if not text.startswith(UNTOLD_YET))

    def _estimate(self, job: Mapping[str, Any]) -> Estimate:
        ends = (job["start_earliest"], job.get("start_latest"), job.get("start_open") or "")
        return Estimate(job["job_id"], job["rank"], self.lab.time(), job["start_made"], *ends)


# the jobs


def workload(options: argparse.Namespace) -> Window:
    """Days of swinging arrivals, and as many jobs before them to learn from."""
    hours, longest_s = options.days * 24, options.longest * 3600
    wanted = options.load * options.servers * GPUS * hours * 3600
    number = 1000
    while True:
        trace = pai_like(number, number / 1500, options.seed)
        small = trace.jobs[trace.jobs["gpus"] <= LARGEST * options.servers * GPUS].reset_index(drop=True)
        jobs = fitting(replace(trace, jobs=small), options.servers, longest_s)
        work = np.cumsum((jobs["gpus"] * jobs["duration_s"]).to_numpy()[len(jobs) // 2 :])
        if work[-1] >= wanted:
            break
        number *= 2
    past = len(jobs) // 2
    count = int(np.searchsorted(work, wanted)) + 1
    chosen = jobs.iloc[max(0, past - count) : past + count].reset_index(drop=True)
    past = len(chosen) - count
    submit = chosen["submit_s"].to_numpy()
    stretch = options.days * DAY_S / float(submit[-1] - submit[past])
    rng = np.random.default_rng(options.seed)
    made = window("pai-like", chosen, options.servers, past, stretch, longest_s, rng)
    times = swinging(count, options.days * DAY_S, DAY_S, options.swing, options.seed).tolist()
    return replace(made, jobs=tuple(replace(job, submit_s=at) for job, at in zip(made.jobs, times, strict=True)))


def site(options: argparse.Namespace) -> Site:
    """asrptd as packaged; a forecast comes as often as this machine bears, as CPU time goes as fast as the clock."""
    daemon = daemon_settings(options.speed) | {"forecast_s": options.forecast * options.speed}
    return replace(OURS, settings={"daemon": daemon})


# the figures


def share(flags: Sequence[tuple[float, bool]]) -> dict[str, Any]:
    """A share with its confidence intervals. flags: when each was estimated, and whether it counts."""
    found = start_coverage([(made, not flag, False) for made, flag in flags])
    return {"share": found["inside"], "share_95": found["inside_95"], "together_95": found["together_95"]}


def figures(estimates: Sequence[Estimate], start: Mapping[str, float]) -> dict[str, Any]:
    bounded = [each for each in estimates if each.latest is not None]
    widths = [each.latest - each.earliest for each in bounded if each.latest is not None]
    return {
        "upper": share([(each.made, each.latest is not None) for each in estimates]),
        **start_coverage([verdict(each, start) for each in estimates]),
        "closed": start_coverage([verdict(each, start) for each in bounded]),
        "width_s": round(median(widths)) if widths else None,
        "wait_s": round(median(start[each.job] - each.made for each in estimates)) if estimates else None,
        "open": dict(Counter(each.open_end for each in estimates if each.latest is None)),
    }


def verdict(each: Estimate, start: Mapping[str, float]) -> tuple[float, bool, bool]:
    began = start[each.job]
    return each.made, began < each.earliest, each.latest is not None and began > each.latest


def shown(watch: Watch, start: Mapping[str, float], since: float, until: float) -> dict[str, Any]:
    """What users saw at all looks of a time."""
    seen = [each for look in watch.looks for each in look if since <= each.seen <= until]
    ends = [each for each in seen if each.latest is not None]
    held = [each.earliest <= start[each.job] <= each.latest for each in ends if each.latest is not None]
    return {
        "looks": len(watch.looks),
        "estimates": len(seen),
        "upper": round(len(ends) / len(seen), 4) if seen else None,
        "held": round(fmean(held), 4) if held else None,
        "untold": dict(watch.untold),
    }


def found(options: argparse.Namespace, watch: Watch, start: Mapping[str, float], began: float) -> dict[str, Any]:
    first = [each for each in watch.first.values() if each.rank <= options.hundred and each.job in start]
    since, until = began + options.warm * DAY_S, began + options.days * DAY_S - LAST_S
    watch.looks = [[each for each in look if each.job in start] for look in watch.looks]
    return {
        "judged": figures([each for each in first if since <= each.made <= until], start),
        "all": figures(first, start),
        "shown": shown(watch, start, since, until),
        "queue": {"most": max(watch.waiting), "mean": round(fmean(watch.waiting), 1)},
    }


# the run


def replay(options: argparse.Namespace) -> dict[str, Any]:
    """Play the days. Raises AsrptError, KeyboardInterrupt."""
    made, ours = workload(options), site(options)
    setup = Setup(options.speed, options.longest * 3600, options.port, options.keep, to_the_end=False)
    lab = up(spec(ours, made, setup))
    try:
        watch, cost = Watch(lab, options.hundred), pace.measure(lab)
        say = Console(stderr=True).print
        say(f"{len(made.jobs)} jobs, load {made.load:.2f}; clock at {cost}", highlight=False)
        began, played = lab.time(), play_on(lab, ours, made, setup, watch.look, cost)
        start = starts(lab)
        with History(load_settings(lab.settings_path).paths.state / HISTORY) as history:
            official = asdict(calibration(history, 0))
    finally:
        down(lab, ours, setup)
    if options.records:
        write(options.records, watch, start)
    conditions: dict[str, Any] = {"jobs": len(made.jobs), "late_s": round(cost.late_s, 1), "cpu": round(cost.cpu, 3)}
    conditions |= {"minutes": round(played.seconds / 60, 1), "cpus": os.cpu_count()}
    return {**found(options, watch, start, began), "calibration": official, "made": settings(options) | conditions}


def starts(lab: Lab) -> dict[str, float]:
    """When the jobs that have ended, or run, started; seconds since the epoch."""
    ended = {row["JobId"]: row["StartTime"] for row in completed_runs(lab)}
    running = lab.run(["squeue", "-h", "-t", "R,CG", "-o", "%A %S"]).stdout.splitlines()
    ended |= dict(line.split() for line in running)
    return {name: datetime.fromisoformat(text).timestamp() for name, text in ended.items() if text[0].isdigit()}


def write(path: Path, watch: Watch, start: Mapping[str, float]) -> None:
    """The first estimate of each job, and what was seen at all looks, one JSON object a line, with the job's start."""
    rows = [("first", each) for each in watch.first.values()]
    rows += [("look", each) for look in watch.looks for each in look]
    lines = (json.dumps({"kind": kind, **asdict(each), "start": start.get(each.job)}) for kind, each in rows)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def settings(options: argparse.Namespace) -> dict[str, Any]:
    names = ("seed", "days", "warm", "servers", "load", "swing", "longest", "speed", "forecast", "hundred")
    at = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
    return at | {name: getattr(options, name) for name in names}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=float, default=7.0, help="of arrivals (default %(default)g)")
    parser.add_argument("--warm", type=float, default=1.0, help="days that are not judged (default %(default)g)")
    parser.add_argument("--servers", type=int, default=5, help="with 8 GPUs each (default %(default)s)")
    parser.add_argument("--load", type=float, default=0.8, help="GPU-seconds that arrive over those available")
    parser.add_argument("--swing", type=float, default=0.8, help="depth of the daily variation of the load, 0 to 1")
    parser.add_argument("--longest", type=float, default=12.0, help="MaxTime in hours (default %(default)g)")
    parser.add_argument("--speed", type=float, default=200.0, help="of the lab's clock (default %(default)g)")
    parser.add_argument("--forecast", type=float, default=8.0, help="daemon.forecast_s, in seconds of the machine")
    parser.add_argument("--hundred", type=int, default=100, help="jobs at the head of the queue that are judged")
    parser.add_argument("--seed", type=int, default=1, help="of the jobs (default %(default)s)")
    parser.add_argument("--port", type=int, default=29000, help="first port (default %(default)s)")
    parser.add_argument("--quick", action="store_true", help="3.6 days at x400: at most 15 minutes")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and audit trail here")
    parser.add_argument("--records", type=Path, metavar="FILE", help="write all estimates here, one JSON object a line")
    parser.add_argument("--json", action="store_true", help="print one JSON object on one line")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = parse(arguments)
    try:
        result = replay(options)
    except KeyboardInterrupt:
        print("benchmarks.start_intervals: interrupted; the lab has been stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except AsrptError as error:
        print(f"benchmarks.start_intervals: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(result, indent=None if options.json else 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
