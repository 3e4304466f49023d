"""HLAS on a small cluster in memory: jobs arrive, run, are preempted, and resume where they were."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.job import Job, JobId, id_key, unprofiled
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.policies import make_policy
from slurm_asrpt.core.policies.base import Preempt, PreemptibleRun, PreemptivePolicy, Start
from slurm_asrpt.core.policies.hlas.policy import Hlas

FABRIC = Fabric(1.25e9, 300e9)


@dataclass
class SimulatedJob:
    """A job. work, had: total and attained GPU-seconds. back: when it is pending again. ran: its runs (begin, end).

    first_gpus: those of its first run, by node. expected: GPU-seconds that it is predicted to attain in all, 0: none.
    """

    job: Job
    work: float
    opted_in: bool = True
    had: float = 0.0
    began: float = math.nan
    placement: Placement | None = None
    stops: float = math.inf
    back: float = 0.0
    interruptions: int = 0
    ran: list[tuple[float, float]] = field(default_factory=list)
    first_gpus: Mapping[str, int] = field(default_factory=dict)
    expected: float = 0.0

    @property
    def expected_left(self) -> float:
        """When it waits."""
        return max(0.0, self.expected - self.had)

    @property
    def ends(self) -> float:
        return self.began + (self.work - self.had) / self.job.gpus

    def run(self) -> PreemptibleRun:
        assert self.placement is not None
        return PreemptibleRun(
            self.job.id, self.placement.gpus, self.had, self.job.gpus, self.began, self.interruptions,
            ending=self.stops < math.inf, held=self.job.request,
        )  # fmt: skip


def simulated_job(job_id: str, gpus: int, work: float, submit: float = 0.0, opted_in: bool = True) -> SimulatedJob:
    return SimulatedJob(
        Job(JobId(job_id), "ann", gpus, unprofiled(gpus), submit_time=submit), work, opted_in, back=submit
    )


class HlasBench:
    """grace_s: from a preemption to the free GPUs. pause_s: from then until the job is pending again."""

    def __init__(self, sizes: Sequence[int], grace_s: float = 1.0, pause_s: float = 2.0, **settings: Any) -> None:
        policy = make_policy("hlas", fabric=FABRIC, **settings)
        assert isinstance(policy, Hlas)
        assert isinstance(policy, PreemptivePolicy)
        self.policy, self.grace_s, self.pause_s = policy, grace_s, pause_s
        self.most = settings.get("max_interruptions", 3)
        self.view = ClusterView([Node(f"n{i}", gpus, i) for i, gpus in enumerate(sizes)])
        self.policy.cluster_changed(self.view.nodes, 0.0)
        self.coming: list[SimulatedJob] = []
        self.waiting: dict[JobId, SimulatedJob] = {}
        self.running: dict[JobId, SimulatedJob] = {}
        self.done: list[SimulatedJob] = []
        self.why: Counter[str] = Counter()
        self.now = 0.0

    def play(self, lives: Sequence[SimulatedJob], until: float = math.inf) -> list[SimulatedJob]:
        """Simulate up to ``until``. Returns the jobs that have ended."""
        self.coming += lives
        while (now := self._next()) < min(until, math.inf):
            self.now = now
            self.step()
        return self.done

    def _next(self) -> float:
        ends = (min(life.ends, life.stops) for life in self.running.values())
        times = [*ends, *(life.back for life in self.coming)]
        wake = self.policy.next_wakeup(self.now) if self.waiting else None
        return min([*times, wake if wake is not None else math.inf], default=math.inf)

    def step(self) -> None:
        """Process what is due now, then decide; the policy's state passes through JSON, as after a restart."""
        now = self.now
        for each in [each for each in self.running.values() if min(each.ends, each.stops) <= now]:
            self._stop(each)
        due = [each for each in self.coming if each.back <= now]
        self.coming = [each for each in self.coming if each.back > now]
        self._tell({**self.waiting, **{each.job.id: each for each in due}})
        for each in sorted(due, key=lambda each: (each.back, each.job.id)):
            each.job = replace(each.job, submit_time=each.back)
            self.waiting[each.job.id] = each
            self.policy.submitted(each.job, now)
        self.policy.load(json.loads(json.dumps(self.policy.dump())), {j: e.job for j, e in self.waiting.items()})
        self._decide()

    def _tell(self, waiting: dict[JobId, SimulatedJob]) -> None:
        runs = [each.run() for each in self.running.values() if each.opted_in]
        if self.policy.by_loss:
            known = [*waiting.values(), *self.running.values()]
            self.policy.expected({each.job.id: each.expected for each in known if each.expected})
        self.policy.served({job_id: each.had for job_id, each in waiting.items() if each.had}, runs, self.now)

    def _decide(self) -> None:
        before = self.view.copy()
        for each in self.running.values():
            if each.stops < math.inf and each.placement is not None:
                before.give(each.placement.gpus)
        decisions = self.policy.decide(self.view, self.now)
        for decision in decisions:
            if isinstance(decision, Start):
                before.take(decision.placement.gpus)
                self._start(decision)
        for head in {d.head.id: d.head for d in decisions if isinstance(d, Preempt)}.values():
            preempted = [self.running[d.job_id] for d in decisions if isinstance(d, Preempt) and d.head == head]
            self._interrupt(preempted)
            self._check_queues(head, preempted)
            for each in preempted:
                assert each.placement is not None
                before.give(each.placement.gpus)
            assert place(before, head, Strategy.MOST_FREE, FABRIC) is not None, "it fits on what they free"
        self.why.update(why.kind for _, why in self.policy.queue(self.now))

    def _start(self, start: Start) -> None:
        life = self.waiting.pop(start.job.id)
        peers = [each for each in self.waiting.values() if self._peer(each, life)]
        assert all(_queue_position(life) < _queue_position(peer) for peer in peers), "FIFO in each sub-queue"
        self.view.take(start.placement.gpus)
        life.began, life.placement = self.now, start.placement
        life.first_gpus = life.first_gpus or start.placement.gpus
        self.running[life.job.id] = life

    def _peer(self, one: SimulatedJob, other: SimulatedJob) -> bool:
        return one.job.gpus == other.job.gpus and self._queue(one, one.had) == self._queue(other, other.had)

    def _queue(self, life: SimulatedJob, service: float) -> int:
        return self.policy.queue_of(max(service, life.expected))

    def _interrupt(self, lives: Sequence[SimulatedJob]) -> None:
        for each in lives:
            assert each.opted_in
            assert each.stops == math.inf, "a job is preempted once"
            assert each.interruptions < self.most
            each.interruptions += 1
            each.stops = min(self.now + self.grace_s, each.ends)

    def _check_queues(self, head: Job, preempted: Sequence[SimulatedJob]) -> None:
        """Preempted jobs are in later queues than the pending one."""
        queue = self._queue(self.waiting[head.id], self.waiting[head.id].had)
        assert all(self._queue(each, each.run().service_at(self.now)) > queue for each in preempted)

    def _stop(self, life: SimulatedJob) -> None:
        assert life.placement is not None
        ended = life.ends <= self.now
        del self.running[life.job.id]
        self.view.give(life.placement.gpus)
        self.policy.finished(life.job.id, self.now)
        life.ran.append((life.began, self.now))
        life.had = life.work if ended else life.had + (self.now - life.began) * life.job.gpus
        life.stops, life.placement = math.inf, None
        if ended:
            self.done.append(life)
        else:
            life.back = self.now + self.pause_s
            self.coming.append(life)


def _queue_position(life: SimulatedJob) -> tuple[float, float, object]:
    return -life.expected_left, life.job.submit_time, id_key(life.job.id)
