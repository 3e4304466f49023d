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
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node, Placement
from slurm_asrpt.core.free_index import Plan, quick_place
from slurm_asrpt.core.job import Job, JobId, JobProfile, Request
from slurm_asrpt.core.multifactor import JobFactors, Leaf, Multifactor, ShareTree
from slurm_asrpt.core.placement.best_alpha import fits
from slurm_asrpt.core.placement.selection import Strategy
from slurm_asrpt.core.policies.base import Decision, Start, Wait, no_room
from slurm_asrpt.core.policies.options import PolicyOptions
from slurm_asrpt.core.policies.queue_policy import QueuePolicy
from slurm_asrpt.core.policies.slurm_backfill.options import SlurmOptions
from slurm_asrpt.core.policies.slurm_backfill.timetable import (
    LONGEST_S,
    Planned,
    Timetable,
    Together,
    choose,
    may_run,
    planned_s,
)
from slurm_asrpt.core.topology import most_together


class RunningJob(NamedTuple):
    """end: of its time limit, seconds. gpus: by node."""

    end: float
    gpus: Mapping[str, int]


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

    def use_accounts(
        self, tree: ShareTree, factors: Mapping[JobId, JobFactors], used: Mapping[Leaf, float], now: float
    ) -> None:
        """Set the shares of users, and what the priorities of jobs depend on; before the first job.

        used: what users have used until now, billing units times seconds, decayed.
        """
        self.priorities = Multifactor(self.options.weights, tree, factors)
        for leaf, amount in used.items():
            self.priorities.usage.add(leaf, amount, now)

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
        shortest = list(accumulate((planned_s(job) for job in reversed(tested)), min))[::-1]
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
                table.start(placement.gpus, now + planned_s(job))
            else:
                first = math.floor(begin / step) * step
                table.plan(Planned(first, math.ceil((begin + planned_s(job)) / step) * step, nodes))

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
            free = {n.name: view.free[n.name] for n in view.nodes if may_run(job, n.name)}
            nodes = choose(job, free, self._together(view))
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
        self._running[job.id] = RunningJob(now + planned_s(job), placement.gpus)
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
