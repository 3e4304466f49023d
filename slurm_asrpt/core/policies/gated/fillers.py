"""Fillers of asrpt-gated: jobs on GPUs that are kept for another job, until that can start (docs/decisions/0047).

A job whose owner allows preemption may start where a reservation keeps others off: on the reserved servers, or where it
would delay the end of those that the reservation may move to. Whenever a job is looked at that could start if no filler
ran, as many fillers as necessary are preempted for it. Until then, their GPUs count as free in all predictions, so
reservations are those without fillers.

A filler becomes a job like any other once no job ahead of it in the queue waits for servers, or if it may be preempted
no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies.base import PreemptibleRun
from slurm_asrpt.core.policies.gated.options import GatedOptions
from slurm_asrpt.core.policies.gated.queue import Key, Waiting
from slurm_asrpt.core.policies.gated.servers import Reservation


@dataclass
class Fillers:
    """The fillers, and how often jobs have given GPUs back.

    running: the keys with which they waited. seen: those that have been among the jobs that may be preempted.
    times: preemptions of jobs that wait again. yielded: jobs that were preempted only as fillers.
    """

    options: GatedOptions
    running: dict[JobId, Key] = field(default_factory=dict)
    seen: set[JobId] = field(default_factory=set)
    times: dict[JobId, int] = field(default_factory=dict)
    yielded: set[JobId] = field(default_factory=set)

    def lasts(self, held: Reservation, now: float) -> bool:
        """Whether GPUs are kept for so long that it pays to use them: a filler loses what an interruption costs."""
        return held.time - now >= self.options.interruption_gain * self.options.interruption_s

    def able(self, entry: Waiting) -> bool:
        """Whether a waiting job may be a filler.

        Not if it counts against limits of the site: these could then hold the jobs for which it must make room.
        """
        job = entry.job
        often = self.times.get(job.id, 0) >= self.options.max_interruptions
        return job.interruptible and bool(entry.choices) and job.turn is None and not (job.charges or often)

    def started(self, entry: Waiting) -> None:
        self.running[entry.job.id] = entry.key

    def ended(self, job_id: JobId, run: PreemptibleRun | None, preempted: bool) -> None:
        """A job has ended. run: what was last known of it."""
        filled = self.gone(job_id)
        if not preempted:
            self.times.pop(job_id, None)
            self.yielded.discard(job_id)
            return
        before = self.times.get(job_id, 0)
        self.times[job_id] = before + 1 if run is None else run.interruptions + (not run.ending)
        if not filled:
            self.yielded.discard(job_id)
        elif self.times[job_id] == 1:
            self.yielded.add(job_id)

    def gone(self, job_id: JobId) -> bool:
        """The job does not run, or is no filler any more. Returns whether it was one."""
        self.seen.discard(job_id)
        return self.running.pop(job_id, None) is not None

    def firm(self, runs: Mapping[JobId, PreemptibleRun]) -> list[JobId]:
        """The fillers that may be preempted no more. runs: the jobs that may be preempted."""
        self.seen |= self.running.keys() & runs.keys()
        return [each for each in self.seen if each not in runs or self._spent(runs[each])]

    def _spent(self, run: PreemptibleRun) -> bool:
        return run.interruptions >= self.options.max_interruptions and not run.ending

    def first(self, held: Reservation | None, waiting: Mapping[JobId, Waiting]) -> list[JobId]:
        """The fillers for which it is their turn: no job waits for servers, or one behind them does."""
        if held is None:
            return list(self.running)
        entry = waiting.get(held.job.id)
        if held.kept or entry is None:
            return []
        return [job_id for job_id, key in self.running.items() if key < entry.key]

    def dump(self) -> dict[str, Any]:
        """The state as JSON values."""
        return {
            "running": self.running,
            "seen": sorted(self.seen),
            "times": self.times,
            "yielded": sorted(self.yielded),
        }

    def load(self, raw: Mapping[str, Any]) -> None:
        """Into a new object. Raises KeyError, TypeError, ValueError, AttributeError."""
        for job_id, (rank, work, submitted, number, _) in raw["running"].items():
            key = (float(rank), float(work), float(submitted), tuple(int(part) for part in number), JobId(job_id))
            self.running[JobId(job_id)] = key
        self.seen = set(map(JobId, raw["seen"]))
        self.times = {JobId(job_id): int(count) for job_id, count in raw["times"].items()}
        self.yielded = set(map(JobId, raw["yielded"]))
