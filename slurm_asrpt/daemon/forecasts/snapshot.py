"""Makes the snapshot that forecasts are computed from."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from slurm_asrpt.config.settings import Settings
from slurm_asrpt.core.cluster import Node
from slurm_asrpt.core.domains import lowest
from slurm_asrpt.core.job import Job, JobId, Request
from slurm_asrpt.core.policies import policy_settings
from slurm_asrpt.core.policies.base import Policy, PreemptibleRun, Reason
from slurm_asrpt.core.preemption_costs import PreemptionCosts
from slurm_asrpt.daemon.cluster import ClusterState
from slurm_asrpt.daemon.communication import LearnedCommunication
from slurm_asrpt.daemon.forecasts.recent_jobs import RecentJobs
from slurm_asrpt.daemon.forecasts.run_lengths import iterations_of, run_of
from slurm_asrpt.daemon.jobs.arrays import TaskCounts
from slurm_asrpt.daemon.jobs.limits import LimitsWatch
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.saved_state import JobState
from slurm_asrpt.daemon.jobs.table import JobTable
from slurm_asrpt.daemon.record.progress import Observed, ProgressWatch
from slurm_asrpt.forecast.arrays import PendingTasks
from slurm_asrpt.forecast.preemptions import Consenting, Interrupted, PreemptionState
from slurm_asrpt.forecast.sampling import Quantiles
from slurm_asrpt.forecast.snapshot import MAX_JOBS, Running, Snapshot, Waiting
from slurm_asrpt.slurm.gpu_defaults import GpuDefaults
from slurm_asrpt.slurm.notation import read_tasks
from slurm_asrpt.slurm.partitions import Partition
from slurm_asrpt.slurm.records import NodeRecord
from slurm_asrpt.slurm.request import resources_of
from slurm_asrpt.status.reason_texts import is_refused

REQUEUE_S = 5.0
"""From the end of a preempted job to the cycle in which it is eligible again, beside ``daemon.interval_s``."""
LEAST_PERIODS = 10
"""In multiples of ``forecast_s``; a shorter time is too short to estimate the arrival rate."""


class SnapshotMaker:
    """Makes snapshots of the state just after a cycle."""

    def __init__(
        self,
        settings: Settings,
        policy: Policy,
        jobs: JobTable,
        cluster: ClusterState,
        progress: ProgressWatch,
        recent: RecentJobs,
        limits: LimitsWatch,
        communication: LearnedCommunication,
        preemptible: Callable[[], Iterable[tuple[ManagedJob, PreemptibleRun]]],
    ) -> None:
        """preemptible: the jobs that the policy may preempt now."""
        self.communication, self._preemptible = communication, preemptible
        self._settings, self._policy, self._jobs, self._cluster = settings, policy, jobs, cluster
        self._progress, self._recent, self._limits = progress, recent, limits

    def make(self, now: float, most: int = MAX_JOBS) -> Snapshot:
        """The state as of now, with so many jobs of the queue at most."""
        settings, view, recent = self._settings, self._cluster.view, self._recent
        holding = [*self._jobs.in_state(JobState.RUNNING), *self._jobs.in_state(JobState.PINNED)]
        seen = self._progress.look(self._jobs.running_since())
        unknown = recent.arrivals.run_times([now - j.record.start_time for j in holding if j.state is JobState.RUNNING])
        held = [self._running(job, seen.get(str(job.record.number)), unknown, now) for job in holding]
        running = with_room([*held, *self._not_up(), *self._others(holding, unknown, now)], view.nodes)
        queue = [(self._jobs[job_id], why) for job_id, why in self._policy.queue(now)]
        first = [job for job, why in queue if not _never_starts(job, why)][:most]
        waiting = tuple(self._waiting(job, job.job, unknown) for job in first if job.job)
        arrivals, window_s = recent.arrivals.recent(now, unknown, LEAST_PERIODS * settings.daemon.forecast_s)
        return Snapshot(
            now=now,
            policy=settings.policy.name,
            settings=settings.policy.chosen(policy_settings(settings.policy.name)),
            state=self._policy.dump(),
            fabric=self._cluster.fabric,
            nodes=view.nodes,
            free=self._free(running),
            free_cpus=view.free_cpus,
            free_memory=view.free_memory,
            free_gres=view.free_gres,
            headroom=self._limits.headroom(self._jobs.in_state(JobState.PINNED)).room,
            indexes=self._indexes(running),
            running=tuple(running),
            waiting=waiting,
            recent=tuple(arrivals),
            window_s=window_s,
            margins=recent.start_adjustment,
            unknown=unknown,
            rest_s=recent.idle_gaps.typical_s(),
            arrays=tuple(self._array_rests(first, unknown)),
            preemption=self._preemption(first, running),
        )

    @property
    def slurm_nodes(self) -> tuple[NodeRecord, ...]:
        """The nodes that requests are read for."""
        return tuple(self._cluster.nodes)

    @property
    def gpu_defaults(self) -> Mapping[str, GpuDefaults]:
        """What partitions give to jobs that do not ask for it."""
        return self._limits.site.gpu_defaults

    @property
    def partitions(self) -> Mapping[str, Partition]:
        """The limits of the partitions that asrptd manages."""
        known = self._limits.site.partitions
        return {name: known[name] for name in self._settings.slurm.partitions if name in known}

    def _not_up(self) -> Iterator[Running]:
        """Nodes that are not up yet, each like a job that ends when the node will be up."""
        seconds, free = max(1.0, self._cluster.startup_delay.seconds), self._cluster.view.free
        span = Quantiles(seconds, seconds, seconds)
        for name in sorted(self._cluster.not_up):
            if free[name]:
                yield Running(JobId(f"power:{name}"), {name: free[name]}, Request(), 0.0, span, math.inf)

    def _others(self, holding: Sequence[ManagedJob], unknown: Quantiles, now: float) -> Iterator[Running]:
        """Jobs that asrptd does not manage and that count against limits; whose GPUs they hold is not known."""
        known = {job.record.job_id for job in holding}
        for record in self._limits.running:
            charges = self._limits.charges(record)
            if charges and record.job_id not in known:
                ran_s = max(0.0, now - record.start_time)
                limit_s = max(0.0, record.time_limit - ran_s) if record.time_limit else math.inf
                yield Running(JobId(record.job_id), {}, Request(), ran_s, unknown, limit_s, charges)

    def _waiting(self, job: ManagedJob, admitted: Job, unknown: Quantiles) -> Waiting:
        done = job.service.past / (admitted.gpus * self._alpha(admitted)) if admitted.interruptible else 0.0
        return Waiting(admitted, self._iterations(job, admitted, unknown), done)

    def _preemption(self, first: Sequence[ManagedJob], running: Sequence[Running]) -> PreemptionState:
        held = {run.job_id for run in running}
        consenting = (
            Consenting(run, job.job, (job.placement.alpha if job.placement else None) or self._alpha(job.job))
            for job, run in self._preemptible()
            if job.job is not None and run.job_id in held
        )
        interrupted = {
            JobId(job.record.job_id): Interrupted(job.service.past, job.service.interruptions)
            for job in first
            if job.service.past and not job.service.began
        }
        return PreemptionState(
            tuple(consenting), interrupted, PreemptionCosts(requeue_s=REQUEUE_S + self._settings.daemon.interval_s)
        )

    def _alpha(self, job: Job) -> float:
        return self._cluster.best_alpha(job) or 1.0

    def _iterations(self, job: ManagedJob, admitted: Job, unknown: Quantiles) -> Quantiles:
        return iterations_of(job, self._recent.run_adjustment, self._alpha(admitted), unknown)

    def _array_rests(self, first: Sequence[ManagedJob], unknown: Quantiles) -> Iterator[PendingTasks]:
        """Array tasks that wait for others, of arrays with a task among the ``first`` jobs or none in the queue."""
        all_jobs = self._jobs.values()
        rests = [job for job in all_jobs if job.has_waiting_tasks]
        beyond = [job for job in all_jobs if job.is_beyond_limit]
        if not rests and not beyond:
            return
        counts, in_queue = TaskCounts(all_jobs), {job.record.array_id for job in first}
        behind = {job.record.array_id for job in self._jobs.in_state(JobState.QUEUED)} - in_queue
        for rest in rests:
            record, array = rest.record, rest.record.job_id
            if rest.job is None or array in behind:
                continue
            yield PendingTasks(
                rest.job,
                self._iterations(rest, rest.job, unknown),
                tuple((tasks.start, tasks.stop, tasks.step) for tasks in read_tasks(record.array_tasks)),
                counts.waiting[array],
                counts.known[array] - counts.waiting[array],
                record.array_most,
            )
        for array, tasks in _by_array(beyond).items():
            if array not in behind and array not in {rest.record.job_id for rest in rests}:
                yield self._beyond_limit(array, tasks, counts, unknown)

    def _beyond_limit(
        self, array: str, tasks: Sequence[ManagedJob], counts: TaskCounts, unknown: Quantiles
    ) -> PendingTasks:
        first = tasks[0]
        assert first.job is not None  # noqa: S101  (it has been admitted)
        numbers = sorted(int(task.record.job_id.partition("_")[2]) for task in tasks)
        return PendingTasks(
            replace(first.job, id=JobId(array)),
            self._iterations(first, first.job, unknown),
            tuple((number, number + 1, 1) for number in numbers),
            counts.waiting[array] - len(tasks),
            counts.known[array] - counts.waiting[array],
            first.record.array_most,
            split=True,
        )

    def _free(self, running: Sequence[Running]) -> dict[str, int]:
        """GPUs that ``running`` leaves free. A node in state COMPLETING counts as ready."""
        view = self._cluster.view
        cleaning = {n.name: n.gpus - n.gpus_used for n in self._cluster.parts if n.completing}
        held = Counter[str]()
        for run in running:
            held.update(run.gpus)
        return {n.name: max(0, min(cleaning.get(n.name, view.free[n.name]), n.gpus - held[n.name])) for n in view.nodes}

    def _indexes(self, running: Sequence[Running]) -> dict[str, int] | None:
        """The GPU indexes that ``running`` and jobs of other partitions leave free; None if they do not count.

        Jobs that do not have their GPUs yet get the lowest ones.
        """
        view, free = self._cluster.view, self._free(running)
        if view.indexes is None:
            return None
        wholes, left = {node.name: (1 << node.gpus) - 1 for node in view.nodes}, dict(view.indexes)
        left |= {n.name: wholes[n.name] for n in self._cluster.parts if n.completing and n.name in wholes}
        for run in running:
            for name, indexes in (run.indexes or {}).items():
                left[name] &= ~indexes
        return {name: _with_so_many(indexes, free[name], wholes[name]) for name, indexes in left.items()}

    def _running(self, job: ManagedJob, observed: Observed | None, unknown: Quantiles, now: float) -> Running:
        """A running job, or one that Slurm is about to start."""
        record, pin = job.record, job.pin
        begun = job.state is JobState.RUNNING
        gpus: Mapping[str, int] = record.gpus_by_node if begun else pin.gpus if pin else {}
        ran_s = max(0.0, now - record.start_time) if begun else 0.0
        best = self._cluster.best_alpha(job.job)
        span, over_s = run_of(job, self._recent.run_adjustment, observed, best, ran_s, unknown)
        return Running(
            job_id=JobId(record.job_id),
            gpus={name: count for name, count in gpus.items() if count and name in self._cluster.view.by_name},
            request=self._cluster.with_shares(resources_of(record, sum(gpus.values())), record.partition),
            ran_s=over_s,
            span=span,
            limit_s=max(0.0, record.time_limit - ran_s) if record.time_limit else math.inf,
            charges=self._limits.charges(record) if begun else job.charges or self._limits.charges(record),
            indexes={name: each for name, each in record.gpu_indexes.items() if name in self._cluster.view.by_name},
        )


def _never_starts(job: ManagedJob, why: Reason) -> bool:
    """Whether the job, as it is, starts in no future: such jobs are not simulated."""
    return why.kind == "capacity" or job.exceeds_limit_alone or is_refused(why.kind, why.facts)


def _by_array(tasks: Iterable[ManagedJob]) -> Mapping[str, Sequence[ManagedJob]]:
    arrays = defaultdict[str, list[ManagedJob]](list)
    for task in tasks:
        if task.job is not None:
            arrays[task.record.array_id].append(task)
    return arrays


def _with_so_many(indexes: int, count: int, whole: int) -> int:
    """As many indexes: without the lowest, or with the lowest others."""
    most = indexes.bit_count() - count
    return indexes ^ (lowest(indexes, most) if most > 0 else lowest(whole & ~indexes, -most))


def with_room(running: Sequence[Running], nodes: Sequence[Node]) -> list[Running]:
    """Omit jobs whose GPUs others still hold: Slurm may show a start before the end that freed the GPUs."""
    left = {node.name: node.gpus for node in nodes}
    kept = []
    for run in running:
        if all(gpus <= left[name] for name, gpus in run.gpus.items()):
            kept.append(run)
            for name, gpus in run.gpus.items():
                left[name] -= gpus
    return kept
