"""Limits of a site on what its users, accounts and QOS may use at a time, as values.

A job that counts against limits carries its charges: for each limit the amount that it uses while it runs. A decision
starts a job only if each of its limits has that much room left; the starts of the same decision count. A job over a
limit holds no reservation and delays no other job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Charge = tuple[str, float]
"""A limit, by name, and how much of it one job uses while it runs (GPUs, CPUs, jobs, nodes, GPU-minutes ...)."""
Charges = tuple[Charge, ...]

_SLACK = 1e-6
"""Amounts are sums of decimal fractions."""


class Headroom:
    """What is left of each limit.

    room: by limit; below 0 if more is in use than is allowed, as after an admin has lowered a limit. A limit that is
    not listed does not bind.
    """

    __slots__ = ("room",)

    def __init__(self, room: Mapping[str, float] | None = None) -> None:
        self.room = dict(room or {})

    def exceeded(self, charges: Charges) -> str | None:
        """The first limit that leaves too little room for a job with these charges; None if all have room."""
        room = self.room
        for limit, amount in charges:
            left = room.get(limit)
            if left is not None and amount > left + _SLACK:
                return limit
        return None

    def take(self, charges: Charges) -> None:
        """A job with these charges starts."""
        self._move(charges, -1)

    def give(self, charges: Charges) -> None:
        """A job with these charges has ended."""
        self._move(charges, +1)

    def _move(self, charges: Charges, sign: int) -> None:
        room = self.room
        for limit, amount in charges:
            if limit in room:
                room[limit] += sign * amount

    def copy(self) -> Headroom:
        return Headroom(self.room)


def headroom(caps: Mapping[str, float], in_use: Iterable[Charges]) -> Headroom:
    """What is left of the limits beside the jobs with these charges. caps: how much each limit allows."""
    left = Headroom(caps)
    for charges in in_use:
        left.take(charges)
    return left
