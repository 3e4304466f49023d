"""A-SRPT, the paper's Algorithm 1, in continuous time (DESIGN.md section 3 has what the paper leaves open)."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement, capacity, with_reference_gpus
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, JobProfile, Request
from slurm_asrpt.core.placement.best_alpha import best_alpha, fits, worst_alpha
from slurm_asrpt.core.placement.selection import Strategy
from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.core.policies.asrpt.fifo import Fifo
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
_WAITING, _DELAYED = Phase.WAITING, Phase.DELAYED  # lookups of enum members are slow


@dataclass(slots=True)
class Delay:
    """The delay of a communication-heavy job: its first alpha (kappa) and its deadline, seconds."""

    kappa: float
    deadline: float


@dataclass(slots=True)
class Kind:
    """The common properties of jobs of one profile and form of request on the current nodes.

    best, worst: α̃_min and α_max, seconds per iteration; reference: α̃_min on reference GPUs only.
    fits: whether the nodes can hold such a job at all.
    heavy: communication-heavy (line 8). strategy: the order in which servers are considered.
    profile: one of the equal profiles.
    placement, state: the placement found in state number ``state`` of the cluster, as counted by the policy.
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
"""A job on the virtual machine, and its kind."""


class ASrpt(Policy):
    """Adaptive SRPT: a virtual machine orders the jobs, a FIFO starts them, communication-heavy jobs may be delayed.

    tau: a delayed job starts at most tau (g_i/G) ñ_i α̃_i seconds after its turn.
    comm_heavy: COMM_HEAVY, for α_max/α̃_min (the class) and for α/α̃_min (good enough to start).
    delay: "block": a delayed job blocks the jobs behind it; "aside": jobs behind it may pass until its deadline.
    contention: no bandwidth is reserved; α depends on the started jobs that use the same NICs, and servers whose NICs
        are not in use are tried, too.
    """

    Options = AsrptOptions
    start_key = ("place_in_fifo",)
    split = Split.PAPER

    def __init__(self, fabric: Fabric, options: AsrptOptions) -> None:
        super().__init__(fabric, options)
        self.tau, self.comm_heavy = options.tau, options.comm_heavy
        self.contention = NicContention(fabric) if options.contention else None
        self.aside = options.delay == "aside"
        self._nodes: tuple[Node, ...] = ()
        self._reference_nodes: Sequence[Node] = ()  # the same with reference GPUs
        self._kinds: dict[Hashable, Kind] = {}
        self._plain_kinds: dict[int, Kind] = {}  # for plain requests, by id() of the kind's profile
        self._machine = VirtualMachine()
        self._virtual: dict[JobId, Waiting] = {}  # the jobs on the machine
        self._fifo: Fifo[Kind] = Fifo()
        self._delays: dict[JobId, Delay] = {}
        self._deadlines: list[tuple[float, JobId]] = []  # heap; outdated entries are dropped at the top
        self._last: dict[JobId, Reason] = {}
        self._left: Plan | None = None  # the cluster after the last walk through the FIFO
        self._stuck: tuple[Wait, ...] = ()  # the last decision, if it stays the same until (see decide)
        self._need = 0  # this number of GPUs is free
        self._until = 0.0  # or, in the same state of the cluster, this time is reached
        self._blocked = False  # whether a job of the FIFO blocked the jobs behind it in the last decision
        self._decided = 0.0  # time of the last decision
        self._state = 0  # counts the states of the cluster; the current one:
        self._cluster: ClusterView | None = None  # its view, and the view's version
        self._version = -1

    # events

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self._advance(now)
        self._nodes, self._reference_nodes = tuple(nodes), with_reference_gpus(nodes)
        self._machine.speed = capacity(nodes) or 1.0
        self._clear_kinds()
        for job_id, (job, _) in self._virtual.items():
            self._virtual[job_id] = job, self._kind(job)
        for job, _ in self._fifo.jobs():
            self._fifo.replace(job, self._kind(job))
        self._discard_last()

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
        if self.contention is not None:
            self.contention.ended(job.id)
        self._discard_last()
        self._fifo.put_first(job, self._kind(job))

    def changed(self, job: Job, now: float) -> None:
        self._advance(now)
        if job.id in self._virtual:
            self._virtual[job.id] = job, self._kind(job)
            self._discard_last()
        if job.id in self._fifo:
            self._fifo.replace(job, self._kind(job))
            self._discard_last()

    def finished(self, job_id: JobId, now: float) -> None:
        if self.contention is not None:
            self.contention.ended(job_id)
        if job_id in self._fifo or job_id in self._virtual:  # ends of running jobs do not matter here
            self._advance(now)
            self._machine.remove(job_id)
            self._virtual.pop(job_id, None)
            self._discard_last()
            self._forget(job_id)

    def _discard_last(self) -> None:
        """Discard the last decision, which no longer predicts the next one."""
        self._stuck, self._blocked, self._cluster = (), False, None

    def _advance(self, now: float) -> None:
        """Line 2: jobs that completed on the virtual machine join the tail of the FIFO."""
        for job_id in self._machine.advance(now):
            self._fifo.append(*self._virtual.pop(job_id))

    def _forget(self, job_id: JobId) -> None:
        self._fifo.remove(job_id)
        self._last.pop(job_id, None)
        if self._delays:
            self._delays.pop(job_id, None)

    def _kind(self, job: Job) -> Kind:
        if job.request is not ANYWHERE:
            return self._cached_kind((job.profile, job.request), job)
        # nearly all simulated jobs are plain, and hashing a profile is slow
        found = self._plain_kinds.get(id(job.profile))
        if found is None:
            found = self._cached_kind(job.profile, job)
            self._plain_kinds[id(found.profile)] = found
        return found

    def _cached_kind(self, key: Hashable, job: Job) -> Kind:
        found = self._kinds.get(key)
        if found is None:
            if len(self._kinds) >= _KINDS:  # a daemon runs for years
                self._clear_kinds()
            found = self._kinds[key] = self._new_kind(job)
        return found

    def _clear_kinds(self) -> None:
        self._kinds.clear()
        self._plain_kinds.clear()

    def _new_kind(self, job: Job) -> Kind:
        can_run = fits(job, self._nodes)
        arguments = (job, self._nodes) if can_run else _hypothetical(job, self._nodes)
        best = self._best(*arguments)
        reference = self._best(job, self._reference_nodes) if can_run else best
        worst = max(best, worst_alpha(job, self._nodes, self.fabric))
        if not job.communication_known:  # its communication is unknown
            return Kind(best, worst, reference, can_run, False, Strategy.TIGHTEST, job.profile)
        heavy = worst / best >= self.comm_heavy
        strategy = Strategy.MOST_FREE if heavy else Strategy.LEAST_FREE
        return Kind(best, worst, reference, can_run, heavy, strategy, job.profile)

    def _best(self, job: Job, nodes: Sequence[Node]) -> float:
        return (
            best_alpha(job, nodes, self.fabric) if self.contention is None else self.contention.best_alpha(job, nodes)
        )

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        self._decided = now
        if now >= self._machine.end:
            self._advance(now)
        fifo = self._fifo
        if not fifo.plain and not fifo.line_of:
            return ()
        if fifo.line_of and self._limits_have_moved(cluster):
            self._stuck = ()
        if self._stuck and cluster.total_free < self._need and not cluster.overdrawn:
            return self._still_stuck(cluster.total_free)
        if cluster is not self._cluster or cluster.version != self._version:
            self._cluster, self._version = cluster, cluster.version
            self._state += 1
        elif self._stuck and now < self._until:
            return self._still_delayed(self._until - now)
        return self._walk(Plan(cluster), now)

    def _limits_have_moved(self, cluster: ClusterView) -> bool:
        """Whether jobs that a limit held may start again, or one holds the job that blocked the others."""
        released = self._fifo.release(cluster.headroom)
        return released or (bool(self._stuck) and cluster.headroom.exceeded(self._stuck[-1].job.charges) is not None)

    def _still_stuck(self, free: int) -> tuple[Wait, ...]:
        """The same decision at almost no cost, for the common case of a head of the queue that is still blocked."""
        if self._stuck[-1].reason.facts["free"] != free:
            self._update_facts({"need": self._need, "free": free})
        return self._stuck

    def _still_delayed(self, left: float) -> tuple[Wait, ...]:
        """The same decision for a head that still waits for better servers than the cluster has."""
        self._update_facts({**self._stuck[-1].reason.facts, "left_s": left})
        return self._stuck

    def _update_facts(self, facts: Mapping[str, Any]) -> None:
        """Update the facts in the reason of the blocking job."""
        *others, wait = self._stuck
        why = self._last[wait.job.id] = Reason(wait.reason.phase, wait.reason.kind, facts)
        self._stuck = (*others, Wait(wait.job, why, wait.until))

    def _walk(self, plan: Plan, now: float) -> list[Decision]:
        """Consider the jobs of the FIFO in order."""
        decisions: list[Decision] = []
        started: list[JobId] = []
        waits: list[Wait] = []
        self._blocked, self._left = False, plan
        for _, job, kind in self._fifo.within_limits(plan):
            found = self._consider(job, kind, plan, now)
            if isinstance(found, Placement):
                plan.add(job, found)
                self._state += 1
                started.append(job.id)
                decisions.append(Start(job, found, (len(decisions),)))
                if self.contention is not None:
                    self.contention.started(job.id, found, job.profile)
                continue
            decisions.append(found)
            waits.append(found)
            self._last[job.id] = found.reason
            if not self._may_pass(job.id, found.reason, now):
                self._blocked = True
                break
        if started:  # the cluster will change, and started jobs leave the FIFO
            self._cluster = None
            for job_id in started:
                self._forget(job_id)
        self._stuck = ()
        if self._blocked:
            self._store_if_stuck(waits)
        return decisions

    def _store_if_stuck(self, waits: list[Wait]) -> None:
        """Store the decision if it stays the same until the blocking job may start: no other job can ever start."""
        *others, blocked = waits
        if any(wait.reason.kind != "capacity" for wait in others):
            return
        job, kind = blocked.job, blocked.reason.kind
        if kind == "gpus" and job.request is ANYWHERE:
            self._stuck, self._need, self._until = tuple(waits), job.gpus, -_NEVER
        elif kind == "placement":
            self._stuck, self._need, self._until = tuple(waits), 0, self._delays[job.id].deadline

    def _may_pass(self, job_id: JobId, why: Reason, now: float) -> bool:
        """Whether jobs may pass a waiting job. A job that is too large for the cluster never blocks.

        With delay "aside", others may pass a delayed job only until its deadline: later, smaller jobs could starve it.
        """
        if why.kind in ("capacity", "over-limit"):
            return True
        return self.aside and job_id in self._delays and now < self._delays[job_id].deadline

    def _consider(self, job: Job, kind: Kind, plan: Plan, now: float) -> Placement | Wait:
        """Lines 5-23 for one job: its placement, or why it waits."""
        if not kind.fits:
            return Wait(job, reason(_WAITING, "capacity", need=job.gpus))
        free = plan.free
        if job.gpus > free:
            if job.request is ANYWHERE and plan.counts_only and not self._delays:  # the result of no_room, but faster
                return Wait(job, Reason(_WAITING, "gpus", {"need": job.gpus, "free": free}))
            return self._no_room(job, plan)
        if kind.state != self._state:  # jobs of one kind have the same placement
            kind.placement, kind.state = plan.place(job, kind.strategy, self.fabric), self._state
            if self.contention is not None:
                kind.placement = self.contention.least_contended(plan.view(), job, kind.strategy, kind.placement)
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
        """Lines 15-20: delay a job that would get bad servers at its first turn."""
        alone = job.gpus * job.predicted_iterations * kind.reference / self._machine.speed
        delay = self._delays[job.id] = Delay(kappa=placement.alpha, deadline=now + self.tau * alone)
        heapq.heappush(self._deadlines, (delay.deadline, job.id))
        return delay

    def _no_room(self, job: Job, plan: Plan) -> Wait:
        delay = self._delays.get(job.id)
        return Wait(job, no_room(job, plan), None if delay is None else delay.deadline)

    def next_wakeup(self, now: float) -> float | None:
        """The next deadline, or when a job joins the FIFO, unless a blocked head would keep it from starting."""
        wake = _NEVER if self._blocked else self._machine.end
        if self._deadlines:
            wake = min(wake, self._next_deadline(now))
        return None if wake == _NEVER else wake

    def _next_deadline(self, now: float) -> float:
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or not self._is_current(*deadlines[0])):
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else _NEVER

    def _is_current(self, deadline: float, job_id: JobId) -> bool:
        delay = self._delays.get(job_id)
        return delay is not None and delay.deadline == deadline

    # what users see, and restarts

    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        self._advance(now)
        rows: list[tuple[JobId, Reason]] = []
        blocker: JobId | None = None
        for ahead, (job, kind) in enumerate(self._fifo.jobs()):
            why = self._limited(job, kind) or self._last.get(job.id)
            if why is None or (blocker is not None and why.kind != "over-limit"):
                why = behind(job.id, ahead, blocker)
            elif not self._may_pass(job.id, why, now):
                blocker = job.id
            rows.append((job.id, why))
        for job_id, left, work in self._machine.remaining():
            facts = {"remaining_s": left / self._machine.speed, "work_s": work / self._machine.speed}
            rows.append((job_id, reason(Phase.VIRTUAL, "virtual", **facts)))
        return rows

    def _limited(self, job: Job, kind: Kind) -> Reason | None:
        if not kind.fits or not job.charges or self._left is None:
            return None
        return over_limit(job, self._left)

    def dump(self) -> dict[str, Any]:
        self._advance(self._decided)  # the virtual machine may be behind
        delays = {job_id: asdict(delay) for job_id, delay in self._delays.items()}
        return {"machine": self._machine.dump(), "fifo": [job.id for job, _ in self._fifo.jobs()], "delays": delays}

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
        self._fifo = Fifo()
        for job_id in fifo:
            self._fifo.append(jobs[job_id], self._kind(jobs[job_id]))
        self._virtual = {job_id: (jobs[job_id], self._kind(jobs[job_id])) for job_id, *_ in machine.remaining()}
        self._last.clear()
        self._discard_last()


def _hypothetical(job: Job, nodes: Sequence[Node]) -> tuple[Job, Sequence[Node]]:
    """A job that is too large for the current nodes (some may be down), and enough nodes of the largest size for it."""
    shape = Request(per_node=job.request.per_node, unit=job.request.unit)
    largest = max([node.gpus for node in nodes] + [job.request.per_node or job.request.unit])
    return replace(job, request=shape), [Node(str(i), largest, i) for i in range(job.gpus)]
