"""Slurm's own scheduling, as its source has it: the main scheduler, and sched/backfill every ``bf_interval_s`` seconds.

The main scheduler starts jobs in order of priority until one does not fit. The backfill scheduler plans every job in
that order at the earliest time at which it fits if running jobs end at their time limits, and starts those whose time
has come. Each plan reserves *whole nodes* for the job's time limit: a job behind it may not use them in that time, even
if the planned job leaves GPUs free there (``_add_reservation`` in src/plugins/sched/backfill/backfill.c, 22.05). The
farther off the ends of running jobs are, the coarser it sees them (``grouped``).

Without weights, order is that of eligibility, as with priorities by age alone; ``favor_small`` (PriorityFavorSmall with
a large JobSize weight) then puts jobs of fewer GPUs first. With weights, priorities are those of ``core.multifactor``.
What Slurm's accounting says of jobs (accounts, shares, QOS) is given with ``use_accounts``.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.free_index import Plan, quick_place
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request
from slurm_asrpt.core.multifactor import Claim, Multifactor, ShareTree, Weights
from slurm_asrpt.core.placement.selection import Strategy, fits
from slurm_asrpt.core.policies.base import Decision, Start, Wait, no_room
from slurm_asrpt.core.policies.options import PolicyOptions
from slurm_asrpt.core.policies.queue_policy import QueuePolicy
from slurm_asrpt.core.topology import most_together

LONGEST_S = 365 * 86400.0
"""Slurm's limit of a job without one, for planning."""


class SlurmOptions(PolicyOptions):
    """Slurm's SchedulerParameters and settings of priority/multifactor; times in seconds."""

    bf_interval_s: Annotated[float, Field(gt=0)] = Field(30.0, description="Seconds between backfill cycles.")
    bf_window_s: Annotated[float, Field(gt=0)] = Field(86400.0, description="How far ahead jobs are planned.")
    bf_resolution_s: Annotated[float, Field(gt=0)] = Field(60.0, description="Plans begin and end at multiples of it.")
    bf_window_linear_s: Annotated[float, Field(ge=0)] = Field(
        0.0, description="By how much the groups grow in which far ends are seen; 0: they double."
    )
    bf_max_job_test: Annotated[int, Field(ge=1)] = Field(500, description="Jobs that a cycle plans.")
    bf_max_job_user: Annotated[int, Field(ge=0)] = Field(0, description="Of each user; 0: no limit.")
    favor_small: bool = Field(False, description="Jobs of fewer GPUs go first.")
    weight_age: Annotated[float, Field(ge=0)] = Field(0.0, description="PriorityWeightAge.")
    weight_fair_share: Annotated[float, Field(ge=0)] = Field(0.0, description="PriorityWeightFairshare.")
    weight_job_size: Annotated[float, Field(ge=0)] = Field(0.0, description="PriorityWeightJobSize.")
    max_age_s: Annotated[float, Field(gt=0)] = Field(604800.0, description="PriorityMaxAge.")
    half_life_s: Annotated[float, Field(ge=0)] = Field(
        604800.0, description="PriorityDecayHalfLife; 0: usage does not decay."
    )
    calc_period_s: Annotated[float, Field(gt=0)] = Field(300.0, description="PriorityCalcPeriod.")
    fair_tree: bool = Field(True, description="false: PriorityFlags=NO_FAIR_TREE.")

    @property
    def weights(self) -> Weights:
        return Weights(
            age=self.weight_age,
            fair_share=self.weight_fair_share,
            job_size=self.weight_job_size,
            max_age_s=self.max_age_s,
            half_life_s=self.half_life_s,
            period_s=self.calc_period_s,
            fair_tree=self.fair_tree,
            favor_small=self.favor_small,
        )


Together = Callable[[Job, Mapping[str, int]], Mapping[str, int]]
"""Of the free GPUs by node, those under the fewest switches for a job."""


FIRST_WINDOW_S = 30.0
"""Within this time, Slurm takes running jobs to end together."""


class RunningJob(NamedTuple):
    """end: of its time limit, seconds. gpus: by node."""

    end: float
    gpus: Mapping[str, int]


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
        limit, at, needed = _limit(job), now, self._fewest(job)
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
        limit, best, chosen = _limit(job), now + window_s, ""
        for name in self.free:  # in node-table order
            if not _may_run(job, name):
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
        chosen = _choose(job, free, self.together)
        if chosen is not None:
            return at, chosen
        coming.sort()

        def chosen_after(ends: int) -> frozenset[str] | None:
            then = dict(free)
            for _, name, count in coming[:ends]:
                then[name] += count
            return _choose(job, then, self.together)

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


def _choose(job: Job, free: Mapping[str, int], together: Together | None) -> frozenset[str] | None:
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


class SlurmBackfill(QueuePolicy):
    """The main scheduler at each event, and a backfill cycle if anything has changed since the last one."""

    Options = SlurmOptions
    options: SlurmOptions
    bands = True

    def __init__(self, fabric: Fabric, options: PolicyOptions) -> None:
        super().__init__(fabric, options)
        self._running: dict[JobId, RunningJob] = {}
        self._changed = True  # since the last backfill cycle
        self._cycle = -math.inf
        self._fits: dict[tuple[JobProfile, Request], bool] = {}
        weights = self.options.weights
        ordered = weights.age or weights.fair_share or weights.job_size
        self.priorities = Multifactor(weights) if ordered else None

    def use_accounts(self, tree: ShareTree, claims: Mapping[JobId, Claim]) -> None:
        """Set the shares of users, and what the priorities of jobs depend on; before the first job."""
        self.priorities = Multifactor(self.options.weights, tree, claims)

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        super().cluster_changed(nodes, now)
        self._gpus = sum(node.gpus for node in nodes)
        self._fits.clear()

    # events

    def submitted(self, job: Job, now: float) -> bool:
        self._changed = True
        return super().submitted(job, now)

    def finished(self, job_id: JobId, now: float) -> None:
        super().finished(job_id, now)
        self._running.pop(job_id, None)
        self._changed = True
        if self.priorities:
            self.priorities.ended(job_id, now)

    def running(self, job_id: JobId, gpus: Mapping[str, int], until: float, now: float) -> None:
        """As ``base.SeesRunning``."""
        self._running[job_id] = RunningJob(min(until, now + LONGEST_S), dict(gpus))

    def next_wakeup(self, now: float) -> float | None:
        if not (self._changed and self.waiting):
            return None
        return self._cycle + self.options.bf_interval_s

    # decisions

    def order(self, now: float) -> Sequence[Job]:
        jobs = list(self.waiting.values())
        if self.priorities:
            self._changed = self._changed or self.priorities.due(now)
            return self.priorities.order(jobs, len(self.nodes), self._gpus, now)
        return sorted(jobs, key=lambda job: job.gpus) if self.options.favor_small else jobs

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        plan, starts = Plan(cluster), list[Start]()
        order = [job for job in self._ordered(now) if self._can_run(job)]
        self._last = self._main(order, plan, starts, now)
        if self._last and self._changed and now >= self._cycle + self.options.bf_interval_s:
            self._cycle, self._changed = now, False
            self._backfill([job for job in order if job.id in self.waiting], plan, starts, now)
        self._left = plan
        return [*starts, *([self._last] if self._last else [])]

    def _can_run(self, job: Job) -> bool:
        """Whether the job fits on these nodes when all are idle."""
        shape = (job.profile, job.request)
        if shape not in self._fits:
            self._fits[shape] = fits(job, self.nodes)
        return self._fits[shape]

    def _main(self, order: Sequence[Job], plan: Plan, starts: list[Start], now: float) -> Wait | None:
        """Start jobs until one does not fit. Returns that one."""
        for job in order:
            if plan.over_limit(job):
                continue
            placement = self._place(job, plan, None)
            if placement is None:
                return Wait(job, no_room(job, plan))
            self._start(job, placement, plan, starts, now)
        return None

    def _backfill(self, order: Sequence[Job], plan: Plan, starts: list[Start], now: float) -> None:
        view, step = plan.view(), self.options.bf_resolution_s
        free = {node.name: view.free[node.name] for node in view.nodes}
        table = Timetable(free, {}, self._together(view), self.options.bf_window_linear_s)
        for run in self._running.values():
            for name, count in run.gpus.items():
                table.ends.setdefault(name, []).append((max(run.end, now + 1.0), count))
        for ends in table.ends.values():
            ends.sort()
        tested = self._tested(order)
        shortest = list(accumulate((_limit(job) for job in reversed(tested)), min))[::-1]
        able = [name for name, free in table.free.items() if free]
        for job, least in zip(tested, shortest, strict=True):
            able = [name for name in able if table.is_open(name, now, now + least)]
            if not able:  # no job behind can start in this cycle
                break
            found = None if plan.over_limit(job) else table.earliest(job, now, self.options.bf_window_s)
            if found is None:
                continue
            begin, nodes = found
            placement = self._place(job, plan, nodes) if begin <= now else None
            if placement is not None:
                self._start(job, placement, plan, starts, now)
                table.start(placement.gpus, now + _limit(job))
            else:
                first = math.floor(begin / step) * step
                table.plan(Planned(first, math.ceil((begin + _limit(job)) / step) * step, nodes))

    def _tested(self, order: Sequence[Job]) -> Sequence[Job]:
        """The jobs that a backfill cycle tests."""
        most, users = self.options.bf_max_job_user, Counter[str]()
        if most:
            order = [job for job in order if users.update((job.user,)) or users[job.user] <= most]
        return order[: self.options.bf_max_job_test]

    def _place(self, job: Job, plan: Plan, nodes: frozenset[str] | None) -> Placement | None:
        """A placement on these nodes; without any, on the first that fit."""
        if job.gpus > plan.free:
            return None
        view = plan.view()
        if nodes is None:
            free = {n.name: view.free[n.name] for n in view.nodes if _may_run(job, n.name)}
            nodes = _choose(job, free, self._together(view))
            if nodes is None:
                return None
        return quick_place(view, replace(job, request=replace(job.request, candidates=nodes)), _STRATEGY, self.fabric)

    def _together(self, view: ClusterView) -> Together | None:
        switches = view.switches
        if switches is None or not view.total_gpus:
            return None

        def together(job: Job, free: Mapping[str, int]) -> Mapping[str, int]:
            masks = [0] * len(view.masks)
            for name, count in free.items():
                masks[count] |= view.bits[name]
            servers = max(job.request.min_nodes, -(-job.gpus // (len(masks) - 1)))
            among = most_together(switches, masks, job.gpus, servers)
            return {name: count for name, count in free.items() if view.bits[name] & among}

        return together

    def _start(self, job: Job, placement: Placement, plan: Plan, starts: list[Start], now: float) -> None:
        plan.add(job, placement)
        del self.waiting[job.id]
        self._running[job.id] = RunningJob(now + _limit(job), placement.gpus)
        if self.priorities:
            self.priorities.started(job, now)
        self._changed = True
        starts.append(Start(job, placement, (len(starts),)))

    # restarts

    def dump(self) -> dict[str, Any]:
        running = [[job_id, run.end, dict(run.gpus)] for job_id, run in self._running.items()]
        cycle = None if self._cycle == -math.inf else self._cycle
        usage = {"usage": self.priorities.dump()} if self.priorities else {}
        return {**super().dump(), "running": running, "cycle": cycle, "changed": self._changed, **usage}

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        super().load(state, jobs)
        try:
            rows = [(JobId(job_id), float(end), gpus) for job_id, end, gpus in state["running"]]
            self._running = {
                job_id: RunningJob(end, {str(n): int(g) for n, g in gpus.items()}) for job_id, end, gpus in rows
            }
            self._cycle = -math.inf if state["cycle"] is None else float(state["cycle"])
            self._changed = bool(state["changed"])
            if self.priorities:
                self.priorities.load(state.get("usage") or {"past": [], "runs": []})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"not a state of policy slurm-backfill: {error!r}") from error


_STRATEGY = Strategy.MOST_FREE


def _begin(plan: Planned) -> float:
    return plan.begin


def _may_run(job: Job, name: str) -> bool:
    return job.request.candidates is None or name in job.request.candidates


def _limit(job: Job) -> float:
    return min(job.time_limit, LONGEST_S)
