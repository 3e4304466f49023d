"""Simulations in which a policy may preempt the jobs that consent: signal, checkpoint, requeue, restart."""

from __future__ import annotations

import heapq
import math
from array import array
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from slurm_asrpt.core.job import Job, JobId
from slurm_asrpt.core.policies.base import Preempt, PreemptibleRun, PreemptivePolicy, Start, Wait, may_interrupt
from slurm_asrpt.core.preemption_costs import PreemptionCosts
from slurm_asrpt.sim.engine import PlainRun, PolicyError, Preemptions, Result, Runner, Simulation


def interrupting(consenting: Collection[int], costs: PreemptionCosts) -> Runner:
    """A runner for ``simulate``: the policy may preempt the jobs in these rows."""
    return partial(InterruptedRun, consenting=consenting, costs=costs)


@dataclass
class Part:
    """Where a job stands that runs or has run. since: start of its run. iterations: done before it.

    runs: it computes; leaves: it writes its checkpoint; waits: it is not eligible yet. gpu_s: attained GPU-seconds.
    """

    phase: str
    since: float
    alpha: float
    iterations: float = 0.0
    gpu_s: float = 0.0
    interruptions: int = 0


class InterruptedRun(PlainRun):
    """A simulation with preemption. In the result, start is that of the first run, and alpha covers all time until the
    end.

    ``lost_gpu_s``: by row of interrupted jobs, GPU-seconds in which it held GPUs without progress.
    """

    def __init__(self, of: Simulation, consenting: Collection[int], costs: PreemptionCosts) -> None:
        super().__init__(of)
        self.costs, self.consenting = costs, frozenset(consenting) if may_interrupt(of.policy) else frozenset[int]()
        self.coming = (replace(job, interruptible=int(job.id) in self.consenting) for job in self.coming)
        self.parts: dict[int, Part] = {}
        self.runs: dict[JobId, PreemptibleRun] = {}  # of consenting jobs
        self.attained: dict[JobId, float] = {}  # of jobs that wait again
        self.first, self.end = (array("d", [math.nan]) * len(of.table) for _ in range(2))
        self.lost_gpu_s: dict[int, float] = {}
        self.interruptions: dict[int, int] = {}
        self.idle_since: dict[int, float] = {}
        self.between: list[tuple[float, float, float]] = []  # GPUs, begin and end
        self.speeds = {node.name: node.speed for node in of.nodes}

    def _decide(self, now: float) -> None:
        self._tell(now)
        decisions = self.policy.decide(self.view, now)
        for decision in decisions:
            if isinstance(decision, Start):
                self._begin(decision, now)
            elif isinstance(decision, Preempt):
                self._interrupt(int(decision.job_id), now)
        if not all(isinstance(decision, Wait) for decision in decisions):
            self._tell(now)  # whether the next job that is submitted changes anything depends on what runs

    def _tell(self, now: float) -> None:
        policy = self.policy
        if self.consenting and isinstance(policy, PreemptivePolicy):
            policy.served(self.attained, list(self.runs.values()), now)

    def _begin(self, start: Start, now: float) -> None:
        super()._begin(start, now)
        row, job, placement = int(start.job.id), start.job, start.placement
        before = self.parts.get(row, Part("", now, placement.alpha))
        pause = self.costs.restart_s if before.interruptions else 0.0
        end = now + pause + (self.iterations[row] - before.iterations) * placement.alpha
        self._schedule(row, end, job, placement.gpus)
        part = replace(before, phase="runs", since=now, alpha=placement.alpha)
        self.parts[row], self.end[row] = part, end
        if row in self.idle_since:
            self.between.append((job.gpus, self.idle_since.pop(row), now))
        if math.isnan(self.first[row]):
            self.first[row] = now
        self.attained.pop(job.id, None)
        if row in self.consenting:
            rate = job.gpus * min(self.speeds[name] for name in placement.gpus)
            run = PreemptibleRun(job.id, placement.gpus, part.gpu_s, rate, now, part.interruptions, held=job.request)
            self.runs[job.id] = run

    def _schedule(self, row: int, time: float, job: Job, gpus: Mapping[str, int]) -> None:
        """Replace the next event of a job."""
        self.running = [entry for entry in self.running if entry[1] != row]
        self.running.append((time, row, job, gpus))
        heapq.heapify(self.running)
        self.next_end = self.running[0][0]

    def _interrupt(self, row: int, now: float) -> None:
        """The job writes a checkpoint; its GPUs are busy until then."""
        part = self.parts[row]
        if row not in self.consenting or part.phase != "runs":
            raise PolicyError(f"job {row} was preempted at {now} but does not consent or does not run")
        _, _, job, gpus = next(entry for entry in self.running if entry[1] == row)
        if self.end[row] <= now + self.costs.checkpoint_s:
            return  # it ends before
        pause = self.costs.restart_s if part.interruptions else 0.0
        progress = max(0.0, now - part.since - pause) / part.alpha if part.alpha else 0.0
        run = self.runs[job.id]
        self.runs[job.id] = replace(run, ending=True, interruptions=part.interruptions + 1)
        self.parts[row] = replace(
            part,
            phase="leaves",
            iterations=part.iterations + progress,
            gpu_s=part.gpu_s + run.rate * max(0.0, now - part.since - pause),
            interruptions=part.interruptions + 1,
        )
        self._lose(row, job, self.costs.checkpoint_s + min(pause, now - part.since))
        self.interruptions[row] = part.interruptions + 1
        self.end[row] = math.nan
        self._schedule(row, now + self.costs.checkpoint_s, job, gpus)

    def _lose(self, row: int, job: Job, seconds: float) -> None:
        """The job has held its GPUs for so long without progress."""
        self.lost_gpu_s[row] = self.lost_gpu_s.get(row, 0.0) + job.gpus * seconds

    def _ends(self, now: float) -> None:
        while self.next_end <= now:
            time, row, job, _ = self.running[0]
            part = self.parts[row]
            if part.phase == "runs":
                self.runs.pop(job.id, None)
                if part.interruptions:
                    self._lose(row, job, self.costs.restart_s)
                self._end_one(now)
            elif part.phase == "leaves":
                self._leave(row, time, job)
            else:
                heapq.heappop(self.running)
                self.next_end = self.running[0][0] if self.running else math.inf
                self._return(row, replace(job, submit_time=time), now)

    def _end_one(self, now: float) -> None:
        """Pass the next end to the parent, alone."""
        after = self.running
        self.running = [heapq.heappop(after)]
        super()._ends(now)
        self.running = after
        self.next_end = after[0][0] if after else math.inf

    def _leave(self, row: int, time: float, job: Job) -> None:
        """It has written its checkpoint, and frees its GPUs."""
        gpus = self.running[0][3]
        self.view.give(gpus, job.request)
        if job.charges:
            self.view.headroom.give(job.charges)
        self.runs.pop(job.id, None)
        self.policy.finished(job.id, time)
        self.parts[row].phase, self.idle_since[row] = "waits", time
        self._schedule(row, time + self.costs.requeue_s, job, {})

    def _return(self, row: int, job: Job, now: float) -> None:
        """It is eligible again."""
        self.nodes[row] = 0
        self.waiting += 1
        self.attained[job.id] = self.parts[row].gpu_s
        self._tell(now)
        self.policy.submitted(job, now)

    def result(self, interrupted: bool) -> Result:
        found = super().result(interrupted).with_times(np.array(self.first), np.array(self.end))
        if not self.consenting:
            return found
        rows, between = np.array(sorted(self.consenting), dtype=np.int64), np.array(self.between).reshape(-1, 3)
        count, lost = sum(self.interruptions.values()), sum(self.lost_gpu_s.values())
        return replace(found, preemptions=Preemptions(rows, count, lost, between))
