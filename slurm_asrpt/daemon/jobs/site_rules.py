"""Slurm's reservations, preemption and fair-share, applied to single jobs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from slurm_asrpt.core.policies.base import band_of
from slurm_asrpt.daemon.jobs.limits import LimitsWatch
from slurm_asrpt.errors import SlurmError, one_line
from slurm_asrpt.slurm.client import SlurmClient, SlurmConfig
from slurm_asrpt.slurm.records import PENDING, JobRecord, NodeRecord, Reservation

T = TypeVar("T")
LOG = logging.getLogger("asrptd")
REREAD_S = 60.0
"""Seconds between reads of preemption and fair-share; Slurm computes fair-share every five minutes."""


class SiteRules:
    """Reservations are read every cycle, the rest once a minute; old values are kept while slurmdbd is down."""

    def __init__(self, client: SlurmClient, slurm: SlurmConfig, fairshare_bands: int) -> None:
        """fairshare_bands: from the settings."""
        self.limits = LimitsWatch(client, slurm.enforces_limits)
        self._client, self._preempt_by, self._bands = client, slurm.preempt_by, fairshare_bands
        self._reservations: list[Reservation] = []
        self._preempting: frozenset[str] = frozenset()
        self._shares: Mapping[tuple[str, str], float] = {}
        self._read = -math.inf
        self._components: dict[str, list[JobRecord]] = {}
        self._logged = ""  # the last error, so that it is not logged every cycle

    def follow(self, nodes: Sequence[NodeRecord], records: Sequence[JobRecord], now: float) -> None:
        """Read what may have changed. records: all jobs."""
        self.limits.follow(records, now)
        self._components = {}
        for record in records:
            if record.het and record.state == PENDING:
                self._components.setdefault(record.het_id, []).append(record)
        client, by = self._client, self._preempt_by
        found = self._latest(lambda: client.reservations(nodes), self._reservations)
        self._reservations = sorted(found, key=lambda r: (r.start, r.name))
        if now < self._read + REREAD_S:
            return
        self._read = now
        if by:
            self._preempting = self._latest(lambda: client.preempting(by), self._preempting)
        if self._bands > 1:
            self._shares = self._latest(client.fair_shares, self._shares)

    def _latest(self, read: Callable[[], T], before: T) -> T:
        """Slurm's answer, or the previous one if it does not answer."""
        try:
            return read()
        except SlurmError as error:
            if str(error) != self._logged:
                self._logged = str(error)
                LOG.warning("%s; the previous answer stays in force", one_line(error))
            return before

    def components(self, record: JobRecord) -> Sequence[JobRecord]:
        """The components of a pending heterogeneous job, given the first one; empty for others."""
        return self._components.get(record.job_id, ()) if record.het else ()

    def ahead(self, record: JobRecord, now: float) -> tuple[Reservation, ...]:
        """Future reservations that the job would reach into by its time limit, which is Slurm's criterion."""
        if not self._reservations:
            return ()
        end = now + (record.time_limit or math.inf)
        return tuple(r for r in self._reservations if now < r.start < end)

    def preempts(self, record: JobRecord) -> bool:
        """Whether its QOS or partition may preempt others. It could not if its start waited for free GPUs."""
        own = {record.qos} if self._preempt_by == "qos" else set(record.partition.split(","))
        return not self._preempting.isdisjoint(own)

    def band(self, record: JobRecord) -> int:
        """Its fair-share band, 0 for the least served users; users without a factor are in the last, as in Slurm."""
        if self._bands < 2:
            return 0
        return band_of(self._shares.get((record.user, record.account), 0.0), self._bands)
