"""One cycle of asrptd: read Slurm, tell the policy what happened, let it decide, write the decisions back."""

from __future__ import annotations

from typing import Any

from slurm_asrpt.daemon.clock import CycleTimer
from slurm_asrpt.daemon.decider import Decider
from slurm_asrpt.daemon.eligibility import Eligibility
from slurm_asrpt.daemon.jobs.site_rules import SiteRules
from slurm_asrpt.daemon.lifecycle import JobLifecycle
from slurm_asrpt.daemon.record.audit import AuditWriter
from slurm_asrpt.daemon.slurm_writer import SlurmWriter
from slurm_asrpt.daemon.state import StateSaver
from slurm_asrpt.daemon.topology import TopologyWatch
from slurm_asrpt.daemon.writes.leases import Leases
from slurm_asrpt.daemon.writes.rank_maps import RankMaps
from slurm_asrpt.slurm.client import SlurmClient
from slurm_asrpt.slurm.records import with_parts_and_indexes


class SlurmReader:
    """Brings jobs, nodes and the site's rules up to date with Slurm. Methods may raise SlurmError."""

    def __init__(
        self, client: SlurmClient, lifecycle: JobLifecycle, rules: SiteRules, leases: Leases, topology: TopologyWatch
    ) -> None:
        self.client = client
        self._lifecycle, self._rules, self._leases, self._topology = lifecycle, rules, leases, topology

    def read(self, now: float, timer: CycleTimer) -> None:
        self._leases.cycle_began()
        domains = bool(self._lifecycle.cluster.fabric.domain)
        records, nodes = with_parts_and_indexes(self.client.jobs(), self.client.nodes(), domains)
        timer.done("read")
        self._rules.follow(nodes, records, now)
        self._topology.follow(now)
        self._lifecycle.cluster.follow_cpu_caps(self._rules.cpu_caps, records)
        nodes = self._rules.beside_reserved_cores(nodes, now)
        self._lifecycle.follow_nodes(nodes, now, self._rules.open_nodes(now))
        self._lifecycle.follow_jobs(records, now)
        timer.done("decide")


class Scheduler:
    """Lets a policy schedule the managed jobs. ``scheduling.py`` creates one."""

    def __init__(
        self,
        reader: SlurmReader,
        eligibility: Eligibility,
        decider: Decider,
        writer: SlurmWriter,
        saver: StateSaver,
        rank_maps: RankMaps,
        audit: AuditWriter,
        clock: Any,
    ) -> None:
        self.reader, self.eligibility, self.decider, self.writer = reader, eligibility, decider, writer
        self.timer = CycleTimer(clock.monotonic)
        self._saver, self._rank_maps, self._audit, self._clock = saver, rank_maps, audit, clock

    def cycle(self, now: float) -> float | None:
        """Run one cycle. Returns the time at which the next decision is due. Raises SlurmError.

        It is due at once if tasks were split from an array without a queued task, because they may start, or if starts
        were left to Slurm that is about to make them.
        """
        self.timer.start()
        lines = self._audit.lines
        self._saver.cycle_began(now)
        self.reader.read(now, self.timer)
        self.writer.undo(now)
        self.timer.done("write")
        self.eligibility.update(now)
        starts = self.decider.decide(now)
        self.timer.done("decide")
        at_once = self.writer.write(starts, now)
        self.timer.done("write")
        if self._audit.lines > lines:
            self.decider.record_cycle(self.timer.seconds, now)
        self._audit.flush()
        return now if at_once else self.decider.policy.next_wakeup(now)

    def between_cycles(self, pause_s: float) -> None:
        """Do slow work that does not delay decisions, in a pause of ``pause_s``. Raises SlurmError, OSError."""
        self._saver.save(self._clock.time())  # the results of the updates, in case asrptd dies before the next cycle
        self._rank_maps.write(pause_s)
        self.reader.client.catch_up()
