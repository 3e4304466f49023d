"""Job arrays: how their tasks become jobs.

Slurm keeps all tasks of an array that wait in one record, and parts a task from it as soon as something is written to
that task alone. So the next tasks of each array are given leases of their own, and are jobs like any other from the
next cycle on. The others keep the lease that the hook has written, renewed as any: should asrptd be gone, Slurm starts
them. To part a task is to write, so in modes shadow and order arrays are left to Slurm.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from slurm_asrpt.daemon.tracked import Tracked
from slurm_asrpt.slurm.arraytasks import read_tasks
from slurm_asrpt.slurm.records import PENDING

AHEAD = 100
"""So many tasks of an array may wait as jobs of their own, and so many are parted from arrays in one cycle."""
REASON = "array"


def next_tasks(tracked: Iterable[Tracked]) -> list[tuple[Tracked, list[int]]]:
    """Of the records in which tasks wait together, those of which some are to be parted now, and which. All jobs in."""
    everybody = list(tracked)
    rests = [t for t in everybody if t.why is not None and t.why.kind == REASON and t.record.state == PENDING]
    return list(_chosen(rests, everybody)) if rests else []


def _chosen(rests: Iterable[Tracked], everybody: Iterable[Tracked]) -> Iterator[tuple[Tracked, list[int]]]:
    parted, waiting, room = Counter[str](), Counter[str](), AHEAD
    for record in (t.record for t in everybody if not t.record.array_tasks):
        parted[record.array_id] += 1
        waiting[record.array_id] += record.state == PENDING
    for rest in rests:
        record = rest.record
        bound = record.array_most - parted[record.job_id] if record.array_most else AHEAD
        most = max(0, min(bound, AHEAD - waiting[record.job_id], room))
        tasks = list(islice(chain.from_iterable(read_tasks(record.array_tasks)), most))
        room -= len(tasks)
        if tasks:
            yield rest, tasks


def take_over_lease(task: Tracked, rest: Tracked) -> None:
    """A task that is new was parted from its array under the lease that the rest of it has."""
    if task.record.submit_time == rest.record.submit_time:
        task.lease_until, task.lease_before, task.lease_spread = rest.lease_until, rest.lease_before, rest.lease_spread
