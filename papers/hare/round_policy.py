"""The RoundPolicy protocol, and the registry of such policies by name."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from papers.hare.jobs import Fleet, Part, Progress, RoundJob
from slurm_asrpt.core.registry import Registry


class RoundPolicy(Protocol):
    """Events in, parts of rounds out. Jobs come without ``rounds`` unless the policy is clairvoyant."""

    def arrived(self, job: Progress, now: float) -> None:
        """A job wants its first round."""

    def round_ended(self, job: Progress, now: float) -> None:
        """A round has ended and the job wants another."""

    def finished(self, job: Progress, now: float) -> None:
        """A job's last round has ended."""

    def freed(self, gpus: Sequence[int], now: float) -> None:
        """The GPUs of a part have computed; at the beginning, all GPUs."""

    def assign(self, now: float) -> Sequence[Part]:
        """What runs now, on idle GPUs only."""


ROUND_POLICIES = Registry[RoundPolicy]("round policy")
make_round_policy, round_policy_names = ROUND_POLICIES.make, ROUND_POLICIES.names
_CLAIRVOYANT: set[str] = set()


P = TypeVar("P", bound=Callable[..., RoundPolicy])


def register(name: str, clairvoyant: bool = False) -> Callable[[P], P]:
    """Decorator: make a policy known by name. It is made with ``fleet`` and ``jobs``, one of each model, and settings.

    clairvoyant: it sees ``RoundJob.rounds``.
    """
    _CLAIRVOYANT.update({name} if clairvoyant else ())
    return ROUND_POLICIES.register(name)


def clairvoyant(name: str) -> bool:
    """Whether a policy is told how many rounds a job takes."""
    return name in _CLAIRVOYANT


class IdleGpus:
    """The idle GPUs by type, lowest number first, so that the same events give the same schedule."""

    def __init__(self, fleet: Fleet) -> None:
        self._kind = fleet.kind
        self._idle: list[list[int]] = [[] for _ in fleet.types]
        self.number = 0

    def add(self, gpus: Iterable[int]) -> None:
        for gpu in gpus:
            insort(self._idle[self._kind[gpu]], gpu)
            self.number += 1

    def fastest(self, job: RoundJob, number: int) -> list[int]:
        """Take up to so many, those that compute the job's batches quickest."""
        taken: list[int] = []
        for kind in sorted(range(len(self._idle)), key=job.compute_s.__getitem__):
            room = number - len(taken)
            taken += self._idle[kind][:room]
            del self._idle[kind][:room]
        self.number -= len(taken)
        return taken

    def lowest(self, number: int) -> list[int]:
        """Take up to so many by number, whatever their type."""
        taken = sorted(gpu for idle in self._idle for gpu in idle[:number])[:number]
        for gpu in taken:
            self.take(gpu)
        return taken

    def __contains__(self, gpu: int) -> bool:
        idle = self._idle[self._kind[gpu]]
        at = bisect_left(idle, gpu)
        return at < len(idle) and idle[at] == gpu

    def take(self, gpu: int) -> None:
        """Take this one. Raises ValueError if it is not idle."""
        self._idle[self._kind[gpu]].remove(gpu)
        self.number -= 1
