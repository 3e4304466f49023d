"""The Policy protocol, its typed decisions, and the registry of policies by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from slurm_asrpt.core.cluster import ClusterView, Node, Placement
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, Request
from slurm_asrpt.core.reasons import Phase as Phase
from slurm_asrpt.core.reasons import Reason as Reason
from slurm_asrpt.core.reasons import behind as behind
from slurm_asrpt.core.reasons import reason as reason
from slurm_asrpt.core.registry import Registry


@dataclass(slots=True)  # not frozen: a simulation makes one per event, at half the price
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
    """Take the GPUs of this running job, for ``head`` that waits: it goes on later from its checkpoint."""

    job_id: JobId
    head: Job
    reason: Reason


Decision = Start | Wait | Interrupt


class Policy(Protocol):
    """Events in, decisions out. A policy reads no clock, sleeps nowhere and does no I/O."""

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        """The nodes that may serve jobs from now on; called once before the first job."""

    def submitted(self, job: Job, now: float) -> bool:
        """A job has become eligible.

        True if that changes nothing until something else happens: neither what starts nor when the policy wakes up.
        """

    def returned(self, job: Job, now: float) -> None:
        """A job that was started did not get going (Slurm refused): it waits again, first in line."""

    def changed(self, job: Job, now: float) -> None:
        """A waiting job asks for something else now, or other nodes may serve it; it keeps its place."""

    def finished(self, job_id: JobId, now: float) -> None:
        """A job is gone: a started one has ended, a waiting one was cancelled or taken by Slurm itself.

        Ids that the policy does not know are ignored.
        """

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        """What starts now, and why the jobs looked at do not. A started job is gone from the policy."""

    def next_wakeup(self, now: float) -> float | None:
        """When the policy wants to decide again even if nothing happens, or None."""

    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        """Every waiting job, in the order in which the policy means to start them, with why it waits."""

    def dump(self) -> dict[str, Any]:
        """The state that ``load`` needs to go on after a restart, as JSON values."""

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        """Take up a dumped state; jobs no longer in ``jobs`` are dropped. Raises ValueError if it is no dump."""


def band_of(share: float, bands: int) -> int:
    """The band, 0 to ``bands`` - 1, of a fair-share factor: bands of equal width from 1 (served least) down to 0."""
    return min(bands - 1, int((1.0 - min(1.0, max(0.0, share))) * bands))


def standing(job: Job, rank: int) -> int:
    """The rank of a waiting job that had this one: handed back it stays before all bands, else its band may change."""
    return rank if rank < 0 else job.band


@runtime_checkable
class SeesRunning(Protocol):
    """A policy that reckons with the ends of running jobs, also of those that it has not started."""

    def running(self, job_id: JobId, gpus: Mapping[str, int], until: float, now: float) -> None:
        """A job runs on these GPUs per node, until its time limit at the latest (seconds; inf without one).

        Told of every running job, those of the policy's own starts too, before ``decide``; ``finished`` ends it.
        """


@dataclass(frozen=True, slots=True)
class Run:
    """A running job that its owner lets be interrupted.

    gpus: by node. service: GPU-seconds that it has attained in all its runs, ``rate`` more each second from then on.
    since: when this run began, seconds. interruptions: so far. ending: it is being interrupted.
    held: what of CPUs and memory it gives back with its GPUs.
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
        """What jobs have had by now, told before ``submitted`` and ``decide``.

        waiting: GPU-seconds attained by jobs that wait, those that have had any. runs: all that may be interrupted.
        """

    def queue_of(self, service: float) -> int:
        """The queue of a job that has attained so many GPU-seconds, from 0."""


P = TypeVar("P", bound=Callable[..., Policy])
POLICIES = Registry[Policy]("policy")
make_policy, policy_names = POLICIES.make, POLICIES.names
_BANDED: set[str] = set()
_KEYS: dict[str, tuple[str, ...]] = {}


def register(name: str, bands: bool = False, key: tuple[str, ...] = ()) -> Callable[[P], P]:
    """Decorator: make a policy known by name. Raises ValueError for a name taken.

    bands: it starts jobs of a lower ``Job.band`` first. key: what the first parts of ``Start.key`` are.
    """
    _BANDED.update({name} if bands else ())
    _KEYS[name] = key
    return POLICIES.register(name)


def key_names(name: str) -> tuple[str, ...]:
    """What the parts of a policy's ``Start.key`` are; those beyond only part ties."""
    return _KEYS.get(name, ())


def banded_policies() -> list[str]:
    """The names of those that heed ``Job.band``."""
    return sorted(_BANDED)


def policy_settings(name: str) -> frozenset[str]:
    """The names of the settings that a policy takes; empty for an unknown policy."""
    return frozenset(inspect.signature(POLICIES.makers[name]).parameters) if name in POLICIES.makers else frozenset()
