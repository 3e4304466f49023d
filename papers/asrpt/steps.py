"""The policies between A-SRPT and asrpt-gated, for the ablation: each adds one rule to the one before.

``asrpt`` itself comes first; ``asrpt-gated`` itself comes last. They are here because nobody should run them: what they
lack is what the next one adds.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Hashable, Iterable, Mapping

from slurm_asrpt.core.cluster import Fabric, Placement
from slurm_asrpt.core.free_index import Plan
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.asrpt.options import AsrptOptions
from slurm_asrpt.core.policies.asrpt.policy import ASrpt, Kind
from slurm_asrpt.core.policies.base import Decision, Policy, Reason, Start
from slurm_asrpt.core.policies.gated.decision import OneDecision
from slurm_asrpt.core.policies.gated.policy import Gated
from slurm_asrpt.core.policies.gated.queue import Waiting

Row = tuple[int, Job, Kind]
"""A job of the FIFO, as ``Fifo.within_limits`` yields it."""


class Conserving(ASrpt):
    """A-SRPT whose FIFO does not block: a job that does not fit or is delayed lets the jobs behind it pass."""

    def _rows(self, plan: Plan) -> Iterable[Row]:
        """The jobs that may start, the first to start first."""
        return self._fifo.within_limits(plan)

    def _walk(self, plan: Plan, now: float) -> list[Decision]:
        starts, failed = list[Start](), set[Hashable]()
        for _, job, kind in self._rows(plan):
            if plan.free == 0:
                break
            if job.gpus > plan.free or id(kind) in failed:
                continue
            found = self._consider(job, kind, plan, now)
            if isinstance(found, Placement):
                plan.add(job, found)
                self._state += 1
                starts.append(Start(job, found, (len(starts),)))
            elif found.reason.kind != "placement":  # jobs of a kind have their own delays
                failed.add(id(kind))
        self._blocked, self._left = False, plan
        for start in starts:
            self._started(start.job)
        if starts:
            self._cluster = None
        return list[Decision](starts)

    def _started(self, job: Job) -> None:
        self._forget(job.id)

    def _may_pass(self, job_id: JobId, why: Reason, now: float) -> bool:
        return True


class Resorting(Conserving):
    """The same in the order of predicted workload, g ñ α̃_min: a job that arrives goes before larger ones at once.

    There is no virtual machine: it would only keep jobs from a cluster that has room for them.
    """

    def __init__(self, fabric: Fabric, options: AsrptOptions) -> None:
        super().__init__(fabric, options)
        self._order: list[tuple[float, int, JobId]] = []
        self._waiting: dict[JobId, Row] = {}

    def submitted(self, job: Job, now: float) -> bool:
        kind, seat = self._kind(job), len(self._order)
        self._fifo.append(job, kind)
        self._waiting[job.id] = (seat, job, kind)
        insort(self._order, (job.gpus * job.predicted_iterations * kind.reference, int(job.id), job.id))
        return False

    def _rows(self, plan: Plan) -> Iterable[Row]:
        return [self._waiting[job_id] for *_, job_id in self._order]

    def _walk(self, plan: Plan, now: float) -> list[Decision]:
        starts = super()._walk(plan, now)
        if starts:
            self._order = [row for row in self._order if row[-1] in self._waiting]
        return starts

    def _started(self, job: Job) -> None:
        super()._started(job)
        del self._waiting[job.id]


class Unreserved(Gated):
    """asrpt-gated without its reservations: with the gate, nobody keeps servers for a job that waits for them."""

    def _consider(self, entry: Waiting, decision: OneDecision) -> None:
        super()._consider(entry, decision)
        decision.reservation = None


STEPS: Mapping[str, type[Policy]] = {
    "asrpt-conserving": Conserving,
    "asrpt-resorting": Resorting,
    "asrpt-unreserved": Unreserved,
}
"""The policies of this module by name."""
