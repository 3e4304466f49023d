"""HLAS on a real cluster: jobs with the least GPU time run first, and preempt jobs with much GPU time.

Jobs are in K queues by attained service (Hare, Algorithms 1-3; ``core/rounds`` has the paper's own model, where rounds
are tasks that any idle GPU may run). Here a job has all its GPUs or none. It runs until it ends, or until a job of an
earlier queue waits that fits on its GPUs. Then it is preempted between two of its rounds, after a checkpoint, and waits
at the end of its queue.

Only jobs whose owners allow it are preempted, each at most ``max_interruptions`` times, and never in the first
``min_run_s`` of a run: the cost of preemption must be small compared with the computation.

In the paper, tasks of a wide job run on single GPUs as they become free. Here smaller jobs could take these forever. So
GPUs are kept for the first job, by queue, that has waited for ``reserve_after_s``: on servers whose jobs have all run
for less than a tenth of its wait. With heavy tails a job goes on for about as long as it has run: they end soon.

With ``predict = "loss"`` it is HLAS-P (section V-B): the size of a job that reports its loss is what it is expected to
attain in all, as asrptd predicts. It stays until the job has attained it. In a queue, jobs with expected service left
go first, those with most of it before the others.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import Job, JobId, Request
from slurm_asrpt.core.policies.base import (
    Decision,
    Phase,
    Preempt,
    PreemptibleRun,
    Reason,
    Start,
    Wait,
    no_room,
    reason,
)
from slurm_asrpt.core.policies.hlas.options import HlasOptions
from slurm_asrpt.core.policies.hlas.preemption import PreemptionPlan
from slurm_asrpt.core.policies.priority_queue import Key, PriorityQueue

YOUNG = 0.1
"""GPUs are kept where all jobs have run for less than this share of the wait of the job that they are kept for."""


def thresholds(first: float, factor: float, queues: int) -> tuple[float, ...]:
    """E_1^H .. E_{K-1}^H: ``first``, then ``factor`` times the previous one. The last queue has no upper end."""
    return tuple(first * factor**k for k in range(queues - 1))


def level_of(size: float, ends: Sequence[float]) -> int:
    """The queue of a size, from 0. ends: E_k^H, ascending. A tolerance prevents rounding errors at an end."""
    return bisect_right(ends, size * (1 + 1e-12))


def service_rate(gpus: Mapping[str, int], nodes: Mapping[str, Node]) -> float:
    """GPU-seconds of the reference type that a job attains per second, at the speed of its slowest GPU."""
    return sum(gpus.values()) * min((nodes[name].speed for name in gpus if name in nodes), default=1.0)


class Hlas(PriorityQueue):
    """Work-conserving: the first job that fits starts; a job that does not fit may preempt others.

    queues, first_gpu_s, factor: K, E_1^H in GPU-seconds, and the ratio of successive ends.
    """

    Options = HlasOptions
    start_key = ("rank", "queue", "submitted")
    bands = False
    conserving = True
    interrupts = True

    def __init__(self, fabric: Fabric, options: HlasOptions) -> None:
        super().__init__(fabric, options)
        self._ends = thresholds(options.first_gpu_s, options.factor, options.queues)
        self._max_preemptions, self._min_run_s = options.max_interruptions, options.min_run_s
        self._reserve_after_s = options.reserve_after_s
        self.by_loss, self.alpha_gpu_s = options.predict == "loss", options.alpha_gpu_s
        self._expected: Mapping[JobId, float] = {}
        self._service: dict[JobId, float] = {}
        self._runs: list[PreemptibleRun] = []
        self._preempted: dict[JobId, list[JobId]] = {}  # preempting jobs, and the jobs that they preempt
        self._began: dict[JobId, tuple[float, Mapping[str, int]]] = {}  # started jobs: when, and where
        self._kept: Mapping[str, int] = {}  # for a late job, in the last decision
        self._oldest: float | None = None  # least submit time of the waiting jobs, if it is known

    def value(self, job: Job, alpha: float) -> float:
        return self.queue_of(self._size(job.id, self._service.get(job.id, 0.0)))

    def queue_of(self, service: float) -> int:
        return level_of(service, self._ends)

    def _size(self, job_id: JobId, service: float) -> float:
        """H_n, GPU-seconds: the attained service, or what the job is expected to attain if that is more."""
        return max(service, self._expected.get(job_id, 0.0))

    def _run_size(self, run: PreemptibleRun, now: float) -> float:
        return self._size(run.job_id, run.service_at(now))

    def _expected_left(self, job_id: JobId) -> float:
        """The GPU-seconds that a waiting job is expected to attain still; 0 without a prediction."""
        service = self._service.get(job_id, 0.0)
        return self._size(job_id, service) - service

    # events

    def expected(self, sizes: Mapping[JobId, float]) -> None:
        self._expected = dict(sizes)

    def served(self, waiting: Mapping[JobId, float], runs: Sequence[PreemptibleRun], now: float) -> None:
        self._service, self._runs = dict(waiting), list(runs)

    def submitted(self, job: Job, now: float) -> bool:
        behind = super().submitted(job, now) and not self._runs
        return behind and not self._any_late(now)  # what is kept for a late job changes with time

    def finished(self, job_id: JobId, now: float) -> None:
        super().finished(job_id, now)
        self._began.pop(job_id, None)
        self._runs = [run for run in self._runs if run.job_id != job_id]

    def _enter(self, job: Job, key: Key, fits: bool) -> None:
        super()._enter(job, key, fits)
        if self._oldest is not None:
            self._oldest = min(self._oldest, key[2])

    def _forget(self, job_id: JobId) -> None:
        if self._keys[job_id][2] == self._oldest:
            self._oldest = None
        super()._forget(job_id)
        self._preempted.pop(job_id, None)

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        sub_queues = any(job_id in self._keys for job_id in self._expected)
        if not self._runs and not sub_queues and not self._any_late(now):
            self._preempted.clear()
            decisions = super().decide(cluster, now)
        else:
            decisions = self._walk(PreemptionPlan(cluster, self._runs, self.fabric), now)
        self._began.update({d.job.id: (now, d.placement.gpus) for d in decisions if isinstance(d, Start)})
        return decisions

    def _walk(self, plan: PreemptionPlan, now: float) -> list[Decision]:
        """Consider jobs in order: each starts, preempts others, or waits."""
        decisions: list[Decision] = []
        preempted, self._preempted = self._preempted, {}
        no_fit: set[tuple[int, Request, float]] = set()
        first: Wait | None = None
        order = self._in_order(preempted)
        late, self._kept = self._first_late(order, plan, now)
        for key in order if late is None else [late, *(key for key in order if key is not late)]:
            job = self._jobs[key[-1]]
            shape = (job.gpus, job.request, key[1])
            if shape in no_fit or plan.over_limit(job):  # free GPUs only decrease
                continue
            placement = plan.start(job)
            if placement is not None:
                decisions.append(Start(job, placement, key))
                self._forget(job.id)
            elif (victims := self._preempt_for(job, int(key[1]), plan, now)) is not None:
                ending = [run.job_id for run in victims] or preempted.get(job.id) or plan.ending
                if ending:
                    self._preempted[job.id] = ending
                    decisions.extend(Preempt(run.job_id, job, _preempting(job)) for run in victims)
                    decisions.append(Wait(job, self._preempting_reason(job)))
                else:  # its node cleans up
                    first = first or Wait(job, no_room(job, Plan(plan.now)))
            else:
                no_fit.add(shape)
                first = first or Wait(job, no_room(job, Plan(plan.now)))
                if key is late:
                    plan.hold(job, self._kept)
        self._left = Plan(plan.now)
        self._last, self._free = first, self._left.free
        return [*decisions, *([first] if first else [])]

    def _is_late(self, key: Key, now: float) -> bool:
        return key[2] + self._reserve_after_s <= now

    def _any_late(self, now: float) -> bool:
        if self._oldest is None:
            self._oldest = min((key[2] for key in self._keys.values()), default=math.inf)
        return self._oldest + self._reserve_after_s <= now

    def _first_late(
        self, order: Sequence[Key], plan: PreemptionPlan, now: float
    ) -> tuple[Key | None, Mapping[str, int]]:
        """The first late job that no limit holds and for which enough servers are free soon, and its GPUs there."""
        for key in order:
            job = self._jobs[key[-1]]
            if self._is_late(key, now) and not plan.over_limit(job):
                since = now - YOUNG * (now - key[2])
                kept = plan.servers_for(job, self._young(plan.now, since), self._kept)
                if kept:
                    return key, kept
        return None, {}

    def _young(self, cluster: ClusterView, since: float) -> frozenset[str]:
        """The servers whose jobs have all begun since then."""
        old = {name for began, gpus in self._began.values() if began < since for name in gpus}
        return frozenset(cluster.by_name.keys() - old)

    def _in_order(self, preempted: Mapping[JobId, Sequence[JobId]]) -> list[Key]:
        """Within a queue, preempting jobs go first, like partially scheduled jobs in the paper.

        Then those of the first sub-queue: with most expected service left first.
        """
        waiting = (key for key in self._keys.values() if key[-1] not in self._too_large)
        left = self._expected_left
        return sorted(waiting, key=lambda key: (key[:2], key[-1] not in preempted, -left(key[-1]), key))

    def _shown_order(self) -> Sequence[Key]:
        left = self._expected_left
        return sorted(self._keys.values(), key=lambda key: (key[:2], -left(key[-1]), key))

    def _preempt_for(self, job: Job, queue: int, plan: PreemptionPlan, now: float) -> list[PreemptibleRun] | None:
        """The runs to preempt for a job; empty if the GPUs of runs that are ending suffice, None if it cannot fit.

        The largest jobs are preempted first, and only as many as needed. Reserves the job's GPUs in the plan.
        """
        if plan.reserve(job):
            return []
        able = [run for run in plan.left if self._may_preempt(run, queue, now)]
        able.sort(key=lambda run: (-self._run_size(run, now), -run.service_at(now)))
        chosen = plan.victims_for(job, able)
        if chosen:
            plan.preempt(chosen)
            plan.reserve(job)
        return chosen or None

    def _may_preempt(self, run: PreemptibleRun, queue: int, now: float) -> bool:
        """Whether a job of this queue may preempt the run."""
        spared = run.interruptions >= self._max_preemptions or now < run.since + self._min_run_s
        return not spared and self.queue_of(self._run_size(run, now)) > queue

    def next_wakeup(self, now: float) -> float | None:
        """When the next run becomes preemptible, or the next job late; all else that changes a decision is an event."""
        if not self._keys:
            return None
        able = (run for run in self._runs if not run.ending and run.interruptions < self._max_preemptions)
        changes = (when for run in able for when in self._next_changes(run, now))
        late = (key[2] + self._reserve_after_s for key in self._keys.values())
        return min((when for when in chain(changes, late) if when > now), default=None)

    def _next_changes(self, run: PreemptibleRun, now: float) -> Iterator[float]:
        """When a run reaches ``min_run_s``, and when it moves to the next queue."""
        yield run.since + self._min_run_s
        queue = self.queue_of(self._run_size(run, now))
        if queue < len(self._ends) and run.rate > 0:
            yield run.since + (self._ends[queue] - run.service) / run.rate

    # what users see, and restarts

    def _why(self, job_id: JobId, ahead: int, head: JobId | None, higher: int) -> Reason:
        if job_id in self._preempted:
            return self._preempting_reason(self._jobs[job_id])
        found = super()._why(job_id, ahead, head, higher)
        return Reason(found.phase, "service", found.facts) if found.kind == "behind" else found

    def _preempting_reason(self, job: Job) -> Reason:
        return reason(Phase.WAITING, "room", need=job.gpus, runs=", ".join(self._preempted[job.id]))

    def dump(self) -> dict[str, Any]:
        runs = [asdict(run) for run in self._runs]
        return {
            **super().dump(),
            "service": self._service,
            "runs": runs,
            "room": self._preempted,
            "began": self._began,
            "expected": self._expected,
        }

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        self._oldest = None
        try:
            service = {JobId(job_id): float(had) for job_id, had in state["service"].items()}
            runs = [PreemptibleRun.read(raw) for raw in state["runs"]]
            preempted = {JobId(job_id): [JobId(run) for run in runs] for job_id, runs in state["room"].items()}
            began: dict[JobId, tuple[float, Mapping[str, int]]] = {
                JobId(job_id): (float(at), dict(gpus)) for job_id, (at, gpus) in state.get("began", {}).items()
            }
            expected = {JobId(job_id): float(size) for job_id, size in state.get("expected", {}).items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not a state of this policy: {error!r}") from error
        super().load(state, jobs)
        self._service, self._runs, self._began, self._kept = service, runs, began, {}
        self._expected = expected
        self._preempted = {job_id: runs for job_id, runs in preempted.items() if job_id in self._keys}


def _preempting(head: Job) -> Reason:
    return reason(Phase.RUNNING, "interrupting", head=head.id)
