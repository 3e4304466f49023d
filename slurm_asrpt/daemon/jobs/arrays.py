"""Job arrays: how their tasks become jobs.

Slurm keeps all tasks of an array that wait in one record, and parts a task from it as soon as something is written to
that task alone. So the next tasks of each array are given leases of their own, and are jobs like any other from the
next cycle on. The others keep the lease that the hook has written, renewed as any: should asrptd be gone, Slurm starts
them. To part a task is to write, so in modes shadow and order arrays are left to Slurm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from slurm_asrpt.core.arrays import AHEAD, room
from slurm_asrpt.daemon.jobs.managed_job import Place, Tracked
from slurm_asrpt.slurm.array_tasks import read_tasks
from slurm_asrpt.slurm.records import PENDING

IN_A_CYCLE = AHEAD
"""So many tasks are parted from all arrays at once."""
REASON = "array"


def is_rest(tracked: Tracked) -> bool:
    """Whether tasks of an array wait in this record for nothing but those before them."""
    return tracked.why is not None and tracked.why.kind == REASON and tracked.record.state == PENDING


@dataclass(frozen=True)
class Parting:
    """Tasks that are to be parted from this record now. first: no other of the array waits, so that they are next."""

    rest: Tracked
    tasks: list[int]
    first: bool


def next_tasks(tracked: Iterable[Tracked]) -> list[Parting]:
    """Of the records in which tasks wait together, those of which some are to be parted now, and which. All jobs in."""
    everybody = list(tracked)
    rests = [t for t in everybody if is_rest(t)]
    return list(_chosen(rests, everybody)) if rests else []


def _chosen(rests: Iterable[Tracked], everybody: Iterable[Tracked]) -> Iterator[Parting]:
    parted, left = Parted(everybody), IN_A_CYCLE
    for rest in rests:
        record = rest.record
        most = min(left, room(parted.waiting[record.job_id], parted.known[record.job_id], record.array_most))
        tasks = list(islice(chain.from_iterable(read_tasks(record.array_tasks)), most))
        left -= len(tasks)
        if tasks:
            yield Parting(rest, tasks, first=not parted.waiting[record.job_id])


class Parted:
    """Of each array the tasks that are jobs: those that wait, and those that run, or are about to, as well."""

    def __init__(self, tracked: Iterable[Tracked]) -> None:
        self.waiting, self.known = Counter[str](), Counter[str]()
        for each in tracked:
            if not each.record.array_tasks:
                self.known[each.record.array_id] += 1
                self.waiting[each.record.array_id] += each.record.state == PENDING and each.place is not Place.PINNED


def take_over_lease(task: Tracked, rest: Tracked) -> None:
    """A task that is new was parted from its array under the lease that the rest of it has."""
    if task.record.submit_time == rest.record.submit_time:
        task.lease_until, task.lease_before, task.lease_spread = rest.lease_until, rest.lease_before, rest.lease_spread
