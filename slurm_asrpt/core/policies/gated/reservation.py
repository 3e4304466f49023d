"""The reservation of a job of asrpt-gated that cannot start: which servers, from when on, and what that leaves idle."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from slurm_asrpt.core.cluster import Placement
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.policies.base import Phase, Wait, lacks_room, no_room, reason
from slurm_asrpt.core.policies.gated.decision import OneDecision
from slurm_asrpt.core.policies.gated.free_times import FreeTimes, is_unknown
from slurm_asrpt.core.policies.gated.gpu_types import Choice, able_mask, covering
from slurm_asrpt.core.policies.gated.idle_time import shared
from slurm_asrpt.core.policies.gated.jobs import Jobs
from slurm_asrpt.core.policies.gated.queue import Waiting
from slurm_asrpt.core.policies.gated.servers import Reservation, Servers, bits
from slurm_asrpt.core.policies.gated.start_now import placement_on
from slurm_asrpt.core.policies.running_jobs import RunningJobs

EXCLUSIVE_AFTER = 2.0
"""After this many times ``patience_s``, a waiting job keeps its servers for itself alone."""


def reserve(decision: OneDecision, entry: Waiting) -> Placement | None:
    """Reserve servers for a job that cannot start. Returns a placement if these servers are idle.

    If they would idle until then, the job is put back behind the jobs with less work than its own and that time, or
    less than the mean of k jobs of as many GPUs and that time.
    On unequal servers, the gate may exclude all placements that a job could ever get; then waiting is useless. A job
    that cannot start even on idle servers gets no reservation: it does not wait for another job's end.
    """
    job, plan, now = entry.job, decision.servers.plan, decision.now
    decision.jobs.running.extend_overdue(now)
    first = decision.goes_first(entry)
    held = servers_for(decision, entry, first)
    if are_idle(decision, held.mask, decision.servers):
        placement = placement_on(decision, entry, decision.servers, held.mask)
        if placement is None:
            decision.waits[job.id] = Wait(job, no_room(job, plan))
        return placement
    if not first and job.id not in decision.put_back:
        decision.put_back[job.id] = entry.key_with(work_with_idle(decision, entry, held))
        return None
    decision.reservation = held
    coming = reason(Phase.WAITING, "reserved", need=job.gpus, in_s=seconds_until(held, decision.jobs, now, now))
    decision.waits[job.id] = Wait(job, lacks_room(job, plan) or coming, held.time)
    return None


def servers_for(decision: OneDecision, entry: Waiting, first: bool) -> Reservation:
    """A reservation of the servers that will be free soonest, as if no filler ran; a late job keeps its servers.

    first: the job goes before its turn by work.
    """
    job, queue, now = entry.job, decision.jobs.queue, decision.now
    own = decision.kept_for(entry)
    exclusive = first and (job.turn is not None or entry.since + EXCLUSIVE_AFTER * queue.patience_s <= now)
    able = able_mask(entry.choices, job)
    servers = decision.servers.unfilled
    if first and own is not None and own.mask & decision.jobs.running.used:
        times = covering(entry.choices, own.mask).group.free_times
        time = max([now, *(_ready_at(decision, own, at, times) for at in bits(own.mask))])
        return replace(own, time=time, exclusive=exclusive, able=able)
    found = [(*soonest(decision, job, choice, servers), choice) for choice in entry.choices]
    mask, time, choice = min(found, key=lambda one: one[1] + entry.lasts(one[2].best))
    share = choice.group.free_times.share_of(job, mask, servers)
    return Reservation(job, mask, time, kept=first, exclusive=exclusive, able=able, share=share)


def soonest(decision: OneDecision, job: Job, choice: Choice, servers: Servers) -> tuple[int, float]:
    """The servers of a choice that will be free soonest, and when; jobs that it may preempt do not count.

    If those without a claim suffice, others are not considered: until when a claim will keep them is unknown.
    """
    able, now = servers.preempting(job), decision.now
    nodes, reach = decision.jobs.hardware.nodes, decision.jobs.hardware.reach
    if able is None or servers.preemption is None:
        if claimed := decision.jobs.interruptions.claimed:
            unclaimed = FreeTimes(nodes, decision.jobs.running, choice.group.mask & ~claimed, reach)
            with suppress(ValueError):  # they are too few
                return unclaimed.soonest(job, servers, now)
        return choice.group.free_times.soonest(job, servers, now)
    gone = servers.preemption.ids(job.preempts)
    staying = {job_id: run for job_id, run in decision.jobs.running.runs.items() if job_id not in gone}
    others = RunningJobs(nodes, staying)
    others.extend_overdue(now)
    return FreeTimes(nodes, others, choice.group.mask, reach).soonest(job, able, now)


def _ready_at(decision: OneDecision, held: Reservation, at: int, times: FreeTimes) -> float:
    """When one of its servers has what it needs of it."""
    if not held.share:
        return decision.jobs.running.free_at[at]
    return times.ready_at(held.job, at, held.share, decision.servers.unfilled, decision.now)


def are_idle(decision: OneDecision, mask: int, servers: Servers) -> bool:
    """Whether no job runs on any of these servers, a mask, and none has a claim on them."""
    jobs = decision.jobs
    if mask & (jobs.running.used | servers.masks[0] | jobs.interruptions.claimed):
        return False
    free, nodes = servers.view.free, jobs.hardware.nodes
    return all(free[nodes[at].name] == nodes[at].gpus for at in bits(mask))


def work_with_idle(decision: OneDecision, entry: Waiting, held: Reservation) -> float:
    """The work of a job with the time that its reservation would leave idle, shared with jobs of as many GPUs."""
    idle = _idle_time(decision, held) * decision.jobs.overruns.ratio(entry.job.gpus)
    return shared(idle / entry.job.weight, decision.jobs.queue.works_from(entry))


def _idle_time(decision: OneDecision, held: Reservation) -> float:
    """For how long GPUs are predicted to idle until a reservation begins, seconds of reference GPUs."""
    free, idle_until = decision.servers.unfilled.view.free, decision.jobs.running.idle_until
    most = held.share or max(free.values())
    table, now = decision.jobs.hardware.nodes, decision.now
    nodes = [(at, table[at]) for at in bits(held.mask)]
    return sum([node.speed * idle_until(held.time, at, min(most, free[node.name]), now) for at, node in nodes])


def seconds_until(held: Reservation, jobs: Jobs, now: float, decided: float) -> float | None:
    """Seconds until a reservation begins, as users are told: by predictions, but not after the time limits there.

    None if unknown: it is the end of a job without a time limit, or servers lack what no known job there has.
    decided: when it was made.
    """
    if is_unknown(held.time, decided) or not jobs.running.is_estimate(held.time):
        return None
    return max(0.0, min(held.time, jobs.limit_end(held.mask)) - now)
