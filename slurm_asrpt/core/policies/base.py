"""The base class of policies, their typed decisions, and the reasons that they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, Request
from slurm_asrpt.core.placement.selection import has_room
from slurm_asrpt.core.policies.options import PolicyOptions
from slurm_asrpt.core.reasons import Phase as Phase
from slurm_asrpt.core.reasons import Reason as Reason
from slurm_asrpt.core.reasons import behind as behind
from slurm_asrpt.core.reasons import reason as reason


@dataclass(slots=True)  # not frozen: a simulation makes one per event, at half the cost
class Start:
    """Start this job now, there. key: what it was ordered by, least first; ``key_names`` says what its parts are."""

    job: Job
    placement: Placement
    key: tuple[Any, ...] = field(default=(), compare=False)


@dataclass(slots=True)
class Wait:
    """This job waits, and why. until: when the policy looks again, seconds; None means at the next event."""

    job: Job
    reason: Reason
    until: float | None = None


@dataclass(slots=True)
class Interrupt:
    """Take the GPUs of this running job for the waiting job ``head``; it resumes later from its checkpoint."""

    job_id: JobId
    head: Job
    reason: Reason


Decision = Start | Wait | Interrupt


class Policy(ABC):
    """Events in, decisions out. A policy reads no clock, never sleeps and does no I/O.

    Options: the model of its settings. start_key: what the first parts of ``Start.key`` are. bands: whether it starts
    jobs of a lower ``Job.band`` first. ``queue_policy.QueuePolicy`` has all but the order of the jobs.
    """

    Options: ClassVar[type[PolicyOptions]] = PolicyOptions
    start_key: ClassVar[tuple[str, ...]] = ()
    bands: ClassVar[bool] = False

    def __init__(self, fabric: Fabric, options: PolicyOptions) -> None:
        self.fabric, self.options = fabric, options

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:  # noqa: B027 (not every policy needs them)
        """The nodes that may run jobs from now on; called once before the first job."""

    @abstractmethod
    def submitted(self, job: Job, now: float) -> bool:
        """A job has become eligible.

        True if that changes nothing until something else happens: neither what starts nor when the policy wakes up.
        """

    @abstractmethod
    def returned(self, job: Job, now: float) -> None:
        """A job that was started did not begin to run (Slurm refused it): it waits again, first in line."""

    @abstractmethod
    def changed(self, job: Job, now: float) -> None:
        """A waiting job requests something else now, or other nodes may run it; it keeps its place."""

    @abstractmethod
    def finished(self, job_id: JobId, now: float) -> None:
        """A job is gone: a started one has ended, a waiting one was canceled or started by Slurm itself.

        Ids that the policy does not know are ignored.
        """

    @abstractmethod
    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        """What starts now, and why the jobs considered do not. A started job is gone from the policy."""

    def next_wakeup(self, now: float) -> float | None:
        """When the policy wants to decide again even if nothing happens; None for only after events."""
        return None

    @abstractmethod
    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        """Every waiting job, in the order in which the policy intends to start them, with why it waits."""

    @abstractmethod
    def dump(self) -> dict[str, Any]:
        """The state that ``load`` needs to continue after a restart, as JSON values."""

    @abstractmethod
    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        """Restore a dumped state; jobs no longer in ``jobs`` are dropped. Raises ValueError if it is no dump."""


def band_of(share: float, bands: int) -> int:
    """The band, 0 to ``bands`` - 1, of a fair-share factor: bands of equal width from 1 (least usage) down to 0."""
    return min(bands - 1, int((1.0 - min(1.0, max(0.0, share))) * bands))


def standing(job: Job, rank: int) -> int:
    """The new rank of a waiting job: a job that was handed back stays before all bands, others follow their band."""
    return rank if rank < 0 else job.band


@runtime_checkable
class SeesRunning(Protocol):
    """A policy that uses the expected ends of running jobs, including jobs that it has not started."""

    def running(self, job_id: JobId, gpus: Mapping[str, int], until: float, now: float) -> None:
        """A job runs on these GPUs per node, until its time limit at the latest (seconds; inf without one).

        Called for every running job, including the policy's own starts, before ``decide``; ``finished`` ends it.
        """


@dataclass(frozen=True, slots=True)
class Run:
    """A running job that may be interrupted.

    gpus: by node. service: GPU-seconds attained in all its runs, ``rate`` more in each second from then on.
    since: when this run began, seconds. interruptions: so far. ending: it is being interrupted.
    held: the CPUs and memory that it frees with its GPUs.
    """

    job_id: JobId
    gpus: Mapping[str, int]
    service: float
    rate: float
    since: float
    interruptions: int = 0
    ending: bool = False
    held: Request = ANYWHERE


@runtime_checkable
class Interrupts(Protocol):
    """A policy that orders by attained service and may decide ``Interrupt``."""

    def served(self, waiting: Mapping[JobId, float], runs: Sequence[Run], now: float) -> None:
        """The attained service so far, called before ``submitted`` and ``decide``.

        waiting: GPU-seconds attained by waiting jobs that have run before. runs: all jobs that may be interrupted.
        """

    def queue_of(self, service: float) -> int:
        """The queue of a job that has attained so many GPU-seconds, from 0."""


# why a job has no placement now


def over_limit(job: Job, plan: Plan) -> Reason | None:
    """That the job would exceed a limit of the site, if so."""
    limit = plan.over_limit(job)
    return None if limit is None else reason(Phase.WAITING, "over-limit", limit=limit)


def no_room(job: Job, plan: Plan) -> Reason:
    """Why a job has no placement now: a limit, too few GPUs free where it may run, or not in its shape, or no CPUs or
    memory."""
    found = over_limit(job, plan) or too_few(job, plan)
    if found is not None:
        return found
    (free, most), shape = plan.free_for(job.request), job.request.shape(job.gpus)
    if not shape or has_room(plan.view(), replace(job, request=job.request.bare)):
        return reason(Phase.WAITING, "resources", need=job.gpus, free=free)
    return reason(Phase.WAITING, "shape", need=job.gpus, free=free, shape=shape, most=most)


def lacks_room(job: Job, plan: Plan) -> Reason | None:
    """Why the job would have no placement now, if so; for many jobs at once: one look at the servers for each shape."""
    limited = over_limit(job, plan) if job.charges else None
    if limited is not None:
        return limited
    if job.request is ANYWHERE:
        return too_few(job, plan)
    return too_few(job, plan) or (None if plan.has_room(job) else no_room(job, plan))


def too_few(job: Job, plan: Plan) -> Reason | None:
    """That too few GPUs are free where the job may run, if so."""
    anywhere = job.request.candidates is None or not plan.free
    free = plan.free if anywhere else plan.free_for(job.request)[0]
    return reason(Phase.WAITING, "gpus", need=job.gpus, free=free) if free < job.gpus else None
