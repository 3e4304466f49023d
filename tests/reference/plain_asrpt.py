"""A-SRPT without optimizations: the first implementation of Algorithm 1, for comparison with the fast one.

It examines every node for each job, copies the cluster for each decision, updates the virtual machine at each event,
and caches nothing. tests/property/test_asrpt_twins.py runs both.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request, id_key
from slurm_asrpt.core.placement.best_alpha import best_alpha, fits, worst_alpha
from slurm_asrpt.core.placement.selection import Strategy, place
from slurm_asrpt.core.policies.base import Decision, Phase, Reason, Start, Wait, behind, reason

Key = tuple[float, float, tuple[int, ...], JobId]
"""Remaining work, arrival, numeric id, id; ties are broken by arrival, then by id."""


class PlainMachine:
    """Preemptive shortest-remaining-processing-time-first on one machine.

    Work is in GPU-seconds (g_i ñ_i α̃_i^min) and the machine works at a speed of G GPU-seconds a second: the same
    schedule as lengths (g_i/G) ñ_i α̃_i^min at speed 1, and it stays correct when G changes.
    """

    def __init__(self, clock: float = 0.0) -> None:
        self.clock = clock
        self.speed = 1.0
        self._heap: list[Key] = []
        self._work: dict[JobId, float] = {}  # whole work of each job inside

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._work

    def __len__(self) -> int:
        return len(self._work)

    def add(self, job_id: JobId, work: float, arrival: float, now: float) -> None:
        """A job arrives now (call ``advance`` first). Raises ValueError if it is already here."""
        if job_id in self._work:
            raise ValueError(f"job {job_id} is already on the virtual machine")
        if not self._heap:  # the clock of an idle machine may have any value
            self.clock = now
        self._work[job_id] = work
        heapq.heappush(self._heap, (work, arrival, id_key(job_id), job_id))

    def remove(self, job_id: JobId) -> None:
        """A job leaves before it completes here; unknown ids are ignored."""
        if self._work.pop(job_id, None) is not None:
            self._heap = [key for key in self._heap if key[3] != job_id]
            heapq.heapify(self._heap)

    def advance(self, now: float) -> list[JobId]:
        """Serve until ``now`` and return the jobs that completed, in order. Time never runs backwards."""
        completed: list[JobId] = []
        while self._heap:
            remaining, arrival, number, job_id = self._heap[0]
            end = self.clock + remaining / self.speed
            if end > now:
                served = max(0.0, now - self.clock) * self.speed
                # the served job had the least work left and now has less: the heap order is kept
                self._heap[0] = (max(0.0, remaining - served), arrival, number, job_id)
                break
            heapq.heappop(self._heap)
            self.clock = max(self.clock, end)
            del self._work[job_id]
            completed.append(job_id)
        if self._heap:
            self.clock = max(self.clock, now)
        return completed

    def next_completion(self) -> float | None:
        """When the served job would complete if no job arrived, or None if the machine is empty."""
        return self.clock + self._heap[0][0] / self.speed if self._heap else None

    def remaining(self) -> list[tuple[JobId, float, float]]:
        """(job, work left, whole work) in the order in which they would complete without arrivals."""
        return [(key[3], key[0], self._work[key[3]]) for key in sorted(self._heap)]

    def dump(self) -> dict[str, Any]:
        return {"clock": self.clock, "jobs": [[k[3], k[0], k[1], self._work[k[3]]] for k in sorted(self._heap)]}

    def load(self, state: Mapping[str, Any], keep: Sequence[JobId] | Mapping[JobId, Any]) -> None:
        """Load a dump, without the jobs that are not in ``keep``."""
        self.clock = float(state["clock"])
        self._heap, self._work = [], {}
        for job_id, left, arrival, work in state["jobs"]:
            if job_id in keep:
                self._work[JobId(job_id)] = float(work)
                self._heap.append((float(left), float(arrival), id_key(job_id), JobId(job_id)))
        heapq.heapify(self._heap)


@dataclass(frozen=True)
class Delay:
    """A communication-heavy job that waits for better servers: its first alpha (kappa) and its deadline."""

    kappa: float
    deadline: float


@dataclass(frozen=True)
class Alphas:
    """Seconds per iteration: best is α̃_min, worst α_max. fits: whether the job fits on the present nodes."""

    best: float
    worst: float
    fits: bool = True


class PlainASrpt:
    """Adaptive SRPT: a virtual machine orders the jobs, a FIFO starts them, communication-heavy ones may be delayed.

    tau: a delayed job starts at the latest tau (g_i/G) ñ_i α̃_i seconds after its turn.
    comm_heavy: COMM_HEAVY, on α_max/α̃_min for the class and on α/α̃_min for "good enough to start".
    delay: "block": a delayed job holds back all behind it; "aside": it leaves the FIFO and is tried first each time.
    """

    def __init__(self, fabric: Fabric, tau: float = 1.0, comm_heavy: float = 1.5, delay: str = "block") -> None:
        self.fabric, self.tau, self.comm_heavy = fabric, tau, comm_heavy
        self.aside = delay == "aside"
        self._nodes: tuple[Node, ...] = ()
        self._jobs: dict[JobId, Job] = {}
        self._alphas: dict[tuple[JobProfile, Request], Alphas] = {}  # recurrent jobs share them
        self._machine = PlainMachine()
        self._fifo: OrderedDict[JobId, None] = OrderedDict()  # an ordered set: cancelled jobs leave from the middle
        self._delays: dict[JobId, Delay] = {}
        self._last: dict[JobId, Reason] = {}

    # events

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self._advance(now)
        self._nodes = tuple(nodes)
        self._machine.speed = float(max(1, sum(node.gpus for node in nodes)))
        self._alphas.clear()

    def submitted(self, job: Job, now: float) -> None:
        self._advance(now)
        self._jobs[job.id] = job
        work = job.gpus * job.predicted_iterations * self._alpha(job).best
        self._machine.add(job.id, work, job.submit_time, now)
        self._advance(now)

    def returned(self, job: Job, now: float) -> None:
        self._advance(now)
        self._jobs[job.id] = job
        self._fifo[job.id] = None
        self._fifo.move_to_end(job.id, last=False)

    def changed(self, job: Job, now: float) -> None:
        self._advance(now)
        if job.id in self._jobs:
            self._jobs[job.id] = job

    def finished(self, job_id: JobId, now: float) -> None:
        self._advance(now)
        self._machine.remove(job_id)
        self._forget(job_id)

    def _advance(self, now: float) -> None:
        """Line 2: jobs that completed on the virtual machine join the end of the FIFO."""
        self._fifo.update(dict.fromkeys(self._machine.advance(now)))

    def _forget(self, job_id: JobId) -> None:
        for table in (self._jobs, self._fifo, self._delays, self._last):
            table.pop(job_id, None)

    def _alpha(self, job: Job) -> Alphas:
        key = (job.profile, job.request)
        if key not in self._alphas:
            there = fits(job, self._nodes)
            best = best_alpha(*(job, self._nodes) if there else _imagined(job, self._nodes), self.fabric)
            worst = max(best, worst_alpha(job, self._nodes, self.fabric))
            self._alphas[key] = Alphas(best, worst, there)
        return self._alphas[key]

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        self._advance(now)
        view, decisions = cluster.copy(), list[Decision]()
        for job_id in self._fifo:
            decision = self._consider(self._jobs[job_id], view, now)
            decisions.append(decision)
            if isinstance(decision, Start):
                view.take(decision.placement.gpus, decision.job.request)
                continue
            self._last[job_id] = decision.reason
            if not self._may_pass(job_id, decision.reason, now):
                break
        for decision in decisions:
            if isinstance(decision, Start):
                self._forget(decision.job.id)
        return decisions

    def _may_pass(self, job_id: JobId, why: Reason, now: float) -> bool:
        """Whether the jobs behind a pending one are considered. A job larger than the cluster never blocks.

        A job that waits aside lets others pass only until its deadline: smaller ones could pass it forever.
        """
        if why.kind == "capacity":
            return True
        return self.aside and job_id in self._delays and now < self._delays[job_id].deadline

    def _consider(self, job: Job, view: ClusterView, now: float) -> Decision:
        """Lines 5-23 for one job."""
        if not self._alpha(job).fits:
            return Wait(job, reason(Phase.WAITING, "capacity", need=job.gpus))
        heavy = self.communication_heavy(job)
        placement = place(view, job, self._strategy(job, heavy), self.fabric)
        if placement is None:
            return Wait(job, self._no_room(job, view), self._deadline(job))
        ratio = placement.alpha / self._alpha(job).best
        if heavy and ratio > self.comm_heavy and not self._delay_over(job, placement, now):
            delay = self._delays[job.id]
            facts = {"left_s": delay.deadline - now, "ratio": ratio, "nodes": dict(placement.gpus)}
            return Wait(job, reason(Phase.DELAYED, "placement", **facts), delay.deadline)
        return Start(job, placement)

    def communication_heavy(self, job: Job) -> bool:
        """Line 8. A job without a profile never is: its traffic is unknown."""
        alphas = self._alpha(job)
        return job.profiled and alphas.worst / alphas.best >= self.comm_heavy

    def _strategy(self, job: Job, heavy: bool) -> Strategy:
        if not job.profiled:
            return Strategy.TIGHTEST
        return Strategy.MOST_FREE if heavy else Strategy.LEAST_FREE

    def _delay_over(self, job: Job, placement: Placement, now: float) -> bool:
        """Lines 15-20: whether the wait for better servers has ended; the first call begins it."""
        if job.id not in self._delays:
            alone = job.gpus * job.predicted_iterations * self._alpha(job).best / self._machine.speed
            self._delays[job.id] = Delay(kappa=placement.alpha, deadline=now + self.tau * alone)
        delay = self._delays[job.id]
        return placement.alpha < delay.kappa or now >= delay.deadline

    def _deadline(self, job: Job) -> float | None:
        return self._delays[job.id].deadline if job.id in self._delays else None

    def _no_room(self, job: Job, view: ClusterView) -> Reason:
        counts = [count for name, count in view.free.items() if name in (job.request.candidates or view.free)]
        free = sum(counts)
        if free < job.gpus:
            return reason(Phase.WAITING, "gpus", need=job.gpus, free=free)
        shape = job.request.shape(job.gpus)
        bare = replace(job, request=job.request.bare)
        if not shape or place(view, bare, Strategy.MOST_FREE, self.fabric) is not None:
            return reason(Phase.WAITING, "resources", need=job.gpus, free=free)
        return reason(Phase.WAITING, "shape", need=job.gpus, free=free, shape=shape, most=max(counts))

    def next_wakeup(self, now: float) -> float | None:
        times = [delay.deadline for delay in self._delays.values() if delay.deadline > now]
        completion = self._machine.next_completion()
        return min([*times, *([] if completion is None else [completion])], default=None)

    # what users see, and restarts

    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        self._advance(now)
        rows: list[tuple[JobId, Reason]] = []
        blocker: JobId | None = None
        for ahead, job_id in enumerate(self._fifo):
            why = self._last.get(job_id)
            if blocker is not None or why is None:
                why = behind(job_id, ahead, blocker)
            elif not self._may_pass(job_id, why, now):
                blocker = job_id
            rows.append((job_id, why))
        for job_id, left, work in self._machine.remaining():
            facts = {"remaining_s": left / self._machine.speed, "work_s": work / self._machine.speed}
            rows.append((job_id, reason(Phase.VIRTUAL, "virtual", **facts)))
        return rows

    def alphas(self, job: Job) -> Alphas:
        """α̃_min and α_max of a job on the present nodes."""
        return self._alpha(job)

    def dump(self) -> dict[str, Any]:
        delays = {job_id: asdict(delay) for job_id, delay in self._delays.items()}
        return {"machine": self._machine.dump(), "fifo": list(self._fifo), "delays": delays}

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        machine = PlainMachine()
        machine.speed = self._machine.speed
        try:
            machine.load(state["machine"], jobs)
            fifo = OrderedDict[JobId, None].fromkeys(j for j in state["fifo"] if j in jobs and j not in machine)
            delays = {JobId(j): Delay(**d) for j, d in state["delays"].items() if j in fifo}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a state of policy asrpt: {error!r}") from error
        self._machine, self._fifo, self._delays = machine, fifo, delays
        self._jobs = {job_id: jobs[job_id] for job_id in (*self._fifo, *(r[0] for r in self._machine.remaining()))}
        self._last.clear()


def _imagined(job: Job, nodes: Sequence[Node]) -> tuple[Job, Sequence[Node]]:
    """A job that does not fit on the present nodes (some may be down), with enough nodes of the largest kind."""
    shape = Request(per_node=job.request.per_node, unit=job.request.unit)
    largest = max([node.gpus for node in nodes] + [job.request.per_node or job.request.unit])
    return replace(job, request=shape), [Node(str(i), largest, i) for i in range(job.gpus)]
