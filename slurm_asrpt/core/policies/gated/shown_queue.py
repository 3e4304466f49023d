"""The queue of asrpt-gated as users see it: in which order the jobs are to start, and why each of them waits."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from operator import attrgetter

from slurm_asrpt.core.job import JobId
from slurm_asrpt.core.policies.base import Phase, Reason, before_band, behind, lacks_room, reason
from slurm_asrpt.core.policies.gated.decision import OneDecision
from slurm_asrpt.core.policies.gated.interruptions import Claim
from slurm_asrpt.core.policies.gated.jobs import Jobs
from slurm_asrpt.core.policies.gated.order import rank_of, ranks_of
from slurm_asrpt.core.policies.gated.queue import Key, Waiting
from slurm_asrpt.core.policies.gated.reservation import seconds_until
from slurm_asrpt.core.policies.gated.servers import Reservation


class ShownQueue:
    """The waiting jobs after the last decision, by the places that they had in it (docs/decisions/0050).

    last: the last decision; None before the first. held: its reservation, if that job still waits.
    """

    def __init__(self, jobs: Jobs, last: OneDecision | None, held: Reservation | None, now: float) -> None:
        self._jobs, self._last, self._held, self._now = jobs, last, held, now
        self._entries = jobs.queue.entries

    def rows(self) -> list[tuple[JobId, Reason]]:
        """Each job with the reason for its wait; first those with a claim."""
        order, entries = self._order(), self._entries
        higher = before_band([entries[job_id].job for job_id in order])
        head = next((job_id for job_id in order if self._may_start(entries[job_id])), None)
        claims = [(job_id, _room(claim)) for job_id, claim in self._jobs.interruptions.claims.items()]
        others = [(each, self._why(entries[each], ahead, head, higher[ahead])) for ahead, each in enumerate(order)]
        return [*claims, *others]

    def _order(self) -> list[JobId]:
        """Late jobs that go before their turn, then by place; all by band, behind those that may preempt them."""
        entries = self._entries
        late = dict.fromkeys(entry.job.id for entry in self._late())
        waiting = (entry for entry in entries.values() if entry.job.id not in late)
        order = [*late, *self._by_place(waiting)]
        order.sort(key=lambda job_id: entries[job_id].job.band)
        if self._jobs.any_preempts:
            ranks = ranks_of(list(entries.values()))
            order.sort(key=lambda job_id: rank_of(entries[job_id], ranks))
        return order

    def _late(self) -> Iterator[Waiting]:
        """The late jobs for which their share has room together, in the order of the decisions."""
        held, claimed = self._held, 0
        for entry in sorted(self._jobs.queue.all_late(self._now), key=lambda entry: entry.job.band):
            if entry.job.turn is None:
                has_servers = held is not None and held.kept and held.job.id == entry.job.id
                if not has_servers and not self._jobs.late.allows(entry.job.gpus, claimed):
                    return  # the others wait by their places
                claimed += entry.job.gpus
            yield entry

    def _by_place(self, waiting: Iterable[Waiting]) -> list[JobId]:
        """These jobs by their places in the last decision: none is before a job of its kind with less work."""
        places, last = list[tuple[Key, Key]](), dict[Hashable, Key]()
        for entry in sorted(waiting, key=attrgetter("key")):
            kind = (entry.job.charges, entry.kind)
            second = self._last.second_place(entry.job.id) if self._last is not None else None
            own = second or entry.key
            last[kind] = max(own, last.get(kind, own))
            places.append((last[kind], entry.key))
        return [key[-1] for _, key in sorted(places)]

    def _may_start(self, entry: Waiting) -> bool:
        """Whether neither the size of the cluster nor a limit of the site holds a job."""
        last = self._last
        held = last is not None and (last.servers.plan.over_limit(entry.job) or last.limit_kept_from(entry.job))
        return bool(entry.choices) and not held

    def _why(self, entry: Waiting, ahead: int, head: JobId | None, higher: int) -> Reason:
        """Why a job waits. ahead, higher: jobs before it, and those of them in a higher band. head: the first job."""
        job, held, last = entry.job, self._held, self._last
        if not entry.choices:
            return reason(Phase.WAITING, "capacity", need=job.gpus)
        if last is not None:
            if job.id in last.waits:
                return last.waits[job.id].reason
            found = lacks_room(job, last.servers.plan)
            if found is not None:
                return found
            owner = last.limit_kept_from(job)
            if owner is not None:
                return behind(job.id, ahead, owner, higher)
        if held is not None:
            until = seconds_until(held, self._jobs, self._now, self._now if last is None else last.now)
            return reason(Phase.WAITING, "reservation", head=held.job.id, need=held.job.gpus, in_s=until)
        return behind(job.id, ahead, head, higher)


def _room(claim: Claim) -> Reason:
    return reason(Phase.WAITING, "room", need=claim.entry.job.gpus, runs=", ".join(sorted(claim.victims)))
