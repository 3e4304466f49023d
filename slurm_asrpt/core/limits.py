"""Limits of a site on what its users, accounts and QOS may use at a time, as values.

A job that counts against limits carries its charges: for each limit the amount that it uses while it runs. A decision
starts a job only if each of its limits has that much room left; the starts of the same decision count. A job over a
limit holds no reservation and delays no other job.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Generic, TypeVar

Charge = tuple[str, float]
"""A limit, by name, and how much of it one job uses while it runs (GPUs, CPUs, jobs, nodes, GPU-minutes ...)."""
Charges = tuple[Charge, ...]

_SLACK = 1e-6
"""Amounts are sums of decimal fractions."""


def together(parts: Iterable[Charges]) -> Charges:
    """What jobs with these charges count for together."""
    amounts: dict[str, float] = {}
    for charges in parts:
        for limit, amount in charges:
            amounts[limit] = amounts.get(limit, 0.0) + amount
    return tuple(amounts.items())


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


Group = TypeVar("Group", bound=Hashable)


class Held(Generic[Group]):
    """Groups of waiting jobs that a limit holds, until the limit has room for one of their jobs.

    All jobs of a group have the same charges. While a group is held, decisions need not ask for it: a site may have
    thousands of jobs over a limit.
    """

    __slots__ = ("_by_limit", "_least", "_limit_of")

    def __init__(self) -> None:
        self._by_limit: dict[str, dict[Group, float]] = {}
        self._least: dict[str, float] = {}  # at most the least amount that a group held by this limit needs
        self._limit_of: dict[Group, str] = {}

    def __bool__(self) -> bool:
        return bool(self._limit_of)

    def __contains__(self, group: Group) -> bool:
        return group in self._limit_of

    def hold(self, group: Group, charges: Charges, limit: str) -> None:
        """Hold a group. limit: the one that its charges exceed."""
        amount = next(amount for name, amount in charges if name == limit)
        self._by_limit.setdefault(limit, {})[group] = amount
        self._least[limit] = min(amount, self._least.get(limit, amount))
        self._limit_of[group] = limit

    def drop(self, group: Group) -> None:
        """The group has no jobs any more."""
        limit = self._limit_of.pop(group, None)
        if limit is not None:
            groups = self._by_limit[limit]
            del groups[group]
            if not groups:
                del self._by_limit[limit], self._least[limit]

    def clear(self) -> None:
        for table in (self._by_limit, self._least, self._limit_of):
            table.clear()

    def released(self, headroom: Headroom) -> list[Group]:
        """The groups whose limit has room again, no longer held. They may exceed another limit."""
        room, found = headroom.room, list[Group]()
        for limit, least in self._least.items():
            if least <= room.get(limit, least) + _SLACK:
                found += self._within(limit, headroom)
        for group in found:
            self.drop(group)
        return found

    def _within(self, limit: str, headroom: Headroom) -> list[Group]:
        groups = self._by_limit[limit]
        self._least[limit] = min(groups.values())
        return [group for group, amount in groups.items() if headroom.exceeded(((limit, amount),)) is None]


def headroom(caps: Mapping[str, float], in_use: Iterable[Charges]) -> Headroom:
    """What is left of the limits beside the jobs with these charges. caps: how much each limit allows."""
    left = Headroom(caps)
    for charges in in_use:
        left.take(charges)
    return left
