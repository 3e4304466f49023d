"""Slurm's reservations, preemption, limits and priorities, applied to single jobs."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from slurm_asrpt.core.cluster import ClusterView
from slurm_asrpt.core.job import JobId, PreemptionClass
from slurm_asrpt.core.policies.base import band_of
from slurm_asrpt.core.slurm_preemption import Preemptable, PreemptableJob
from slurm_asrpt.daemon.jobs.limits import LimitsWatch
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.node_owners import NodeOwners
from slurm_asrpt.daemon.jobs.priorities import PriorityWatch
from slurm_asrpt.daemon.jobs.site_reader import SiteReader
from slurm_asrpt.daemon.log_once import LogOnce
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.slurm.node_list import expand
from slurm_asrpt.slurm.partitions import within_partitions
from slurm_asrpt.slurm.preemption import PreemptionRules
from slurm_asrpt.slurm.records import PENDING, RUNNING_STATES, JobRecord, NodeRecord, Reservation
from slurm_asrpt.slurm.request import LeftToSlurm, resources_of

T = TypeVar("T")
REREAD_S = 60.0
"""Seconds between reads of preemption and fair-share; Slurm computes fair-share every five minutes."""
_OCCUPY = RUNNING_STATES - {"COMPLETING"}


class SiteRules:
    """Reservations are read in each cycle, preemption and fair shares once a minute, limits and priorities rarely.

    While Slurm or slurmdbd does not answer, the previous ones stay in force.
    """

    def __init__(self, client: SlurmClient, slurm: SlurmConfig, fairshare_bands: int, preempting: bool) -> None:
        """fairshare_bands: from the settings. preempting: whether the policy counts on preemption."""
        reader = SiteReader(client)
        self.limits, self.priorities = LimitsWatch(reader), PriorityWatch(reader)
        self.owners, self._reader = NodeOwners(), reader
        self._counted: dict[str, tuple[JobRecord, Any, JobRecord]] = {}  # nearly all are as in the cycle before
        self._client, self._slurm, self._bands, self._preempting = client, slurm, fairshare_bands, preempting
        self._reservations: list[Reservation] = []
        self._of_cores: list[Reservation] = []
        self._named: frozenset[str] = frozenset()  # reservations that pending jobs name
        self._preemption = PreemptionRules()
        self._classes: dict[tuple[str, str], PreemptionClass | LeftToSlurm | None] = {}  # by QOS and partition
        self._records: Sequence[JobRecord] = ()
        self._shares: Mapping[tuple[str, str], float] = {}
        self._read = -math.inf
        self._components: dict[str, list[JobRecord]] = {}
        self._logs = defaultdict[str, LogOnce](LogOnce)  # by what is read

    def follow(self, nodes: Sequence[NodeRecord], records: Sequence[JobRecord], now: float) -> None:
        """Read what may have changed. records: all jobs."""
        self.limits.follow(records, now, nodes)
        self.owners.follow(records)
        self._components = {}
        for record in records:
            if record.het and record.state == PENDING:
                self._components.setdefault(record.het_id, []).append(record)
        if len(self._counted) > 2 * len(records):
            self._counted.clear()
        self._records, client, defaults = records, self._client, self._slurm.preemption
        before = [*self._reservations, *self._of_cores]
        found = sorted(
            self._latest("reservations", lambda: client.reservations(nodes), before), key=lambda r: (r.start, r.name)
        )
        self._reservations, self._of_cores = [r for r in found if not r.cores], [r for r in found if r.cores]
        self._named = frozenset([record.reservation for record in records if record.state == PENDING])
        if now < self._read + REREAD_S:
            return
        self._read = now
        if defaults.by:
            self._preemption = self._latest("preemption", lambda: client.preemption(defaults), self._preemption)
            self._classes.clear()
        if self._bands > 1:
            self._shares = self._latest("fair shares", client.fair_shares, self._shares)

    def _latest(self, what: str, read: Callable[[], T], before: T) -> T:
        """Slurm's answer, or the previous one if it does not answer."""
        try:
            found = read()
        except SlurmError as error:
            self._logs[what].trouble(f"{one_line(error)}; the previous answer stays in force")
            return before
        self._logs[what].over()
        return found

    def counted(self, record: JobRecord) -> JobRecord:
        """The job as its partitions count it.

        With what the first one gives for each GPU, in those that would start it.
        """
        site = self._reader.site
        names = record.partition.split(",")
        own = site.gpu_defaults.get(names[0])
        rules = tuple([(name, each) for name in names if (each := site.partitions.get(name)) is not None])
        if own is None and len(names) == 1 and all(each.min_nodes <= record.min_nodes for _, each in rules):
            return record
        before = self._counted.get(record.job_id)
        if before is None or before[0] is not record or before[1] != (own, rules):
            counted = within_partitions(record if own is None else own.applied(record), rules)
            before = self._counted[record.job_id] = (record, (own, rules), counted)
        return before[2]

    @property
    def estimated_bounds(self) -> bool:
        """Whether a job's limit of nodes may be Slurm's estimate."""
        return self._slurm.shows_estimated_bounds

    @property
    def cpu_caps(self) -> Mapping[str, float]:
        """MaxCPUsPerNode of the partitions that have one."""
        known = self._reader.site.partitions
        return {name: each.max_cpus for name, each in known.items() if each.max_cpus < math.inf}

    def components(self, record: JobRecord) -> Sequence[JobRecord]:
        """The components of a pending heterogeneous job, given the first one; empty for others."""
        return list(map(self.counted, self._components.get(record.job_id, ()))) if record.het else ()

    def barring(self, record: JobRecord, now: float) -> tuple[Reservation, ...]:
        """The reservations whose nodes the job must not use.

        Those to come that it would reach into by its time limit, which is what Slurm goes by (or by its --time-min, to
        which Slurm may shorten it); and those that hold now and do not admit it: for a second or two, Slurm does not
        show yet that their nodes are reserved.
        """
        if not self._reservations:
            return ()
        end = now + (record.time_min or record.time_limit or math.inf)
        ahead = [r for r in self._reservations if now < r.start < end and r.name != record.reservation]
        return (*ahead, *(r for r in self._active(now) if not self._admits(r, record, now)))

    def may_be_shortened(self, record: JobRecord, now: float) -> bool:
        """Whether Slurm may have to shorten the job to its --time-min, so that it ends before a reservation begins."""
        if not (record.time_min and self._reservations):
            return False
        end = now + (record.time_limit or math.inf)
        return any(now < r.start < end and r.name != record.reservation for r in self._reservations)

    def maintenance_of(self, record: JobRecord, now: float) -> Reservation | None:
        """The next maintenance of the nodes of a running job, if the job may still run then."""
        end = record.start_time + (record.time_limit or math.inf)
        ahead = (r for r in self._reservations if r.maintenance and now < r.start < end)
        return next((r for r in ahead if not r.nodes.isdisjoint(record.hosts)), None)

    def admitting(self, record: JobRecord, now: float) -> tuple[Reservation, ...]:
        """The reservations that the job may run in: the one that it names, or the magnetic ones that draw it.

        Raises LeftToSlurm if asrptd does not plan in the one that it names.
        """
        if not record.reservation:
            return tuple(r for r in self._active(now) if self._admits(r, record, now)) if self._reservations else ()
        own = tuple(r for r in self._reservations if r.plain and r.admits(record) and now < r.end)
        if not own:
            raise LeftToSlurm("reservation")
        return own

    def _admits(self, reservation: Reservation, record: JobRecord, now: float) -> bool:
        """Whether Slurm would start the job in this active reservation now."""
        if record.reservation or reservation.flex or not self._slurm.draws_by_time_limit:
            return reservation.admits(record)
        return reservation.admits(record) and now + (record.time_limit or math.inf) <= reservation.end

    def open_nodes(self, now: float) -> frozenset[str]:
        """Nodes that are reserved for some of the jobs that asrptd starts, or of which some cores are reserved."""
        active = self._active(now)
        shared = _nodes(r for r in self._of_cores if r.start <= now < r.end)
        open_ones = _nodes(filter(self._is_open, active))
        return (shared | open_ones) - _nodes(r for r in active if not self._is_open(r))

    def beside_reserved_cores(self, nodes: list[NodeRecord], now: float) -> list[NodeRecord]:
        """The nodes as jobs see them that name no reservation: its idle cores are not for them."""
        idle = Counter[str]()
        threads = {node.name: node.threads for node in nodes}
        for reservation in (r for r in self._of_cores if r.start <= now < r.end):
            used = self._used_in(reservation.name)
            for name, cores in reservation.cores:
                idle[name] += max(0, cores * threads.get(name, 1) - used[name])
        if not idle:
            return nodes
        return [replace(n, cpus_used=min(n.cpus, n.cpus_used + idle[n.name])) for n in nodes]

    def _used_in(self, reservation: str) -> Counter[str]:
        """The CPUs of each node that jobs of a reservation use; those of a job are divided equally."""
        used = Counter[str]()
        for record in self._records:
            if record.reservation == reservation and record.state in RUNNING_STATES:
                names = expand(record.nodes)
                used.update(dict.fromkeys(names, record.cpus // max(1, len(names))))
        return used

    def _active(self, now: float) -> list[Reservation]:
        return [r for r in self._reservations if r.start <= now < r.end]

    def _is_open(self, reservation: Reservation) -> bool:
        """Whether asrptd may start jobs in it: it is magnetic, or pending jobs name it."""
        return reservation.magnetic or (reservation.plain and reservation.name in self._named)

    def preemption_class(self, record: JobRecord) -> PreemptionClass | None:
        """Which jobs it may preempt, and which may preempt it; None where no job may. Raises LeftToSlurm."""
        if not self._preemption.kinds:
            return None
        key = (record.qos, record.partition)
        if key not in self._classes:
            self._classes[key] = self._class_of(record)
        found = self._classes[key]
        if isinstance(found, LeftToSlurm):
            raise LeftToSlurm(found.why)
        return found

    def _class_of(self, record: JobRecord) -> PreemptionClass | LeftToSlurm | None:
        rules = self._preemption
        if not rules.is_manageable(record):
            return LeftToSlurm("suspends")
        preempts = rules.preempts(record)
        if not self._preempting:
            return LeftToSlurm("preempts") if preempts else None
        kind = rules.kind_of(record)
        return PreemptionClass(kind, preempts) if preempts or kind in rules.preempted else None

    def preemptable(self, claimed: Mapping[str, int], view: ClusterView, now: float) -> Preemptable | None:
        """The running jobs that others may preempt.

        claimed: GPUs by node that jobs about to start need and that are not free. view: what Slurm shows as
        free.
        """
        rules = self._preemption
        if not (rules.kinds and self._preempting):
            return None
        jobs = tuple(_preemptable(record, rules.kind_of(record), now) for record in rules.victims(self._records, now))
        return Preemptable(jobs, self._from_running(claimed, view)) if jobs else None

    def _from_running(self, claimed: Mapping[str, int], view: ClusterView) -> dict[str, int]:
        """What jobs about to start take from running jobs, by node.

        GPUs that are neither free nor a known job's are taken already: the jobs there have ended and the node cleans
        up, or one that was about to start has started since the jobs were read, which is before the nodes are.
        """
        known = Counter[str]()
        for record in self._records if claimed else ():
            if record.state in _OCCUPY:
                known.update(record.gpus_by_node)
        taken = {name: view.by_name[name].gpus - view.free[name] - known[name] for name in claimed.keys() & view.free}
        rest = {name: count - max(0, taken.get(name, 0)) for name, count in claimed.items()}
        return {name: count for name, count in rest.items() if count > 0}

    def end_s(self, kinds: frozenset[str]) -> float:
        """How long jobs of these kinds may take to end once Slurm preempts them, seconds."""
        return self._preemption.end_s(kinds) if kinds else 0.0

    def kinds_of(self, victims: Sequence[PreemptableJob]) -> str:
        """The QOS or partitions of these jobs, for users."""
        word = "QOS" if self._slurm.preemption.by == "qos" else "partition"
        return f"{word} {', '.join(sorted({victim.kind for victim in victims}))}"

    def rank(self, jobs: Sequence[ManagedJob], now: float) -> None:
        """Rank the pending jobs by the site's priorities."""
        self.priorities.follow(jobs, now)

    def band(self, job: ManagedJob) -> tuple[int, float]:
        """Its band: the lowest for the highest priority, and within it for the least served users; and its weight."""
        number, weight = self.priorities.rank(job)
        return number * max(1, self._bands) + self._fairshare_band(job.record), weight

    def _fairshare_band(self, record: JobRecord) -> int:
        """0 for the least served users; users without a factor are in the last, as in Slurm."""
        if self._bands < 2:
            return 0
        return band_of(self._shares.get((record.user, record.account), 0.0), self._bands)


def _nodes(reservations: Iterable[Reservation]) -> frozenset[str]:
    return frozenset(name for reservation in reservations for name in reservation.nodes)


def _preemptable(record: JobRecord, kind: str, now: float) -> PreemptableJob:
    gpus = sum(record.gpus_by_node.values())
    lost = gpus * max(0.0, now - record.start_time)
    return PreemptableJob(JobId(record.job_id), kind, record.gpus_by_node, lost, resources_of(record, gpus))
