"""HLAS on a real cluster: jobs with the least GPU time run first, and jobs with much GPU time make room for them.

Jobs stand in K queues by attained service (Hare, Algorithms 1-3; ``papers/hare`` has the paper's own machine, where
rounds are tasks that any idle GPU may take). Here a job has all its GPUs or none, so it runs on until it ends, or until
a job of a queue before its own waits and would fit on its GPUs: then it is interrupted between two of its rounds, which
is after a checkpoint, and waits at the end of its queue.

Only jobs that their owners let be interrupted are, each so many times at most, and never in the first ``min_run_s``
of a run: what an interruption costs must stay small beside what is computed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import Job, JobId, Request
from slurm_asrpt.core.policies.base import Decision, Interrupt, Phase, Reason, Run, Start, Wait, no_room, reason
from slurm_asrpt.core.policies.hlas.options import HlasOptions
from slurm_asrpt.core.policies.hlas.preemption import PreemptionPlan
from slurm_asrpt.core.policies.priority_queue import Key, PriorityQueue


def thresholds(first: float, factor: float, queues: int) -> tuple[float, ...]:
    """E_1^H .. E_{K-1}^H: the first, and each ``factor`` times the one before. The last queue has no upper end."""
    return tuple(first * factor**k for k in range(queues - 1))


def level_of(size: float, ends: Sequence[float]) -> int:
    """The queue of a size, from 0. ends: E_k^H, ascending. Rounding must not keep a job below one it has reached."""
    return bisect_right(ends, size * (1 + 1e-12))


def service_rate(gpus: Mapping[str, int], nodes: Mapping[str, Node]) -> float:
    """GPU-seconds of the reference type that a job attains in a second: a synchronous one runs at its slowest GPU."""
    return sum(gpus.values()) * min((nodes[name].speed for name in gpus if name in nodes), default=1.0)


class Hlas(PriorityQueue):
    """Work-conserving: the first job that fits starts; for a job that does not fit, others are interrupted.

    queues, first_gpu_s, factor: K, E_1^H in GPU-seconds, and the ratio of the ends that follow.
    """

    Options = HlasOptions
    start_key = ("rank", "queue", "submitted")
    bands = False
    conserving = True

    def __init__(self, fabric: Fabric, options: HlasOptions) -> None:
        super().__init__(fabric, options)
        self._ends = thresholds(options.first_gpu_s, options.factor, options.queues)
        self._most, self._min_run_s = options.max_interruptions, options.min_run_s
        self._service: dict[JobId, float] = {}
        self._runs: list[Run] = []
        self._told = 0.0  # when it was said what they have had
        self._room: dict[JobId, list[JobId]] = {}  # jobs for which room is being made, and the jobs that make it

    def value(self, job: Job, alpha: float) -> float:
        return self.queue_of(self._service.get(job.id, 0.0))

    def queue_of(self, service: float) -> int:
        return level_of(service, self._ends)

    # events

    def served(self, waiting: Mapping[JobId, float], runs: Sequence[Run], now: float) -> None:
        self._service, self._runs, self._told = dict(waiting), list(runs), now

    def submitted(self, job: Job, now: float) -> bool:
        return super().submitted(job, now) and not self._runs

    def finished(self, job_id: JobId, now: float) -> None:
        super().finished(job_id, now)
        self._runs = [run for run in self._runs if run.job_id != job_id]

    def _forget(self, job_id: JobId) -> None:
        super()._forget(job_id)
        self._room.pop(job_id, None)

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        if not self._runs:
            self._room.clear()
            return super().decide(cluster, now)
        return self._walk(PreemptionPlan(cluster, self._runs, self.fabric), now)

    def _walk(self, plan: PreemptionPlan, now: float) -> list[Decision]:
        """Jobs in order: each starts, or room is made for it, or it waits."""
        decisions: list[Decision] = []
        room, self._room = self._room, {}
        hopeless: set[tuple[int, Request, float]] = set()
        first: Wait | None = None
        for key in self._in_order(room):
            job = self._jobs[key[-1]]
            shape = (job.gpus, job.request, key[1])
            if shape in hopeless or plan.over_limit(job):  # what is free only becomes less
                continue
            placement = plan.start(job)
            if placement is not None:
                decisions.append(Start(job, placement, key))
                self._forget(job.id)
            elif (victims := self._make_room(job, int(key[1]), plan, now)) is not None:
                self._room[job.id] = [run.job_id for run in victims] or room.get(job.id) or plan.ending
                decisions.extend(Interrupt(run.job_id, job, _interrupting(job)) for run in victims)
                decisions.append(Wait(job, self._room_reason(job)))
            else:
                hopeless.add(shape)
                first = first or Wait(job, no_room(job, Plan(plan.now)))
        self._left = Plan(plan.now)
        self._last, self._free = first, self._left.free
        return [*decisions, *([first] if first else [])]

    def _in_order(self, room: Mapping[JobId, Sequence[JobId]]) -> list[Key]:
        """Within a queue, jobs for which room is being made go first, as partially scheduled ones do in the paper."""
        waiting = (key for key in self._keys.values() if key[-1] not in self._misfits)
        return sorted(waiting, key=lambda key: (key[:2], key[-1] not in room, key))

    def _make_room(self, job: Job, queue: int, plan: PreemptionPlan, now: float) -> list[Run] | None:
        """The runs to interrupt for a job, none if what others give up already is enough; None if nothing is.

        Jobs with the most service are interrupted first, and only as many as needed. plan: then without the job's GPUs.
        """
        if plan.keep(job):
            return []
        able = [run for run in plan.left if self._may_go(run, queue, now)]
        able.sort(key=lambda run: -self._service_at(run, now))
        chosen = plan.needed(job, able)
        if chosen:
            plan.interrupt(chosen)
            plan.keep(job)
        return chosen or None

    def _may_go(self, run: Run, queue: int, now: float) -> bool:
        """Whether a job of this queue may take its GPUs."""
        spared = run.interruptions >= self._most or now < run.since + self._min_run_s
        return not spared and self.queue_of(self._service_at(run, now)) > queue

    def _service_at(self, run: Run, now: float) -> float:
        return run.service + run.rate * (now - self._told)

    def next_wakeup(self, now: float) -> float | None:
        """When a run may be interrupted that may not be now: only then can more than arrivals and ends change."""
        if not self._keys:
            return None
        able = (run for run in self._runs if not run.ending and run.interruptions < self._most)
        return min((when for run in able for when in self._turns(run) if when > now), default=None)

    def _turns(self, run: Run) -> Iterator[float]:
        """When a run is old enough, and when it goes down into the next queue."""
        yield run.since + self._min_run_s
        queue = self.queue_of(run.service)
        if queue < len(self._ends) and run.rate > 0:
            yield self._told + (self._ends[queue] - run.service) / run.rate

    # what users see, and restarts

    def _why(self, job_id: JobId, ahead: int, head: JobId | None) -> Reason:
        if job_id in self._room:
            return self._room_reason(self._jobs[job_id])
        found = super()._why(job_id, ahead, head)
        return Reason(found.phase, "service", found.facts) if found.kind == "behind" else found

    def _room_reason(self, job: Job) -> Reason:
        return reason(Phase.WAITING, "room", need=job.gpus, runs=", ".join(self._room[job.id]))

    def dump(self) -> dict[str, Any]:
        runs = [asdict(run) for run in self._runs]
        return {**super().dump(), "service": self._service, "runs": runs, "told": self._told, "room": self._room}

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        try:
            service = {JobId(job_id): float(had) for job_id, had in state["service"].items()}
            runs, told = [_run(raw) for raw in state["runs"]], float(state["told"])
            room = {JobId(job_id): [JobId(run) for run in runs] for job_id, runs in state["room"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not a state of this policy: {error!r}") from error
        super().load(state, jobs)
        self._service, self._runs, self._told = service, runs, told
        self._room = {job_id: runs for job_id, runs in room.items() if job_id in self._keys}


def _interrupting(head: Job) -> Reason:
    return reason(Phase.RUNNING, "interrupting", head=head.id)


def _run(raw: Mapping[str, Any]) -> Run:
    """Raises KeyError, TypeError or ValueError for what is none."""
    gpus = {str(name): int(count) for name, count in raw["gpus"].items()}
    amounts = {name: float(raw[name]) for name in ("service", "rate", "since")}
    held, ending = Request(**raw["held"]), bool(raw["ending"])
    return Run(JobId(raw["job_id"]), gpus, **amounts, interruptions=int(raw["interruptions"]), ending=ending, held=held)
