"""The waiting and running jobs of asrpt-gated, and what it has learned from them: what lasts between two decisions."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from slurm_asrpt.core.cluster import Fabric, Node
from slurm_asrpt.core.job import ANYWHERE, Job, JobId, id_key
from slurm_asrpt.core.limits import Headroom
from slurm_asrpt.core.policies.base import PreemptibleRun, updated_rank
from slurm_asrpt.core.policies.gated.estimates import Estimates, Known
from slurm_asrpt.core.policies.gated.gpu_types import within_limit
from slurm_asrpt.core.policies.gated.hardware import Hardware
from slurm_asrpt.core.policies.gated.idle_time import Overruns
from slurm_asrpt.core.policies.gated.interruptions import Claim, Interruptions
from slurm_asrpt.core.policies.gated.late_share import LateShare
from slurm_asrpt.core.policies.gated.options import GatedOptions
from slurm_asrpt.core.policies.gated.queue import Waiting, Waitlist
from slurm_asrpt.core.policies.gated.saved_state import Kept, Queued, State
from slurm_asrpt.core.policies.gated.similar import SimilarJobs
from slurm_asrpt.core.policies.nic_contention import NicContention
from slurm_asrpt.core.policies.running_jobs import NO_END_S, RunningJob, RunningJobs

_INF = float("inf")


class Started(NamedTuple):
    """What was known about the runtime of a running job, its α/α̃_min, and its runtime in earlier runs, seconds."""

    known: Known
    slowdown: float
    had: float = 0.0


class Jobs:
    """Every job of the policy: it waits, has a claim on GPUs of jobs that are being preempted, or runs.

    hardware: the servers. queue: the jobs that wait. running: the jobs that run, and when servers will be free.
    choices: the kinds of GPU that could run a job. started: of running jobs that the policy has estimated.
    estimates, similar: learn runtimes from jobs that end. overruns: learns how long reservations last. late: what late
    jobs take before their turn. interruptions: who may preempt whom, the claims, and the fillers. contention: who uses
    which NIC; None if that does not count. returns: how many starts Slurm has rejected. any_preempts: whether a job has
    come that may preempt others by the rules of the site.
    """

    def __init__(self, fabric: Fabric, options: GatedOptions) -> None:
        self._fabric, self._options = fabric, options
        self.contention = NicContention(fabric) if options.contention else None
        # else the room that fillers make for a job could go to one that is scattered
        self.scatter = options.scatter and not (options.interrupts and options.fills)
        self.interrupts = options.interrupts
        self.queue = Waitlist(options.patience_s)
        self.estimates, self.similar, self.overruns = Estimates(), SimilarJobs(), Overruns()
        self.started: dict[JobId, Started] = {}
        self.late = LateShare(options.late_share)
        self.interruptions = Interruptions(options)
        self.returns = 0
        self.any_preempts = False
        self.hardware = Hardware((), fabric, options.gate, self.contention)
        self._run_on_hardware({})

    def set_nodes(self, nodes: Sequence[Node], now: float) -> None:
        """The jobs may use these servers from now on. What is known by the places of servers is forgotten."""
        self.hardware = Hardware(nodes, self._fabric, self._options.gate, self.contention)
        self.late.advance(now)
        self.late.total = self.hardware.gpus
        self._run_on_hardware(self.running.runs)
        self.overruns.forget()
        claiming = self.interruptions.drop_claims()
        for entry in claiming:
            self.late.running.pop(entry.job.id, None)
        for entry in [*self.queue.clear(), *claiming]:
            self.enter(entry.job, entry.key[0], entry.since)

    def _run_on_hardware(self, runs: Mapping[JobId, RunningJob]) -> None:
        self.running = RunningJobs(self.hardware.nodes, runs)
        self.choices = self.hardware.choices(self.running)
        if self.contention is not None:
            for job_id, run in runs.items():
                self.contention.seen(job_id, run.gpus)

    def advance(self, headroom: Headroom, now: float) -> None:
        """Before a decision: bring up to date which jobs a limit holds, the late share, and the estimates."""
        self.queue.release(headroom)
        self.late.advance(now)
        self._estimate_again(self.similar.outlived(now))

    def scatters(self, job: Job) -> bool:
        """Whether a job may start on any number of servers, wherever GPUs are free."""
        return self.scatter and job.anyhow and not job.communication_known and job.turn is None

    # jobs that wait

    def enter(self, job: Job, rank: float, since: float, seconds: float | None = None) -> None:
        """Queue a job. seconds: its estimated runtime, if it was set before."""
        self.any_preempts = self.any_preempts or bool(job.preempts)
        choices, to_reference = self.choices.of(job)
        best = choices[0].best if choices else 1.0
        if job.id in self.queue.entries:
            self.similar.left(self.queue.entries[job.id].job)
        self.similar.waits(job)
        whole = seconds or self.estimates.seconds(self._known(job, best))
        seconds = seconds or self.interruptions.left_s(job, whole, to_reference)
        number = id_key(job.id)
        favor = self.interruptions.favor(job)
        key = (rank, favor * job.gpus * seconds * to_reference / job.weight, job.submit_time, number, job.id)
        if len(choices) > 1 and job.predicted_iterations:
            choices = within_limit(choices, job)
        shape = self._shape(job) if rank == job.band else (rank, job.id)  # a returned job is alone in its shape
        shape = (len(choices), shape) if len(choices) > 1 else shape
        kind = (rank, job.weight, shape) if rank or job.weight != 1.0 else shape
        age = (_INF if job.turn is None else job.turn, since, number, job.id)
        self.queue.enter(Waiting(job, key, seconds, choices, kind, shape, age))

    def _known(self, job: Job, best: float) -> Known:
        """best: α̃_min of the job."""
        return Known(job.predicted_iterations * best, job.time_limit, self.similar.runtime(job))

    def _shape(self, job: Job) -> Hashable:
        """The shape of a job. Jobs of one shape can start on the same servers, and count against the same limits."""
        if job.preemption is not None:
            return (job.preemption, self._shape(replace(job, preemption=None)))
        if job.charges:
            return (job.charges, job.profile, job.request)
        if job.request is not ANYWHERE:
            return (job.profile, job.request)
        return job.gpus if job.gpus <= self.hardware.size else job.profile

    def _estimate_again(self, waiting: Iterable[JobId]) -> None:
        """Estimate the runtimes of jobs again: more is known about similar jobs."""
        for job_id in waiting:
            entry = self.queue.entries[job_id]
            self.enter(entry.job, entry.key[0], entry.since)

    def leave(self, job_id: JobId) -> Waiting | None:
        """A job waits no longer, nor has it a claim. Returns its entry; None if it did not wait."""
        claim = self.interruptions.claims.pop(job_id, None)
        if claim is not None:
            self.late.running.pop(job_id, None)
            return claim.entry
        entry = self.queue.leave(job_id)
        if entry is not None:
            self.similar.left(entry.job)
        return entry

    def keeps_claim(self, job: Job) -> bool:
        """A job has changed. Returns whether it has a claim, which holds: it needs the same GPUs as before."""
        claim = self.interruptions.claims.get(job.id)
        if claim is None or (claim.entry.job.profile, claim.entry.job.request) != (job.profile, job.request):
            return False
        self.enter(job, updated_rank(job, claim.entry.key[0]), claim.entry.since)
        entry = self.queue.entries[job.id]
        self.queue.leave(job.id)
        self.similar.left(job)
        self.interruptions.claims[job.id] = replace(claim, entry=entry)
        return True

    def waits_again(self, entry: Waiting) -> None:
        """A job that had a claim waits with its old entry."""
        self.similar.waits(entry.job)
        self.queue.enter(entry)

    # jobs that run

    def began(self, entry: Waiting, gpus: Mapping[str, int], slowdown: float, now: float) -> None:
        """A job that has waited runs from now on. slowdown: its α/α̃_min."""
        job, end = entry.job, now + entry.seconds * slowdown
        fills = job.id in self.interruptions.fillers.running
        self.running.began(job.id, RunningJob(now, end, gpus, fills, job.request))
        had = self.interruptions.had_s(job, self.choices.of(job)[1]) if self.interrupts else 0.0
        self.started[job.id] = Started(self._known(job, entry.choices[0].best), slowdown, had)
        if self.interrupts:
            self.interruptions.started(entry, self.queue.is_late(entry, now))
        self.similar.started(job, now, slowdown, end)

    def seen(self, job_id: JobId, gpus: Mapping[str, int], until: float, now: float) -> None:
        """A job runs on these GPUs, until its time limit at the latest; the policy may not have started it."""
        if self.contention is not None:
            self.contention.seen(job_id, gpus)
        known = self.running.runs.get(job_id)
        if known is None:
            self.running.began(job_id, RunningJob(now, min(until, now + NO_END_S), dict(gpus)))
        elif known.gpus != gpus:  # Slurm allocated other GPUs than planned
            self.running.began(job_id, replace(known, gpus=dict(gpus)))

    def limit_end(self, mask: int) -> float:
        """When the last job on these servers, a mask, reaches its time limit, seconds; infinity for none."""
        ends = (self._limit_end(job_id, run) for job_id, run in self.running.on(mask))
        return max(ends, default=_INF)

    def _limit_end(self, job_id: JobId, run: RunningJob) -> float:
        started = self.started.get(job_id)
        if started is not None:
            return run.start + started.known.limit
        return run.end if run.end - run.start < NO_END_S else _INF  # as it was ``seen``

    def ended(self, job_id: JobId, now: float) -> None:
        """A running job has ended; others may be estimated again by its runtime, unless it was preempted."""
        self.late.advance(now)
        started, run = self.started.get(job_id), self.running.runs.get(job_id)
        preempted = self.interruptions.ended(job_id)
        if run is not None and started is not None and not preempted:
            seconds = started.had + (now - run.start) / started.slowdown
            self.estimates.ended(started.known, seconds)
            self._estimate_again(self.similar.ended(job_id, seconds))
        self.forget_run(job_id)

    def forget_run(self, job_id: JobId) -> None:
        """A job does not run, and its runtime tells nothing."""
        self.started.pop(job_id, None)
        self.similar.stopped(job_id)
        self.interruptions.fillers.gone(job_id)
        self.late.running.pop(job_id, None)
        if self.contention is not None:
            self.contention.ended(job_id)
        self.running.ended(job_id)

    def served(self, attained: Mapping[JobId, float], runs: Sequence[PreemptibleRun]) -> None:
        """As ``PreemptivePolicy.served``."""
        self.interruptions.served(attained, runs)
        self.settle(self.interruptions.fillers.firm(self.interruptions.runs))

    def settle(self, fillers: Iterable[JobId]) -> None:
        """Some fillers go on as jobs like any other."""
        for job_id in fillers:
            if job_id not in self.interruptions.ending and job_id in self.running.runs:
                self.interruptions.fillers.gone(job_id)
                self.running.began(job_id, replace(self.running.runs[job_id], fills=False))

    # restarts

    def state(self, kept: Kept | None) -> State:
        """What to save of them, with the servers that are kept for a late job."""
        nodes = self.hardware.nodes
        claimed = [claim.entry for claim in self.interruptions.claims.values()]
        rows = sorted([*self.queue.entries.values(), *claimed], key=lambda e: e.key)
        return State(
            [Queued(e.job.id, e.key[0], e.since, e.seconds) for e in rows],
            self.returns,
            self.running.runs,
            {job_id: (*one.known, one.slowdown, one.had) for job_id, one in self.started.items()},
            self.estimates.dump(),
            self.similar.dump(),
            self.late.dump(),
            kept,
            {nodes[at].name: time for at, time in self.running.outlived.items()},
            self.interruptions.dump(nodes) if self.interrupts else None,
            overruns=self.overruns.dump(),
        )

    def restore(self, saved: State, jobs: Mapping[JobId, Job]) -> None:
        """Continue from a saved state. jobs: those that still wait; the others are dropped."""
        self.estimates, self.similar = Estimates(), SimilarJobs()
        self.estimates.load(saved.estimates)
        self.similar.load(saved.similar, jobs)
        self.queue.clear()
        self.interruptions = Interruptions(self._options)
        if saved.interruptions is not None and self.interrupts:
            self.interruptions.load(saved.interruptions)
        self.returns = saved.returns
        self.started = {
            job_id: Started(Known(*known), slowdown, had) for job_id, (*known, slowdown, had) in saved.started.items()
        }
        self.late.load(saved.late)
        self.overruns.load(saved.overruns)
        filling = self.interruptions.fillers.running.keys()
        self._run_on_hardware({job_id: replace(run, fills=job_id in filling) for job_id, run in saved.runs.items()})
        overdue, nodes = saved.outlived, self.hardware.nodes
        self.running.outlived = {at: overdue[node.name] for at, node in enumerate(nodes) if node.name in overdue}
        for one in saved.order:
            if one.job_id in jobs:
                self.enter(jobs[one.job_id], updated_rank(jobs[one.job_id], one.rank), one.since, one.seconds)
        self._restore_claims(saved)

    def _restore_claims(self, saved: State) -> None:
        """The claims of jobs that still wait, if all their servers still exist."""
        places = {node.name: at for at, node in enumerate(self.hardware.nodes)}
        for job_id, (names, victims, until) in saved.claims.items() if self.interrupts else ():
            entry = self.queue.entries.get(job_id)
            if entry is not None and places.keys() >= set(names):
                self.leave(job_id)
                mask = sum(1 << places[name] for name in names)
                self.interruptions.claims[job_id] = Claim(entry, mask, frozenset(victims), until)
        for job_id in self.queue.entries:
            self.late.running.pop(job_id, None)
