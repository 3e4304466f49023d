"""sjf-bco-online: plans the current queue as a batch by SJF-BCO, and plans again after each change.

The paper knows all jobs at the start and has no rule for later arrivals (docs/decisions/0012). Here each change creates
a batch of the waiting and running jobs. Running jobs keep their GPUs until their predicted ends. The policy searches
the plan with the least makespan, starts the jobs that this plan starts at once, and discards the rest of the plan.

To bound the time, only ``PLANNED`` waiting jobs are planned, the smallest first as in Algorithm 1, with few values of
theta (``QueueBatch.best``). A job that has waited for ``patience_s`` chooses its GPUs before all others and keeps them
reserved: smallest job first alone could starve it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import Job, JobId, id_key
from slurm_asrpt.core.placement.best_alpha import BestAlphas
from slurm_asrpt.core.placement.nic_sharing import SharedTimes
from slurm_asrpt.core.placement.selection import Strategy, place, within_each
from slurm_asrpt.core.policies.base import (
    Decision,
    Phase,
    Policy,
    Reason,
    Start,
    Wait,
    behind,
    head_rank,
    no_room,
    over_limit,
    reason,
    updated_rank,
)
from slurm_asrpt.core.policies.options import PatienceOptions
from slurm_asrpt.core.policies.running_jobs import NO_END_S, OVERDUE_SHARE, RunningJob
from slurm_asrpt.core.policies.sjf_bco.evaluation import BatchJob, Servers
from slurm_asrpt.core.policies.sjf_bco.gpu_loads import GpuLoads
from slurm_asrpt.core.policies.sjf_bco.planner import UNKNOWN_RUNTIME_S, QueueBatch
from slurm_asrpt.core.timing.ring import Linear

FIRST_GUESS_S = UNKNOWN_RUNTIME_S
"""Assumed runtime of a job of an unseen group, seconds."""
PLANNED = 64
"""Maximum number of waiting jobs in a plan."""
_TINY = 1e-9
_INF = float("inf")

Key = tuple[float, int, float, tuple[int, ...], JobId]
"""Rank (negative for a returned job), GPUs, submission, numeric ID, ID: least first."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting job. since: start of its wait, seconds. alpha: α̃_min, None if it is too large for the cluster."""

    job: Job
    key: Key
    since: float
    alpha: float | None

    @property
    def iterations(self) -> float:
        return self.job.predicted_iterations or FIRST_GUESS_S / (self.alpha or 1.0)


class SjfBcoOnline(Policy):
    """Smallest job first with balanced contention and overhead, for the current queue.

    patience_s: the wait after which a job goes first, seconds.
    """

    Options = PatienceOptions
    start_key = ("rank", "gpus", "submitted")

    def __init__(self, fabric: Fabric, options: PatienceOptions) -> None:
        super().__init__(fabric, options)
        self.patience_s = options.patience_s
        self._times = SharedTimes(fabric, Linear())
        self._nodes: tuple[Node, ...] = ()
        self._servers = Servers.of_sizes(())
        self._best_alphas = BestAlphas((), fabric)
        self._waiting: dict[JobId, Waiting] = {}
        self._runs: dict[JobId, RunningJob] = {}
        self._returns = 0
        self._waits: dict[JobId, Wait] = {}  # from the last decision
        self._seen: tuple[int, ...] | None = None  # the input of the last plan
        self._changes = 0
        self._after: Plan | None = None  # the cluster after the last decision

    # events

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self._nodes = tuple(sorted(nodes, key=lambda node: node.index))
        self._servers = Servers.of_sizes([node.gpus for node in self._nodes])
        self._best_alphas = BestAlphas(self._nodes, self.fabric)
        for entry in list(self._waiting.values()):
            self._enter(entry.job, entry.key[0], entry.since)

    def submitted(self, job: Job, now: float) -> bool:
        self._runs.pop(job.id, None)  # requeued while the daemon was away
        self._enter(job, job.band, max(now, job.submit_time))
        return False

    def returned(self, job: Job, now: float) -> None:
        self._runs.pop(job.id, None)
        self._returns += 1
        self._enter(job, head_rank(job, self._returns), job.submit_time)

    def changed(self, job: Job, now: float) -> None:
        entry = self._waiting.get(job.id)
        if entry is not None:
            self._enter(job, updated_rank(job, entry.key[0]), entry.since)

    def finished(self, job_id: JobId, now: float) -> None:
        known = self._waiting.pop(job_id, None) is not None
        self._waits.pop(job_id, None)
        if self._runs.pop(job_id, None) is not None or known:
            self._changes += 1

    def running(self, job_id: JobId, gpus: Mapping[str, int], until: float, now: float) -> None:
        """A running job, possibly one that the policy did not start: then only its time limit is known."""
        self._waiting.pop(job_id, None)
        known = self._runs.get(job_id)
        if known is None or known.gpus != gpus:
            self._changes += 1
            end = min(until, now + NO_END_S) if known is None else known.end
            self._runs[job_id] = RunningJob(now if known is None else known.start, end, dict(gpus))

    def _enter(self, job: Job, rank: float, since: float) -> None:
        self._changes += 1
        key = (rank, job.gpus, job.submit_time, id_key(job.id), job.id)
        self._waiting[job.id] = Waiting(job, key, since, self._best_alphas.alpha(job))

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        entries = [entry for entry in self._waiting.values() if entry.alpha is not None]
        seen = (id(cluster), cluster.version, self._changes, sum(self._late(entry, now) for entry in entries))
        if not entries or (seen == self._seen and cluster.free_memory is None):
            return list(self._waits.values())
        self._seen = seen
        self._waits.clear()
        plan = self._after = Plan(cluster)
        starts = self._planned(entries, plan, now) if cluster.total_free else []
        self._explain(entries, plan)
        return [*starts, *self._waits.values()]

    def _chosen(self, entries: Sequence[Waiting], now: float) -> tuple[list[Waiting], list[Waiting]]:
        """The jobs to plan, late jobs first, then the smallest; and jobs that no plan can hold."""
        late = sorted((e for e in entries if self._late(e, now)), key=lambda e: (e.since, e.key))
        rest = sorted((e for e in entries if not self._late(e, now)), key=lambda e: e.key)
        chosen, empty = [*late, *rest][:PLANNED], GpuLoads(self._servers)
        unplannable = [entry for entry in chosen if empty.fa_ffp(self._batch_job(entry), _INF) is None]
        return [entry for entry in chosen if entry not in unplannable], unplannable

    def _late(self, entry: Waiting, now: float) -> bool:
        return entry.since + self.patience_s <= now

    def _planned(self, entries: Sequence[Waiting], plan: Plan, now: float) -> list[Start]:
        chosen, unplannable = self._chosen([entry for entry in entries if not plan.over_limit(entry.job)], now)
        starts = self._start_planned(chosen, plan, now) if chosen else []
        for entry in unplannable:
            placement = self._tightest(entry.job, plan)
            starts += [self._start(entry, placement, plan, now)] if placement is not None else []
        return starts

    def _start_planned(self, chosen: Sequence[Waiting], plan: Plan, now: float) -> list[Start]:
        """Start the jobs that the best plan starts now."""
        late = [number for number, entry in enumerate(chosen) if self._late(entry, now)]
        jobs = [self._batch_job(entry) for entry in chosen]
        batch = QueueBatch(self._nodes, plan.view().free, self._remaining(now), jobs, late)
        found, kept = batch.best(), batch.kept
        starts: list[Start] = []
        for number, entry in enumerate(chosen, start=batch.first):
            begin, gpus = found.schedule.start[number], found.plan.gpus[number]
            others = bool(kept) and not self._late(entry, now)
            if begin > _TINY:
                why = reason(Phase.WAITING, "reserved", need=entry.job.gpus, in_s=begin)
                self._waits[entry.job.id] = Wait(entry.job, why)
            elif not (others and kept.intersection(gpus)):
                placement = self._place(entry.job, gpus, plan, exactly=others)
                starts += [self._start(entry, placement, plan, now)] if placement is not None else []
        return starts

    def _place(self, job: Job, gpus: Sequence[int], plan: Plan, exactly: bool) -> Placement | None:
        """The placement by Slurm on the plan's servers. If that fails and not ``exactly``: on other servers."""
        if job.gpus > plan.free or plan.over_limit(job):
            return None
        counts = Counter(self._nodes[self._servers.of[gpu]].name for gpu in gpus)
        there = replace(job, request=replace(job.request, candidates=frozenset(counts)))
        found = place(plan.view(), there, Strategy.MOST_FREE, self.fabric)
        if exactly:
            return found if found is not None and found.gpus == counts else None
        return found or self._tightest(job, plan)

    def _tightest(self, job: Job, plan: Plan) -> Placement | None:
        return None if plan.over_limit(job) else plan.place(job, Strategy.TIGHTEST, self.fabric)

    def _start(self, entry: Waiting, placement: Placement, plan: Plan, now: float) -> Start:
        plan.add(entry.job, placement)
        del self._waiting[entry.job.id]
        self._runs[entry.job.id] = RunningJob(now, now + entry.iterations * placement.alpha, placement.gpus)
        self._changes += 1
        return Start(entry.job, placement, entry.key)

    def _explain(self, entries: Sequence[Waiting], plan: Plan) -> None:
        """Give the first waiting job a reason, if the plan gives none."""
        left = [e for e in entries if e.job.id in self._waiting and not plan.over_limit(e.job)]
        if left and not self._waits:
            job = min(left, key=lambda entry: entry.key).job
            self._waits[job.id] = Wait(job, no_room(job, plan))

    def next_wakeup(self, now: float) -> float | None:
        """When the next job becomes late."""
        due = [entry.since + self.patience_s for entry in self._waiting.values() if entry.alpha is not None]
        return min((time for time in due if now < time < _INF), default=None)

    # what users see, and restarts

    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        entries = sorted(self._waiting.values(), key=lambda e: (not self._late(e, now), e.key))
        head = next((entry.job.id for entry in entries if entry.alpha is not None), None)
        return [(entry.job.id, self._why(entry, ahead, head)) for ahead, entry in enumerate(entries)]

    def _why(self, entry: Waiting, ahead: int, head: JobId | None) -> Reason:
        if entry.alpha is None:
            return reason(Phase.WAITING, "capacity", need=entry.job.gpus)
        limited = over_limit(entry.job, self._after) if entry.job.charges and self._after is not None else None
        if limited is not None:
            return limited
        wait = self._waits.get(entry.job.id)
        return wait.reason if wait is not None else behind(entry.job.id, ahead, head)

    def dump(self) -> dict[str, Any]:
        order = [[entry.job.id, entry.key[0], entry.since] for entry in self._waiting.values()]
        runs = {job_id: [run.start, run.end, dict(run.gpus)] for job_id, run in self._runs.items()}
        return {"order": order, "returns": self._returns, "runs": runs}

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        try:
            order = [(JobId(job_id), float(rank), float(since)) for job_id, rank, since in state["order"]]
            rows = state["runs"].items()
            runs = {JobId(j): RunningJob(float(start), float(end), dict(gpus)) for j, (start, end, gpus) in rows}
            returns = int(state["returns"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not a state of policy sjf-bco-online: {error!r}") from error
        self._waiting.clear()
        self._waits.clear()
        self._runs, self._returns, self._seen = runs, returns, None
        for job_id, rank, since in order:
            if job_id in jobs:
                self._enter(jobs[job_id], updated_rank(jobs[job_id], rank), since)

    # the batch

    def _batch_job(self, entry: Waiting) -> BatchJob:
        """A waiting job as the planners see it."""
        job, alpha = entry.job, entry.alpha or 1.0
        names = max([one.request.candidates for one in within_each(job)], key=self._offered)
        servers = None if names is None else frozenset(i for i, n in enumerate(self._nodes) if n.name in names)
        block = job.request.per_node or job.request.unit
        time = partial(self._time, job, alpha)
        return BatchJob(
            job.gpus, entry.iterations, entry.iterations * alpha, time, servers, block, bool(job.request.per_node)
        )

    def _offered(self, names: frozenset[str] | None) -> int:
        """Total GPUs of these servers."""
        return sum(n.gpus for n in self._nodes if names is None or n.name in names)

    def _time(self, job: Job, alpha: float, counts: tuple[int, ...], rings: tuple[int, ...]) -> float:
        return self._times.on(counts, job.profile)(rings) if rings else alpha

    def _remaining(self, now: float) -> Iterator[tuple[Mapping[str, int], float]]:
        """For each running job, its GPUs by node and its expected remaining seconds."""
        for run in self._runs.values():
            yield run.gpus, max(run.end - now, OVERDUE_SHARE * (now - run.start), 1.0)
