"""The base class of policies, typed decisions, and reasons that several policies use."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypeGuard, runtime_checkable

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, Request, gres_text
from slurm_asrpt.core.placement.selection import has_room
from slurm_asrpt.core.placement.splitter import Split
from slurm_asrpt.core.policies.options import PolicyOptions
from slurm_asrpt.core.reasons import Phase as Phase
from slurm_asrpt.core.reasons import Reason as Reason
from slurm_asrpt.core.reasons import behind as behind
from slurm_asrpt.core.reasons import reason as reason
from slurm_asrpt.core.slurm_preemption import PreemptableJob


@dataclass(slots=True)  # not frozen, at half the cost: a simulation creates one per event
class Start:
    """Start the job now in this placement. key: its sort key in the queue; ``key_names`` names the parts.

    victims: the running jobs that Slurm is expected to preempt for it. filling: the waiting job for which its GPUs are
    kept; it is preempted when that one can start.
    """

    job: Job
    placement: Placement
    key: tuple[Any, ...] = field(default=(), compare=False)
    victims: tuple[PreemptableJob, ...] = ()
    filling: Job | None = None


@dataclass(slots=True)
class Wait:
    """The job waits, for this reason. until: when the policy considers it again, seconds; None: at the next event."""

    job: Job
    reason: Reason
    until: float | None = None


@dataclass(slots=True)
class Preempt:
    """Preempt this running job for the waiting job ``head``: asrptd signals and requeues it; it resumes later.

    Preemption by Slurm is part of a ``Start`` instead (``victims``).
    """

    job_id: JobId
    head: Job
    reason: Reason


Decision = Start | Wait | Preempt


class Policy(ABC):
    """Events in, decisions out. A policy reads no clock, never sleeps and does no I/O.

    Options: the model of its settings. start_key: the names of the first parts of ``Start.key``. bands: whether it
    starts jobs of a lower ``Job.band`` first, and divides work by ``Job.weight`` if it orders by work. preempting:
    whether it starts jobs on GPUs of those that they may preempt (``ClusterView.preemptable``). split: how a simulated
    cluster splits GPUs under it, unless told otherwise; on a real one, Slurm splits them.
    ``queue_policy.QueuePolicy`` implements all but the order of the jobs.
    """

    Options: ClassVar[type[PolicyOptions]] = PolicyOptions
    start_key: ClassVar[tuple[str, ...]] = ()
    bands: ClassVar[bool] = False
    preempting: ClassVar[bool] = False
    split: Split = Split.SLURM

    def __init__(self, fabric: Fabric, options: PolicyOptions) -> None:
        self.fabric, self.options = fabric, options

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:  # noqa: B027 (not every policy needs them)
        """Set the nodes that may run jobs from now on; called at least once, before the first job."""

    @abstractmethod
    def submitted(self, job: Job, now: float) -> bool:
        """A job has become eligible.

        Returns True if it changes neither what starts nor the next wake-up until another event occurs.
        """

    @abstractmethod
    def returned(self, job: Job, now: float) -> None:
        """A started job did not run because Slurm rejected it: it waits again at the head of the queue."""

    @abstractmethod
    def changed(self, job: Job, now: float) -> None:
        """The request of a waiting job or its candidate nodes changed; it keeps its place in the queue."""

    @abstractmethod
    def finished(self, job_id: JobId, now: float) -> None:
        """A job is gone: a started job ended, or a waiting job was canceled or started by Slurm itself.

        Unknown IDs are ignored.
        """

    @abstractmethod
    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        """The jobs that start now, and why others do not. A started job leaves the policy's queue.

        ``queue`` may read ``cluster`` afterwards: a caller that goes on with ``queue`` must not change it.
        """

    def started_by_slurm(self, job_id: JobId, gpus: Mapping[str, int], now: float) -> None:
        """Slurm has started a waiting job on these GPUs by itself."""
        self.finished(job_id, now)

    def next_starts(self, most: int) -> Sequence[JobId]:
        """The waiting jobs that would start next, in this order, on whatever server a job's end makes room for them.

        As of the last decision; at most ``most``, and as many that a limit holds and the end of a job may let start.
        Empty if Slurm, which goes by their order alone, might start another one than the policy.
        """
        return ()

    def scatters(self, job: Job) -> bool:
        """Whether the policy lets a job of ``next_starts`` start on any number of servers, wherever GPUs are free."""
        return False

    def next_wakeup(self, now: float) -> float | None:
        """When the policy must decide again even without an event; None: only after events."""
        return None

    @abstractmethod
    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        """Every waiting job with the reason for its wait, in the order in which the policy intends to start them."""

    @abstractmethod
    def dump(self) -> dict[str, Any]:
        """The saved state, as JSON values, from which ``load`` continues after a restart."""

    @abstractmethod
    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        """Restore a saved state; jobs that are not in ``jobs`` are dropped. Raises ValueError for an invalid state."""


def band_of(share: float, bands: int) -> int:
    """The band, 0 to ``bands`` - 1, of a fair-share factor: bands of equal width from 1 (least usage) down to 0."""
    return min(bands - 1, int((1.0 - min(1.0, max(0.0, share))) * bands))


def head_rank(job: Job, returns: int) -> float:
    """The rank of a returned job: before all others of its band, above the next band. returns: jobs returned so far.

    The job that was returned last goes first.
    """
    return job.band - returns / (returns + 1)


def before_band(order: Sequence[Job]) -> list[int]:
    """For each job of a queue how many of a higher priority (a lower band) are ahead. order: sorted by band."""
    found, first = list[int](), 0
    for at, job in enumerate(order):
        if at and job.band != order[at - 1].band:
            first = at
        found.append(first)
    return found


def updated_rank(job: Job, rank: float) -> float:
    """The new rank of a waiting job: a returned job stays before the others of its band; any other has its band."""
    if rank < 0 and rank == int(rank):  # of a returned job, in a state saved before 2026-11-24
        return head_rank(job, -int(rank))
    ahead = math.ceil(rank) - rank
    return job.band - ahead if ahead else job.band


@runtime_checkable
class SeesRunning(Protocol):
    """A policy that uses the expected ends of running jobs, including jobs that it has not started."""

    def running(self, job_id: JobId, gpus: Mapping[str, int], until: float, now: float) -> None:
        """A job runs on these GPUs per node, until its time limit at the latest (seconds; inf without one).

        Called for every running job, including the policy's own starts, before ``decide``; ``finished`` ends it.
        """


@dataclass(frozen=True, slots=True)
class PreemptibleRun:
    """A running job that a policy may preempt (``Preempt``); or GPUs of a node that still cleans up.

    gpus: by node. service: GPU-seconds attained in its earlier runs; they increase by ``rate`` per second in this one.
    since: start of this run, seconds. interruptions: number of preemptions so far. ending: it is being preempted.
    held: the CPUs and memory that it frees with its GPUs. cleaning: no job runs there; its ID is the node's name.
    """

    job_id: JobId
    gpus: Mapping[str, int]
    service: float
    rate: float
    since: float
    interruptions: int = 0
    ending: bool = False
    held: Request = ANYWHERE
    cleaning: bool = False

    def service_at(self, now: float) -> float:
        """GPU-seconds attained at that time."""
        return self.service + self.rate * max(0.0, now - self.since)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> PreemptibleRun:
        """From its fields as JSON values. Raises KeyError, TypeError, ValueError, AttributeError."""
        return cls(
            job_id=JobId(raw["job_id"]),
            gpus={str(name): int(count) for name, count in raw["gpus"].items()},
            service=float(raw["service"]),
            rate=float(raw["rate"]),
            since=float(raw["since"]),
            interruptions=int(raw["interruptions"]),
            ending=bool(raw["ending"]),
            held=Request(**raw["held"]),
            cleaning=bool(raw.get("cleaning")),  # older states have none
        )


@runtime_checkable
class PreemptivePolicy(Protocol):
    """A policy that may decide ``Preempt``; if ``interrupts`` is set."""

    interrupts: bool

    def served(self, waiting: Mapping[JobId, float], runs: Sequence[PreemptibleRun], now: float) -> None:
        """The attained service so far, called before ``submitted`` and ``decide``.

        waiting: GPU-seconds attained by waiting jobs that have run before. runs: all jobs that may be preempted, and
        GPUs whose nodes clean up: whoever waits for these preempts nobody.
        """


@runtime_checkable
class HasQueues(Protocol):
    """A policy that orders jobs by attained service."""

    def queue_of(self, service: float) -> int:
        """The queue, from 0, of a job with this attained service in GPU-seconds."""


def may_interrupt(policy: object) -> TypeGuard[PreemptivePolicy]:
    """Whether a policy preempts running jobs."""
    return isinstance(policy, PreemptivePolicy) and policy.interrupts


@runtime_checkable
class PredictsByLoss(Protocol):
    """A policy that uses the sizes of jobs which asrptd predicts from reported losses; if ``by_loss`` is set.

    alpha_gpu_s: of so many further GPU-seconds it is predicted whether a job will attain them.
    """

    by_loss: bool
    alpha_gpu_s: float

    def expected(self, sizes: Mapping[JobId, float]) -> None:
        """The GPU-seconds that jobs are expected to attain in all, called before ``served``; none for other jobs."""


def predicts_by_loss(policy: object) -> TypeGuard[PredictsByLoss]:
    """Whether a policy uses sizes that are predicted from losses."""
    return isinstance(policy, PredictsByLoss) and policy.by_loss


# reasons for which a job has no placement now


def over_limit(job: Job, plan: Plan) -> Reason | None:
    """That the job would exceed a limit of the site, if so."""
    limit = plan.over_limit(job)
    return None if limit is None else reason(Phase.WAITING, "over-limit", limit=limit)


def no_room(job: Job, plan: Plan) -> Reason:
    """Why a job has no placement now: a limit, too few free GPUs on its nodes, their shape, or CPUs or memory."""
    found = over_limit(job, plan) or too_few(job, plan)
    if found is not None:
        return found
    (free, most), shape = plan.free_for(job.request), job.request.shape(job.gpus)
    if not shape or has_room(plan.view(), replace(job, request=job.request.bare)):
        return _lacks_resources(job, plan, free)
    return reason(Phase.WAITING, "shape", need=job.gpus, free=free, shape=shape, most=most)


def _lacks_resources(job: Job, plan: Plan, free: int) -> Reason:
    """That a job with enough free GPUs lacks CPUs or memory, or only its other generic resources."""
    gres = job.request.gres_per_node
    if gres and has_room(plan.view(), replace(job, request=replace(job.request, gres_per_node=()))):
        return reason(Phase.WAITING, "gres", need=job.gpus, free=free, gres=gres_text(gres))
    return reason(Phase.WAITING, "resources", need=job.gpus, free=free)


def lacks_room(job: Job, plan: Plan) -> Reason | None:
    """Why the job has no placement now, or None if it has one. For many jobs: scans the servers once per shape."""
    limited = over_limit(job, plan) if job.charges else None
    if limited is not None:
        return limited
    if job.request is ANYWHERE:
        return too_few(job, plan)
    return too_few(job, plan) or (None if plan.has_room(job) else no_room(job, plan))


def too_few(job: Job, plan: Plan) -> Reason | None:
    """The reason that too few GPUs are free on the job's candidate nodes, or None if enough are free."""
    anywhere = job.request.candidates is None or not plan.free
    free = plan.free if anywhere else plan.free_for(job.request)[0]
    return reason(Phase.WAITING, "gpus", need=job.gpus, free=free) if free < job.gpus else None
