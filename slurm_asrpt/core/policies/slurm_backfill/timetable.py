"""The timetable of a backfill cycle: what is free when, what is planned, and the earliest time for each job."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from slurm_asrpt.core.job import Job

LONGEST_S = 365 * 86400.0
"""Slurm's limit of a job without one, for planning."""
Together = Callable[[Job, Mapping[str, int]], Mapping[str, int]]
"""Of the free GPUs by node, those under the fewest switches for a job."""
FIRST_WINDOW_S = 30.0
"""Within this time, Slurm takes running jobs to end together."""


class Planned(NamedTuple):
    """Nodes that a job is planned to have, from ``begin`` to ``end``, seconds."""

    begin: float
    end: float
    nodes: frozenset[str]

    def overlaps(self, begin: float, end: float) -> bool:
        return self.begin < end and begin < self.end


@dataclass
class Timetable:
    """Free GPUs now, when running jobs free more, and what is planned.

    ends: by node, ascending. together: the nodes under the fewest switches for a job; None if no switches are known.
    linear_s: of ``grouped``.
    """

    free: dict[str, int]
    ends: dict[str, list[tuple[float, int]]]
    together: Together | None = None
    linear_s: float = 0.0
    planned: list[Planned] = field(default_factory=list)
    by_node: dict[str, list[Planned]] = field(default_factory=dict)
    _since: dict[tuple[str, int], float] = field(default_factory=dict)  # cache of ``_free_since``
    _seen: dict[float, float] = field(default_factory=dict)  # cache of ``_seen_end``
    _most: int | None = None  # GPUs of the largest node, once it is needed

    def start(self, gpus: Mapping[str, int], end: float) -> None:
        """A job starts now."""
        for name, count in gpus.items():
            self.free[name] -= count
            self.ends.setdefault(name, []).append((end, count))
            self.ends[name].sort()
        self._since.clear()
        self._seen.clear()

    def plan(self, planned: Planned) -> None:
        """Reserve nodes."""
        self.planned.append(planned)
        for name in planned.nodes:
            insort(self.by_node.setdefault(name, []), planned, key=_begin)

    def is_open(self, name: str, begin: float, end: float) -> bool:
        """Whether a node has free GPUs, and no plan in this time."""
        return self.free[name] > 0 and not any(plan.overlaps(begin, end) for plan in self.by_node.get(name, ()))

    def earliest(self, job: Job, now: float, window_s: float) -> tuple[float, frozenset[str]] | None:
        """When the job can start beside all plans, and on which nodes; None if not within the window."""
        if job.gpus == 1 or job.request.max_nodes == 1:
            return self._earliest_on_one(job, now, window_s)
        limit, at, needed = planned_s(job), now, self._fewest(job)
        changes = sorted({plan.end for plan in self.planned if plan.end > now})
        for change in (*changes, math.inf):
            unplanned = self._unplanned(at, at + limit)
            found = self._fit(job, unplanned, at) if len(unplanned) >= needed else None
            if found is not None and found[0] <= now + window_s:
                begin, nodes = found
                taken = (plan for plan in self.planned if plan.overlaps(begin, begin + limit))
                if begin == at or not any(plan.nodes & nodes for plan in taken):
                    return found
            at = change
            if at > now + window_s:
                return None
        return None

    def _earliest_on_one(self, job: Job, now: float, window_s: float) -> tuple[float, frozenset[str]] | None:
        """The same for a job on one node, which most are."""
        limit, best, chosen = planned_s(job), now + window_s, ""
        for name in self.free:  # in node-table order
            if not may_run(job, name):
                continue
            begin = max(now, self._free_since(name, job.gpus))
            for plan in self.by_node.get(name, ()):
                if plan.overlaps(begin, begin + limit):
                    begin = plan.end
            if begin < best or (begin == best and not chosen):
                best, chosen = begin, name
                if best == now:
                    break
        return (best, frozenset((chosen,))) if chosen else None

    def _free_since(self, name: str, gpus: int) -> float:
        """When a node has this many free GPUs, if running jobs end at their limits; -inf if it has now."""
        known = self._since.get((name, gpus))
        if known is None:
            free, known = self.free[name], -math.inf
            for end, count in self.ends.get(name, ()):
                if free >= gpus:
                    break
                free, known = free + count, self._seen_end(end)
            self._since[name, gpus] = known = known if free >= gpus else math.inf
        return known

    def _seen_end(self, end: float) -> float:
        """When Slurm takes a running job to have ended: with the last one of its group (``grouped``)."""
        if not self._seen:
            self._seen = grouped({each for ends in self.ends.values() for each, _ in ends}, self.linear_s)
        return self._seen[end]

    def _fewest(self, job: Job) -> int:
        """No fewer nodes can hold the job."""
        if self._most is None:
            held = (sum(count for _, count in self.ends.get(name, ())) for name in self.free)
            self._most = max((free + busy for free, busy in zip(self.free.values(), held, strict=True)), default=1)
        return max(job.request.min_nodes, math.ceil(job.gpus / max(1, self._most)))

    def _unplanned(self, begin: float, end: float) -> set[str]:
        taken = (plan.nodes for plan in self.planned if plan.overlaps(begin, end))
        return self.free.keys() - frozenset().union(*taken)

    def _fit(self, job: Job, nodes: set[str], at: float) -> tuple[float, frozenset[str]] | None:
        """The earliest time from ``at`` on at which the job fits on these nodes, and which of them."""
        request = job.request
        if request.candidates is not None:
            nodes = nodes & request.candidates
        names = [name for name in self.free if name in nodes]  # in node-table order
        free = {name: self.free[name] for name in names}
        coming = []
        for name in names:
            for end, count in self.ends.get(name, ()):
                if (seen := self._seen_end(end)) <= at:
                    free[name] += count
                else:
                    coming.append((seen, name, count))
        chosen = choose(job, free, self.together)
        if chosen is not None:
            return at, chosen
        coming.sort()

        def chosen_after(ends: int) -> frozenset[str] | None:
            then = dict(free)
            for _, name, count in coming[:ends]:
                then[name] += count
            return choose(job, then, self.together)

        # the more jobs have ended, the more fits
        first = bisect_left(range(1, len(coming) + 1), True, key=lambda ends: chosen_after(ends) is not None)
        chosen = chosen_after(first + 1) if first < len(coming) else None
        return None if chosen is None else (coming[first][0], chosen)


def grouped(ends: Iterable[float], linear_s: float = 0.0) -> dict[float, float]:
    """The ends of running jobs as Slurm sees them when it plans: those of a group end with its last.

    A group ends 30 s after the first end of all, or twice as long after it as the group before, or four times ...
    (select/cons_tres, _future_run_test). So the farther off, the coarser. linear_s: bf_window_linear; a group ends
    this much later after the first end of all than the group before, or twice, or three times ...
    """
    ordered = sorted(ends)
    seen, group, window = dict[float, float](), list[float](), FIRST_WINDOW_S
    first = FIRST_WINDOW_S * (math.floor(ordered[0] / FIRST_WINDOW_S) + 1) if ordered else 0.0
    for end in ordered:
        if end > first + window:
            seen.update(dict.fromkeys(group, group[-1]))
            group.clear()
            window = _grown(window, end - first, linear_s)
        group.append(end)
    return seen | dict.fromkeys(group, group[-1] if group else 0.0)


def _grown(window_s: float, needed_s: float, linear_s: float) -> float:
    if linear_s:
        return window_s + linear_s * math.ceil((needed_s - window_s) / linear_s)
    while window_s < needed_s:
        window_s *= 2
    return window_s


def choose(job: Job, free: Mapping[str, int], together: Together | None) -> frozenset[str] | None:
    """Nodes on which the job fits, as few as possible, the first of the node table; None if it does not.

    Several nodes are under the fewest switches, by the rule of topology/tree.
    """
    request = job.request
    if request.min_nodes <= 1 and request.per_node in (None, job.gpus):
        for name, count in free.items():
            if count >= job.gpus:
                return frozenset((name,))
    if request.max_nodes == 1:
        return None
    found = _choose_several(job, together(job, free)) if together is not None else None
    return found or _choose_several(job, free)


def _choose_several(job: Job, free: Mapping[str, int]) -> frozenset[str] | None:
    request, most = job.request, job.request.max_nodes or len(free)
    if request.per_node:
        able = [name for name, count in free.items() if count >= request.per_node]
        needed = job.gpus // request.per_node
        return frozenset(able[:needed]) if len(able) >= needed <= most else None
    usable = {name: count - count % request.unit for name, count in free.items() if count >= request.unit}
    chosen, total = list[str](), 0
    for name in sorted(usable, key=lambda name: -usable[name]):
        chosen.append(name)
        total += usable[name]
        if total >= job.gpus and len(chosen) >= request.min_nodes:
            return frozenset(chosen) if len(chosen) <= most else None
    return None


def _begin(plan: Planned) -> float:
    return plan.begin


def may_run(job: Job, name: str) -> bool:
    """Whether the job may run on this node."""
    return job.request.candidates is None or name in job.request.candidates


def planned_s(job: Job) -> float:
    """For how long the job is planned to run, seconds."""
    return min(job.time_limit, LONGEST_S)
