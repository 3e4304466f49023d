"""The event engine: runs a table of jobs through any policy, in continuous time.

There are three events: a job arrives, a job ends n_i alpha seconds after it was started in its placement, and the
policy wakes up. At any instant, ends come before arrivals, arrivals are in the order of the table, and then the policy
decides once. The engine is deterministic: the same table and policy give the same result.
"""

from __future__ import annotations

import gc
import math
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any, NamedTuple, Protocol

import numpy as np

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.limits import Headroom
from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Decision, Policy, Start
from slurm_asrpt.sim.description import FEWEST, NODES
from slurm_asrpt.sim.job_table import Floats, Ints, JobTable
from slurm_asrpt.sim.predictors import Learner

PERFECT = "-perfect"
SPLIT = "split"
"""Another one, ``NAME:split=slurm``; its values are those of ``Split``."""
Progress = Callable[[int, int, float], None]
"""Called from time to time with the number of jobs that have ended, of all jobs, and the simulated time in seconds."""
OnStart = Callable[[int, float, Placement], None]
"""Called for each start with the job's row, the time in seconds and the placement."""

_PROGRESS_EVERY = 1000  # ended jobs
_NEVER = float("inf")
_COLLECT = (1_000_000, 50, 50)  # gc.set_threshold: a collection per million new objects, which few simulations reach


class PolicyError(ValueError):
    """The policy made an invalid decision: it started a job twice, or with a wrong number of GPUs."""


@dataclass(frozen=True)
class Preemptions:
    """The preemptions of a simulation. consenting: the rows of the jobs that may be preempted, shape (k,).

    count: of preemptions. lost_gpu_s: GPU-seconds in which preempted jobs held GPUs without progress.
    between: the times between the runs of a job, shape (m, 3): its GPUs, begin and end, seconds.
    """

    consenting: Ints
    count: int
    lost_gpu_s: float
    between: Floats

    def between_gpu_s(self, until: float = math.inf) -> float:
        """GPUs times the seconds between runs, until then."""
        gpus, begin, end = self.between.T
        return float((gpus * (np.minimum(end, until) - begin).clip(min=0.0)).sum())


@dataclass(frozen=True)
class Result:
    """The results of each job, in columns of shape (n,) in the order of the table.

    table: with the predictions that the policy was given, which learning may have updated.
    start, end: seconds, nan for a job that never started; alpha: seconds per iteration in its placement, else nan.
    nodes: servers used, 0 if never started. clock: time of the last event, seconds. events: instants processed.
    interrupted: by Ctrl-C; jobs that end after ``clock`` were still running then. preemptions: None if the policy
    preempts no jobs.
    """

    table: JobTable
    start: Floats
    end: Floats
    alpha: Floats
    nodes: Ints
    clock: float
    events: int
    interrupted: bool
    preemptions: Preemptions | None = None

    def with_times(self, start: Floats, end: Floats) -> Result:
        """The result with these times, and the average seconds per iteration from start to end."""
        iterations = self.table.iterations
        real = np.divide(end - start, iterations, out=self.alpha.copy(), where=iterations > 0)
        return replace(self, start=start, end=end, alpha=real)

    @property
    def never_started(self) -> Ints:
        """Rows of the jobs that never started, or that had not arrived when the simulation was interrupted."""
        return np.flatnonzero(np.isnan(self.start))

    @property
    def ended(self) -> Ints:
        """Rows of the jobs that have ended."""
        return np.flatnonzero(self.end <= self.clock)

    @property
    def completion_times(self) -> Floats:
        """Seconds from submission to end of each job that has ended, in the order of ``ended``."""
        return np.asarray((self.end - self.table.submit)[self.ended])

    @property
    def waits(self) -> Floats:
        """Seconds from submission to start, nan for jobs that never started."""
        return self.start - self.table.submit


class Scheduler(Protocol):
    """What a simulation asks of a policy (``core.policies.base.Policy``)."""

    split: Split

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None: ...

    def submitted(self, job: Job, now: float) -> bool: ...

    def finished(self, job_id: JobId, now: float) -> None: ...

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]: ...

    def next_wakeup(self, now: float) -> float | None: ...


class Simulation(NamedTuple):
    """What is simulated, and who is told of it."""

    policy: Scheduler
    nodes: Sequence[Node]
    table: JobTable
    progress: Progress | None = None
    on_start: OnStart | None = None


def simulate(
    policy: Scheduler,
    nodes: Sequence[Node],
    table: JobTable,
    progress: Progress | None = None,
    on_start: OnStart | None = None,
    runner: Runner | None = None,
    partial: bool = False,
) -> Result:
    """Simulate the whole table. Raises PolicyError or ValueError for an invalid decision.

    partial: Ctrl-C returns the result so far, with ``interrupted`` set, instead of raising KeyboardInterrupt.
    runner: how jobs run; None: with the alpha of their placement (``contention.sharing``: with shared NICs).
    """
    run = (runner or PlainRun)(Simulation(policy, nodes, table, progress, on_start))
    interrupted = False
    with _rare_collections():
        try:
            run.run_to_end()
        except KeyboardInterrupt:
            if not partial:
                raise
            interrupted = True
    return run.result(interrupted)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Collect garbage less often: it takes a tenth of the time, although there are almost no reference cycles."""
    before = gc.get_threshold()
    gc.set_threshold(*_COLLECT)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def simulate_named(
    name: str,
    nodes: Sequence[Node],
    table: JobTable,
    fabric: Fabric,
    settings: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    runner: Runner | None = None,
) -> Result:
    """Simulate the table under a policy by name, as ``prepared`` says. Raises ValueError for an unknown name."""
    policy, table = prepared(name, settings or {}, fabric, nodes, table)
    return simulate(policy, nodes, table, progress, runner=runner)


def prepared(
    name: str, settings: Mapping[str, Any], fabric: Fabric, nodes: Sequence[Node], table: JobTable
) -> tuple[Policy, JobTable]:
    """A new policy, and the jobs as it gets them. Raises ValueError for an unknown name or invalid settings.

    ``NAME-perfect`` gives policy NAME the true iterations; the table of the result has those predictions. Setting
    ``nodes=fewest`` of any policy makes each job request its fewest nodes. ``split`` says how the cluster splits the
    GPUs of its jobs over servers; without it, asrpt and the paper's baselines have the paper's split, others Slurm's.
    """
    kept = dict(settings)
    split = kept.pop(SPLIT, None)
    if kept.pop(NODES, None) == FEWEST:
        table = table.on_fewest_nodes(nodes)
    if name.endswith(PERFECT):
        name, table = name.removesuffix(PERFECT), table.perfect()
    policy = make_policy(name, fabric=fabric, **kept)
    if split is not None:
        policy.split = Split(split)
    return policy, table


Running = tuple[float, int, Job, Mapping[str, int]]
"""The end of a running job, its row, the job, and its GPUs by node."""


class PlainRun:
    """One simulation in progress."""

    def __init__(self, of: Simulation) -> None:
        policy, nodes, table, self.progress, self.on_start = of
        self.policy, self.table = policy, table
        self.view = ClusterView(nodes, headroom=Headroom(table.caps), split=policy.split)
        self.iterations = array("d", np.asarray(table.iterations, dtype=float).tobytes())
        self.coming = table.jobs()
        self.submit = array("d", np.append(table.submit, _NEVER).tobytes())
        self.next_arrival = self.submit[0]  # never, if there are no jobs
        self.next_end = _NEVER  # of the running jobs
        self.arrived = self.waiting = self.done = self.events = 0
        self.idle = 0  # wake-ups without a start while no job runs and no job is to arrive
        self.running: list[Running] = []  # a heap
        self.held: dict[int, Mapping[str, int]] = {}  # the GPU indexes of running jobs by row, where these count
        self.clock = self.submit[0] if len(table) else 0.0
        # as compact as numpy arrays, and much faster to set one by one
        self.start, self.alpha = (array("d", [math.nan]) * len(table) for _ in range(2))
        self.nodes = array("q", [0]) * len(table)
        self.predicted = array("d", np.asarray(table.predicted, dtype=float).tobytes())
        self.learner = None if table.learning is None else Learner(table.learning, self.clock)
        policy.cluster_changed(nodes, self.clock)

    def run_to_end(self) -> None:
        """Process events until there are none left."""
        while (now := self._next_decision()) < _NEVER:
            if self.next_end <= now:
                self._ends(now)
            if self.next_arrival <= now:
                self._arrivals(now)
            if self.waiting:
                self._decide(now)
        if self.progress:
            self.progress(self.done, len(self.table), self.clock)

    def _decide(self, now: float) -> None:
        for decision in self.policy.decide(self.view, now):
            if isinstance(decision, Start):
                self._begin(decision, now)

    def _next_decision(self) -> float:
        """Advance to the next instant that needs a decision, or never; jobs that change nothing arrive on the way."""
        change = self.next_end
        if self.waiting:
            wake = self.policy.next_wakeup(self.clock)
            if wake is not None and self.clock < wake < change:  # only a time in the future is an event
                change = wake if change < _NEVER or self.next_arrival < _NEVER else self._idle_until(wake)
        while (now := self.next_arrival) < change:
            self.clock = now
            self.events += 1
            if not self._arrivals(now):
                return now
        if change < _NEVER:
            self.clock = change
            self.events += 1
        return change

    def _idle_until(self, wake: float) -> float:
        """Ends the simulation of a policy that wakes up forever without starting anything."""
        self.idle += 1
        return wake if self.idle <= 1000 + 2 * self.waiting else _NEVER

    def _ends(self, now: float) -> None:
        running, give, finished = self.running, self.view.give, self.policy.finished
        while self.next_end <= now:
            _, row, job, gpus = heappop(running)
            self.next_end = running[0][0] if running else _NEVER
            give(gpus, job.request, self.held.pop(row, None))
            if job.charges:
                self.view.headroom.give(job.charges)
            finished(job.id, now)
            if self.learner is not None:
                self.learner.ended(row, self.iterations[row], now)
            self.done += 1
            if self.progress and self.done % _PROGRESS_EVERY == 0:
                self.progress(self.done, len(self.table), now)

    def _arrivals(self, now: float) -> bool:
        """Let the jobs of this instant arrive. Returns whether they change nothing (see ``Policy.submitted``)."""
        behind = True
        while self.next_arrival <= now:
            job = next(self.coming)
            self.arrived += 1
            self.waiting += 1
            self.next_arrival = self.submit[self.arrived]
            if self.learner is not None:
                job = self._with_new_prediction(self.learner, job, now)
            if not self.policy.submitted(job, now):
                behind = False
        return behind

    def _with_new_prediction(self, learner: Learner, job: Job, now: float) -> Job:
        """The job with its prediction at this time; the table has the prediction from before the first job."""
        row = int(job.id)
        predicted = self.predicted[row] = learner.predict(row, now)
        return job if predicted == job.predicted_iterations else replace(job, predicted_iterations=predicted)

    def _begin(self, start: Start, now: float) -> None:
        job, placement = start.job, start.placement
        row = int(job.id)
        if row >= self.arrived or self.nodes[row]:
            raise PolicyError(f"job {job.id} was started at {now} but is not pending")
        gpus, alpha = placement.gpus, placement.alpha
        taken = self.view.take(gpus, job.request)  # raises ValueError for a GPU that is in use
        if taken != job.gpus:
            raise PolicyError(f"job {job.id} requests {job.gpus} GPUs and was given {taken}")
        if job.charges:
            self._charge(job)
        self.waiting -= 1
        self.idle = 0
        end = now + self.iterations[row] * alpha
        heappush(self.running, (end, row, job, gpus))
        if end < self.next_end:
            self.next_end = end
        self.start[row], self.alpha[row], self.nodes[row] = now, alpha, len(gpus)
        if self.on_start:
            self.on_start(row, now, placement)

    def _charge(self, job: Job) -> None:
        """Count a start against the site's limits."""
        limit = self.view.headroom.exceeded(job.charges)
        if limit is not None:
            raise PolicyError(f"job {job.id} was started over a limit: {limit}")
        self.view.headroom.take(job.charges)

    def result(self, interrupted: bool) -> Result:
        start, alpha, nodes = np.array(self.start), np.array(self.alpha), np.array(self.nodes, dtype=np.int64)
        end = start + self.table.iterations * alpha  # as in ``running``
        table = self.table if self.learner is None else replace(self.table, predicted=np.array(self.predicted))
        return Result(table, start, end, alpha, nodes, self.clock, self.events, interrupted=interrupted)


Runner = Callable[[Simulation], PlainRun]
"""Begins a simulation. Runners differ in how jobs run."""
