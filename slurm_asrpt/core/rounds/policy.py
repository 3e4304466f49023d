"""The protocol of round policies, and their registry."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from slurm_asrpt.core.registry import Registry
from slurm_asrpt.core.rounds.jobs import Fleet, Part, Progress, RoundJob


class RoundPolicy(Protocol):
    """Gets events, and returns parts of rounds. Jobs have no ``rounds`` unless the policy is clairvoyant."""

    def arrived(self, job: Progress, now: float) -> None:
        """A job has arrived and needs its first round."""

    def round_ended(self, job: Progress, now: float) -> None:
        """A round has ended, and the job needs another."""

    def finished(self, job: Progress, now: float) -> None:
        """A job's last round has ended."""

    def freed(self, gpus: Sequence[int], now: float) -> None:
        """These GPUs have become free: those of a part, and at the beginning all."""

    def assign(self, now: float) -> Sequence[Part]:
        """The parts to start now, on idle GPUs."""


ROUND_POLICIES = Registry[RoundPolicy]("round policy")
make_round_policy, round_policy_names = ROUND_POLICIES.make, ROUND_POLICIES.names
_CLAIRVOYANT: set[str] = set()


P = TypeVar("P", bound=Callable[..., RoundPolicy])


def register(name: str, clairvoyant: bool = False) -> Callable[[P], P]:
    """Decorator: register a policy. It is created with ``fleet``, ``jobs`` (one of each model) and settings.

    clairvoyant: it sees ``RoundJob.rounds``.
    """
    _CLAIRVOYANT.update({name} if clairvoyant else ())
    return ROUND_POLICIES.register(name)


def clairvoyant(name: str) -> bool:
    """Whether a policy sees the number of rounds of jobs."""
    return name in _CLAIRVOYANT


class IdleGpus:
    """The idle GPUs by type, lowest number first, so that the same events give the same schedule."""

    def __init__(self, fleet: Fleet) -> None:
        self._kind = fleet.kind
        self._idle: list[list[int]] = [[] for _ in fleet.types]
        self.number = 0

    def add(self, gpus: Iterable[int]) -> None:
        """Those that are idle already stay so."""
        for gpu in gpus:
            if gpu not in self:
                insort(self._idle[self._kind[gpu]], gpu)
                self.number += 1

    def fastest(self, job: RoundJob, number: int) -> list[int]:
        """Take up to ``number`` GPUs, the fastest for the job first."""
        taken: list[int] = []
        for kind in sorted(range(len(self._idle)), key=job.compute_s.__getitem__):
            room = number - len(taken)
            taken += self._idle[kind][:room]
            del self._idle[kind][:room]
        self.number -= len(taken)
        return taken

    def lowest(self, number: int) -> list[int]:
        """Take up to ``number`` GPUs of any type, the lowest first."""
        taken = sorted(gpu for idle in self._idle for gpu in idle[:number])[:number]
        for gpu in taken:
            self.take(gpu)
        return taken

    def __contains__(self, gpu: int) -> bool:
        idle = self._idle[self._kind[gpu]]
        at = bisect_left(idle, gpu)
        return at < len(idle) and idle[at] == gpu

    def take(self, gpu: int) -> None:
        """Take this GPU. Raises ValueError if it is not idle."""
        self._idle[self._kind[gpu]].remove(gpu)
        self.number -= 1
