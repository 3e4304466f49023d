"""The site's limits as asrptd follows them: what they are, what is in use, and what Slurm refused all the same.

Limits are read in bulk and rarely; what is in use is counted here, so that a limit that becomes free is used in the
same cycle. What asrptd does not know is learned from refusals (module ``refusals``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from slurm_asrpt.core.cluster import host_of
from slurm_asrpt.core.limits import Charges, Headroom, headroom, together
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.refusals import Refusals
from slurm_asrpt.daemon.jobs.site_reader import SiteReader
from slurm_asrpt.slurm.limits import LimitBook, Use, is_minimum, is_of_nodes, use_of
from slurm_asrpt.slurm.partitions import is_closed
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, JobRecord, NodeRecord
from slurm_asrpt.slurm.request import gpus_of
from slurm_asrpt.slurm.site import Site

MOST_KNOWN = 100_000
_counted_by = attrgetter(
    *("user", "account", "qos", "partition", "tres", "licenses", "time_limit", "cpus", "min_nodes"),
    *("tres_per_job", "tres_per_node", "tres_per_task", "tasks", "gpus_by_node", "exclusive", "state", "one_thread"),
)


class LimitsWatch:
    """Follows limits and their use."""

    def __init__(self, reader: SiteReader) -> None:
        self._reader = reader
        self._book = LimitBook(reader.site.limits)
        self._any = self._of_minutes = self._of_nodes = False
        self._now = 0.0
        self._known: dict[Any, Charges] = {}
        self._of_record: dict[str, tuple[JobRecord, Charges]] = {}
        self._running: list[JobRecord] = []
        self._refusals = Refusals()
        self._holders: set[tuple[str, str, str]] = set()  # those who had jobs when limits were last read
        self._reads = 0  # of the reader, as of then
        self._partitions = reader.site.partitions  # as of the last cycle
        self._sizes: dict[Any, NodeRecord] = {}  # a node of each
        self._closed_unseen = False  # Slurm has refused a start for the state of a partition

    def follow(self, records: Iterable[JobRecord], now: float, nodes: Sequence[NodeRecord] = ()) -> None:
        """The jobs as of now, managed or not; the limits, where they are due to be read again.

        nodes: of all partitions, for jobs that get whole ones.
        """
        records, self._now = list(records), now
        self._follow_sizes(nodes)
        self._running = [r for r in records if r.state in RUNNING_STATES and r.state != "COMPLETING"]
        present = [r for r in records if not r.has_ended]
        self._read_if_due({(r.user, r.account, r.qos) for r in present}, self._for_partitions(present))
        limits = self._reader.site.limits
        if limits is not self._book.limits:
            self._book, self._any, self._of_minutes = LimitBook(limits), limits.any, limits.of_minutes
            self._of_nodes = limits.of_nodes
            self._known.clear()
            self._of_record.clear()
        if len(self._of_record) > 2 * len(records):
            self._of_record.clear()
        if self._reader.site.partitions != self._partitions:
            self._partitions = self._reader.site.partitions
            self._refusals.partitions_changed()
        self._refusals.follow(present, self._running, now)

    def _follow_sizes(self, nodes: Sequence[NodeRecord]) -> None:
        """Nodes of one size count alike."""
        found = {(n.partitions, n.cpus, n.threads, n.gpus, n.gpu_type, len(n.types)): n for n in nodes}
        if found.keys() != self._sizes.keys():
            self._known.clear()
            self._of_record.clear()
        self._sizes = found

    def _for_partitions(self, present: Iterable[JobRecord]) -> bool:
        """Whether to read at once for the states of partitions: one has been set down, or jobs wait for one."""
        known, unseen = self._reader.site.partitions, self._closed_unseen
        self._closed_unseen = False
        if unseen or not self._reader.due_soon:
            return unseen
        return self._refusals.by_partitions or any(r.state == PENDING and is_closed(r, known) for r in present)

    def _read_if_due(self, holders: set[tuple[str, str, str]], at_once: bool) -> None:
        """Read the limits now and then, and at once for new users: slurmctld shows those of users who have jobs."""
        if self._reads != self._reader.reads:  # for priorities, since the last cycle
            self._holders &= holders
        if at_once or self._reader.due or not holders <= self._holders:
            self._reader.read()
            self._holders = holders
        self._reads = self._reader.reads

    @property
    def site(self) -> Site:
        """The site as last read."""
        return self._reader.site

    @property
    def running(self) -> Sequence[JobRecord]:
        """The jobs that use limits now, managed or not."""
        return self._running

    def most_nodes(self, record: JobRecord) -> int | None:
        """The least MaxNodes of the partitions of a job that it fits into; None without one."""
        known = self._reader.site.partitions
        found = [known[name].max_nodes for name in record.partition.split(",") if name in known]
        return min((int(most) for most in found if record.min_nodes <= most < math.inf), default=None)

    def is_closed(self, record: JobRecord) -> bool:
        """Whether none of its partitions starts jobs now."""
        return is_closed(record, self._reader.site.partitions)

    def partition_refused(self) -> None:
        """Slurm did not start a job for the state of its partition: read the states before others are planned there."""
        self._closed_unseen = True

    def refused(self, record: JobRecord, why: str, now: float) -> bool:
        """Slurm did not start the job for a limit; whether others of its scope wait with it."""
        known = self._reader.site.partitions
        has_qos = any(known[name].has_qos for name in record.partition.split(",") if name in known)
        return self._refusals.refused(record, why, self._running, now, has_qos)

    def charges(self, record: JobRecord) -> Charges:
        """What a job counts for, whether it waits or runs."""
        return self._known_charges(record) + self._refusals.charges(record)

    def asked(self, components: Sequence[JobRecord]) -> Charges:
        """What a waiting job counts for; infinite where it exceeds a limit by itself: no room is kept for it then."""
        caps = self._book.caps
        found = together(map(self.charges, components)) if len(components) > 1 else self.charges(components[0])
        hopeless = any(amount > caps.get(limit, math.inf) for limit, amount in found)
        if not hopeless:
            return found
        return tuple([(limit, amount if amount <= caps.get(limit, math.inf) else math.inf) for limit, amount in found])

    def _known_charges(self, record: JobRecord) -> Charges:
        """Nearly all records are those of the cycle before."""
        if not self._any:
            return ()
        before = self._of_record.get(record.job_id)
        if before is None or before[0] is not record:
            before = self._of_record[record.job_id] = (record, self._charges_of(record))
        return before[1]

    def _charges_of(self, record: JobRecord, ran_s: float = 0.0) -> Charges:
        """ran_s: seconds that no longer count."""
        key = (str(_counted_by(record)), ran_s)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = self._book.charges(self._use_of(record, ran_s))
        return found

    def _use_of(self, record: JobRecord, ran_s: float = 0.0) -> Use:
        return use_of(record, gpus_of(record), ran_s, self._sizes.values())

    def alone(self, job: ManagedJob, limit: str) -> tuple[float, float] | None:
        """How much a job asks for, and the limit, if it breaks the limit by itself."""
        amount, cap = dict(job.charges).get(limit, 0.0), self._book.caps.get(limit, math.inf)
        if math.isinf(amount):
            amount = dict(self.charges(job.record)).get(limit, math.inf)
        if math.isinf(amount):  # of a limit on each job
            amount = self._book.amount_of(limit, self._use_of(job.record))
        return (amount, cap) if amount > cap or is_minimum(limit) else None

    def headroom(self, starting: Sequence[ManagedJob]) -> Headroom:
        """What is left beside the running jobs and those that Slurm is about to start."""
        in_use = [self._in_use(record) for record in self._running]
        in_use += [job.charges or self.charges(job.record) for job in starting]
        left = headroom(self._book.caps | self._refusals.caps, in_use)
        if self._of_nodes:
            left.give(_counted_twice(((job.hosts, self.charges(job)) for job in self._running), starting))
        return left

    def _in_use(self, record: JobRecord) -> Charges:
        """What a running job counts for: of its minutes, slurmctld counts those that were left some time ago."""
        if not self._of_minutes:
            return self.charges(record)
        period = self._book.limits.period_s
        ran_s = period * max(0.0, (self._now - record.start_time) // period - 1.0)
        return self._charges_of(record, ran_s) + self._refusals.charges(record)


def _counted_twice(running: Iterable[tuple[frozenset[str], Charges]], starting: Iterable[ManagedJob]) -> Charges:
    """What these jobs count too much against limits on nodes: Slurm counts a node once, however many share it."""
    placed = [(frozenset(map(host_of, job.pin.gpus)), job.charges) for job in starting if job.pin]
    nodes, amounts = dict[str, set[str]](), dict[str, float]()
    for hosts, charges in (*running, *placed):
        for limit, amount in charges if hosts else ():
            if is_of_nodes(limit):
                nodes.setdefault(limit, set()).update(hosts)
                amounts[limit] = amounts.get(limit, 0.0) + amount
    return tuple([(limit, amounts[limit] - len(nodes[limit])) for limit in nodes])
