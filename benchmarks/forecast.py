"""Check start-time estimates in simulation: python -m benchmarks.forecast --json

A policy schedules jobs of `pai-like` (without profiles) on a small cluster. Predictions and their intervals are learned
once, from the jobs before them. Every ``--every`` seconds of simulated time, all pending jobs get a forecast as from
asrptd, and the first one of each job is compared with its start. ``inside``, ``early`` and ``late`` are shares of the
``jobs`` that had a forecast, over all ``--seeds``. ``inside_95`` is the confidence interval of ``inside``;
``together_95`` is the same if the jobs of one forecast, in ``batches``, are assumed to fail together. ``raw`` has the
same figures before the adjustment that asrptd learns from earlier starts, ``closed`` those of intervals with an upper
bound; the others have none within the horizon. ``untold`` jobs had no forecast. ``width_s`` is the median of the
closed widths, ``wait_s`` that of the waits from then on, ``ms`` the CPU time of a forecast. ``--blind`` ignores later
arrivals. With ``--swing``, jobs arrive at random, more by day and fewer by night; without it, the days of the trace are
stretched to the load. With ``--bursts N``, about N jobs arrive within ten minutes, then none until the next burst.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from statistics import fmean, median
from typing import Any

from joblib import Parallel, delayed

from benchmarks.arrivals import bursting, swinging
from benchmarks.start_coverage import start_coverage
from slurm_asrpt.core.cluster import ClusterView, Placement
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies import make_policy, policy_names
from slurm_asrpt.core.policies.base import Decision, Start
from slurm_asrpt.forecast.conformal import StartConformal
from slurm_asrpt.forecast.conformal import StartInterval as Estimate
from slurm_asrpt.forecast.estimate import MIN_SAMPLES, forecast
from slurm_asrpt.forecast.sampling import Quantiles
from slurm_asrpt.forecast.snapshot import Running, Snapshot, Waiting
from slurm_asrpt.hook.table import answer
from slurm_asrpt.predict.predictors import Example
from slurm_asrpt.predict.predictors.intervals import with_intervals
from slurm_asrpt.sim.description import Cluster, Options
from slurm_asrpt.sim.engine import simulate
from slurm_asrpt.sim.job_table import JobTable
from slurm_asrpt.sim.predictors import chains_of, trained
from slurm_asrpt.sim.workload import build
from slurm_asrpt.traces.sources import load_trace

DAY_S = 86400.0
Spans = Mapping[JobId, Quantiles]
StartedEstimate = tuple[float, Estimate, float]
"""The time of an estimate, the estimate, and the start."""


class Watched:
    """A policy with periodic snapshots; everything else is passed to the policy itself."""

    def __init__(self, name: str, cluster: Cluster, spans: Spans, every_s: float, window_s: float) -> None:
        self.name, self.cluster, self.spans, self.every_s, self.window_s = name, cluster, spans, every_s, window_s
        self.policy = make_policy(name, fabric=cluster.fabric)
        self.waiting: dict[JobId, Job] = {}
        self.running: dict[JobId, tuple[Job, Placement, float]] = {}
        self.came: list[Job] = []
        self.worked: dict[JobId, float] = {}
        self.due = every_s
        self.snapshots: list[Snapshot] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policy, name)

    def submitted(self, job: Job, now: float) -> bool:
        self.waiting[job.id] = job
        self.came.append(job)
        self.policy.submitted(job, now)
        return False  # a snapshot is possible at every decision

    def finished(self, job_id: JobId, now: float) -> None:
        if held := self.running.pop(job_id, None):
            _, placement, began = held
            self.worked[job_id] = max(1.0, (now - began) / placement.alpha)
        self.policy.finished(job_id, now)

    def decide(self, view: ClusterView, now: float) -> Sequence[Decision]:
        decisions = self.policy.decide(view, now)
        for decision in decisions:
            if isinstance(decision, Start):
                del self.waiting[decision.job.id]
                self.running[decision.job.id] = (decision.job, decision.placement, now)
        if now >= self.due:
            self.due = now + self.every_s
            self.snapshots.append(self._snapshot(now))
        return decisions

    def _snapshot(self, now: float) -> Snapshot:
        free = {node.name: node.gpus for node in self.cluster.nodes}
        for _, placement, _ in self.running.values():
            for name, count in placement.gpus.items():
                free[name] -= count
        running = tuple(
            Running(
                job.id,
                placement.gpus,
                job.request,
                now - began,
                self.spans[job.id].scaled(placement.alpha),
                max(0.0, job.time_limit - (now - began)),
            )
            for job, placement, began in self.running.values()
        )
        waiting = tuple(Waiting(job, self.spans[job.id]) for job in self.waiting.values())
        since = now - self.window_s
        recent = tuple(Waiting(job, self._seen(job.id)) for job in self.came if job.submit_time > since)
        return Snapshot(
            now,
            self.name,
            {},
            json.loads(json.dumps(self.policy.dump())),
            self.cluster.fabric,
            self.cluster.nodes,
            free,
            None,
            None,
            running,
            waiting,
            recent,
            min(self.window_s, now),
        )

    def _seen(self, job_id: JobId) -> Quantiles:
        """The length of a recent job, as asrptd knows it: what it took, if it has ended."""
        took = self.worked.get(job_id)
        return self.spans[job_id] if took is None else Quantiles(took, took, took)


def workload(chosen: argparse.Namespace, seed: int) -> tuple[JobTable, Cluster, Spans]:
    """Jobs to simulate, and their runtime intervals from a predictor trained on the jobs before them."""
    cluster = Cluster(chosen.servers, chosen.gpus)
    trace = load_trace(f"pai-like:{2 * chosen.jobs}:{chosen.jobs / 1500:g}", seed)
    fitting = trace.jobs["gpus"] <= cluster.total_gpus
    jobs = trace.jobs[fitting].reset_index(drop=True)
    trace = replace(trace, jobs=jobs.assign(duration_s=jobs["duration_s"] / chosen.compress))
    table = build(trace, cluster, Options(models="none", predictor="expected", load=chosen.load, retrain_s=0)).table
    if chosen.swing:
        submit = swinging(len(table), float(table.submit[-1]), DAY_S, chosen.swing, seed)
        table = replace(table, submit=submit)
    if chosen.bursts:
        table = replace(table, submit=bursting(len(table), float(table.submit[-1]), chosen.bursts, seed))
    past = trace.jobs.iloc[: len(trace) - len(table)]
    chains = chains_of(past["group"].tolist(), past["user"].tolist(), past["gpus"].tolist())
    examples = [Example(keys, seconds) for keys, seconds in zip(chains, past["duration_s"].tolist(), strict=True)]
    lessons = [lesson for example in examples for lesson in example.lessons]
    entries = with_intervals(trained("expected", examples).entries(), lessons)
    spans = {}
    for row, keys in enumerate(chains_of(table.groups, table.users, table.gpus.tolist())):
        found = answer(keys, {}, entries.get)
        spans[JobId(str(row))] = Quantiles.ordered(found.iterations, found.low, found.high)
    return table, cluster, spans


def timed(snapshot: Snapshot, seed: int, chosen: argparse.Namespace) -> tuple[float, dict[JobId, Estimate]]:
    began = time.process_time()
    found = forecast(snapshot, seed, chosen.samples, budget_s=chosen.budget)
    return time.process_time() - began, found


@dataclass(frozen=True)
class Outcome:
    """One seed. simulated: before adjustment; shown: after it; cpu_s, waiting: seconds and jobs of each forecast."""

    simulated: list[StartedEstimate]
    shown: list[StartedEstimate]
    untold: int
    cpu_s: list[float]
    waiting: list[int]


def outcome(chosen: argparse.Namespace, seed: int) -> Outcome:
    """Compare the first estimate of each job with its start."""
    table, cluster, spans = workload(chosen, seed)
    watched = Watched(chosen.policy, cluster, spans, chosen.every, chosen.window)
    start = simulate(watched, cluster.nodes, table).start.tolist()
    snapshots = [snapshot for snapshot in watched.snapshots if snapshot.waiting]
    if chosen.blind:
        snapshots = [replace(snapshot, recent=()) for snapshot in snapshots]
    work = (delayed(timed)(snapshot, number, chosen) for number, snapshot in enumerate(snapshots))
    answers: list[tuple[float, dict[JobId, Estimate]]] = Parallel(chosen.processes)(work)
    first: dict[JobId, tuple[float, Estimate | None]] = {}
    for snapshot, (_, found) in zip(snapshots, answers, strict=True):
        for each in snapshot.waiting:
            first.setdefault(each.job.id, (snapshot.now, found.get(each.job.id)))
    simulated = [(made, found, start[int(job_id)]) for job_id, (made, found) in first.items() if found]
    waiting = [len(snapshot.waiting) for snapshot in snapshots]
    return Outcome(
        simulated, adjusted_estimates(simulated), len(first) - len(simulated), [cpu_s for cpu_s, _ in answers], waiting
    )


def figures(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    simulated, shown = ([each for one in outcomes for each in getattr(one, name)] for name in ("simulated", "shown"))
    bounded = [each for each in shown if each[1].latest < math.inf]
    return {
        "forecasts": sum(len(one.cpu_s) for one in outcomes),
        "waiting": round(fmean(chain.from_iterable(one.waiting for one in outcomes)), 1),
        **shares(shown),
        "raw": shares(simulated),
        "closed": shares(bounded),
        "untold": sum(one.untold for one in outcomes),
        "wait_s": round(median(began - made for made, _, began in simulated)),
        "width_s": round(median(found.latest - found.earliest for _, found, _ in bounded)) if bounded else None,
        "ms": round(1000 * fmean(chain.from_iterable(one.cpu_s for one in outcomes))),
    }


def adjusted_estimates(simulated: Sequence[StartedEstimate]) -> list[StartedEstimate]:
    """The estimates as asrptd would have shown them: adjusted by the earlier starts known by then."""
    shown: list[StartedEstimate] = []
    waiting: list[tuple[float, int]] = []  # pending starts, and their jobs
    conformal = StartConformal()
    ordered = sorted(simulated, key=lambda each: each[0])
    for made, found, began in ordered:
        while waiting and waiting[0][0] <= made:
            start, number = heapq.heappop(waiting)
            made_then, before, _ = ordered[number]
            conformal = conformal.updated(before, shown[number][1], made_then, start)
        still = [(ordered[number][1], ordered[number][0]) for _, number in waiting]
        heapq.heappush(waiting, (began, len(shown)))
        shown.append((made, conformal.with_waiting(made, still).adjusted(found, made), began))
    return shown


def shares(simulated: Sequence[StartedEstimate]) -> dict[str, Any]:
    return start_coverage([(made, began < found.earliest, began > found.latest) for made, found, began in simulated])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--jobs", type=int, default=2500, help="jobs of pai-like to simulate, after as many for training"
    )
    parser.add_argument("--servers", type=int, default=5)
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each server")
    parser.add_argument("--load", type=float, default=0.9, help="GPU-seconds that arrive over those available")
    parser.add_argument("--swing", type=float, default=0.0, help="depth of the daily variation of the load, 0 to 1")
    parser.add_argument("--bursts", type=int, default=0, help="jobs of a burst, on average; 0: no bursts")
    parser.add_argument("--compress", type=float, default=1.0, help="divide runtimes by this factor")
    parser.add_argument("--policy", default="asrpt-gated", choices=policy_names())
    parser.add_argument("--every", type=float, default=5400.0, help="seconds between two forecasts")
    parser.add_argument("--window", type=float, default=86400.0, help="draw arrivals from this many past seconds")
    parser.add_argument("--samples", type=int, default=MIN_SAMPLES)
    parser.add_argument("--budget", type=float, default=math.inf, help="CPU seconds of a forecast; asrptd uses 15")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="seeds, whose jobs are counted together")
    parser.add_argument("--blind", action="store_true", help="forecast without arrivals")
    parser.add_argument("-j", "--processes", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object to stdout")
    chosen = parser.parse_args()
    found = {
        "policy": chosen.policy,
        "load": chosen.load,
        "seeds": chosen.seeds,
        **figures([outcome(chosen, seed) for seed in chosen.seeds]),
    }
    print(json.dumps(found) if chosen.json else "\n".join(f"{key}: {value}" for key, value in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
