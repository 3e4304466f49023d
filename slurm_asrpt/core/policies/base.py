"""The Policy protocol, its typed decisions and reasons, and the registry of policies by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar, runtime_checkable

from slurm_asrpt.core.cluster import ClusterView, Node, Placement
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.registry import Registry


class Phase(StrEnum):
    """Where a job stands; the words are what asrpt-status shows."""

    VIRTUAL = "virtual queue"
    WAITING = "waiting"
    DELAYED = "delayed for placement"
    STARTING = "starting"
    RUNNING = "running"
    LEFT = "left to Slurm"


@dataclass(slots=True)  # like the decisions below not frozen: a simulation makes one per event, at half the price
class Reason:
    """Why a job does not start now. ``kind`` is stable and machine-readable, ``facts`` the evidence."""

    phase: Phase
    kind: str
    facts: Mapping[str, Any]

    @property
    def text(self) -> str:
        return _WORDS[self.kind].format(**self.facts, when=_when(self.facts.get("in_s")))


def _when(in_s: float | None) -> str:
    """When a reservation, ours or Slurm's, begins. No time is known while jobs without a time limit are in its way."""
    known = in_s is not None and math.isfinite(in_s)
    return f"at about {in_s:.0f} s from now" if known else "as soon as they are free"


_WORDS = {
    "virtual": "shorter predicted work goes first ({remaining_s:.0f} s of {work_s:.0f} s left on the virtual machine)",
    "gpus": "needs {need} GPUs, {free} are free on nodes that it may use",
    "shape": "{free} GPUs are free, but not in the shape asked for ({need} as {shape})",
    "capacity": "needs {need} GPUs; the nodes that may serve it have fewer, or not in that shape",
    "behind": "{ahead} job(s) ahead; job {head} is next",
    "reserved": "{need} GPUs are reserved for it {when}",
    "reservation": "would delay job {head}, which has {need} GPUs reserved {when}",
    "ahead": "its time limit reaches into reservation {reservation}, which begins {when}; a shorter --time may do",
    "placement": "waits up to {left_s:.0f} s for a better placement: alpha is {ratio:.1f} times its minimum here now",
    "dependency": "Slurm holds it for a dependency",
    "begin": "its begin time is not reached (--begin, or Slurm's pause after a requeue)",
    "held": "held; Slurm says {slurm_reason}",
    "limit": "a limit of Slurm holds it: {slurm_reason}",
    "left": "left to Slurm: {why}",
    "starting": "released to Slurm on the chosen nodes",
    "not-started": "Slurm did not start it on the chosen nodes; planned again",
}


def reason(phase: Phase, kind: str, **facts: Any) -> Reason:
    """A reason of a known kind. Raises KeyError for an unknown one.

    Facts are JSON values. "reservation": head, the job that holds it; need, its GPUs; in_s, seconds, None if unknown.
    """
    _WORDS[kind]
    return Reason(phase, kind, facts)


@dataclass(slots=True)
class Start:
    """Start this job now, there."""

    job: Job
    placement: Placement


@dataclass(slots=True)
class Wait:
    """This job waits, and why. until: when the policy looks again, seconds; None means at the next event."""

    job: Job
    reason: Reason
    until: float | None = None


Decision = Start | Wait


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


P = TypeVar("P", bound=Callable[..., Policy])
POLICIES = Registry[Policy]("policy")
make_policy, policy_names = POLICIES.make, POLICIES.names
_BANDED: set[str] = set()


def register(name: str, bands: bool = False) -> Callable[[P], P]:
    """Decorator: make a policy known by name. Raises ValueError for a name taken.

    bands: it starts jobs of a lower ``Job.band`` first.
    """
    _BANDED.update({name} if bands else ())
    return POLICIES.register(name)


def banded_policies() -> list[str]:
    """The names of those that heed ``Job.band``."""
    return sorted(_BANDED)


def policy_settings(name: str) -> frozenset[str]:
    """The names of the settings that a policy takes; empty for an unknown policy."""
    return frozenset(inspect.signature(POLICIES.makers[name]).parameters) if name in POLICIES.makers else frozenset()
