"""Where a job of asrpt-gated may start now, beside the reservation and the claims of others."""

from __future__ import annotations

from slurm_asrpt.core.cluster import Placement
from slurm_asrpt.core.job import Job
from slurm_asrpt.core.placement.selection import usable_on
from slurm_asrpt.core.policies.gated.decision import OneDecision
from slurm_asrpt.core.policies.gated.gpu_types import Choice, covering
from slurm_asrpt.core.policies.gated.queue import Waiting
from slurm_asrpt.core.policies.gated.servers import Reservation, Servers, bits

_INF = float("inf")


def placement_now(decision: OneDecision, entry: Waiting, servers: Servers) -> Placement | None:
    """The best placement in which a job may start now, or None.

    servers: those of the decision, or the same as if no filler ran.
    """
    job, placer = entry.job, decision.jobs.hardware.placer
    if job.gpus > servers.free:
        return None
    protected = _protected(decision)
    for choice in entry.choices:
        end = decision.now + entry.lasts(choice.best)
        allowed = _allowed(decision, servers, end) | _beside(decision, job, choice, servers)
        found = placer.find(job, choice, servers, allowed, end, protected)
        if found is not None:
            alone = len(decision.jobs.queue.entries) == 1
            return placer.wider(job, servers, found) if alone else found
    own = decision.kept_for(entry) if decision.reservation is None else None
    return placement_on(decision, entry, servers, own.mask) if own is not None else None


def placement_on(decision: OneDecision, entry: Waiting, servers: Servers, mask: int) -> Placement | None:
    """The placement of a job on servers that are kept for it, a mask, with any alpha."""
    choice = covering(entry.choices, mask)
    return decision.jobs.hardware.placer.general(entry.job, choice, servers, mask, _INF)


def scattered_placement(decision: OneDecision, entry: Waiting) -> Placement | None:
    """With ``scatter``, a placement on more servers than the job needs, rather than a reservation."""
    job, servers, jobs = entry.job, decision.servers, decision.jobs
    if not jobs.scatters(job) or job.gpus > servers.free:
        return None
    allowed = _allowed(decision, servers, decision.now)  # no other job has a reservation
    found = (jobs.hardware.placer.scattered(job, choice, servers, allowed) for choice in entry.choices)
    return next((placement for placement in found if placement is not None), None)


def placement_by_preemption(decision: OneDecision, entry: Waiting) -> Placement | None:
    """The best placement on GPUs that are free or that the job may preempt, where its victims lose least."""
    job, preemption, hardware = entry.job, decision.servers.preemption, decision.jobs.hardware
    able = decision.servers.preempting(job)
    if able is None or preemption is None or job.gpus > able.free:
        return None
    for choice in entry.choices:
        end = decision.now + entry.lasts(choice.best)
        allowed = _allowed(decision, able, end) & choice.group.mask & ~able.masks[0]
        allowed = able.free_later(allowed, end, _protected(decision))
        names = preemption.by_loss(job, [hardware.nodes[at].name for at in bits(allowed)])
        found = hardware.placer.on_first(job, choice, able, [able.view.bits[name] for name in names])
        if found is not None:
            return found
    return None


def _protected(decision: OneDecision) -> int:
    """Servers that others must not keep busy for longer than predicted: the reservation might move there.

    A late job keeps its servers for itself alone, so that the others do not matter. For parts of servers, a job on
    another part seldom matters.
    """
    held = decision.reservation
    return 0 if held is None or held.kept or held.share else held.able


def _allowed(decision: OneDecision, servers: Servers, end: float) -> int:
    """The servers without a reservation before this predicted end, as a mask."""
    taken, able, interruptions = decision.reservation, servers.all, decision.jobs.interruptions
    if interruptions.claims:
        able &= ~interruptions.claimed
    return able if taken is None or (end <= taken.time and not taken.exclusive) else able & ~taken.mask


def _beside(decision: OneDecision, job: Job, choice: Choice, servers: Servers) -> int:
    """The servers on which the job leaves free what is reserved on parts of them, as a mask."""
    taken = decision.reservation
    if taken is None or not taken.share or choice.group.free_times.needs(job).servers > 1:
        return 0
    beside = taken.beside(servers, job.gpus) & ~decision.jobs.interruptions.claimed
    if servers.plain(taken.job):
        return beside
    return sum([1 << at for at in bits(beside) if _leaves_resources(decision, job, taken, at, servers)])


def _leaves_resources(decision: OneDecision, job: Job, taken: Reservation, at: int, servers: Servers) -> bool:
    """Whether a reserved server has the CPUs, memory and other resources for both jobs when the reservation begins."""
    name, later = servers.view.names[at], servers.view.alone(servers.view.names[at])
    for end, after in decision.jobs.running.as_they_end(at, servers.view, decision.now):
        if end > taken.time:
            break
        later = after.copy()
    if usable_on(later, name, job.request) < job.gpus:
        return False
    later.take({name: job.gpus}, job.request)
    return usable_on(later, name, taken.job.request) >= taken.share
