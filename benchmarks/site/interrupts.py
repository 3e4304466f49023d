"""Consent to preemption on a real Slurm, in accelerated time: python -m benchmarks.site.interrupts --json

The same jobs are played on equal labs, side by side, under asrpt-gated: without ``policy.interrupts``, and with it and
shares of consenting jobs (``--consent``, drawn by seed). The jobs are the last multi-GPU jobs of the pai-like trace
whose work is ``--load`` of what the servers can do in ``--hours``; asrptd begins with what the jobs before them teach.
Run times are cut to ``--longest`` hours. A job keeps its work in a file: when preempted it writes a checkpoint (15 s)
and reports it; when it runs again it loads the checkpoint (60 s) and continues.

``sides``, one for each share: ``filled``: starts on GPUs that are kept for another job (``--fills``); ``interrupted``:
preemptions; ``checkpoint_s``: from signal to requeue; ``unreported``:
requeues without a reported checkpoint; ``lost_runs``: runs whose work was repeated; ``wrong``: jobs that did not do
exactly their work; ``incomplete``: jobs that did not complete; ``most``: most preemptions of a job; ``events``: of the
audit trail, about preemption. ``mean_ratio``, ``p99_ratio``: mean completion, and 99th percentile of the bounded
slowdown, over those without consent. ``consenting_gain``, ``others_worse``, ``lost_share``: as in benchmarks.interrupt.
``simulated``: the same jobs in asrpt-sim. ``late_s``, ``cpu``: whether the machine bears the clock. Needs root.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np

from benchmarks.site.jobs import consents
from benchmarks.site.side_by_side import results
from slurm_asrpt.audit.trail import entries
from slurm_asrpt.core.preemption_costs import PreemptionCosts
from slurm_asrpt.errors import EXIT_INTERRUPTED, AsrptError, MachineError, one_line
from slurm_asrpt.lab import pace
from slurm_asrpt.lab.cluster import Lab, up
from slurm_asrpt.lab.site import figures, simulated
from slurm_asrpt.lab.site.jobs import GPUS, SiteJob, Window, last_hours
from slurm_asrpt.lab.site.sides import OURS, Queue, Record, Setup, Site, completed_runs, down, play_on, spec
from slurm_asrpt.lab.site.simulated import RESTART_S
from slurm_asrpt.lab.spec import ports
from slurm_asrpt.sim.engine import Preemptions, Result, simulate_named
from slurm_asrpt.sim.interruptions import interrupting
from slurm_asrpt.sim.scenario import parse_policy
from slurm_asrpt.traces import Trace
from slurm_asrpt.traces.synthetic import pai_like

TRACE_JOBS = 8000
SAVE_S = 15
"""What writing a checkpoint takes a job."""
STUCK_S = 90.0
"""A side ends if for this long, in the machine's time, jobs wait and none runs."""
EVENTS = ("interrupt", "signalled", "requeued", "requeued-again", "interrupt-refused", "owner-told")
SCRIPT = """#!/bin/bash
# One line for each start, checkpoint and end: the time, and the seconds of work done.
log=$SLURM_JOB_ID.work report=$ASRPT_PROGRESS_DIR
work=0
[ -e "$log" ] && while read -r event _ done; do [ "$event" = saved ] && work=$done; done <"$log"
save() {
    now=$((work + EPOCHSECONDS - begin))
    sleep "$SITE_SAVE_S"
    echo "saved $EPOCHSECONDS $now" >>"$log"
    echo "$now" >"$report/.new" && mv "$report/.new" "$report/checkpoint"
}
echo "start $EPOCHSECONDS $work" >>"$log"
[ "$work" -gt 0 ] && sleep "$SITE_RESTART_S"
begin=$EPOCHSECONDS
trap save USR1
sleep $((SITE_RUN_S - work)) &
until wait $!; do [ $? -eq 138 ] || exit 1; done  # 138: by USR1; else Slurm has killed sleep first
echo "end $EPOCHSECONDS $SITE_RUN_S" >>"$log"
"""


@dataclass(frozen=True)
class Resumable(SiteJob):
    """A job that continues from its checkpoints. consents: to preemption."""

    consents: bool = False

    @property
    def script(self) -> str:
        return SCRIPT

    @property
    def variables(self) -> dict[str, str]:
        return {"SITE_RUN_S": f"{self.run_s:.0f}", "SITE_SAVE_S": str(SAVE_S), "SITE_RESTART_S": str(RESTART_S)}

    def command(self, fewest: bool) -> list[str]:
        allowed = ["--comment=asrpt:interrupt=B:USR1"] if self.consents else []
        return [*super().command(fewest), "--requeue", *allowed]


@dataclass(frozen=True)
class Line:
    """A line that a job has written: start, saved or end, and the seconds of work done by then."""

    event: str
    time: int
    work: int


@dataclass(frozen=True)
class Side:
    """A side that has been played. lines: of each job. held_s: that each job was running, in all its runs.

    trail: entries of the audit trail about preemption.
    """

    share: float
    records: Sequence[Record]
    lines: Sequence[Sequence[Line]]
    held_s: Sequence[float]
    trail: Sequence[Mapping[str, Any]]
    pace: pace.Pace
    seconds: float


def draw(options: argparse.Namespace) -> Window:
    """The window: jobs on several GPUs. Raises InputError."""
    jobs = pai_like(TRACE_JOBS, seed=options.seed).jobs
    several = jobs[jobs["gpus"] > 1].reset_index(drop=True)
    trace = Trace(f"pai-like-{options.seed}", several, len(several))
    return last_hours(trace, options.hours, options.load, options.servers, options.longest * 3600, options.seed)


def with_consent(window: Window, consenting: Sequence[bool]) -> Window:
    jobs = (Resumable(**asdict(job), consents=bool(one)) for job, one in zip(window.jobs, consenting, strict=True))
    return replace(window, jobs=tuple(jobs), past=tuple(Resumable(**asdict(job)) for job in window.past))


def site(share: float, options: argparse.Namespace) -> Site:
    """asrptd with preemption, unless nobody consents. A second of the machine is minutes of the lab, so jobs have a few
    of the machine's seconds for a checkpoint."""
    settings = {"interrupt": {"grace_s": max(60.0, 4.0 * options.speed)}}
    return replace(OURS, name=f"{share:g}", settings=settings | {"policy": policy(share, options)})


def policy(share: float, options: argparse.Namespace) -> dict[str, Any]:
    return {"name": OURS.policy, **tuned(options), "interrupts": share > 0}


def tuned(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of the policy that are not the defaults."""
    names = ("interruption_gain", "interruption_s", "min_run_s", "max_interruptions", "fills")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def play(share: float, window: Window, options: argparse.Namespace, port: int, stop: Event) -> Side:
    """Play a side on a lab of its own. Raises AsrptError."""
    own = with_consent(window, consents(window, share, options.seed))
    setup = Setup(options.speed, options.longest * 3600, port, options.keep, stop)
    ours = site(share, options)
    lab = up(spec(ours, own, setup))
    try:
        found = play_on(lab, ours, own, setup, Watch(f"consent {share:g}", len(own.jobs)).look, pace.measure(lab))
        lines = [lines_of(lab, job.user, job_id) for job, job_id in zip(own.jobs, found.ids, strict=True)]
        held_s = held(lab, found.ids)
        trail = [each for each in entries(lab.paths.asrpt / "state") if each["event"] in EVENTS or "filling" in each]
    finally:
        down(lab, ours, setup)
    assert found.pace
    return Side(share, found.records, lines, held_s, trail, found.pace, found.seconds)


class Watch:
    """Says now and then how far a side is. ``look`` raises MachineError once nothing moves any more."""

    EVERY_S = 30.0

    def __init__(self, name: str, jobs: int) -> None:
        self._name, self._jobs = name, jobs
        self._said = self._moved = time.monotonic()

    def look(self, queue: Queue) -> None:
        now = time.monotonic()
        if queue.running or not queue.waiting:
            self._moved = now
        if now > self._moved + STUCK_S:
            raise MachineError(f"{self._name}: {queue.waiting} jobs wait, but none runs")
        if now > self._said + self.EVERY_S:
            self._said = now
            print(f"{self._name}: {queue.ended}/{self._jobs} jobs have ended, {queue.waiting} wait", file=sys.stderr)


def lines_of(lab: Lab, user: str, job_id: str) -> list[Line]:
    try:
        text = (lab.home(user) / f"{job_id}.work").read_text(encoding="ascii")
    except FileNotFoundError:
        return []
    return [Line(event, int(at), int(work)) for event, at, work in map(str.split, text.splitlines())]


def held(lab: Lab, ids: Sequence[str]) -> list[float]:
    """How long each job was running, in all its runs."""
    found: Counter[str] = Counter()
    for row in completed_runs(lab):
        begin, end = (np.datetime64(row[key], "s") for key in ("StartTime", "EndTime"))
        found[row["JobId"]] += int((end - begin) / np.timedelta64(1, "s"))
    return [float(found[job_id]) for job_id in ids]


def lost_runs(lines: Sequence[Line]) -> int:
    """Runs of a job after which it began again where this run had begun, although it had worked."""
    return sum(one.event == other.event == "start" for one, other in pairwise(lines))


def is_exact(lines: Sequence[Line], run_s: float) -> bool:
    """Whether a job did all its work, each part once: it ended once, after as much work as it is, and each run began
    where the last checkpoint was, and did no more than it had time for."""
    done, begin, total = 0, None, round(run_s)
    for line in lines:
        if line.event == "start" and line.work != done:
            return False
        begin = line if line.event == "start" else begin
        if begin is None or line.work - begin.work > line.time - begin.time + 1:
            return False
        done = line.work
    return [line.event for line in lines].count("end") == 1 and lines[-1].event == "end" and done == total


def row(side: Side, before: Side, window: Window, consenting: Any) -> dict[str, Any]:
    """The figures of a side. before: the one without consent."""
    found, base = (figures.figures(window, one.records) for one in (side, before))
    took, took_before = completions(side.records), completions(before.records)
    by_event = Counter(entry["event"] for entry in side.trail)
    interrupted = Counter(entry["job"] for entry in side.trail if entry["event"] == "interrupt")
    requeues = [entry for entry in side.trail if entry["event"] == "requeued"]
    wrong = [lines for lines, job in zip(side.lines, window.jobs, strict=True) if not is_exact(lines, job.run_s)]
    for lines in wrong:
        print(f"consent {side.share:g}: wrong: {lines}", file=sys.stderr)
    return {
        "consent": side.share,
        "jobs": len(window.jobs),
        "filled": sum("filling" in entry for entry in side.trail),
        "interrupted": sum(interrupted.values()),
        "most": max(interrupted.values(), default=0),
        "checkpoint_s": _rounded(mean_checkpoint_s(side.trail)),
        "unreported": sum(not entry["reported"] for entry in requeues),
        "lost_runs": sum(map(lost_runs, side.lines)),
        "wrong": len(wrong),
        "incomplete": len(window.jobs) - found["completed"],
        "mean_s": round(found["completion_s"]["mean"], 1),
        "p99_slowdown": _rounded(found["slowdown"]["p99"]),
        **against(took, took_before, consenting),
        "p99_ratio": _rounded(found["slowdown"]["p99"] / base["slowdown"]["p99"]),
        "lost_share": _rounded(lost_share(side, window)),
        "late_s": side.pace.late_s,
        "cpu": _rounded(side.pace.cpu),
        "took_s": round(side.seconds, 1),
        "events": dict(by_event),
    }


def completions(records: Sequence[Record]) -> Any:
    return np.array([record.end - record.due for record in records])


def against(took: Any, before: Any, consenting: Any) -> dict[str, float | None]:
    """Mean completion with consent against that without, of all jobs, those that consent, and the others."""
    some, others = consenting.any(), not consenting.all()
    return {
        "mean_ratio": _rounded(float(took.mean() / before.mean())),
        "consenting_gain": _rounded(float(before[consenting].mean() / took[consenting].mean())) if some else None,
        "others_worse": _rounded(float(took[~consenting].mean() / before[~consenting].mean())) if others else None,
    }


def mean_checkpoint_s(trail: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds from the signal to the requeue."""
    sent: dict[str, float] = {}
    took = []
    for entry in trail:
        if entry["event"] == "signalled":
            sent[entry["job"]] = entry["time"]
        elif entry["event"] == "requeued" and entry["job"] in sent:
            took.append(entry["time"] - sent.pop(entry["job"]))
    return float(np.mean(took)) if took else None


def lost_share(side: Side, window: Window) -> float:
    """GPU time that interrupted jobs held without progress, over all that jobs held."""
    lost = used = 0.0
    for job, lines, seconds in zip(window.jobs, side.lines, side.held_s, strict=True):
        used += job.gpus * seconds
        if [line.event for line in lines].count("start") > 1:
            lost += job.gpus * (seconds - job.run_s)
    return lost / max(used, 1.0)


def simulate(window: Window, seed: int, shares: Sequence[float], tuned: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures of the same jobs and shares in asrpt-sim; the first share is 0."""
    run_s, gpus = (np.array([getattr(job, name) for job in window.jobs]) for name in ("run_s", "gpus"))
    rows, before = list[dict[str, Any]](), None
    for share in shares:
        consenting = consents(window, share, seed)
        result, gone = _simulated(window, consenting, {**tuned, "interrupts": share > 0})
        took = result.completion_times
        slow = float(np.percentile(np.maximum(1.0, took / np.maximum(run_s, figures.BOUND_S)), 99))
        before = before or (took, slow)
        used = float((gpus * run_s).sum()) + gone.lost_gpu_s
        rows.append(
            {
                "consent": share,
                "jobs": len(window.jobs),
                "interrupted": gone.count,
                "mean_s": round(float(took.mean()), 1),
                "p99_slowdown": _rounded(slow),
                **against(took, before[0], consenting),
                "p99_ratio": _rounded(slow / before[1]),
                "lost_share": _rounded(gone.lost_gpu_s / used),
            }
        )
    return rows


def _simulated(window: Window, consenting: Any, settings: Mapping[str, Any]) -> tuple[Result, Preemptions]:
    made, ours = simulated.workload(window), parse_policy(simulated.policy_of(OURS, 0.0))
    runner = interrupting(np.flatnonzero(consenting).tolist(), PreemptionCosts(restart_s=RESTART_S))
    nodes, fabric = made.cluster.nodes, made.cluster.fabric
    result = simulate_named(ours.name, nodes, made.table, fabric, {**ours.settings, **settings}, runner=runner)
    nothing = Preemptions(np.array([], dtype=np.int64), 0, 0.0, np.empty((0, 3)))
    return result, result.preemptions or nothing


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def play_all(window: Window, options: argparse.Namespace) -> list[Side]:
    """Play the sides, ``--labs`` at a time. Raises AsrptError."""
    stop = Event()
    with ThreadPoolExecutor(options.labs) as pool:
        first = (options.port + number * ports(window.servers) for number in range(len(options.consent)))
        sides = [
            pool.submit(play, share, window, options, port, stop)
            for share, port in zip(options.consent, first, strict=True)
        ]
        return results(pool, sides, stop)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.site.interrupts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--servers", type=int, default=8, help="with 8 GPUs each (default %(default)s)")
    parser.add_argument("--load", type=float, default=1.5, help="(default %(default)s)")
    parser.add_argument("--hours", type=float, default=24.0, help="time in which jobs arrive (default %(default)s)")
    parser.add_argument("--longest", type=float, default=4.0, help="MaxTime in hours (default %(default)s)")
    parser.add_argument("--consent", type=float, nargs="+", default=[0.5, 1.0], help="shares of jobs, beside 0")
    parser.add_argument("--seed", type=int, default=2, help="of the jobs and of who consents (default %(default)s)")
    parser.add_argument("--speed", type=float, default=90.0, help="of the labs' clocks (default %(default)s)")
    parser.add_argument("--labs", type=int, default=3, help="labs at a time (default %(default)s)")
    parser.add_argument("--interruption-gain", type=float, help="policy.interruption_gain")
    parser.add_argument("--interruption-s", type=float, help="policy.interruption_s")
    parser.add_argument("--min-run-s", type=float, help="policy.min_run_s")
    parser.add_argument("--max-interruptions", type=int, help="policy.max_interruptions")
    parser.add_argument("--fills", action="store_true", default=None, help="policy.fills")
    parser.add_argument("--simulate", action="store_true", help="only in asrpt-sim, without labs")
    parser.add_argument("--port", type=int, default=19000, help="first port (default %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep logs and audit trails here")
    return parser.parse_args(arguments)


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """The figures as a Markdown table."""
    names = ("consent", "interrupted", "mean_ratio", "p99_ratio", "consenting_gain", "others_worse", "lost_share")
    lines = ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
    lines += [
        "| " + " | ".join("" if each[name] is None else f"{each[name]:g}" for name in names) + " |" for each in rows
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 1 if a job did not complete, or did not do exactly its work."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = parse(arguments)
    options.consent = [0.0, *options.consent]
    try:
        window = draw(options)
        sides = [] if options.simulate else play_all(window, options)
    except KeyboardInterrupt:
        print("benchmarks.site.interrupts: interrupted; all labs have been stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except AsrptError as error:
        print(f"benchmarks.site.interrupts: {one_line(error)}", file=sys.stderr)
        return error.exit_code
    rows = [row(side, sides[0], window, consents(window, side.share, options.seed)) for side in sides]
    simulation = simulate(window, options.seed, options.consent, tuned(options))
    if options.json:
        names = ("servers", "load", "hours", "longest", "seed", "speed", "labs")
        made = {"at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "cpus": os.cpu_count(), "gpus_a_server": GPUS}
        made |= {name: getattr(options, name) for name in names} | {"policy": tuned(options)}
        print(json.dumps({"sides": rows, "simulated": simulation, "made": made}))
    else:
        print(*(["On Slurm:", text(rows), ""] if rows else []), "Simulated:", text(simulation), sep="\n")
    return int(any(each["wrong"] or each["incomplete"] for each in rows))


if __name__ == "__main__":
    sys.exit(main())
