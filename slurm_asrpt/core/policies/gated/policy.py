"""asrpt-gated: jobs in the order of predicted workload, started only in good placements (docs/decisions/0007).

It uses the prediction, job graph and Heavy-Edge of A-SRPT, but another rule for starting jobs:

1. Order. Jobs are considered by band (the site's priorities), then by estimated workload over weight, g_i s_i / w_i,
   least first (Smith's rule). s_i: the runtime in the best placement, on reference GPUs, estimated from the prediction
   ñ_i α̃_i^min, the time limit and the runtime of a job that was submitted next to it (``similar``), and calibrated by
   the jobs that have ended (``estimates``).
2. Gate. A job starts only on the fewest servers that could ever hold it, with α/α̃^min <= ``gate``. Single servers are
   chosen by the time at which they will be free, so that jobs that end together run together, several ones under the
   fewest switches (docs/decisions/0038). (With ``contention``, a job uses more servers if that is faster and no other
   job waits: docs/decisions/0013.)
3. Reservation. A job that cannot start reserves the servers that are predicted to be free soonest. Jobs behind it may
   use them only until then, and must not delay the time at which any other busy server that it could use will be free.
   GPU time that the reservation is expected to leave idle counts as work of the jobs that need such servers, shared
   among them: the job gets its reservation in the place in the order that it has with it (docs/decisions/0033, 0049).
4. Patience. A job that has waited for ``patience_s`` goes before all younger jobs of its band, and keeps the servers
   that it reserves, after twice that time for itself alone. Such jobs hold at most ``late_share`` of all GPUs, or one
   of them holds more, which is then made up for (module ``late_share``). Jobs with a turn do so at once and without
   this bound, in the order of their turns: a job whose nodes Slurm must choose has the place that Slurm itself would
   give it (docs/decisions/0031).
   If servers are equal and none disappears, a job that requests only GPUs therefore starts within
   2 (k+1) L (1 + M / (late_share G)) seconds after twice its patience, however wrong the predictions. k: the jobs
   submitted before it that still waited then. L: the longest run of any job. M: the GPUs of the servers that the
   largest job needs. G: all GPUs (``sim.metrics.latest_starts``, tests/property/test_gated_promise.py).
5. Kinds of GPU. The gate applies to each kind, with α̃^min on its servers. A job starts on the best kind with room for
   it (``gpu_types``), and waits for a faster kind only if it would exceed its time limit. Its reservation is on the
   kind on which it is predicted to end first (docs/decisions/0017).
6. Preemption. Where the site lets a job preempt others, it goes before these jobs, late or not. If it does not fit into
   the free GPUs, it starts on the servers where the jobs that Slurm preempts for it lose least (docs/decisions/0027).
7. Interruptions, if ``interrupts`` is set: a job with little work may preempt jobs with much, if the owners of both
   agree (module ``interruptions``, docs/decisions/0037). With ``fills``, jobs whose owners agree also use GPUs that are
   kept for others, until these can start (module ``fillers``, docs/decisions/0047).

Two special cases: If a job cannot start although all its servers are idle (a lack of CPUs or memory), it gets no
reservation, because no job's end would help. If only the gate keeps a job from idle servers, it starts there anyway.

Where to read on: ``Gated.decide`` makes one decision, and each question that it asks has a module.

- ``order``: which job is considered next? (rules 1, 4 and 6)
- ``start_now``: where may it start now? (rules 2, 5 and 6; which servers exactly: ``placement``)
- ``larger_first``: must it let a larger job go first? (docs/decisions/0050)
- ``reservation``: which servers does it reserve, and what do they leave idle? (rules 3 to 5; when servers will be free:
  ``free_times``)
- ``preempting``: which jobs are preempted with the consent of their owners, and which fill kept GPUs? (rule 7)

``decision`` holds what lives for one decision, ``jobs`` what lasts longer. Between decisions, ``shown_queue`` says why
jobs wait, ``next_starts`` which jobs Slurm may start by itself, and ``saved_state`` what a restart needs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_asrpt.core.cluster import ClusterView, Fabric, Node
from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.base import Decision, Policy, PreemptibleRun, Reason, head_rank, updated_rank
from slurm_asrpt.core.policies.gated.decision import OneDecision
from slurm_asrpt.core.policies.gated.jobs import Jobs
from slurm_asrpt.core.policies.gated.larger_first import lets_larger_go_first
from slurm_asrpt.core.policies.gated.next_starts import next_starts
from slurm_asrpt.core.policies.gated.options import GatedOptions
from slurm_asrpt.core.policies.gated.order import Order
from slurm_asrpt.core.policies.gated.preempting import interrupt_and_fill, preempt_fillers, start_claimed
from slurm_asrpt.core.policies.gated.queue import Waiting
from slurm_asrpt.core.policies.gated.reservation import reserve
from slurm_asrpt.core.policies.gated.saved_state import read_state, restore_reservation, saved_reservation
from slurm_asrpt.core.policies.gated.servers import Reservation
from slurm_asrpt.core.policies.gated.shown_queue import ShownQueue
from slurm_asrpt.core.policies.gated.start_now import placement_by_preemption, placement_now, scattered_placement


class Gated(Policy):
    """Work-conserving by predicted workload, gated by placement, with a reservation and a bound on every delay.

    jobs: what it knows of the waiting and running jobs. reservation: after the last decision, while that job waits.
    """

    Options = GatedOptions
    start_key = ("rank", "gpu_seconds", "submitted")
    bands = True
    preempting = True

    def __init__(self, fabric: Fabric, options: GatedOptions) -> None:
        super().__init__(fabric, options)
        self.interrupts = options.interrupts
        self.jobs = Jobs(fabric, options)
        self.reservation: Reservation | None = None
        self._last: OneDecision | None = None  # the last decision

    # decisions

    def decide(self, cluster: ClusterView, now: float) -> Sequence[Decision]:
        previous, self.reservation = self.reservation, None
        self.jobs.advance(cluster.headroom, now)
        decision = self._last = OneDecision(self.jobs, cluster, previous, now)
        decision.keep_room_of_limits()
        if self.jobs.interruptions.claims:
            start_claimed(decision)
        for entry in Order(decision):  # a job that starts or gets a claim leaves the queue
            self._consider(entry, decision)
        if self.interrupts:
            interrupt_and_fill(decision)
        decision.close(cluster)
        self.reservation = decision.reservation
        return [*decision.made, *decision.waits.values()]

    def _consider(self, entry: Waiting, decision: OneDecision) -> None:
        """Start a job, preempt others for it, or reserve servers for it; or leave it for this decision."""
        placement = placement_now(decision, entry, decision.servers)
        if placement is not None and lets_larger_go_first(decision, entry, placement):
            return
        if placement is None and entry.job.preempts:
            placement = placement_by_preemption(decision, entry)
        if placement is None and decision.reservation is None:
            if decision.servers.fillers and preempt_fillers(decision, entry):
                return
            placement = scattered_placement(decision, entry) or reserve(decision, entry)
        if placement is not None:
            decision.start(entry, placement)

    # events

    def cluster_changed(self, nodes: Sequence[Node], now: float) -> None:
        self.reservation = None
        self.jobs.set_nodes(nodes, now)

    def submitted(self, job: Job, now: float) -> bool:
        self.jobs.forget_run(job.id)  # requeued while the daemon was away
        since = self.jobs.interruptions.waited.pop(job.id, math.inf)
        self.jobs.enter(job, job.band, min(since, max(now, job.submit_time)))  # time spent in hold does not count
        return False

    def returned(self, job: Job, now: float) -> None:
        self.jobs.forget_run(job.id)
        self.jobs.returns += 1
        self.jobs.enter(job, head_rank(job, self.jobs.returns), job.submit_time)

    def changed(self, job: Job, now: float) -> None:
        if self.jobs.keeps_claim(job):
            return
        held, entry = self.reservation, self._leave(job.id)
        if entry is not None:
            self.jobs.enter(job, updated_rank(job, entry.key[0]), entry.since)
            if held is not None and held.job == replace(job, turn=held.job.turn):  # only its turn is another
                self.reservation = replace(held, job=job)

    def finished(self, job_id: JobId, now: float) -> None:
        self._leave(job_id)
        self.jobs.ended(job_id, now)

    def started_by_slurm(self, job_id: JobId, gpus: Mapping[str, int], now: float) -> None:
        """A waiting job runs. On one server, or if it may be scattered, it runs as in its best placement.

        Else only its time limit is known.
        """
        entry = self.jobs.queue.entries.get(job_id)
        if entry is None or not entry.choices or (len(gpus) != 1 and not self.scatters(entry.job)):
            self.finished(job_id, now)
            return
        self.jobs.late.advance(now)
        self._leave(job_id)
        self.jobs.began(entry, dict(gpus), 1.0, now)

    def running(self, job_id: JobId, gpus: Mapping[str, int], until: float, now: float) -> None:
        """A running job, possibly one that the policy did not start: then only its time limit is known."""
        self._leave(job_id)
        self.jobs.seen(job_id, gpus, until, now)

    def served(self, waiting: Mapping[JobId, float], runs: Sequence[PreemptibleRun], now: float) -> None:
        """As ``PreemptivePolicy.served``."""
        self.jobs.served(waiting, runs)

    def _leave(self, job_id: JobId) -> Waiting | None:
        """A job waits no longer."""
        if self.reservation is not None and self.reservation.job.id == job_id:
            self.reservation = None
        return self.jobs.leave(job_id)

    # what comes next

    def scatters(self, job: Job) -> bool:
        """As ``Policy.scatters``."""
        return self.jobs.scatters(job)

    def next_starts(self, most: int) -> Sequence[JobId]:
        """As ``Policy.next_starts``."""
        return next_starts(self.jobs, self._last, self.reservation, most) if self._last is not None else ()

    def next_wakeup(self, now: float) -> float | None:
        """When the next job becomes late, or late jobs have paid for what they took before their turn.

        Or when a claim ends, or kept GPUs may be filled.
        """
        queue, late = self.jobs.queue, self.jobs.late
        becomes_late = late.paid_at if queue.any_late else queue.next_late(now)
        fill_at = self._last.fill_at if self._last is not None else None
        times = [claim.until for claim in self.jobs.interruptions.claims.values()]
        return min([*times, *(time for time in (becomes_late, fill_at) if time is not None)], default=None)

    def queue(self, now: float) -> Sequence[tuple[JobId, Reason]]:
        """As ``Policy.queue``, by the places of the last decision (docs/decisions/0050)."""
        return ShownQueue(self.jobs, self._last, self.reservation, now).rows()

    # restarts

    def dump(self) -> dict[str, Any]:
        return self.jobs.state(saved_reservation(self.reservation, self.jobs.hardware.nodes)).dump()

    def load(self, state: Mapping[str, Any], jobs: Mapping[JobId, Job]) -> None:
        found = read_state(state)
        self.jobs.restore(found, jobs)
        self.reservation = restore_reservation(found.kept, self.jobs.hardware.nodes, jobs)
        self._last = None
