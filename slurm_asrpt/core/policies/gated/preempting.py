"""The part of a decision of asrpt-gated that preempts jobs, or fills kept GPUs, with the consent of their owners.

Which jobs to preempt for which says module ``interruptions``, who may fill says module ``fillers``.
"""

from __future__ import annotations

import heapq

from slurm_asrpt.core.policies.gated.decision import OneDecision
from slurm_asrpt.core.policies.gated.interruptions import CONSIDERED
from slurm_asrpt.core.policies.gated.queue import Waiting
from slurm_asrpt.core.policies.gated.reservation import are_idle, servers_for, soonest
from slurm_asrpt.core.policies.gated.servers import Reservation
from slurm_asrpt.core.policies.gated.start_now import placement_now, placement_on


def start_claimed(decision: OneDecision) -> None:
    """Start the jobs for which others have been preempted, on the servers of these."""
    jobs, servers = decision.jobs, decision.servers
    for claim in jobs.interruptions.due(servers.view.bits, decision.now):
        entry = claim.entry
        jobs.waits_again(entry)
        placement = placement_on(decision, entry, servers, claim.mask)
        if placement is not None:
            decision.start(entry, placement)
        else:
            jobs.late.running.pop(entry.job.id, None)


def preempt_fillers(decision: OneDecision, entry: Waiting) -> bool:
    """Preempt fillers, if the job could start now without them. It starts when they have ended."""
    servers, unfilled = decision.servers, decision.servers.unfilled
    placement = placement_now(decision, entry, unfilled)
    if placement is None:
        decision.jobs.running.extend_overdue(decision.now)
        held = servers_for(decision, entry, decision.goes_first(entry))
        if are_idle(decision, held.mask, unfilled):
            placement = placement_on(decision, entry, unfilled, held.mask)
    victims = servers.to_preempt(entry.job, placement) if placement is not None else []
    if placement is None or not victims:
        return False
    servers.preempted({run.job_id for run in victims})
    decision.preempt(victims, entry, sum([servers.view.bits[name] for name in placement.gpus]))
    return True


def interrupt_and_fill(decision: OneDecision) -> None:
    """At the end of a decision: preempt for jobs with little work, and fill what is kept for the reservation."""
    known = decision.jobs.interruptions
    decision.jobs.settle(known.fillers.first(decision.reservation, decision.jobs.queue.entries))
    timely = known.is_time(decision.now)
    if timely and known.runs:
        _interrupt(decision)
    held = decision.reservation
    if held is not None and _keeps(decision, held):
        if timely:
            _fill(decision, held)
        else:
            decision.fill_at = known.next_time


def _interrupt(decision: OneDecision) -> None:
    """Preempt jobs for waiting ones with little work, which then wait for their GPUs only."""
    jobs, servers, now = decision.jobs, decision.servers, decision.now
    nodes = jobs.hardware.nodes
    if not nodes:
        return
    jobs.interruptions.look(jobs.running, now)
    entries = jobs.queue.entries.values()
    lasts = sum([entry.job.gpus * entry.seconds for entry in entries]) / jobs.hardware.gpus  # the queue
    able = (entry for entry in entries if entry.job.interruptible and entry.choices)
    waiting = (each for each in able if not each.job.charges or _within_limits(decision, each))
    for entry in heapq.nsmallest(CONSIDERED, waiting, key=lambda one: one.key):
        wait_s = max(_begins(decision, entry) - now, lasts)
        chosen = jobs.interruptions.choose(entry, wait_s, servers, nodes, jobs.running, now)
        if chosen is not None:
            decision.preempt(chosen.runs, entry, chosen.mask)
            jobs.interruptions.look(jobs.running, now)


def _within_limits(decision: OneDecision, entry: Waiting) -> bool:
    return not (decision.servers.plan.over_limit(entry.job) or decision.limit_kept_from(entry.job))


def _begins(decision: OneDecision, entry: Waiting) -> float:
    """When a job is predicted to start if it preempts none."""
    held = decision.reservation
    if held is not None and held.job.id == entry.job.id:
        return held.time
    return soonest(decision, entry.job, entry.choices[0], decision.servers)[1]


def _keeps(decision: OneDecision, held: Reservation) -> bool:
    """Whether a reservation may keep GPUs idle that jobs could fill."""
    fillers = decision.jobs.interruptions.fillers
    if not fillers.options.fills or not decision.servers.free or not fillers.lasts(held, decision.now):
        return False
    return any(map(fillers.able, decision.jobs.queue.entries.values()))


def _fill(decision: OneDecision, held: Reservation) -> None:
    """Start jobs on GPUs that are kept for the job with the reservation, those with the least work first."""
    queue, servers, now = decision.jobs.queue, decision.servers, decision.now
    fillers, placer = decision.jobs.interruptions.fillers, decision.jobs.hardware.placer
    waiting = (one for one in queue.entries.values() if fillers.able(one) and one.job.gpus <= servers.free)
    able = (one for one in waiting if one.job.id != held.job.id and not queue.is_late(one, now))
    allowed = servers.all & ~decision.jobs.interruptions.claimed
    for entry in heapq.nsmallest(CONSIDERED, able, key=lambda one: one.key):
        for choice in entry.choices:
            end = now + entry.lasts(choice.best)
            placement = placer.find(entry.job, choice, servers, allowed, end, protected=0)
            if placement is not None:
                fillers.started(entry)
                decision.start(entry, placement, held.job)
                break
