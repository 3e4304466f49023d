"""Whether a job of asrpt-gated that could start lets a larger one go first (docs/decisions/0050, 0052)."""

from __future__ import annotations

from slurm_asrpt.core.cluster import Placement
from slurm_asrpt.core.policies.gated.decision import OneDecision
from slurm_asrpt.core.policies.gated.idle_time import of_delay
from slurm_asrpt.core.policies.gated.queue import FirstBySize, Waiting, Waitlist
from slurm_asrpt.core.policies.gated.reservation import servers_for, work_with_idle
from slurm_asrpt.core.policies.gated.servers import bits


def lets_larger_go_first(decision: OneDecision, entry: Waiting, placement: Placement) -> bool:
    """Whether a job that could start is put behind a larger one, which it would delay by more than it is worth.

    It is not if a job on these servers has outlived its prediction by far: it is unknown when they will be free.
    """
    if decision.reservation is not None or entry.job.id in decision.yielding or decision.goes_first(entry):
        return False
    jobs, servers, now = decision.jobs, decision.servers, decision.now
    larger = larger_ahead(entry, jobs.queue, decision.sizes, jobs.hardware.largest)
    if larger is None or servers.plan.over_limit(larger.job):
        return False
    jobs.running.extend_overdue(now)
    held = servers_for(decision, larger, first=False)
    lasts = entry.lasts(placement.alpha)
    delay = min(lasts, now + lasts - held.time)
    mask = sum([servers.view.bits[name] for name in placement.gpus])
    if delay <= 0.0 or not held.mask & mask or jobs.running.any_outlived_by_far(bits(held.mask), now):
        return False
    beside = jobs.queue.beside(entry, larger.job.gpus) + _in_use(decision, held.mask)
    later = beside * (1.0 + larger.seconds / entry.seconds)  # as many come again in each of its run times
    work = _work_of_delay(entry, larger, jobs.queue, beside, later) * delay / lasts
    if work <= work_with_idle(decision, larger, held):
        return False
    decision.yielding[entry.job.id] = entry.key_with(work)
    return True


def larger_ahead(entry: Waiting, queue: Waitlist, sizes: FirstBySize, largest: int) -> Waiting | None:
    """The first larger job that cannot run beside it on any server, if it may have to wait for that one.

    largest: GPUs of the largest server.
    """
    larger = sizes.larger(entry, largest)
    if larger is None:
        return None
    alone = queue.beside(entry, larger.job.gpus)  # nothing runs beside it
    most = _work_of_delay(entry, larger, queue, alone, later=larger.job.gpus)
    return larger if most > larger.key[1] else None


def _work_of_delay(entry: Waiting, larger: Waiting, queue: Waitlist, beside: float, later: float) -> float:
    """The work of a job if it delays a larger one, and those of its size, for its whole runtime."""
    jobs = queue.number_of(entry.key[0], larger.job.gpus)
    return of_delay(entry.key[1], larger.job.gpus, jobs, beside, later)


def _in_use(decision: OneDecision, mask: int) -> int:
    """GPUs of these servers, a mask, that are in use."""
    free, nodes = decision.servers.view.free, decision.jobs.hardware.nodes
    return sum([node.gpus - free[node.name] for node in map(nodes.__getitem__, bits(mask))])
