"""Simulations in which nobody names a profile: how jobs communicate must be learned from their runs.

The policy gets every job as one without a profile, in seconds of its best placement, or with what
``predict.sensitivity`` has learned from the runs that had ended at the last retraining. Each runs as its real profile
says on the servers that it gets, with its ranks in Slurm's order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, with_reference_gpus
from slurm_asrpt.core.job import Job, JobId, unprofiled
from slurm_asrpt.core.placement.best_alpha import BestAlphas
from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.core.policies.base import Decision, Start
from slurm_asrpt.core.sensitivity import planned, seconds_per_gigabyte, slowest_server_s
from slurm_asrpt.core.timing.pipeline import iteration_time
from slurm_asrpt.core.timing.speed import at_speed, slowest
from slurm_asrpt.core.topology import blocks_in
from slurm_asrpt.predict.sensitivity import NOTHING, Sensitivity, Timed
from slurm_asrpt.sim.description import RETRAIN_S
from slurm_asrpt.sim.engine import PlainRun, Runner, Scheduler, Simulation
from slurm_asrpt.sim.job_table import Floats, JobTable
from slurm_asrpt.sim.predictors import JobKeys


def without_profiles(table: JobTable, nodes: Sequence[Node], fabric: Fabric) -> JobTable:
    """The same jobs, of which no profile is known: their iterations are seconds in the best placement."""
    best = table.best_alphas(with_reference_gpus(nodes), fabric)
    best = np.where(np.isnan(best), 1.0, best)
    learning = table.learning
    if learning is not None:
        learning = replace(learning, keys=[JobKeys(each.chain) for each in learning.keys])
    profiles = tuple([unprofiled(profile.gpus) for profile in table.profiles])
    iterations, predicted = table.iterations * best, table.predicted * best
    return replace(table, profiles=profiles, iterations=iterations, predicted=predicted, learning=learning)


@dataclass(frozen=True)
class Measured:
    """What is learned from. reported: the jobs report their progress; else only their runtimes are known.

    noise: standard deviation of the logarithm of a measured iteration time. runtime_noise: of what a runtime depends on
    besides; runtimes of a trace differ by themselves. tell: whether the policy is told; else it is only learned, as in
    mode shadow. retrain_s: seconds between retrainings.
    """

    reported: bool = True
    noise: float = 0.05
    runtime_noise: float = 0.0
    tell: bool = True
    retrain_s: float = RETRAIN_S
    seed: int = 0


def unnamed(
    real: JobTable,
    nodes: Sequence[Node],
    fabric: Fabric,
    measured: Measured | None = None,
    sensitivity: Sensitivity | None = None,
) -> Runner:
    """Runs the jobs of ``without_profiles``. real: the jobs with their profiles. measured: None if nothing is learned.

    sensitivity: what is known before; it learns from these runs.
    """
    known = sensitivity or Sensitivity(slowest_server_s(fabric))
    return partial(_Unnamed, truth=_Truth(real, nodes, fabric), measured=measured, known=known)


class _Truth:
    """How long jobs really take."""

    def __init__(self, real: JobTable, nodes: Sequence[Node], fabric: Fabric) -> None:
        self.table, self.nodes, self.fabric = real, nodes, fabric
        self._by_name = ClusterView(nodes).by_name
        self._best: Floats = real.best_alphas(with_reference_gpus(nodes), fabric)

    def servers(self, start: Start) -> list[Node]:
        return [self._by_name[name] for name in start.placement.gpus]

    def slowdown(self, row: int, start: Start) -> float:
        """Seconds on these servers for each second in the best placement on reference GPUs."""
        servers, counts = self.servers(start), start.placement.gpus.values()
        ranks = [server for server, count in enumerate(counts) for _ in range(count)]
        profile, blocks = self.table.profiles[self.table.profile[row]], blocks_in(self.fabric, servers)
        here = at_speed(profile, slowest(profile, servers))
        alpha = iteration_time(here, ranks, [server.gpus for server in servers], self.fabric, blocks)
        return alpha / float(self._best[row])


class _Unnamed(PlainRun):
    def __init__(self, of: Simulation, truth: _Truth, measured: Measured | None, known: Sensitivity) -> None:
        self.truth = truth
        self.teller = None if measured is None else _Teller(of.policy, truth, measured, known)
        super().__init__(of if self.teller is None else of._replace(policy=self.teller))

    def _begin(self, start: Start, now: float) -> None:
        row = int(start.job.id)
        slower = self.truth.slowdown(row, start)
        if self.teller is not None:
            self.teller.started(row, start, slower, self.iterations[row] * slower)
        super()._begin(replace(start, placement=replace(start.placement, alpha=slower)), now)


class _Teller:
    """A policy that is told what has been learned of each job when it is submitted."""

    def __init__(self, policy: Scheduler, truth: _Truth, measured: Measured, known: Sensitivity) -> None:
        self._policy, self._truth, self._measured = policy, truth, measured
        self._best = BestAlphas(with_reference_gpus(truth.nodes), truth.fabric)
        self._sensitivity = known
        self._beliefs, self._next = NOTHING, -np.inf
        self._random = np.random.default_rng(measured.seed)
        self._running: dict[str, Timed] = {}
        self.split: Split = policy.split
        self.cluster_changed, self.next_wakeup = policy.cluster_changed, policy.next_wakeup

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        return self._policy.decide(cluster, now)

    def submitted(self, job: Job, now: float) -> bool:
        self._retrain(now)
        return self._policy.submitted(self._told(job), now)

    def _told(self, job: Job) -> Job:
        belief = self._beliefs.of(*self._keys(int(job.id)))
        return planned(job, belief.rate if belief else 0.0, self._best.alpha)

    def _keys(self, row: int) -> tuple[str, str, str]:
        table = self._truth.table
        return table.groups[row], "", table.users[row]

    def started(self, row: int, start: Start, slower: float, seconds: float) -> None:
        """Note what will be measured when the job has ended."""
        servers, measured = self._truth.servers(start), self._measured
        link = seconds_per_gigabyte(servers, tuple(start.placement.gpus.values()), self._truth.fabric)
        noise = measured.noise if measured.reported else measured.runtime_noise
        took = (slower if measured.reported else seconds) * float(np.exp(self._random.normal(0.0, noise)))
        reference_s = took * start.placement.speed
        self._running[start.job.id] = Timed(*self._keys(row), start.job.gpus, reference_s, link, measured.reported)

    def finished(self, job_id: JobId, now: float) -> None:
        self._policy.finished(job_id, now)
        self._sensitivity.learn(self._running.pop(job_id))

    def _retrain(self, now: float) -> None:
        if self._measured.tell and now >= self._next:
            self._next = now + self._measured.retrain_s
            self._beliefs = self._sensitivity.beliefs()
