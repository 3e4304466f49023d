"""A-SRPT, the paper's Algorithm 1, in continuous time (DESIGN.md section 3 states what the paper leaves open)."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement, all_alike, capacity
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, JobProfile, Request
from slurm_asrpt.core.placement.selection import Strategy, best_alpha, fits, worst_alpha
from slurm_asrpt.core.policies.asrpt.options import AsrptOptions
from slurm_asrpt.core.policies.asrpt.virtual_machine import VirtualMachine
from slurm_asrpt.core.policies.base import (
    Decision,
    Phase,
    Policy,
    Reason,
    Start,
    Wait,
    behind,
    no_room,
    over_limit,
    reason,
)
from slurm_asrpt.core.policies.nic_contention import NicContention

_NEVER = float("inf")
_KINDS = 65536
_WAITING, _DELAYED = Phase.WAITING, Phase.DELAYED  # looking up a member of an enum costs more than it should


@dataclass(slots=True)
class Delay:
    """A communication-heavy job that waits for better servers: its first alpha (kappa) and its deadline."""

    kappa: float
    deadline: float


@dataclass(slots=True)
class Kind:
    """What jobs of one profile and form of request have in common on the present nodes.

    best, worst: α̃_min and α_max, seconds per iteration; reference: α̃_min if all GPUs were reference GPUs.
    fits: whether the nodes can hold such a job at all.
    heavy: communication-heavy (line 8). strategy: in which order servers are considered.
    profile: one of those that are equal.
    placement, state: the placement that was found in that state of the cluster, counted by the policy.
    """

    best: float
    worst: float
    reference: float
    fits: bool
    heavy: bool
    strategy: Strategy
    profile: JobProfile
    placement: Placement | None = None
    state: int = -1


Waiting = tuple[Job, Kind]
"""A job on the virtual machine or in the FIFO, and what it is like."""


class ASrpt(Policy):
    """Adaptive SRPT: a virtual machine orders the jobs, a FIFO starts them, communication-heavy ones may be delayed.

    tau: a delayed job starts at the latest tau (g_i/G) ñ_i α̃_i seconds after its turn.
    comm_heavy: COMM_HEAVY, on α_max/α̃_min for the class and on α/α̃_min for "good enough to start".
    delay: "block": a delayed job holds back all behind it; "aside": it leaves the FIFO and is tried first each time.
    contention: no bandwidth is reserved: α counts the jobs started here that leave the same servers, and servers that
        nobody leaves are tried too.
    """

    Options = AsrptOptions
    start_key = ("place_in_fifo",)

    def __init__(self, fabric: Fabric, options: AsrptOptions) -> None:
        super().__init__(fabric, options)
        self.tau, self.comm_heavy = options.tau, options.comm_heavy
        self._contention = NicContention(fabric) if options.contention else None
        self.aside = options.delay == "aside"
        self._nodes: tuple[Node, ...] = ()
        self._alike: Sequence[Node] = ()  # the same with reference GPUs
        self._kinds: dict[Hashable, Kind] = {}
        self._plain_kinds: dict[int, Kind] = {}  # of plain requests, by the id() of the profile that the kind has
        self._machine = VirtualMachine()
        self._virtual: dict[JobId, Waiting] = {}  # the jobs on the machine
        self._fifo: OrderedDict[JobId, Waiting] = OrderedDict()  # ordered: canceled jobs leave from the middle
        self._delays: dict[JobId, Delay] = {}
        self._deadlines: list[tuple[float, JobId]] = []  # heap of the delays; what is over is dropped when it comes up
        self._last: dict[JobId, Reason] = {}
        self._stuck: tuple[Wait, ...] = ()  # the last answer, if it is the same again until (see decide)
        self._need = 0  # so many GPUs are free, anywhere
        self._until = 0.0  # or, in the same state of the cluster, this time has come
        self._blocked = False  # whether a job of the FIFO held back all behind it when last looked at
        self._decided = 0.0  # when last
        self._state = 0  # counts the states of the cluster that the policy has seen; the present one is:
        self._cluster: ClusterView | None = None  # a view, and its version
        self._version = -1

    # events

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self._advance(now)
        self._nodes, self._alike = tuple(nodes), all_alike(nodes)
        self._machine.speed = capacity(nodes) or 1.0
        self._clear_kinds()
        for jobs in (self._virtual, self._fifo):
            for job_id, (job, _) in jobs.items():
                jobs[job_id] = job, self._kind(job)
        self._look_again()

    def submitted(self, job: Job, now: float) -> bool:
        machine = self._machine
        if now >= machine.end:
            self._advance(now)
        kind = self._kind(job)
        self._virtual[job.id] = job, kind
        machine.add(job.id, job.gpus * job.predicted_iterations * kind.reference, job.submit_time, now)
        if now >= machine.end:
            self._advance(now)
        return bool(self._stuck)  # it will join the FIFO behind the job that blocks

    def returned(self, job: Job, now: float) -> None:
        self._advance(now)
        if self._contention is not None:
            self._contention.ended(job.id)
        self._look_again()
        self._fifo[job.id] = job, self._kind(job)
        self._fifo.move_to_end(job.id, last=False)

    def changed(self, job: Job, now: float) -> None:
        self._advance(now)
        for jobs in (self._virtual, self._fifo):
            if job.id in jobs:
                jobs[job.id] = job, self._kind(job)
                self._look_again()

    def finished(self, job_id: JobId, now: float) -> None:
        if self._contention is not None:
            self._contention.ended(job_id)
        if job_id in self._fifo or job_id in self._virtual:  # the end of a running job is nothing to us
            self._advance(now)
            self._machine.remove(job_id)
            self._virtual.pop(job_id, None)
            self._look_again()
            self._forget(job_id)

    def _look_again(self) -> None:
        """The last decision no longer says anything about the next."""
        self._stuck, self._blocked, self._cluster = (), False, None

    def _advance(self, now: float) -> None:
        """Line 2: what completed on the virtual machine joins the tail of the FIFO."""
        for job_id in self._machine.advance(now):
            self._fifo[job_id] = self._virtual.pop(job_id)

    def _forget(self, job_id: JobId) -> None:
        self._fifo.pop(job_id, None)
        self._last.pop(job_id, None)
        if self._delays:
            self._delays.pop(job_id, None)

    def _kind(self, job: Job) -> Kind:
        if job.request is not ANYWHERE:
            return self._kind_like((job.profile, job.request), job)
        # nearly every simulated job is plain, and hashing its profile would cost more than all the rest here
        found = self._plain_kinds.get(id(job.profile))
        if found is None:
            found = self._kind_like(job.profile, job)
            self._plain_kinds[id(found.profile)] = found
        return found

    def _kind_like(self, key: Hashable, job: Job) -> Kind:
        found = self._kinds.get(key)
        if found is None:
            if len(self._kinds) >= _KINDS:  # a daemon runs for years
                self._clear_kinds()
            found = self._kinds[key] = self._worked_out(job)
        return found

    def _clear_kinds(self) -> None:
        self._kinds.clear()
        self._plain_kinds.clear()

    def _worked_out(self, job: Job) -> Kind:
        there = fits(job, self._nodes)
        whom = (job, self._nodes) if there else _imagined(job, self._nodes)
        best = self._best(*whom)
        reference = self._best(job, self._alike) if there else best
        worst = max(best, worst_alpha(job, self._nodes, self.fabric))
        if not job.profiled:  # nothing is known of what it sends
            return Kind(best, worst, reference, there, False, Strategy.TIGHTEST, job.profile)
        heavy = worst / best >= self.comm_heavy
        strategy = Strategy.MOST_FREE if heavy else Strategy.LEAST_FREE
        return Kind(best, worst, reference, there, heavy, strategy, job.profile)

    def _best(self, job: Job, nodes: Sequence[Node]) -> float:
        return (
            best_alpha(job, nodes, self.fabric) if self._contention is None else self._contention.best_alpha(job, nodes)
        )

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        self._decided = now
        if now >= self._machine.end:
            self._advance(now)
        if not self._fifo:
            return ()
        if self._stuck and cluster.total_free < self._need and not cluster.overdrawn:
            return self._still_stuck(cluster.total_free)
        if cluster is not self._cluster or cluster.version != self._version:
            self._cluster, self._version = cluster, cluster.version
            self._state += 1
        elif self._stuck and now < self._until:
            return self._still_delayed(self._until - now)
        return self._walk(Plan(cluster), now)

    def _still_stuck(self, free: int) -> tuple[Wait, ...]:
        """An answer at next to no cost: mostly the head of the queue is blocked as it was."""
        if self._stuck[-1].reason.facts["free"] != free:
            self._say_instead({"need": self._need, "free": free})
        return self._stuck

    def _still_delayed(self, left: float) -> tuple[Wait, ...]:
        """The same for a head that waits for better servers than the cluster has in its present state."""
        self._say_instead({**self._stuck[-1].reason.facts, "left_s": left})
        return self._stuck

    def _say_instead(self, facts: Mapping[str, Any]) -> None:
        """Nothing has changed for the job that blocks but the evidence."""
        *others, wait = self._stuck
        why = self._last[wait.job.id] = Reason(wait.reason.phase, wait.reason.kind, facts)
        self._stuck = (*others, Wait(wait.job, why, wait.until))

    def _walk(self, plan: Plan, now: float) -> list[Decision]:
        """Look at one job of the FIFO after the other."""
        decisions: list[Decision] = []
        started: list[JobId] = []
        waits: list[Wait] = []
        self._blocked = False
        for job, kind in self._fifo.values():
            found = self._consider(job, kind, plan, now)
            if isinstance(found, Placement):
                plan.add(job, found)
                self._state += 1
                started.append(job.id)
                decisions.append(Start(job, found, (len(decisions),)))
                if self._contention is not None:
                    self._contention.started(job.id, found, job.profile)
                continue
            decisions.append(found)
            waits.append(found)
            self._last[job.id] = found.reason
            if not self._may_pass(job.id, found.reason, now):
                self._blocked = True
                break
        if started:  # is gone from here, and the cluster will not be what it was
            self._cluster = None
            for job_id in started:
                self._forget(job_id)
        self._stuck = ()
        if self._blocked:
            self._keep_in_mind(waits)
        return decisions

    def _keep_in_mind(self, waits: list[Wait]) -> None:
        """Whether the answer is the same until something happens to the job that blocks: others can never start."""
        *others, blocked = waits
        if any(wait.reason.kind != "capacity" for wait in others):
            return
        job, kind = blocked.job, blocked.reason.kind
        if kind == "gpus" and job.request is ANYWHERE:
            self._stuck, self._need, self._until = tuple(waits), job.gpus, -_NEVER
        elif kind == "placement":
            self._stuck, self._need, self._until = tuple(waits), 0, self._delays[job.id].deadline

    def _may_pass(self, job_id: JobId, why: Reason, now: float) -> bool:
        """Whether the jobs behind a waiting one are looked at. One that no cluster of ours can hold never blocks.

        A job that waits aside lets others pass until its deadline, not beyond: smaller ones could pass it for ever.
        """
        if why.kind in ("capacity", "over-limit"):
            return True
        return self.aside and job_id in self._delays and now < self._delays[job_id].deadline

    def _consider(self, job: Job, kind: Kind, plan: Plan, now: float) -> Placement | Wait:
        """Lines 5-23 for one job: where it starts, or why it does not."""
        if not kind.fits:
            return Wait(job, reason(_WAITING, "capacity", need=job.gpus))
        limited = over_limit(job, plan) if job.charges else None
        if limited is not None:
            return Wait(job, limited)
        free = plan.free
        if job.gpus > free:
            if job.request is ANYWHERE and plan.memoryless and not self._delays:  # what no_room would find out
                return Wait(job, Reason(_WAITING, "gpus", {"need": job.gpus, "free": free}))
            return self._no_room(job, plan)
        if kind.state != self._state:  # one of a kind is as good as another
            kind.placement, kind.state = plan.place(job, kind.strategy, self.fabric), self._state
            if self._contention is not None:
                kind.placement = self._contention.quietest(plan.view(), job, kind.strategy, kind.placement)
        placement = kind.placement
        if placement is None:
            return self._no_room(job, plan)
        if kind.heavy and placement.alpha / kind.best > self.comm_heavy:
            delay = self._delays.get(job.id) or self._begin_delay(job, kind, placement, now)
            if placement.alpha >= delay.kappa and now < delay.deadline:
                ratio, nodes = placement.alpha / kind.best, dict(placement.gpus)
                why = reason(_DELAYED, "placement", left_s=delay.deadline - now, ratio=ratio, nodes=nodes)
                return Wait(job, why, delay.deadline)
        return placement

    def _begin_delay(self, job: Job, kind: Kind, placement: Placement, now: float) -> Delay:
        """Lines 15-20: a job waits for better servers than it would get at its first turn."""
        alone = job.gpus * job.predicted_iterations * kind.reference / self._machine.speed
        delay = self._delays[job.id] = Delay(kappa=placement.alpha, deadline=now + self.tau * alone)
        heapq.heappush(self._deadlines, (delay.deadline, job.id))
        return delay

    def _no_room(self, job: Job, plan: Plan) -> Wait:
        delay = self._delays.get(job.id)
        return Wait(job, no_room(job, plan), None if delay is None else delay.deadline)

    def next_wakeup(self, now: float) -> float | None:
        """A deadline, or when a job joins a FIFO in which nobody blocks: behind a blocked head it could not start."""
        wake = _NEVER if self._blocked else self._machine.end
        if self._deadlines:
            wake = min(wake, self._next_deadline(now))
        return None if wake == _NEVER else wake

    def _next_deadline(self, now: float) -> float:
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or not self._stands(*deadlines[0])):
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else _NEVER

    def _stands(self, deadline: float, job_id: JobId) -> bool:
        delay = self._delays.get(job_id)
        return delay is not None and delay.deadline == deadline

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

    def dump(self) -> dict[str, Any]:
        self._advance(self._decided)  # time has passed on the virtual machine, if nothing more
        delays = {job_id: asdict(delay) for job_id, delay in self._delays.items()}
        return {"machine": self._machine.dump(), "fifo": list(self._fifo), "delays": delays}

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        machine = VirtualMachine()
        machine.speed = self._machine.speed
        try:
            machine.load(state["machine"], jobs)
            fifo = {JobId(j): None for j in state["fifo"] if j in jobs and j not in machine}
            delays = {JobId(j): Delay(**d) for j, d in state["delays"].items() if j in fifo}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a state of policy asrpt: {error!r}") from error
        self._machine, self._delays = machine, delays
        self._deadlines = sorted((delay.deadline, job_id) for job_id, delay in delays.items())
        self._fifo = OrderedDict((job_id, (jobs[job_id], self._kind(jobs[job_id]))) for job_id in fifo)
        self._virtual = {job_id: (jobs[job_id], self._kind(jobs[job_id])) for job_id, *_ in machine.remaining()}
        self._last.clear()
        self._look_again()


def _imagined(job: Job, nodes: Sequence[Node]) -> tuple[Job, Sequence[Node]]:
    """A job that the present nodes cannot hold (some may be down), on as many of the largest kind as it needs."""
    shape = Request(per_node=job.request.per_node, unit=job.request.unit)
    largest = max([node.gpus for node in nodes] + [job.request.per_node or job.request.unit])
    return replace(job, request=shape), [Node(str(i), largest, i) for i in range(job.gpus)]
