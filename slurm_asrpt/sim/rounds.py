"""Discrete-event simulation of rounds on GPUs of several types, including switching."""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from slurm_asrpt.core.rounds.jobs import Fleet, Part, Progress, RoundJob
from slurm_asrpt.core.rounds.policies import clairvoyant, make_round_policy
from slurm_asrpt.core.rounds.policy import RoundPolicy

FREED, ENDED, ARRIVED = range(3)
"""Order of simultaneous events: GPUs become free, rounds end, jobs arrive."""


@dataclass(frozen=True)
class RoundResult:
    """The result of a simulation. end_s: by job, in the given order; NaN for unfinished jobs (Ctrl-C).

    busy_s: seconds of computation by GPU. switches: how often a GPU switched to another job.
    policy_s, first_s: CPU seconds that the policy took, in all and for the first instant.
    """

    jobs: tuple[RoundJob, ...]
    end_s: np.ndarray
    busy_s: np.ndarray
    switches: int
    rounds: int
    events: int
    interrupted: bool
    policy_s: float
    first_s: float

    @property
    def jct_s(self) -> np.ndarray:
        """Completion times, from arrival to end."""
        return np.asarray(self.end_s - np.array([job.arrival_s for job in self.jobs]))

    @property
    def mean_jct_s(self) -> float:
        return float(np.nanmean(self.jct_s))

    @property
    def weighted_jct_s(self) -> float:
        """sum w_n (C_n - a_n), the paper's "total weighted JCT"."""
        return float(np.nansum(self.jct_s * np.array([job.weight for job in self.jobs])))

    @property
    def utilization(self) -> float:
        """Share of GPU time spent computing, until the last job has ended."""
        span = float(np.nanmax(self.end_s) - min(job.arrival_s for job in self.jobs))
        return float(self.busy_s.sum() / (len(self.busy_s) * span))


@dataclass
class Run:
    """The state of one simulation. hidden: the policy is not told the number of rounds of a job."""

    fleet: Fleet
    policy: RoundPolicy
    switch_s: Mapping[str, float]
    hidden: bool
    end_s: np.ndarray
    heap: list[tuple[float, int, int, object]] = field(default_factory=list)
    number: int = 0
    switches: int = 0
    rounds: int = 0
    policy_s: float = 0.0

    def __post_init__(self) -> None:
        self.last: list[str | None] = [None] * len(self.fleet.kind)
        self.busy = [0.0] * len(self.fleet.kind)
        self.sizes: dict[str, tuple[int, int]] = {}

    def push(self, when: float, kind: int, what: object) -> None:
        self.number += 1
        heapq.heappush(self.heap, (when, kind, self.number, what))

    def step(self) -> Sequence[Part]:
        """Process all events of the next time, then let the policy assign tasks. Returns what it has assigned."""
        now, began = self.heap[0][0], time.process_time()
        while self.heap and self.heap[0][0] == now:
            _, kind, _, what = heapq.heappop(self.heap)
            if kind == FREED:
                self.free(what, now)  # type: ignore[arg-type]
            elif kind == ENDED:
                self.ended(what, now)  # type: ignore[arg-type]
            else:
                self.arrive(what, now)  # type: ignore[arg-type]
        parts = self.policy.assign(now)
        self.policy_s += time.process_time() - began
        for part in parts:
            self.start(part, now)
        return parts

    def free(self, gpus: Sequence[int], now: float) -> None:
        self.policy.freed(gpus, now)

    def arrive(self, job: RoundJob, now: float) -> None:
        progress = Progress(job.sizeless() if self.hidden else job, left=job.tasks)
        self.policy.arrived(progress, now)

    def ended(self, job: Progress, now: float) -> None:
        self.rounds += 1
        job.done += 1
        number, rounds = self.sizes[job.job.id]
        if job.done == rounds:
            self.end_s[number] = now
            self.policy.finished(job, now)
        else:
            job.left = job.job.tasks
            self.policy.round_ended(job, now)

    def start(self, part: Part, now: float) -> None:
        """Start a part. Each GPU computes its tasks one after another; it is free while the last gradients are sent."""
        job, name = part.progress.job, part.progress.job.id
        freed: dict[float, list[int]] = {}
        for gpu, tasks in zip(part.gpus, part.tasks, strict=True):
            kind = self.fleet.kind[gpu]
            computing = tasks * job.compute_s[kind]
            computed = now + computing
            if self.last[gpu] != name:
                computed += self.switch_s.get(job.model, 0.0)
                self.switches += self.last[gpu] is not None
                self.last[gpu] = name
            self.busy[gpu] += computing
            freed.setdefault(computed, []).append(gpu)
            part.progress.synced_s = max(part.progress.synced_s, computed + job.sync_s[kind])
        for free, gpus in [(max(freed), part.gpus)] if part.gang else freed.items():
            self.push(free, FREED, gpus)
        if part.last:
            self.push(part.progress.synced_s, ENDED, part.progress)


def simulate_rounds(
    policy: str,
    fleet: Fleet,
    jobs: Sequence[RoundJob],
    settings: Mapping[str, float] | None = None,
    switch_s: Mapping[str, float] | None = None,
) -> RoundResult:
    """Simulate the jobs under a policy. switch_s: seconds to load a job of each model onto a GPU; none by default.

    Ctrl-C ends the simulation and keeps the results.
    Raises ValueError for an unknown policy or setting, jobs without ``rounds``, and a policy that leaves jobs waiting.
    """
    if any(job.rounds is None for job in jobs):
        raise ValueError("a simulation requires the number of rounds of every job")
    known = list({job.model: job.sizeless() for job in jobs}.values())
    made = make_round_policy(policy, fleet=fleet, jobs=known, **(settings or {}))
    run = Run(fleet, made, switch_s or {}, not clairvoyant(policy), np.full(len(jobs), np.nan))
    run.sizes = {job.id: (number, job.rounds or 0) for number, job in enumerate(jobs)}
    for job in jobs:
        run.push(job.arrival_s, ARRIVED, job)
    made.freed(range(len(fleet.kind)), 0.0)
    first_s, events, interrupted = _loop(run)
    if not interrupted and np.isnan(run.end_s).any():
        raise ValueError(f"{policy} left {int(np.isnan(run.end_s).sum())} jobs waiting forever")
    return RoundResult(
        tuple(jobs),
        run.end_s,
        np.array(run.busy),
        run.switches,
        run.rounds,
        events,
        interrupted,
        policy_s=run.policy_s,
        first_s=first_s,
    )


def _loop(run: Run) -> tuple[float, int, bool]:
    """CPU seconds of the policy for the first instant, the instants, and whether Ctrl-C ended the simulation."""
    steps, first_s = 0, 0.0
    try:
        while run.heap:
            run.step()
            steps += 1
            first_s = first_s or run.policy_s
    except KeyboardInterrupt:
        return first_s, steps, True
    return first_s, steps, False
