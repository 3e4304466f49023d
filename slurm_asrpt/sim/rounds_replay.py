"""A recorded run of a pool, played again in the simulator of rounds: does the policy decide as it did there?

The durations are the recorded ones; everything else is the simulator's. So a difference is a difference between what
the pool and the simulator tell their policy, or a policy that does not depend on that alone.
"""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from slurm_asrpt.core.convergence import STOP_SHARE
from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.loss_curve import LossLog
from slurm_asrpt.core.rounds.feed import Assigned, Decision, RoundEnd, assigned
from slurm_asrpt.core.rounds.jobs import Fleet, Part, Progress, RoundJob
from slurm_asrpt.core.rounds.policy import RoundPolicy
from slurm_asrpt.sim.rounds import ARRIVED, ENDED, FREED, Run


@dataclass(frozen=True)
class Difference:
    """The first decision that is not the recorded one. time: seconds, as recorded."""

    time: float
    recorded: tuple[Assigned, ...]
    simulated: tuple[Assigned, ...]


def replay_rounds(policy: RoundPolicy, fleet: Fleet, decisions: Sequence[Decision]) -> Difference | None:
    """Simulate a recorded run. policy: new, as the recorded one was. None if it assigns the same tasks, at all times.

    A record that ends before its run is compared as far as it goes.
    """
    run = Replay(fleet, policy, decisions)
    for recorded in decisions:
        if not run.heap or run.heap[0][0] != recorded.time:
            return Difference(recorded.time, recorded.assigned, ())
        found = assigned(run.step())
        if found != recorded.assigned:
            return Difference(recorded.time, recorded.assigned, found)
    return None


class Replay(Run):
    """A simulation whose tasks and rounds take as long as recorded."""

    def __init__(self, fleet: Fleet, policy: RoundPolicy, decisions: Sequence[Decision]) -> None:
        super().__init__(fleet, policy, {}, hidden=False, end_s=np.array([]))
        self._frees: defaultdict[int, deque[float]] = defaultdict(deque)
        self._ends: defaultdict[JobId, deque[tuple[float, int, RoundEnd]]] = defaultdict(deque)
        self._ending: dict[JobId, RoundEnd] = {}
        self._before: dict[JobId, int] = {}
        self._assigned: set[int] = set()
        for decision in decisions:
            self._expect(decision)
        self._assigned.clear()

    def _expect(self, decision: Decision) -> None:
        """Schedule what happens by itself; keep what follows from assignments until these have been made."""
        for gpu in decision.freed:
            if gpu in self._assigned:
                self._frees[gpu].append(decision.time)
            else:  # it has joined
                self._at(decision.time, FREED, gpu, (gpu,))
        self._assigned.difference_update(decision.freed)
        self._assigned.update(gpu for part in decision.assigned for gpu in part.gpus)
        for number, end in enumerate(decision.ended):
            self._ends[end.job].append((decision.time, number, end))
        for number, arrived in enumerate(decision.arrived):
            self._before[arrived.job.id] = arrived.done
            self._at(decision.time, ARRIVED, number, arrived.job)

    def _at(self, time: float, kind: int, order: int, what: object) -> None:
        heapq.heappush(self.heap, (time, kind, order, what))

    def arrive(self, job: RoundJob, now: float) -> None:
        log = LossLog(list(job.curve.losses) if isinstance(job.curve, LossLog) else [], STOP_SHARE)
        self.policy.arrived(Progress(replace(job, curve=log), self._before[job.id], job.tasks), now)

    def start(self, part: Part, now: float) -> None:
        """A GPU that gets more work before it has become free becomes free once."""
        for gpu in part.gpus:
            if gpu not in self._assigned and self._frees[gpu]:
                self._assigned.add(gpu)
                self._at(self._frees[gpu].popleft(), FREED, gpu, (gpu,))
        ends = self._ends[part.progress.job.id]
        if part.last and ends:
            time, number, self._ending[part.progress.job.id] = ends.popleft()
            self._at(time, ENDED, number, part.progress)

    def free(self, gpus: Sequence[int], now: float) -> None:
        self._assigned.difference_update(gpus)
        super().free(gpus, now)

    def ended(self, job: Progress, now: float) -> None:
        end = self._ending.pop(job.job.id)
        job.job, job.done = replace(job.job, compute_s=end.compute_s), end.done
        if end.loss is not None and isinstance(job.job.curve, LossLog):
            job.job.curve.losses.append(end.loss)
        if end.last:
            self.policy.finished(job, now)
        else:
            job.left = job.job.tasks
            self.policy.round_ended(job, now)
