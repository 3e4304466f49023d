"""When servers will be free again, by the predicted ends of their running jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from slurm_asrpt.core.cluster import ClusterView, Node
from slurm_asrpt.core.job import ANYWHERE, JobId, Request

OVERDUE_SHARE = 0.5
"""Expected remaining runtime of a job that has outlived its prediction, as a share of its runtime so far. Runtimes have
heavy tails: the longer a job has run, the longer it will continue (docs/decisions/0007)."""

NO_END_S = 365 * 86400.0
"""Assumed runtime, seconds, of a job without a time limit that the policy did not start."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A running job: its start and predicted end (seconds), and its GPUs by node.

    fills: it is preempted as soon as another job could start there, so its GPUs count as free.
    held: CPUs, memory and other generic resources that it frees at its end, as far as they are known.
    """

    start: float
    end: float
    gpus: Mapping[str, int]
    fills: bool = False
    held: Request = ANYWHERE


class RunningJobs:
    """The running jobs by node.

    free_at: for each node of the table, when its last job is predicted to end, seconds; IDLE without jobs.
    used: mask of the nodes with jobs.
    """

    IDLE = float("-inf")

    def __init__(self, nodes: Sequence[Node], runs: Mapping[JobId, RunningJob] | None = None) -> None:
        self._position = {node.name: i for i, node in enumerate(nodes)}
        self.free_at = [self.IDLE] * len(nodes)
        self.used = 0
        self._last_end = [self.IDLE] * len(nodes)  # as predicted when the jobs started
        self._on: list[dict[JobId, RunningJob]] = [{} for _ in nodes]
        self._due = float("inf")  # no end in free_at comes before this time
        self.runs: dict[JobId, RunningJob] = {}
        self._unlimited: dict[JobId, float] = {}
        for job_id, run in (runs or {}).items():
            self.began(job_id, run)

    def began(self, job_id: JobId, run: RunningJob) -> None:
        """A job started. Nodes that are not in the table are ignored."""
        self.ended(job_id)
        self.runs[job_id] = run
        if run.fills:
            return
        if run.end - run.start >= NO_END_S:
            self._unlimited[job_id] = run.end
        self._due = min(self._due, run.end)
        for name in run.gpus:
            at = self._position.get(name)
            if at is not None:
                self._on[at][job_id] = run
                self.used |= 1 << at
                self._last_end[at] = max(self._last_end[at], run.end)
                self.free_at[at] = max(self.free_at[at], run.end)

    def ended(self, job_id: JobId) -> RunningJob | None:
        """A job ended. Returns its record, or None for an unknown job."""
        run = self.runs.pop(job_id, None)
        self._unlimited.pop(job_id, None)
        for name in run.gpus if run is not None and not run.fills else ():
            at = self._position.get(name)
            if at is not None:
                self._removed(at, self._on[at].pop(job_id))
        return run

    def _removed(self, at: int, run: RunningJob) -> None:
        others = self._on[at]
        if not others:
            self.used &= ~(1 << at)
            self._last_end[at] = self.free_at[at] = self.IDLE
            return
        if run.end >= self._last_end[at]:
            self._last_end[at] = max([other.end for other in others.values()])
        self.free_at[at] = self._last_end[at]
        self._due = min(self._due, self.free_at[at])

    def on(self, mask: int) -> Iterator[tuple[JobId, RunningJob]]:
        """The jobs on these nodes, a mask; one on several of them more than once."""
        return (item for at, runs in enumerate(self._on) if mask >> at & 1 for item in runs.items())

    def is_estimate(self, time: float) -> bool:
        """Whether this end is an estimate. It is not for a job without a time limit."""
        return time not in self._unlimited.values()

    @property
    def outlived(self) -> dict[int, float]:
        """The nodes with overdue jobs: when each is expected to be free, by its position in the table."""
        ends = zip(self.free_at, self._last_end, strict=True)
        return {at: time for at, (time, predicted) in enumerate(ends) if time != predicted}

    @outlived.setter
    def outlived(self, ends: Mapping[int, float]) -> None:
        for at, time in ends.items():
            self.free_at[at] = max(self.free_at[at], time) if self._on[at] else self.IDLE

    def any_outlived_by_far(self, nodes: Iterable[int], now: float) -> bool:
        """Whether a job on these nodes has outlived its prediction by ``OVERDUE_SHARE`` of it: its end is a guess."""
        runs = (run for at in nodes for run in self._on[at].values())
        return any(now - run.end > OVERDUE_SHARE * (run.end - run.start) for run in runs)

    def extend_overdue(self, now: float) -> None:
        """Extend the ends of overdue jobs."""
        if now < self._due:
            return
        free_at = self.free_at
        for at, time in enumerate(free_at):
            if self.IDLE < time <= now:
                free_at[at] = max([expected_end(run, now) for run in self._on[at].values()])
        self._due = min((time for time in free_at if time > self.IDLE), default=float("inf"))

    def room_at(self, at: int, need: int, free: int, now: float) -> float:
        """When a node with ``free`` GPUs free now is predicted to have ``need`` free, seconds."""
        time = now
        if free >= need:
            return time
        for end, run_gpus in sorted([(expected_end(run, now), self._gpus(run, at)) for run in self._on[at].values()]):
            free, time = free + run_gpus, end
            if free >= need:
                break
        return time

    def as_they_end(self, at: int, view: ClusterView, now: float) -> Iterator[tuple[float, ClusterView]]:
        """A node after each of its jobs has ended, soonest first: when that is predicted, and one view of it alone.

        view: the cluster now.
        """
        name = view.names[at]
        alone = view.alone(name)
        size = alone.by_name[name].gpus
        for end, run in sorted([(expected_end(run, now), run) for run in self._on[at].values()], key=itemgetter(0)):
            alone.give({name: min(self._gpus(run, at), size - alone.free[name])}, run.held)  # an end may be missed
            yield end, alone

    def freed(self, free: Mapping[str, int]) -> tuple[int, int]:
        """The least and the most GPUs that a server has free once one of its jobs has ended; 0 without jobs.

        free: GPUs that are free now, by node.
        """
        runs = self.runs.values()
        counts = [free[name] + gpus for run in runs for name, gpus in run.gpus.items() if name in free] or [0]
        return min(counts), max(counts)

    def freed_in_all(self, free: Mapping[str, int]) -> tuple[int, int]:
        """The least and the most GPUs that all these servers have free once a job on them has ended; 0 without jobs."""
        ends = [sum(gpus for name, gpus in run.gpus.items() if name in free) for run in self.runs.values()]
        counts = [sum(free.values()) + gpus for gpus in ends if gpus] or [0]
        return min(counts), max(counts)

    def idle_until(self, time: float, at: int, free: int, now: float) -> float:
        """The GPU-seconds for which a node with ``free`` GPUs free now is predicted to idle if nothing starts there."""
        ends = [(time - expected_end(run, now), run) for run in self._on[at].values()]
        return free * (time - now) + sum([self._gpus(run, at) * idle for idle, run in ends if idle > 0.0])

    def _gpus(self, run: RunningJob, at: int) -> int:
        if len(run.gpus) == 1:
            return next(iter(run.gpus.values()))
        return next(count for name, count in run.gpus.items() if self._position.get(name) == at)


def expected_end(run: RunningJob, now: float) -> float:
    """Its predicted end, or a later one if it has outlived that, seconds."""
    return run.end if run.end > now else now + OVERDUE_SHARE * (now - run.start) + 1.0
