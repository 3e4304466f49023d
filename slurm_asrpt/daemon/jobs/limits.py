"""The site's limits as asrptd follows them: what they are, what is in use, and what Slurm refused all the same.

Limits are read in bulk and rarely; what is in use is counted here, so that a limit that becomes free is used in the
same cycle. Slurm knows limits that asrptd does not. If it refuses a start for one, the scope is learned (this user in
this QOS, say): as many jobs of the scope as run now, and no more, until one of them ends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from slurm_asrpt.core.limits import Charges, Headroom, headroom
from slurm_asrpt.daemon.jobs.managed_job import ManagedJob
from slurm_asrpt.daemon.jobs.site_reader import SiteReader
from slurm_asrpt.slurm.limits import LimitBook, use_of
from slurm_asrpt.slurm.records import RUNNING_STATES, JobRecord
from slurm_asrpt.slurm.request import gpus_of

FIRST_PROBE_S, LAST_PROBE_S = 15.0, 300.0
"""After so long one more job of a refused scope is tried, if none ends before; twice as long after each refusal."""
MOST_KNOWN = 100_000
_counted_by = attrgetter(
    *("user", "account", "qos", "partition", "tres", "licenses", "time_limit", "cpus", "min_nodes"),
    *("tres_per_job", "tres_per_node", "tres_per_task", "tasks", "gpus_by_node"),
)


@dataclass(frozen=True)
class Scope:
    """The jobs that a refusal is about, by the fields of their records that decide it. why: in Slurm's words."""

    why: str
    values: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """As users see it, beside the names of known limits."""
        return f"{self.why} ({', '.join(f'{field} {value}' for field, value in self.values)})"

    def holds(self, record: JobRecord) -> bool:
        return all(getattr(record, field) == value for field, value in self.values)


def scope_of(why: str, record: JobRecord) -> Scope | None:
    """The scope of a refusal; None where it concerns this job alone, or the tasks of its array (JobArrayTaskLimit)."""
    if re.search(r"PerJob|PerNode|WallDuration|Partition|Minimum|BillingMin|JobArray", why):
        return None
    if "Licenses" in why:
        fields: tuple[str, ...] = ("licenses",)
    elif "PerUser" in why:
        fields = ("user", "qos")
    elif "PerAcc" in why:
        fields = ("account", "qos")
    elif why.startswith("QOS"):
        fields = ("qos",)
    else:
        fields = ("user", "account")
    return Scope(why, tuple((field, str(getattr(record, field))) for field in fields))


@dataclass
class _Refusal:
    """most: jobs of the scope that may run at a time. at: when that was learned, or last probed.

    probe_s: seconds until the next probe.
    """

    most: int
    at: float
    probe_s: float = FIRST_PROBE_S


class LimitsWatch:
    """Follows limits and their use."""

    def __init__(self, reader: SiteReader) -> None:
        self._reader = reader
        self._book = LimitBook(reader.site.limits)
        self._any = False
        self._known: dict[Any, Charges] = {}
        self._of_record: dict[str, tuple[JobRecord, Charges]] = {}
        self._running: list[JobRecord] = []
        self._refused: dict[Scope, _Refusal] = {}
        self._holders: set[tuple[str, str, str]] = set()  # those who had jobs when limits were last read

    def follow(self, records: Iterable[JobRecord], now: float) -> None:
        """The jobs as of now, managed or not; the limits, where they are due to be read again."""
        records = list(records)
        self._running = [r for r in records if r.state in RUNNING_STATES and r.state != "COMPLETING"]
        holders = {(r.user, r.account, r.qos) for r in records if not r.has_ended}
        if self._reader.due or not holders <= self._holders:  # slurmctld shows limits of users who have jobs
            self._reader.read()
            self._holders |= holders
        limits = self._reader.site.limits
        if limits is not self._book.limits:
            self._book, self._any = LimitBook(limits), limits.any
            self._known.clear()
            self._of_record.clear()
        if len(self._of_record) > 2 * len(records):
            self._of_record.clear()
        for scope, refusal in list(self._refused.items()):
            self._probe(scope, refusal, now)

    def _probe(self, scope: Scope, refusal: _Refusal, now: float) -> None:
        """Forget a refusal that no longer holds; try one more job from time to time."""
        running = sum(map(scope.holds, self._running))
        if running > refusal.most:
            del self._refused[scope]
        elif now >= refusal.at + refusal.probe_s:
            refusal.most, refusal.at = running + 1, now

    def most_nodes(self, record: JobRecord) -> int | None:
        """The least MaxNodes of the partitions of a job that it fits into; None without one."""
        known = self._reader.site.most_nodes
        found = [known[name] for name in record.partition.split(",") if name in known]
        return min((most for most in found if most >= record.min_nodes), default=None)

    def refused(self, record: JobRecord, why: str, now: float) -> bool:
        """Slurm did not start the job for a limit; whether others of its scope wait with it."""
        scope = scope_of(why, record)
        if scope is None:
            return False
        before = self._refused.get(scope)
        probe_s = FIRST_PROBE_S if before is None else min(LAST_PROBE_S, 2 * before.probe_s)
        self._refused[scope] = _Refusal(sum(map(scope.holds, self._running)), now, probe_s)
        return True

    def charges(self, record: JobRecord) -> Charges:
        """What a job counts for, whether it waits or runs."""
        learned = tuple((scope.name, 1.0) for scope in self._refused if scope.holds(record))
        return self._known_charges(record) + learned

    def _known_charges(self, record: JobRecord) -> Charges:
        """Nearly all records are those of the cycle before."""
        if not self._any:
            return ()
        before = self._of_record.get(record.job_id)
        if before is None or before[0] is not record:
            before = self._of_record[record.job_id] = (record, self._charges_of(record))
        return before[1]

    def _charges_of(self, record: JobRecord) -> Charges:
        key = str(_counted_by(record))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = self._book.charges(use_of(record, gpus_of(record)))
        return found

    def alone(self, charges: Charges, limit: str) -> tuple[float, float] | None:
        """How much a job with these charges counts for, and the limit, if it exceeds the limit by itself."""
        amount, cap = dict(charges).get(limit, 0.0), self._book.caps.get(limit, math.inf)
        return (amount, cap) if amount > cap else None

    def headroom(self, starting: Sequence[ManagedJob]) -> Headroom:
        """What is left beside the running jobs and those that Slurm is about to start."""
        learned = {scope.name: float(refusal.most) for scope, refusal in self._refused.items()}
        in_use = [self.charges(record) for record in self._running]
        in_use += [job.charges or self.charges(job.record) for job in starting]
        return headroom(self._book.caps | learned, in_use)
