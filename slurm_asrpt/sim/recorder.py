"""Records a simulation: the placement of each job, and the reason for its wait."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Decision, Policy, PreemptibleRun, PreemptivePolicy, Wait, may_interrupt
from slurm_asrpt.errors import AsrptError, InputError
from slurm_asrpt.sim.contention import runner_of
from slurm_asrpt.sim.description import NODES
from slurm_asrpt.sim.domains import with_domains
from slurm_asrpt.sim.engine import PERFECT, SPLIT, PolicyError, Progress, Result, Runner, prepared, simulate
from slurm_asrpt.sim.interruptions import interrupting
from slurm_asrpt.sim.scenario import PolicySpec
from slurm_asrpt.sim.unnamed import unnamed
from slurm_asrpt.sim.workload import Workload

Ints = NDArray[np.integer[Any]]
Floats = NDArray[np.float64]
_EVERY = "every_"


@dataclass(frozen=True)
class Stays:
    """The servers of runs, one entry per run and server: GPUs, begin and end in seconds (nan if it has not ended)."""

    node: Ints
    gpus: Ints
    begin: Floats
    end: Floats


@dataclass(frozen=True)
class Placements:
    """Where n jobs ran: job i had gpus[e] GPUs of server node[e] for e in first[i]:first[i+1].

    first: shape (n + 1,). node, gpus: shape (k,) for k entries; node is the index of the server in the node table.
    every: the runs before preemptions and the last ones; None if the policy preempts no jobs, so that each ran once.
    """

    first: Ints
    node: Ints
    gpus: Ints
    every: Stays | None = None

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The arrays from which ``of_columns`` restores it."""
        every = {} if self.every is None else {f"{_EVERY}{name}": column for name, column in vars(self.every).items()}
        return {"first": self.first, "node": self.node, "gpus": self.gpus, **every}

    @classmethod
    def of_columns(cls, columns: Mapping[str, NDArray[Any]]) -> Placements:
        """Raises KeyError if one is missing."""
        names = [field.name for field in fields(Stays)]
        every = Stays(**{name: columns[_EVERY + name] for name in names}) if _EVERY + names[0] in columns else None
        return cls(columns["first"], columns["node"], columns["gpus"], every)

    def stays(self, start: Floats, end: Floats) -> Stays:
        """The servers of all runs. start, end: of the jobs, shape (n,), as they are in a ``Record``."""
        return self.every or Stays(self.node, self.gpus, start[self.job], end[self.job])

    @property
    def job(self) -> Ints:
        """The job of each entry, shape (k,)."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))


class Recorder:
    """Collects starts in the order in which they happen; ``placements`` sorts them by job."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._index: Mapping[str, int] = {node.name: number for number, node in enumerate(nodes)}
        self._job, self._count = array("q"), array("q")
        self._node, self._gpus = array("i"), array("i")
        self._began, self._ended = array("d"), array("d")
        self._run: dict[int, int] = {}  # the last start of each job, by row
        self._preempts = False
        self._why: dict[JobId, str] = {}

    def started(self, row: int, now: float, placement: Placement) -> None:
        """The engine's ``on_start``."""
        for name, gpus in placement.gpus.items():
            self._node.append(self._index[name])
            self._gpus.append(gpus)
        self._run[row] = len(self._job)
        self._job.append(row)
        self._count.append(len(placement.gpus))
        self._began.append(now)
        self._ended.append(math.nan)

    def ended(self, row: int, now: float) -> None:
        """A run has ended; the job may start again."""
        self._preempts = True
        self._ended[self._run[row]] = now

    def waits(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Wait):
                self._why[decision.job.id] = decision.reason.kind

    def reasons(self, jobs: int) -> list[str]:
        """The kind of the last reason of each of ``jobs`` jobs; empty if the policy gave none."""
        return [self._why.get(JobId(str(row)), "") for row in range(jobs)]

    def placements(self, jobs: int) -> Placements:
        """The placements of ``jobs`` jobs, in the order of the table."""
        job, count = np.array(self._job, dtype=np.int64), np.array(self._count, dtype=np.int64)
        counts, last = np.zeros(jobs, dtype=np.int64), np.zeros(jobs, dtype=np.int64)
        counts[job], last[job] = count, np.arange(len(job))  # of a job that was preempted, the last start counts
        entry_job, kept = np.repeat(job, count), np.repeat(last[job] == np.arange(len(job)), count)
        order = np.argsort(entry_job, kind="stable")
        order = order[kept[order]]
        first = np.concatenate([[0], np.cumsum(counts)])
        node, gpus = np.array(self._node, dtype=np.int32), np.array(self._gpus, dtype=np.int32)
        every = None
        if self._preempts:
            every = Stays(node, gpus, np.repeat(np.array(self._began), count), np.repeat(np.array(self._ended), count))
        return Placements(first, node[order], gpus[order], every)


class RecordedPolicy:
    """A policy whose decisions are recorded."""

    def __init__(self, policy: Policy, recorder: Recorder) -> None:
        self._policy, self._recorder = policy, recorder
        self.split = policy.split

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self._policy.cluster_changed(nodes, now)

    def submitted(self, job: Job, now: float) -> bool:
        return self._policy.submitted(job, now)

    def finished(self, job_id: JobId, now: float) -> None:
        self._policy.finished(job_id, now)

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        decisions = self._policy.decide(cluster, now)
        self._recorder.waits(decisions)
        return decisions

    def next_wakeup(self, now: float) -> float | None:
        return self._policy.next_wakeup(now)


class RecordedPreemptivePolicy(RecordedPolicy):
    """The same for a policy that preempts running jobs."""

    interrupts = True

    def finished(self, job_id: JobId, now: float) -> None:
        self._recorder.ended(int(job_id), now)
        super().finished(job_id, now)

    def served(self, waiting: Mapping[JobId, float], runs: Sequence[PreemptibleRun], now: float) -> None:
        if isinstance(self._policy, PreemptivePolicy):
            self._policy.served(waiting, runs, now)


def simulate_recorded(
    spec: PolicySpec, workload: Workload, recorder: Recorder, progress: Progress | None = None
) -> Result:
    """``engine.simulate_named`` with a recorder. Raises InputError for invalid settings, AsrptError for invalid
    decisions of the policy."""
    cluster = workload.cluster
    try:
        policy, table = prepared(spec.name, spec.settings, cluster.fabric, cluster.nodes, workload.table)
    except ValueError as error:
        raise InputError(f"policy {spec.text}") from error
    try:
        preempts = bool(workload.consenting) and may_interrupt(policy)
        recorded = (RecordedPreemptivePolicy if preempts else RecordedPolicy)(policy, recorder)
        runner = _runner(workload, preempts)
        return simulate(recorded, cluster.nodes, table, progress, recorder.started, runner, partial=True)
    except PolicyError as error:
        raise AsrptError(f"policy {spec.text} made an invalid decision") from error


def preempts(spec: PolicySpec) -> bool:
    """Whether the policy preempts jobs that may be preempted. Raises ValueError for invalid settings."""
    settings = {key: value for key, value in spec.settings.items() if key not in (NODES, SPLIT)}
    return may_interrupt(make_policy(spec.name.removesuffix(PERFECT), fabric=Fabric(1.0, 1.0), **settings))


def _runner(workload: Workload, preempts: bool) -> Runner | None:
    """How jobs run. Raises InputError."""
    cluster = workload.cluster
    kinds = {"--consent": preempts, "--contention": cluster.contention is not None, "--nvlink-domain": cluster.domain}
    kinds["--communication"] = workload.real is not None
    chosen = [option for option, wanted in kinds.items() if wanted]
    if len(chosen) > 1:
        raise InputError(f"{' and '.join(chosen)} cannot be simulated together; leave out one of them")
    if preempts:
        return interrupting(workload.consenting, workload.costs)
    if workload.real is not None:
        return unnamed(workload.real, cluster.nodes, cluster.fabric, workload.measured)
    return with_domains(cluster.fabric) if cluster.domain else runner_of(cluster)
